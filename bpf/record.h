/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The record of a sampled packet, which every hook writes to the ring buffer.
 *
 * All records have the same size, so that the console can read the ring buffer as one numpy array:
 * sizeof(struct fwtop_record) plus the ring buffer's 8-byte header is 256. Reader: fwtop/live/mapped.py;
 * fwtop/observe/messages.py has the same layout, and a test compares the two.
 */
#ifndef FWTOP_RECORD_H
#define FWTOP_RECORD_H

#define FWTOP_DATA 216

enum fwtop_hook {
	FWTOP_INGRESS = 1, /* tc ingress */
	FWTOP_DROP = 2,    /* skb:kfree_skb */
	FWTOP_XDP = 3,     /* dropped by our XDP program */
	FWTOP_ACCEPTED = 4, /* end of the input or forward hook (before Linux 6.4 by NFLOG) */
};

struct fwtop_record {
	u64 time_ns;  /* bpf_ktime_get_ns */
	u32 one_in;   /* skbs that this record stands for */
	u32 length;   /* bytes on the wire of the whole skb (all segments) */
	u32 ifindex;
	u16 segments; /* packets in this skb (GRO), at least 1 */
	u16 reason;   /* enum skb_drop_reason, FWTOP_DROP only */
	u32 rule;     /* the rule that dropped it, FWTOP_XDP only */
	u8 hook;      /* enum fwtop_hook */
	u8 captured;  /* valid bytes in data; behind them is stale data, as clearing it here would cost time */
	u8 link;      /* 1: data starts with an Ethernet header; 0: with the IP header */
	u8 reserved;
	u8 data[FWTOP_DATA];
};

#endif
