/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The exact counters and the samplers' state, one cell a CPU, in a map that the console has mapped.
 *
 * The second contract of kernel and user space: fwtop/collect/cell.py has the same layout, and a test
 * compares the two. FWTOP_CPUS, FWTOP_REASONS and FWTOP_WATCHED come from the loader.
 */
#ifndef FWTOP_CELL_H
#define FWTOP_CELL_H

#include "kernel.h"
#include "record.h"

enum fwtop_class {
	FWTOP_TCP,
	FWTOP_UDP,
	FWTOP_ICMP,
	FWTOP_ICMP6,
	FWTOP_GRE,
	FWTOP_ESP,
	FWTOP_OTHER_IP,
	FWTOP_NOT_IP,
	FWTOP_CLASSES
};

#define FWTOP_SITES 24 /* 16 places by address, 7 to move on to, 1 for the rest */
#define FWTOP_HOOKS 5 /* enum fwtop_hook starts at 1 */

struct fwtop_count {
	u64 packets; /* GSO segments counted singly */
	u64 bytes;   /* on the wire, link header included */
};

struct fwtop_site { /* where packets were dropped for no stated reason */
	u64 address;
	u64 packets;
};

struct fwtop_cell {
	struct fwtop_count arrived[FWTOP_CLASSES];
	struct fwtop_count accepted[2]; /* at the end of the input hook, of the forward hook */
	u64 reassembled;                /* fragments within accepted packets beyond the first of each */
	u64 refused;                    /* the same within dropped packets; `drops` counts all of theirs */
	u64 fragments6;                 /* IPv6 fragments that arrived: nf_defrag_ipv6 counts none that it holds */
	u64 whole6;                     /* IPv6 packets that were put together of such */
	u64 new_connections;            /* first packets of flows that conntrack is about to confirm */
	u64 lost;                       /* records for which the ring had no room */
	u32 left[FWTOP_HOOKS];          /* packets until the next sample */
	u32 drawn[FWTOP_HOOKS];         /* the 1-in-N with which `left` was drawn */
	struct fwtop_count drops[2][FWTOP_REASONS]; /* [0] still inbound, [1] on its way out when dropped */
	struct fwtop_site sites[FWTOP_SITES];       /* the last one takes what finds no place */
} __attribute__((aligned(64)));

struct fwtop_control { /* written by the console */
	u32 one_in[FWTOP_HOOKS];
	u32 armed; /* the next arriving packet opens */
	u32 open;  /* what is not open counts and samples nothing */
	u32 netns; /* number of the namespace that is watched; the loader's */
	u32 watched[FWTOP_WATCHED]; /* interfaces or ~0; how many is a constant, so that no loop is needed */
};

INLINE struct fwtop_cell *this_cell(void)
{
	struct fwtop_cell *cells = MAP_VALUE(FWTOP_CELLS_FD);
	u64 cpu = bpf_get_smp_processor_id();

	OPAQUE(cpu);
	return cpu < FWTOP_CPUS ? cells + cpu : NULL;
}

/* The hooks are attached one after the other; that all of them begin with the same packet, and end together,
 * makes what arrived within such a window comparable with what was dropped and accepted in it. */
INLINE u32 is_open(void)
{
	struct fwtop_control *control = MAP_VALUE(FWTOP_CONTROL_FD);

	return *(volatile u32 *)&control->open;
}

INLINE u32 opens(void)
{
	struct fwtop_control *control = MAP_VALUE(FWTOP_CONTROL_FD);

	if (*(volatile u32 *)&control->open)
		return 1;
	if (!*(volatile u32 *)&control->armed)
		return 0;
	control->open = 1;
	return 1;
}

INLINE u32 is_watched(u32 ifindex)
{
	struct fwtop_control *control = MAP_VALUE(FWTOP_CONTROL_FD);

#pragma unroll
	for (int i = 0; i < FWTOP_WATCHED; i++)
		if (control->watched[i] == ifindex)
			return 1;
	return 0;
}

INLINE u32 is_our_netns(u32 number)
{
	struct fwtop_control *control = MAP_VALUE(FWTOP_CONTROL_FD);

	return control->netns == number;
}

INLINE void count(struct fwtop_count *counter, u64 packets, u64 bytes)
{
	counter->packets += packets;
	counter->bytes += bytes;
}

/* As the ring fills faster than the console can adapt N (an attack starts), N grows here: it is at least 2, 4, 8
 * and so on in each 32nd of the ring beyond its half. The second half then holds 8,000 times as many packets as
 * the first, and no record stands for more than a 500th of what came before it. */
INLINE u32 one_in(u32 hook)
{
	struct fwtop_control *control = MAP_VALUE(FWTOP_CONTROL_FD);
	u64 pending = bpf_ringbuf_query(MAP(FWTOP_RING_FD), 0 /* BPF_RB_AVAIL_DATA */);
	u32 n = control->one_in[hook], least;

	if (n < 1)
		n = 1;
	if (n > 1 << 18)
		n = 1 << 18;
	if (pending <= FWTOP_RING_BYTES / 2)
		return n;
	pending = (pending - FWTOP_RING_BYTES / 2) / (FWTOP_RING_BYTES / 32);
	least = 2 << (pending & 15);
	return n > least ? n : least;
}

/* Whether this packet is sampled, and for how many it stands; 0: it is not.
 *
 * A countdown, because a random number for every packet costs more than all the rest. The distance to the
 * next sample is uniform in 1 … 2N-1: its mean is N, and traffic with a period can't hide from it. */
INLINE u32 sampled(struct fwtop_cell *cell, u32 hook)
{
	u32 left = cell->left[hook], weight, n;

	if (left > 1) {
		cell->left[hook] = left - 1;
		return 0;
	}
	weight = cell->drawn[hook];
	n = one_in(hook);
	cell->drawn[hook] = n;
	cell->left[hook] = n > 1 ? 1 + bpf_get_prandom_u32() % (2 * n - 1) : 1;
	return weight ? weight : 1;
}

INLINE struct fwtop_record *reserve(struct fwtop_cell *cell, u32 hook, u32 weight)
{
	struct fwtop_record *record = bpf_ringbuf_reserve(MAP(FWTOP_RING_FD), sizeof(*record), 0);

	if (!record) {
		cell->lost++;
		return NULL;
	}
	record->time_ns = bpf_ktime_get_ns();
	record->one_in = weight;
	record->hook = hook;
	record->reason = 0;
	record->rule = 0;
	record->reserved = 0;
	return record;
}

/* The console reads at its own ticks: waking it for every record would cost the receive path. */
INLINE void submit(struct fwtop_record *record)
{
	bpf_ringbuf_submit(record, 1 /* BPF_RB_NO_WAKEUP */);
}

#endif
