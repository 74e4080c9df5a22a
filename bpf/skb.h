/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Reading a struct sk_buff in drops.c and accepted.c. The offsets (OFF_…) come from BTF. */
#ifndef FWTOP_SKB_H
#define FWTOP_SKB_H

#include "counters.h"

#define NO_HEADER 0xffff /* an unset header offset */

struct packet {
	u64 start;    /* address of the first byte to capture */
	u32 length;   /* bytes on the wire from there on, of all segments */
	u32 linear;   /* bytes from there on in the linear buffer */
	u32 segments; /* at least 1 */
	u32 link;     /* 1: starts with an Ethernet header */
};

/* GRO merges into page fragments only: without any, the shared info needn't be read. */
INLINE u32 segments_of(u64 skb, u64 head)
{
	u16 segments = 0;

	if (LOAD32(skb, OFF_DATA_LEN) == 0)
		return 1;
	bpf_probe_read_kernel(&segments, sizeof(segments),
			      (void *)(head + LOAD32(skb, OFF_END) + OFF_GSO_SEGS));
	return segments ? segments : 1;
}

/* Since Linux 6.17 the verifier treats `head` and `data` as pointers; their difference is a number. */
INLINE u64 distance(u64 from, u64 to)
{
	asm volatile("%0 -= %1" : "+r"(to) : "r"(from));
	return to;
}

INLINE struct packet packet_of(u64 skb)
{
	u64 head = LOAD64(skb, OFF_HEAD);
	u32 headroom = distance(head, LOAD64(skb, OFF_DATA));
	u32 mac = LOAD16(skb, OFF_MAC_HEADER), network = LOAD16(skb, OFF_NETWORK_HEADER);
	u32 transport = LOAD16(skb, OFF_TRANSPORT_HEADER), first;
	struct packet packet = {};
	u8 offset = 0;

	packet.link = mac != NO_HEADER && network >= mac + 14;
	first = packet.link ? mac : network;
	packet.start = head + first;
	packet.length = LOAD32(skb, OFF_LEN) + headroom - first;
	packet.linear = packet.length - LOAD32(skb, OFF_DATA_LEN);
	packet.segments = segments_of(skb, head);
	if (packet.segments > 1 && transport != NO_HEADER) { /* merged TCP: each had its own headers */
		bpf_probe_read_kernel(&offset, 1, (void *)(head + transport + 12));
		packet.length += (packet.segments - 1) * (transport + (offset >> 4) * 4 - first);
	}
	return packet;
}

/* Number of fragments of a reassembled packet: all but the last have the greatest size. */
INLINE u32 fragments_of(struct fwtop_counters *counters, u64 skb, u32 version4)
{
	u32 header = version4 ? 20 : 40, length = LOAD32(skb, OFF_LEN);
	u32 size = version4 ? LOAD16(skb, OFF_CB + OFF_FRAG_MAX_V4) : LOAD16(skb, OFF_CB + OFF_FRAG_MAX_V6);

	if (size <= header + 8 || length <= size)
		return 1;
	counters->reassembled6 += !version4;
	return (length - header + size - header - 1) / (size - header);
}

INLINE void emit(struct fwtop_counters *counters, u32 hook, u32 weight, struct packet *packet, u32 ifindex, u32 reason)
{
	struct fwtop_record *record = reserve(counters, hook, weight);
	u64 size = packet->linear;

	if (!record)
		return;
	/* Behind the packet's end lies kernel memory that must not leak. */
	OPAQUE(size);
	if (size > FWTOP_DATA)
		size = FWTOP_DATA;
	record->length = packet->length;
	record->ifindex = ifindex;
	record->segments = packet->segments;
	record->reason = reason;
	record->link = packet->link;
	record->captured = size;
	if (bpf_probe_read_kernel(record->data, size, (void *)packet->start))
		record->captured = 0;
	submit(record);
}

#endif
