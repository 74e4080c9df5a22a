/* SPDX-License-Identifier: GPL-2.0-or-later */
/* tc: count packets that arrive, by protocol, and those that a bridge sends; sample 1 in N. All continue unchanged. */
#include "counters.h"

#define NEXT (-1) /* TC_ACT_UNSPEC, TCX_NEXT: continue with the next program */

INLINE u32 class_of_protocol(u32 protocol)
{
	switch (protocol) {
	case 6:
		return FWTOP_TCP;
	case 17:
		return FWTOP_UDP;
	case 1:
		return FWTOP_ICMP;
	case 58:
		return FWTOP_ICMP6;
	case 47:
		return FWTOP_GRE;
	case 50:
		return FWTOP_ESP;
	}
	return FWTOP_OTHER_IP;
}

/* The protocol behind up to three extension headers (RFC 8200); a fragment header names it, too. */
INLINE u32 protocol_v6(u8 *header, u8 *end)
{
	u32 protocol = header[6];
	u8 *next = header + 40;

#pragma unroll
	for (int i = 0; i < 3; i++) {
		if (protocol != 0 && protocol != 43 && protocol != 44 && protocol != 60)
			break;
		if (next + 8 > end)
			break;
		u32 length = protocol == 44 ? 8 : 8 + next[1] * 8;
		protocol = next[0];
		next += length;
	}
	return protocol;
}

INLINE u32 class_of(struct __sk_buff *skb, u32 link)
{
	u8 *data = (u8 *)(long)skb->data, *end = (u8 *)(long)skb->data_end;
	u8 *header = data + link;

	if (skb->protocol == 0x0008) /* ETH_P_IP in network order */
		return header + 20 <= end ? class_of_protocol(header[9]) : FWTOP_OTHER_IP;
	if (skb->protocol == 0xdd86)
		return header + 40 <= end ? class_of_protocol(protocol_v6(header, end)) : FWTOP_OTHER_IP;
	if (skb->protocol != 0x0081 || link == 0) /* 802.1Q below another tag, which the kernel removed */
		return FWTOP_NOT_IP;
	if (header + 24 <= end && header[2] == 0x08 && header[3] == 0x00)
		return class_of_protocol(header[13]);
	if (header + 44 <= end && header[2] == 0x86 && header[3] == 0xdd)
		return class_of_protocol(protocol_v6(header + 4, end));
	return FWTOP_NOT_IP;
}

/* An IPv6 packet whose first extension is a fragment header; not an atomic fragment (RFC 6946). */
INLINE u32 is_fragment6(struct __sk_buff *skb, u32 link)
{
	u8 *header = (u8 *)(long)skb->data + link;

	if (skb->protocol != 0xdd86 || header + 48 > (u8 *)(long)skb->data_end || header[6] != 44)
		return 0;
	return header[42] || header[43] & 0xf9;
}

/* Length of the headers, which GRO keeps only once for all segments. */
INLINE u32 header_bytes(struct __sk_buff *skb, u32 link)
{
	u8 *end = (u8 *)(long)skb->data_end, *header = (u8 *)(long)skb->data + link;
	u32 length = 40, protocol;

	if (header + 40 > end)
		return link + length;
	if (skb->protocol == 0x0008) {
		length = (header[0] & 15) * 4;
		protocol = header[9];
	} else {
		protocol = header[6];
	}
	header += length;
	if (protocol == 6 && header + 20 <= end)
		return link + length + (header[12] >> 4) * 4;
	return link + length + 8;
}

/* Bytes on the wire; older kernels set wire_len to the length of the merged packet. */
INLINE u64 wire_bytes(struct __sk_buff *skb, u32 segments, u32 link)
{
	/* every segment had the tag that the kernel removed */
	u32 tags = link && skb->vlan_present ? 4 * (segments ? segments : 1) : 0;

	if (segments < 2)
		return skb->len + tags;
	if (skb->wire_len > skb->len)
		return skb->wire_len + tags;
	return skb->len + (segments - 1) * header_bytes(skb, link) + tags;
}

/* Copy the first bytes; insert a removed tag again, so that the console sees the frame as it was. */
INLINE u32 copy(struct __sk_buff *skb, u8 *data, u32 link)
{
	u64 size = skb->len;

	if (size < 14)
		return 0;
	if (link && skb->vlan_present) {
		if (bpf_skb_load_bytes(skb, 0, data, 12))
			return 0;
		*(u16 *)(data + 12) = skb->vlan_proto;
		*(u16 *)(data + 14) = __builtin_bswap16(skb->vlan_tci);
		size -= 12;
		OPAQUE(size);
		if (size > FWTOP_DATA - 16)
			size = FWTOP_DATA - 16;
		return size && bpf_skb_load_bytes(skb, 12, data + 16, size) ? 16 : 16 + size;
	}
	OPAQUE(size);
	if (size > FWTOP_DATA)
		size = FWTOP_DATA;
	return size && bpf_skb_load_bytes(skb, 0, data, size) ? 0 : size;
}

INLINE void sample(struct fwtop_counters *counters, struct __sk_buff *skb, u32 hook, u32 segments, u64 length,
		   u32 ifindex, u32 link)
{
	u32 weight = sampled(counters, hook);
	struct fwtop_record *record;

	if (!weight)
		return;
	record = reserve(counters, hook, weight);
	if (!record)
		return;
	record->length = length;
	record->ifindex = ifindex;
	record->segments = segments;
	record->link = link != 0;
	record->captured = copy(skb, record->data, link);
	submit(record);
}

INLINE int ingress(struct __sk_buff *skb, u32 link)
{
	u32 segments = skb->gso_segs;
	struct fwtop_counters *counters;
	u64 length;

	if (!start_counting())
		return NEXT;
	counters = this_cpu_counters();
	if (!counters)
		return NEXT;
	if (segments < 1)
		segments = 1;
	length = wire_bytes(skb, segments, link);
	count(&counters->arrived[class_of(skb, link) & (FWTOP_CLASSES - 1)], segments, length);
	counters->fragments6 += is_fragment6(skb, link);
	sample(counters, skb, FWTOP_INGRESS, segments, length, skb->ifindex, link);
	return NEXT;
}

PROGRAM(fwtop_ingress)
int fwtop_ingress(struct __sk_buff *skb)
{
	return ingress(skb, 14);
}

/* For interfaces without a link header: tun, WireGuard, PPP. */
PROGRAM(fwtop_ingress_ip)
int fwtop_ingress_ip(struct __sk_buff *skb)
{
	return ingress(skb, 0);
}

/* tc egress of a bridge's ports: what came in by a watched port has passed every rule of the bridge. Routed packets
 * came in by the bridge itself or by no port. Copies of broadcasts are not counted. */
PROGRAM(fwtop_bridged)
int fwtop_bridged(struct __sk_buff *skb)
{
	u32 segments = skb->gso_segs, from = skb->ingress_ifindex;
	struct fwtop_counters *counters;
	u64 length;

	if (!is_counting() || role_of(from) != FWTOP_PORT || skb->pkt_type == 1 || skb->pkt_type == 2)
		return NEXT;
	counters = this_cpu_counters();
	if (!counters)
		return NEXT;
	if (segments < 1)
		segments = 1;
	length = wire_bytes(skb, segments, 14);
	count(&counters->accepted[1], segments, length);
	sample(counters, skb, FWTOP_ACCEPTED, segments, length, from, 14);
	return NEXT;
}
