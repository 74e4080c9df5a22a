/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The lab's packet source: an XDP program that BPF_PROG_TEST_RUN runs on live frames.
 *
 * User space (fwtop/lab/traffic/plan.py) builds templates with valid headers. For every frame this program copies
 * the next template of the schedule, rewrites the fields that the scenario varies (source, destination, ports,
 * id, seq, TTL, some payload), completes the checksums, and sends the frame back out of the interface it "came
 * in" on: to the veth's peer.
 *
 * The checksums of a template leave out all rewritten fields, so completing them means adding the new words.
 * Templates and sources hold their own counters, as there is one sender on one CPU.
 *
 * FRAME_BYTES, TEMPLATES, SOURCES and SLOTS come from the loader as -D.
 */
#include "flood.h"

#define SMALL 128 /* bytes: frames up to this length are copied word by word */

BPF_ARRAY(states, struct state, 1);
BPF_ARRAY(budget, u32, 1); /* frames left to send in this call; further ones are dropped */
BPF_ARRAY(schedule, u32, SLOTS);
BPF_ARRAY(packets, struct packet, TEMPLATES);
BPF_ARRAY(sources, struct source, SOURCES);

/* Choose the packet's source; later fragments keep that of the first one. */
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

/* Copy a template into a frame of its length; small ones word by word, which is cheaper than the helper. */
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
	asm volatile("" : "+r"(length)); /* or clang subtracts it from the pointer, which the verifier can't bound */
	to += length;
	if (to + 8 > end)
		return -1;
	*(u64 *)to = *(u64 *)(p->data + length);
	return 0;
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
	asm volatile("" : "+r"(length)); /* or clang merges both bounds checks into one that the verifier doesn't understand */
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
