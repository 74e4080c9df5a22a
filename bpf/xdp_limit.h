/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What of a rule depends on time: when it ends, and its rate. */
#ifndef FWTOP_XDP_LIMIT_H
#define FWTOP_XDP_LIMIT_H

#include "xdp.h"

/* The coarse clock moves with the timer tick, so that it need not be asked for every packet. */
INLINE void tell_time(struct xdp_cell *cell)
{
	u64 tick = bpf_jiffies64();

	if (cell->tick == tick)
		return;
	cell->tick = tick;
	cell->now = bpf_ktime_get_coarse_ns();
}

/* Whether a rule's time has not come. */
INLINE u32 alive(struct xdp_cell *cell, u32 slot)
{
	struct xdp_slot *slots = MAP_VALUE(FWTOP_XDP_SLOTS_FD);

	return cell->now < *(volatile u64 *)&slots[slot].deadline;
}

/* One for each source prefix that a limit counts. */
struct bucket_key {
	u64 hi, lo;
	u32 family, dport;
};

/* Whether a packet is above a rule's rate: the generic cell rate algorithm (ITU-T I.371, annex A), which needs
 * one number a bucket, the time at which it will be empty again, and writes it for packets that pass only.
 * `cost` of the packet and `room` of the bucket are times in 1/64 ns. */
INLINE u32 over_limit(void *buckets, struct bucket_key *key, u64 cost, u64 room)
{
	u64 now = bpf_ktime_get_ns() << 6, empty, *bucket = bpf_map_lookup_elem(buckets, key);

	empty = bucket && *bucket > now ? *bucket : now;
	if (empty + cost > now + (room > cost ? room : cost))
		return 1;
	empty += cost;
	if (bucket)
		*bucket = empty;
	else
		bpf_map_update_elem(buckets, key, &empty, 0);
	return 0;
}

#endif
