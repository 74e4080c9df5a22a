/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The general path: parse the headers of any frame, one after the other.
 *
 * Fields are parsed exactly as in fwtop/parse/general.py, so that a rule matches here what its preview matched
 * in the samples; a property test compares the two.
 */
#ifndef FWTOP_XDP_PARSE_H
#define FWTOP_XDP_PARSE_H

#include "xdp.h"

INLINE void set_payload(struct view *p, u32 start, u32 end)
{
	p->payload = start;
	p->payload_end = end - start > 0xffff ? start + 0xffff : end;
}

INLINE u32 is_ported(u32 protocol)
{
	return protocol == 6 || protocol == 17 || protocol == 33 || protocol == 132 || protocol == 136;
}

INLINE void parse_tcp(struct frame *f, struct view *p, u32 offset, u32 end)
{
	u8 *header = at(f, offset, 20);
	u32 length;

	if (offset + 20 > end || !header)
		goto malformed;
	p->tcp_seq = BE32(header + 4);
	p->tcp_flags = header[13];
	p->tcp_window = BE16(header + 14);
	p->tcp_header = length = (header[12] >> 4) * 4;
	if (length < 20 || offset + length > end || !at(f, offset + length, 0))
		goto malformed;
	set_payload(p, offset + length, end);
	return;
malformed:
	p->malformed = 1;
}

INLINE void parse_udp(struct frame *f, struct view *p, u32 offset, u32 end)
{
	u8 *header = at(f, offset, 8);
	u32 room = end - offset, length;

	if (offset + 8 > end || !header)
		goto malformed;
	length = BE16(header + 4);
	if (p->fragment == FIRST_FRAGMENT && length >= 8) /* includes later fragments */
		length = 0;
	if (length != 0 && (length < 8 || length > room))
		goto malformed;
	set_payload(p, offset + 8, offset + (length ? length : room));
	return;
malformed:
	p->malformed = 1;
}

INLINE void parse_transport(struct frame *f, struct view *p)
{
	u32 protocol = p->protocol, offset = p->offset, end = p->end, icmp, needed = 0;
	u8 *header;

	if (p->fragment == LATER_FRAGMENT) {
		set_payload(p, offset, end);
		return;
	}
	icmp = p->family == 4 ? protocol == 1 : protocol == 58;
	header = at(f, offset, 4);
	if (header && offset + 4 <= end) {
		if (is_ported(protocol)) {
			p->sport = BE16(header);
			p->dport = BE16(header + 2);
		} else if (icmp) {
			p->icmp_type = header[0];
		}
	}
	if (protocol == 17)
		return parse_udp(f, p, offset, end);
	if (protocol == 6)
		return parse_tcp(f, p, offset, end);
	if (icmp || protocol == 136)
		needed = 8;
	else if (protocol == 33 || protocol == 132)
		needed = 12;
	if (offset + needed > end || !at(f, offset + needed, 0)) {
		p->malformed = 1;
		return;
	}
	set_payload(p, offset + needed, end);
}

/* parse_ipv4 and parse_ipv6 return whether a transport header or fragment data follows at p->offset. */
INLINE u32 parse_ipv4(struct frame *f, struct view *p)
{
	u32 offset = p->offset, length, place;
	u8 *header = at(f, offset, 20);

	if (!header || header[0] >> 4 != 4)
		return 0;
	place = BE16(header + 6);
	p->family = 4;
	p->src_lo = BE32(header + 12);
	p->dst_lo = BE32(header + 16);
	p->protocol = header[9];
	p->ttl = header[8];
	p->ip_id = BE16(header + 4);
	p->ip_length = BE16(header + 2);
	p->fragment = place & 0x1fff ? LATER_FRAGMENT : place & 0x2000 ? FIRST_FRAGMENT : NOT_FRAGMENTED;
	length = (header[0] & 15) * 4;
	p->end = p->ip_length ? offset + p->ip_length : p->wire;
	p->offset = offset + length;
	return length >= 20 && p->offset <= p->end && p->end <= p->wire && at(f, p->offset, 0);
}

/* Kinds of RFC 8200, 4302 (51), 6275 (135), 7401 (139), 5533 (140). */
INLINE u32 is_extension(u32 kind)
{
	u64 kinds = kind < 64 ? 1ULL << 0 | 1ULL << 43 | 1ULL << 44 | 1ULL << 51 | 1ULL << 60
			      : 1ULL << (135 - 128) | 1ULL << (139 - 128) | 1ULL << (140 - 128);

	return (kind < 64 || (kind >= 128 && kind < 192)) && kinds >> (kind & 63) & 1;
}

