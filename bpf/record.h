/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The one contract of kernel and user space: the record that every hook emits.
 *
 * Records have one size, so that the console can take the pending part of the ring buffer as one numpy
 * array: sizeof(struct fwtop_record) + the ring buffer's 8-byte header = 256. The reader is
 * fwtop/collect/ringbuf.py; a test compares its dtype with this struct.
 */
#ifndef FWTOP_RECORD_H
#define FWTOP_RECORD_H

#define FWTOP_DATA 216

enum fwtop_hook {
	FWTOP_INGRESS = 1, /* tc ingress */
	FWTOP_DROP = 2,    /* skb:kfree_skb */
	FWTOP_XDP = 3,     /* dropped by our XDP program */
	FWTOP_ACCEPTED = 4, /* end of the input or forward hook (by netlink where NFLOG has to do it) */
};

struct fwtop_record {
	u64 time_ns;  /* bpf_ktime_get_ns */
	u32 one_in;   /* this record stands for so many skbs */
	u32 length;   /* bytes on the wire of the whole skb (all segments) */
	u32 ifindex;
	u16 segments; /* packets in this skb (GRO), at least 1 */
	u16 reason;   /* enum skb_drop_reason, FWTOP_DROP only */
	u32 rule;     /* number of the rule that dropped it, FWTOP_XDP only */
	u8 hook;      /* enum fwtop_hook */
	u8 captured;  /* valid bytes in data; behind them are an older packet's, as clearing would cost more here */
	u8 link;      /* 1: data starts with an Ethernet header; 0: with the IP header */
	u8 reserved;
	u8 data[FWTOP_DATA];
};

#endif
