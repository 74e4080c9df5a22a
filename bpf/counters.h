/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The per-CPU counters and sampling state of the observers, in a map that the console maps into memory.
 *
 * fwtop/observe/messages.py has the same layout; a test compares the two. FWTOP_CPUS, FWTOP_REASONS and
 * FWTOP_WATCHED come from the loader.
 */
#ifndef FWTOP_COUNTERS_H
#define FWTOP_COUNTERS_H

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

#define FWTOP_LOCATIONS 24 /* 16 by address, 7 for collisions; the last one takes the rest */
#define FWTOP_HOOKS 5 /* enum fwtop_hook starts at 1 */

struct fwtop_count {
	u64 packets; /* each GSO segment counts */
	u64 bytes;   /* on the wire, link header included */
};

struct fwtop_counters {
	struct fwtop_count arrived[FWTOP_CLASSES];
	struct fwtop_count accepted[2]; /* at the end of the input hook; of the forward hook, or sent by a bridge */
	u64 reassembled;                /* fragments of accepted packets, without each first one */
	u64 dropped_fragments;                    /* the same for dropped packets; `drops` includes them */
	u64 fragments6;                 /* arrived IPv6 fragments, as nf_defrag_ipv6 doesn't count */
	u64 reassembled6;                     /* IPv6 packets reassembled from them */
	u64 filtered;                   /* netfilter's inbound drops behind routing: at the input or forward hook */
	u64 new_connections;            /* connections that conntrack is about to confirm */
	u64 lost;                       /* records that found the ring full */
	u32 left[FWTOP_HOOKS];          /* packets until the next sample */
	u32 drawn[FWTOP_HOOKS];         /* N of 1 in N when `left` was drawn */
	struct fwtop_count drops[2][FWTOP_REASONS]; /* [0] inbound, [1] outbound when dropped */
	u64 locations[FWTOP_LOCATIONS]; /* packets dropped without a reason, by index in fwtop_locations */
} __attribute__((aligned(64)));

struct fwtop_control { /* written by the console */
	u32 one_in[FWTOP_HOOKS];
	u32 enabled;  /* the next arriving packet starts counting */
	u32 counting; /* 0: no hook counts or samples */
};

struct fwtop_locations { /* readable by root only: addresses tell where the kernel lies in memory (KASLR) */
	u64 address[FWTOP_LOCATIONS - 1];
};

enum fwtop_role { FWTOP_PLAIN, FWTOP_PORT, FWTOP_BRIDGE };

struct fwtop_scope { /* writable by root only: the packets that the console may see */
	u32 netns; /* inode number of the watched namespace */
	u32 bridged; /* 1: fwtop_bridged counts what bridges pass on, and `role` is set */
	u32 watched[FWTOP_WATCHED]; /* interface numbers, padded with ~0; a constant number, to unroll the loop */
	u32 role[FWTOP_WATCHED]; /* enum fwtop_role of each */
};

INLINE struct fwtop_counters *this_cpu_counters(void)
{
	struct fwtop_counters *all = MAP_VALUE(FWTOP_COUNTERS_FD);
	u64 cpu = bpf_get_smp_processor_id();

	OPAQUE(cpu);
	return cpu < FWTOP_CPUS ? all + cpu : NULL;
}

/* Hooks are attached one after the other, but all start counting with the same packet and stop together: so the
 * arrivals in a window are comparable with its drops and accepted packets. */
INLINE u32 is_counting(void)
{
	struct fwtop_control *control = MAP_VALUE(FWTOP_CONTROL_FD);

	return *(volatile u32 *)&control->counting;
}

INLINE u32 start_counting(void)
{
	struct fwtop_control *control = MAP_VALUE(FWTOP_CONTROL_FD);

	if (*(volatile u32 *)&control->counting)
		return 1;
	if (!*(volatile u32 *)&control->enabled)
		return 0;
	control->counting = 1;
	return 1;
}

INLINE u32 is_watched(u32 ifindex)
{
	struct fwtop_scope *scope = MAP_VALUE(FWTOP_SCOPE_FD);

#pragma unroll
	for (int i = 0; i < FWTOP_WATCHED; i++)
		if (scope->watched[i] == ifindex)
			return 1;
	return 0;
}

INLINE u32 role_of(u32 ifindex)
{
	struct fwtop_scope *scope = MAP_VALUE(FWTOP_SCOPE_FD);

#pragma unroll
	for (int i = 0; i < FWTOP_WATCHED; i++)
		if (scope->watched[i] == ifindex)
			return scope->role[i];
	return FWTOP_PLAIN;
}

INLINE u32 is_our_netns(u32 number)
{
	struct fwtop_scope *scope = MAP_VALUE(FWTOP_SCOPE_FD);

	return scope->netns == number;
}

INLINE void count(struct fwtop_count *counter, u64 packets, u64 bytes)
{
	counter->packets += packets;
	counter->bytes += bytes;
}

/* When the ring fills faster than the console adapts N (an attack begins), N doubles with each 32nd of the ring
 * beyond its half: at least 2, 4, 8 and so on. The second half then covers 8,000 times as many packets as the
 * first, and no record stands for more than a 500th of the packets before it. */
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

/* Returns how many packets this one stands for if it is sampled, else 0.
 *
 * A countdown is cheaper than a random number for every packet. The distance to the next sample is uniform in
 * 1 … 2N-1: its mean is N, and periodic traffic can't evade it. */
INLINE u32 sampled(struct fwtop_counters *counters, u32 hook)
{
	u32 left = counters->left[hook], weight, n;

	if (left > 1) {
		counters->left[hook] = left - 1;
		return 0;
	}
	weight = counters->drawn[hook];
	n = one_in(hook);
	counters->drawn[hook] = n;
	counters->left[hook] = n > 1 ? 1 + bpf_get_prandom_u32() % (2 * n - 1) : 1;
	return weight ? weight : 1;
}

INLINE struct fwtop_record *reserve(struct fwtop_counters *counters, u32 hook, u32 weight)
{
	struct fwtop_record *record = bpf_ringbuf_reserve(MAP(FWTOP_RING_FD), sizeof(*record), 0);

	if (!record) {
		counters->lost++;
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

/* The console polls: waking it for every record would slow the receive path down. */
INLINE void submit(struct fwtop_record *record)
{
	bpf_ringbuf_submit(record, 1 /* BPF_RB_NO_WAKEUP */);
}

#endif