/* The authentication header measures its length in other units. */
INLINE u32 extension_length(u32 kind, u32 units)
{
	return kind == 44 ? 8 : kind == 51 ? (units + 2) * 4 : (units + 1) * 8;
}

INLINE u32 parse_extension(struct frame *f, struct view *p)
{
	u8 *header = at(f, p->offset, 8);
	u32 kind = p->protocol;

	if (p->offset + 8 > p->end || !header)
		return 0;
	if (kind == 44) {
		u32 place = BE16(header + 2);

		p->fragment = place & 0xfff8 ? LATER_FRAGMENT : place & 1 ? FIRST_FRAGMENT : NOT_FRAGMENTED;
	}
	p->protocol = header[0];
	p->offset += extension_length(kind, header[1]);
	return p->offset <= p->end && at(f, p->offset, 0);
}

INLINE u32 parse_ipv6(struct frame *f, struct view *p)
{
	u8 *header = at(f, p->offset, 40);
	u32 size;

	if (!header || header[0] >> 4 != 6)
		return 0;
	size = BE16(header + 4);
	p->family = 6;
	p->src_hi = BE64(header + 8);
	p->src_lo = BE64(header + 16);
	p->dst_hi = BE64(header + 24);
	p->dst_lo = BE64(header + 32);
	p->protocol = header[6];
	p->ttl = header[7];
	p->ip_length = size + 40 > 0xffff ? 0xffff : size + 40;
	p->offset += 40;
	p->end = p->offset + size;
	if (size == 0 && p->protocol != 59) /* a jumbogram */
		p->end = p->wire;
	if (p->end > p->wire)
		return 0;
	for (int i = 0; i < 12; i++) {
		BARRIER();
		if (!is_extension(p->protocol) || p->fragment == LATER_FRAGMENT)
			return 1;
		if (!parse_extension(f, p))
			return 0;
	}
	return !is_extension(p->protocol) || p->fragment == LATER_FRAGMENT;
}

#define PPPOE 0x8864
#define MPLS 0x8847
#define MPLS_MULTICAST 0x8848

INLINE u32 is_vlan(u32 type)
{
	return type == 0x8100 || type == 0x88a8 || type == 0x9100;
}

/* Read the link header and up to four VLAN tags; returns the type of what follows. */
INLINE u32 parse_link(struct frame *f, struct view *p)
{
	u8 *header = at(f, 0, 14);
	u32 type;

	if (!header)
		return 0;
	type = BE16(header + 12);
	p->offset = 14;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (!is_vlan(type))
			break;
		header = at(f, p->offset, 4);
		if (!header)
			return 0;
		type = BE16(header + 2);
		p->offset += 4;
	}
	return is_vlan(type) ? 0 : type;
}

/* Skip PPPoE (RFC 2516) and PPP; returns the ethertype of what follows. */
INLINE u32 parse_session(struct frame *f, struct view *p)
{
	u8 *header = at(f, p->offset, 8);
	u32 protocol;

	if (!header || BE16(header) != 0x1100)
		return 0;
	protocol = BE16(header + 6);
	p->offset += 8;
	return protocol == 0x0021 ? 0x0800 : protocol == 0x0057 ? 0x86dd : PPPOE;
}

/* Skip up to eight MPLS labels (RFC 3032); the first four bits behind tell the protocol (RFC 4928). */
INLINE u32 parse_labels(struct frame *f, struct view *p)
{
	u32 last = 0;
	u8 *place;

	for (int i = 0; i < 8; i++) {
		BARRIER();
		place = at(f, p->offset, 4);
		if (!place)
			return 0;
		last = place[2] & 1;
		p->offset += 4;
		if (last)
			break;
	}
	place = at(f, p->offset, 1);
	if (!last || !place)
		return last ? MPLS : 0;
	return *place >> 4 == 4 ? 0x0800 : *place >> 4 == 6 ? 0x86dd : MPLS;
}

/* Parse a frame as far as possible; family 0: not IP, or malformed. */
INLINE void parse(struct frame *f, struct view *p)
{
	u32 type = parse_link(f, p), whole;

	BARRIER();
	if (type == PPPOE)
		type = parse_session(f, p);
	else if (type == MPLS || type == MPLS_MULTICAST)
		type = parse_labels(f, p);
	whole = type != 0;
	BARRIER();
	if (type == 0x0800)
		whole = parse_ipv4(f, p);
	else if (type == 0x86dd)
		whole = parse_ipv6(f, p);
	p->malformed = !whole;
	BARRIER();
	if (p->family && !p->malformed)
		parse_transport(f, p);
	BARRIER();
}

#endif
