/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The lab's packet source: its tables, and how it rewrites the fields of a template.
 *
 * fwtop/lab/traffic/plan.py mirrors the structs as dtypes; a test compares their sizes. Functions that write fields
 * return their one's complement sum, which completes the template's checksum (RFC 1071).
 */
#ifndef FWTOP_FLOOD_H
#define FWTOP_FLOOD_H

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

static inline void complete(struct packet *p, u8 *data, void *end, u64 sum)
{
	u16 *checksum = (u16 *)(data + (p->checksum & 0xff));
	u16 value;

	if (!p->checksum || (void *)(checksum + 1) > end)
		return;
	value = fold(sum + p->l4_sum);
	*checksum = value ? value : 0xffff; /* 0 means "none" in UDP (RFC 768); both are zero elsewhere */
}

#endif
