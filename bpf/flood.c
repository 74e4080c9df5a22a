/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The lab's packet source: an XDP program that BPF_PROG_TEST_RUN runs on live frames.
 *
 * Packets are built in user space (fwtop/lab/plan.py) as templates with valid headers. For every frame
 * this program takes the next template of the schedule, copies it in, rewrites the few fields that the
 * scenario wants varied (source, destination, ports, id, seq, TTL, some payload), completes the
 * checksums and sends the frame out of the interface it "came in" on, that is, to the veth's far end.
 *
 * The sums in a template leave every rewritten field out, so completing them is adding the new words.
 * Counts are kept in the templates and in the sources themselves: there is one sender and one CPU.
 *
 * FRAME_BYTES, TEMPLATES, SOURCES and SLOTS come from the loader as -D. The structs are mirrored by the
 * dtypes in fwtop/lab/plan.py; a test compares their sizes.
 */

#define REWRITE_SPORT 1
#define REWRITE_DPORT 2
#define REWRITE_ID 4       /* IPv4 identification, or the IPv6 fragment header's at id_at */
#define REWRITE_WORD_4 8   /* 4 bytes at L4 + 4: TCP sequence number, ICMP id and sequence */
#define REWRITE_WORD_8 16  /* 4 bytes at L4 + 8: TCP acknowledgement */
#define REWRITE_TARGET 32  /* destination address */
#define REWRITE_LETTERS 64 /* random payload is of letters a to p */
#define IS_IPV6 128
#define CONTINUES 256      /* keeps source, id and TTL of the packet before: a later fragment */
#define REWRITE_WINDOW 512
#define REWRITE_HALF_8 1024 /* 2 bytes at L4 + 8: the id of a DNS message */
#define NO_PSEUDO 2048       /* ICMP over IPv4: the checksum covers no addresses */

#define SMALL 128
#define RANDOM_WORDS 192 /* 8 bytes each: at most 1,536 random bytes */

struct source {
	u32 base[4];   /* network order; IPv4 in base[0] */
	u32 spread[4]; /* bits that are drawn for each packet */
	u64 packets;
	u64 bytes;
	u8 ttl;
	u8 ttl_spread; /* random bits added to ttl */
	u8 unused[6];
};

struct packet {
	u64 packets;
	u64 bytes;
	u32 ip_sum;
	u32 l4_sum;
	u32 source_first;
	u32 source_count;
	u32 target[4];
	u32 target_spread[4];
	u16 length;
	u16 rewrite;
	u16 l3;
	u16 l4;
	u16 checksum; /* offset of the transport checksum, 0: none */
	u16 id_at;
	u16 sport;
	u16 sport_count;
	u16 dport;
	u16 dport_count;
	u16 random_at;
	u16 random_words;
	u8 data[FRAME_BYTES];
};

struct state {
	u64 random[2];
	u32 schedule_first; /* the slots in use: a phase of the scenario */
	u32 schedule_count;
	u32 position;
	u32 source;
	u32 address[4];
	u32 id;
	u32 ttl;
};

BPF_ARRAY(states, struct state, 1);
BPF_ARRAY(budget, u32, 1); /* frames still to be sent in this call; what comes after is dropped */
BPF_ARRAY(schedule, u32, SLOTS);
BPF_ARRAY(packets, struct packet, TEMPLATES);
BPF_ARRAY(sources, struct source, SOURCES);

/* xorshift128+ (Vigna 2014): a kernel helper call a draw would cost more than the rest. */
static inline u64 draw(struct state *s)
{
	u64 a = s->random[0], b = s->random[1];

	s->random[0] = b;
	a ^= a << 23;
	a ^= a >> 18;
	a ^= b ^ (b >> 5);
	s->random[1] = a;
	return a + b;
}

/* A number below count, from 16 random bits. */
static inline u32 below(u32 bits, u32 count)
{
	return ((bits & 0xffff) * count) >> 16;
}

