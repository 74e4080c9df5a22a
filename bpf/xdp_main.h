/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The programs around the compiled rules: count matching packets exactly, sample them 1 in N, drop them. */
#ifndef FWTOP_XDP_MAIN_H
#define FWTOP_XDP_MAIN_H

#include "xdp_count.h"
#include "xdp_limit.h"
#include "xdp_parse.h"
#ifdef FWTOP_PLAIN
#include "xdp_plain.h"
#endif

INLINE struct xdp_counters *this_cpu_xdp_counters(void)
{
	struct xdp_counters *all = MAP_VALUE(FWTOP_XDP_COUNTERS_FD);
	u64 cpu = bpf_get_smp_processor_id();

	OPAQUE(cpu);
	return cpu < FWTOP_CPUS ? all + cpu : NULL;
}

/* As class_of_protocol in ingress.c. */
INLINE u32 xdp_class(u32 protocol)
{
	return protocol == 6 ? 0 : protocol == 17 ? 1 : protocol == 1 ? 2 : protocol == 58 ? 3 :
	       protocol == 47 ? 4 : protocol == 50 ? 5 : 6;
}

/* Evaluate any frame: sets counters->slot to the slot of the matching rule, or XDP_NONE to pass.
 *
 * The result goes through the map because the verifier then doesn't know the slot, and checks the code that
 * follows once instead of once for each rule. */
INLINE void evaluate(struct frame *f, struct xdp_counters *counters, u32 wire)
{
	struct view *p = &counters->view;

	__builtin_memset(p, 0, sizeof(*p));
	p->wire = wire;
	parse(f, p);
	if (p->malformed)
		counters->parse_errors++;
	counters->protocol = p->protocol;
	counters->slot = p->family == 0 ? XDP_NONE : any_verdict(f, p, counters);
	BARRIER();
	if (counters->slot < XDP_MAX_RULES && (any_allowed(f, p) || any_neighbour(p)))
		counters->slot = XDP_NONE;
}

#ifndef FWTOP_TC

/* N of 1 in N; 0: no console wants samples. */
INLINE u32 xdp_one_in(void)
{
	u32 n = *(volatile u32 *)MAP_VALUE(FWTOP_XDP_CONTROL_FD);

	return n > 1 << 18 ? 1 << 18 : n;
}

/* A countdown with a random start, as in counters.h, which is cut short when N falls. Returns how many packets the
 * sampled one stands for, or 0. */
INLINE u32 xdp_sampled(struct xdp_counters *counters)
{
	u32 left = counters->left, n = xdp_one_in(), weight;

	if (n == 0)
		return 0;
	if (left > 1 && left <= 2 * n) {
		counters->left = left - 1;
		return 0;
	}
	weight = left > 1 ? n : counters->drawn;
	counters->drawn = n;
	counters->left = n > 1 ? 1 + bpf_get_prandom_u32() % (2 * n - 1) : 1;
	return weight ? weight : 1;
}

/* Leaves out samples when a ring fills faster than its console adapts N, as one_in() in counters.h does: a rule may
 * begin to drop ten times as much at once. Returns how many packets this sample stands for, 0 to leave it out. */
INLINE u32 xdp_thinned(void *ring, u32 weight)
{
	u64 size = bpf_ringbuf_query(ring, 1 /* BPF_RB_RING_SIZE */);
	u64 pending = bpf_ringbuf_query(ring, 0 /* BPF_RB_AVAIL_DATA */);
	u32 least;

	if (pending <= size / 2)
		return weight;
	least = 2 << (((pending - size / 2) / (size / 32)) & 15);
	if (weight >= least)
		return weight;
	return bpf_get_prandom_u32() % least < weight ? least : 0;
}

