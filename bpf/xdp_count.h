/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What a rule counts of a packet that it drops, or would drop. */
#ifndef FWTOP_XDP_COUNT_H
#define FWTOP_XDP_COUNT_H

#include "xdp.h"

/* Generated: counts for the source prefixes of a rule that has some. */
INLINE void count_source(u32 slot, u32 family, u64 hi, u64 lo, u64 packets);

INLINE void xdp_add(struct xdp_count *counter, u64 packets, u64 bytes)
{
	counter->packets += packets;
	counter->bytes += bytes;
}

/* Count a packet for its source prefix. An untagged frame may not have been parsed: then the addresses are
 * at their usual offset. */
INLINE void count_prefix_of(struct frame *f, struct xdp_counters *counters, u32 slot)
{
	u32 family = counters->view.family;
	u64 hi = counters->view.src_hi, lo = counters->view.src_lo;
	u8 *ip = f->data + 14;

	if (ip + 40 <= f->end && BE16(ip - 2) == 0x86dd) {
		family = 6;
		hi = BE64(ip + 8);
		lo = BE64(ip + 16);
	} else if (ip + 20 <= f->end && BE16(ip - 2) == 0x0800) {
		family = 4;
		lo = BE32(ip + 12);
	}
	OPAQUE(family);
	count_source(slot, family, hi, lo, f->packets);
}

INLINE void count_rule(struct frame *f, struct xdp_counters *counters, u32 slot, u32 wire)
{
	xdp_add(&counters->rules[slot], f->packets, wire);
	count_prefix_of(f, counters, slot);
}

#endif