static inline u16 fold(u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static inline u16 network16(u16 value)
{
	return __builtin_bswap16(value);
}

/* Choose where the packet seems to come from; a later fragment keeps its first one's choice. */
static inline struct source *choose_source(struct state *s, struct packet *p)
{
	u64 a, b, c;
	u32 slot = s->source;
	struct source *from;

	if (p->rewrite & CONTINUES)
		return sources.lookup(&slot);
	a = draw(s);
	slot = p->source_first + (u32)(((a & 0xffffffff) * p->source_count) >> 32);
	from = sources.lookup(&slot);
	if (!from)
		return NULL;
	s->source = slot;
	s->id = a >> 32;
	b = draw(s);
	s->ttl = from->ttl + ((b >> 48) & from->ttl_spread);
	s->address[0] = from->base[0] | ((u32)b & from->spread[0]);
	if (p->rewrite & IS_IPV6) {
		c = draw(s);
		s->address[1] = from->base[1] | ((u32)(b >> 32) & from->spread[1]);
		s->address[2] = from->base[2] | ((u32)c & from->spread[2]);
		s->address[3] = from->base[3] | ((u32)(c >> 32) & from->spread[3]);
	}
	return from;
}

static inline u64 write_ipv4(struct state *s, struct packet *p, u8 *ip)
{
	u64 sum = p->ip_sum, pseudo = s->address[0];
	u16 id;

	*(u32 *)(ip + 12) = s->address[0];
	if (p->rewrite & REWRITE_TARGET) {
		u32 target = p->target[0] | ((u32)draw(s) & p->target_spread[0]);

		*(u32 *)(ip + 16) = target;
		pseudo += target;
	}
	sum += pseudo;
	if (p->rewrite & REWRITE_ID) {
		id = s->id;
		*(u16 *)(ip + 4) = id;
		sum += id;
	}
	ip[8] = s->ttl;
	sum += network16((s->ttl & 0xff) << 8);
	*(u16 *)(ip + 10) = fold(sum);
	return pseudo;
}

static inline u64 write_ipv6(struct state *s, struct packet *p, u8 *ip)
{
	u64 pseudo = (u64)s->address[0] + s->address[1] + s->address[2] + s->address[3];
	u32 *to = (u32 *)(ip + 8);
	int i;

	ip[7] = s->ttl;
	to[0] = s->address[0];
	to[1] = s->address[1];
	to[2] = s->address[2];
	to[3] = s->address[3];
	if (p->rewrite & REWRITE_TARGET) {
		u64 bits = draw(s);
		u32 low = p->target[3] | ((u32)bits & p->target_spread[3]);
		u32 high = p->target[2] | ((u32)(bits >> 32) & p->target_spread[2]);

		to[6] = high;
		to[7] = low;
		pseudo += (u64)high + low;
	}
	return pseudo;
}

static inline u64 write_ports(struct state *s, struct packet *p, u8 *l4, void *end)
{
	u64 bits, sum = 0;
	u16 port;

	if (!(p->rewrite & (REWRITE_SPORT | REWRITE_DPORT)) || l4 + 4 > (u8 *)end)
		return 0;
	bits = draw(s);
	if (p->rewrite & REWRITE_SPORT) {
		port = network16(p->sport + below(bits, p->sport_count));
		*(u16 *)l4 = port;
		sum += port;
	}
	if (p->rewrite & REWRITE_DPORT) {
		port = network16(p->dport + below(bits >> 16, p->dport_count));
		*(u16 *)(l4 + 2) = port;
		sum += port;
	}
	return sum;
}

static inline u64 write_words(struct state *s, struct packet *p, u8 *l4, void *end)
{
	u64 bits, sum = 0;
	u16 half;

	if (!(p->rewrite & (REWRITE_WORD_4 | REWRITE_WORD_8 | REWRITE_WINDOW | REWRITE_HALF_8)))
		return 0;
	if (l4 + 16 > (u8 *)end)
		return 0;
	bits = draw(s);
	if (p->rewrite & REWRITE_WORD_4) {
		*(u32 *)(l4 + 4) = bits;
		sum += (u32)bits;
	}
	if (p->rewrite & REWRITE_WORD_8) {
		*(u32 *)(l4 + 8) = bits >> 32;
		sum += bits >> 32;
	}
	if (p->rewrite & REWRITE_WINDOW) {
		half = draw(s);
		*(u16 *)(l4 + 14) = half;
		sum += half;
	}
	if (p->rewrite & REWRITE_HALF_8) {
		half = bits >> 32;
		*(u16 *)(l4 + 8) = half;
		sum += half;
	}
	return sum;
}

static inline u64 write_payload(struct state *s, struct packet *p, u8 *data, void *end)
{
	u8 *at = data + (p->random_at & 0x7ff);
	u64 word, sum = 0;
	u32 i;

#pragma clang loop unroll(disable)
	for (i = 0; i < RANDOM_WORDS; i++) {
		if (i >= p->random_words || at + 8 > (u8 *)end)
			break;
		word = draw(s);
		if (p->rewrite & REWRITE_LETTERS)
			word = (word & 0x0f0f0f0f0f0f0f0fULL) + 0x6161616161616161ULL;
		*(u64 *)at = word;
		sum += (word & 0xffffffff) + (word >> 32);
		at += 8;
	}
	/* Words at an odd offset lie across the checksum's words: their sum is swapped (RFC 1071, 2 (B)). */
	return p->random_at & 1 ? network16((u16)~fold(sum)) : sum;
}

static inline struct packet *next_packet(struct state *s)
{
	u32 slot = s->schedule_first + s->position;
	u32 *number = schedule.lookup(&slot);

	s->position = s->position + 1 < s->schedule_count ? s->position + 1 : 0;
	if (!number)
		return NULL;
	slot = *number;
	return packets.lookup(&slot);
}

static inline void count(struct packet *p, struct source *from, u32 length)
{
	p->packets++;
	p->bytes += length;
	from->packets++;
	from->bytes += length;
}

/* Copy a template into the frame, which has its length: small ones word by word, cheaper than the helper. */
static inline int copy(struct xdp_md *ctx, struct packet *p, u64 length)
{
	u8 *to = (u8 *)(long)ctx->data, *end = (u8 *)(long)ctx->data_end;
	u32 i;

	if (length > SMALL)
		return bpf_xdp_store_bytes(ctx, 0, p->data, length);
	if (to + 56 > end)
		return -1;
#pragma unroll
	for (i = 0; i < 7; i++)
		((u64 *)to)[i] = ((u64 *)p->data)[i];
#pragma clang loop unroll(disable)
	for (i = 56; i < SMALL; i += 8) {
		if (i + 8 > length || to + i + 8 > end)
			break;
		*(u64 *)(to + i) = *(u64 *)(p->data + i);
	}
	length -= 8;
	asm volatile("" : "+r"(length)); /* or it is subtracted from the pointer, which the verifier can't bound */
	to += length;
	if (to + 8 > end)
		return -1;
	*(u64 *)to = *(u64 *)(p->data + length);
	return 0;
}

static inline void complete(struct packet *p, u8 *data, void *end, u64 sum)
{
	u16 *checksum = (u16 *)(data + (p->checksum & 0xff));
	u16 value;

	if (!p->checksum || (void *)(checksum + 1) > end)
		return;
	value = fold(sum + p->l4_sum);
	*checksum = value ? value : 0xffff; /* 0 means "none" in UDP (RFC 768); both are zero elsewhere */
}

int flood(struct xdp_md *ctx)
{
	u32 zero = 0;
	u64 length, present;
	struct state *s = states.lookup(&zero);
	u32 *left = budget.lookup(&zero);
	struct packet *p;
	struct source *from;
	u64 sum;
	u8 *data, *ip, *l4;
	void *end;

	if (!s || !left || !*left)
		return XDP_DROP;
	*left -= 1;
	p = next_packet(s);
	if (!p)
		return XDP_DROP;
	length = p->length;
	if (length < 60)
		return XDP_DROP;
	asm volatile("" : "+r"(length)); /* or clang merges both bounds into one that the verifier can't use */
	if (length > FRAME_BYTES)
		return XDP_DROP;
	present = (u64)(long)ctx->data_end - (u64)(long)ctx->data;
	if (length != present && bpf_xdp_adjust_tail(ctx, (int)(length - present)))
		return XDP_DROP;
	if (copy(ctx, p, length))
		return XDP_DROP;
	from = choose_source(s, p);
	if (!from)
		return XDP_DROP;

	data = (u8 *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	ip = data + (p->l3 & 0x1f);
	if (p->rewrite & IS_IPV6) {
		if (ip + 40 > (u8 *)end)
			return XDP_DROP;
		sum = write_ipv6(s, p, ip);
	} else {
		if (ip + 20 > (u8 *)end)
			return XDP_DROP;
		sum = write_ipv4(s, p, ip);
	}
	if (p->rewrite & NO_PSEUDO)
		sum = 0;
	if (p->id_at) {
		u8 *id = data + (p->id_at & 0xff);

		if (id + 4 <= (u8 *)end)
			*(u32 *)id = s->id;
	}
	l4 = data + (p->l4 & 0xff);
	sum += write_ports(s, p, l4, end);
	sum += write_words(s, p, l4, end);
	sum += write_payload(s, p, data, end);
	complete(p, data, end, sum);
	count(p, from, length);
	return XDP_TX;
}