INLINE void xdp_emit(struct xdp_md *ctx, struct xdp_counters *counters, void *ring, u32 weight, u32 number, u32 wire)
{
	u64 size = ctx->data_end - ctx->data;
	struct fwtop_record *record;

	weight = xdp_thinned(ring, weight);
	if (!weight)
		return;
	record = bpf_ringbuf_reserve(ring, sizeof(*record), 0);
	if (!record) {
		counters->lost++;
		return;
	}
	record->time_ns = bpf_ktime_get_ns();
	record->one_in = weight;
	record->length = wire;
	record->ifindex = ctx->ingress_ifindex;
	record->segments = 1;
	record->reason = 0;
	record->rule = number;
	record->hook = FWTOP_XDP;
	record->link = 1;
	record->reserved = 0;
	__builtin_memset(record->data, 0, FWTOP_DATA);
	OPAQUE(size);
	if (size > FWTOP_DATA)
		size = FWTOP_DATA;
	/* Kernels before 6.8 derive no bound from size != 0; no frame is shorter than its header */
	record->captured = size < 14 || bpf_xdp_load_bytes(ctx, 0, record->data, size) ? 0 : size;
	bpf_ringbuf_submit(record, 1 /* BPF_RB_NO_WAKEUP */);
}

PROGRAM(fwtop_xdp)
int fwtop_xdp(struct xdp_md *ctx)
{
	struct frame f = {(u8 *)(long)ctx->data, (u8 *)(long)ctx->data_end, 1};
	u32 wire = ctx->data_end - ctx->data, slot, weight, number;
	struct xdp_slot *slots = MAP_VALUE(FWTOP_XDP_SLOTS_FD);
	struct xdp_counters *counters = this_cpu_xdp_counters();

	if (!counters)
		return XDP_PASS;
	update_clock(counters);
	counters->slot = NOT_PLAIN;
#ifdef FWTOP_PLAIN
	if (wire <= PLAIN_BYTES)
		evaluate_plain(&f, counters, wire);
#endif
	if (counters->slot == NOT_PLAIN) {
		wire = bpf_xdp_get_buff_len(ctx);
		evaluate(&f, counters, wire);
	}
	BARRIER();
	slot = counters->slot;
	if (slot >= XDP_MAX_RULES)
		return XDP_PASS;
	count_rule(&f, counters, slot, wire);
	xdp_add(&counters->classes[xdp_class(counters->protocol)], 1, wire);
	weight = xdp_sampled(counters);
	if (!weight)
		return XDP_DROP;
	number = slots[slot & (XDP_MAX_RULES - 1)].number;
	for (u32 i = 0; i < XDP_RINGS; i++) {
		u32 key = i;
		void *ring = bpf_map_lookup_elem(MAP(FWTOP_XDP_RINGS_FD), &key);

		if (ring)
			xdp_emit(ctx, counters, ring, weight, number, wire);
	}
	return XDP_DROP;
}

#else

#define NEXT (-1) /* TCX_NEXT: continue with the next program */
#define SHOT 2
#define READ_BYTES 256 /* of headers and payload that must be linear */

/* At tc the observers sample arrivals and drops; this program only counts. */
PROGRAM(fwtop_tc)
int fwtop_tc(struct __sk_buff *skb)
{
	u32 linear = skb->data_end - skb->data, segments = skb->gso_segs, slot;
	struct xdp_counters *counters = this_cpu_xdp_counters();
	struct frame f;

	if (!counters)
		return NEXT;
	if (linear < READ_BYTES && linear < skb->len)
		bpf_skb_pull_data(skb, skb->len < READ_BYTES ? skb->len : READ_BYTES);
	f.data = (u8 *)(long)skb->data;
	f.end = (u8 *)(long)skb->data_end;
	f.packets = segments ? segments : 1;
	linear = f.end - f.data;
	update_clock(counters);
	counters->slot = NOT_PLAIN;
#ifdef FWTOP_PLAIN
	if (linear >= READ_BYTES || linear == skb->len)
		evaluate_plain(&f, counters, skb->len);
#endif
	if (counters->slot == NOT_PLAIN)
		evaluate(&f, counters, skb->len);
	BARRIER();
	slot = counters->slot;
	if (slot >= XDP_MAX_RULES)
		return NEXT;
	count_rule(&f, counters, slot, skb->len);
	return SHOT;
}

#endif
#endif
