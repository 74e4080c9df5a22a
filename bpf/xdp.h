/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The fixed part of the compiled rules: where packets are taken apart, and what happens to those that a rule hits.
 *
 * The loader writes the rules behind this file as functions, one of them `any_verdict`, and includes xdp_main.h
 * after them. Headers are read as fwtop/collect/parse_any.py reads them, field by field, so that a
 * rule hits here what its preview hit in the samples; a property test compares the two.
 */
#ifndef FWTOP_XDP_H
#define FWTOP_XDP_H

#include "kernel.h"
#include "record.h"

#define XDP_MAX_RULES 256
#define XDP_RINGS 8   /* consoles that can watch at once */
#define XDP_CLASSES 8 /* as enum fwtop_class, without the packets that are not IP: those pass */
#define XDP_NONE 0xffffffff
#define NOT_PLAIN 0xfffffffe /* for xdp_plain.h: not judged yet */

enum { NOT_FRAGMENTED, FIRST_FRAGMENT, LATER_FRAGMENT };

struct xdp_count {
	u64 packets;
	u64 bytes; /* on the wire, link header included */
};

/* A packet: addresses and numbers in host order, what is not there is 0.
 *
 * It lies in a map and not on the stack, because the verifier follows every value that it can know along every
 * path: with headers optional and in any order, that is a million steps. What comes from a map it doesn't know,
 * so that the paths meet again (see MEET). */
struct view {
	u64 src_hi, src_lo, dst_hi, dst_lo; /* IPv4 in the low half */
	u32 wire;			    /* bytes of the whole frame */
	u32 family, protocol, ttl, ip_length, fragment;
	u32 sport, dport, tcp_flags, icmp_type;
	u32 offset, end;	  /* of the next header, of the IP packet */
	u32 payload, payload_end; /* where the transport payload starts and ends in the frame */
	u32 malformed;
};

#define MEET() asm volatile("" ::: "memory")

/* A packet whose headers are where they nearly always are: see xdp_plain.h. */
struct plain {
	u8 *ip, *transport;
	u32 payload, payload_end; /* as in struct view */
};

/* One a CPU, written here only. fwtop/collect/xdp_maps.py has the same layout. */
struct xdp_cell {
	u64 unparsed; /* headers that contradict themselves or the frame's length */
	u64 lost;     /* samples for which a ring had no room */
	u32 left;     /* packets until the next sample */
	u32 drawn;    /* the 1-in-N with which `left` was drawn */
	u64 tick;     /* the timer tick at which `now` was read */
	u64 now;      /* bpf_ktime_get_ns, as of that tick */
	u32 slot;     /* the verdict on the packet at hand */
	u32 protocol; /* of the packet at hand */
	struct xdp_count classes[XDP_CLASSES];
	struct xdp_count rules[XDP_MAX_RULES];
	struct view view;
} __attribute__((aligned(64)));

struct xdp_slot { /* written by the guardian */
	u64 deadline; /* bpf_ktime_get_ns: the rule is inert from then on, with or without any process */
	u32 number;   /* of the rule; 0: free */
	u32 at_tc;    /* it is not for XDP: for readers of the counters */
};

/* A source of dropped packets, in a place that its hash gives: estimated from the sampled ones. */
#define XDP_HITS 4096
struct xdp_hit {
	u64 hi, lo; /* IPv6 by /64: lo is 0 */
	u32 number; /* of the rule */
	u32 family;
	u64 packets;
};

struct frame {
	u8 *data, *end;
};

#define LONGEST_HEADERS 0x7fff /* all headers of the deepest stack that is followed end before it */

/* Where `size` bytes at `offset` are, NULL where they are not all there. */
INLINE u8 *at(struct frame *f, u64 offset, u32 size)
{
	u8 *place;

	offset &= LONGEST_HEADERS;
	OPAQUE(offset);
	place = f->data + offset;
	OPAQUE(place);
	return place + size > f->end ? NULL : place;
}

#define BE16(place) ((u32)__builtin_bswap16(*(u16 *)(place)))
#define BE32(place) ((u64)__builtin_bswap32(*(u32 *)(place)))
#define BE64(place) __builtin_bswap64(*(u64 *)(place))

INLINE u8 *payload_at(struct frame *f, u32 start, u32 end, u32 offset, u32 size)
{
	if (start + offset + size > end)
		return NULL;
	return at(f, start + offset, size);
}

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
	p->tcp_flags = header[13];
	length = (header[12] >> 4) * 4;
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
	if (p->fragment == FIRST_FRAGMENT && length >= 8) /* it counts the later ones too */
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

/* The IP headers return whether a transport header, or a fragment's data, follows at p->offset. */
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

/* The length of an authentication header counts in other units. */
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
		MEET();
		if (!is_extension(p->protocol) || p->fragment == LATER_FRAGMENT)
			return 1;
		if (!parse_extension(f, p))
			return 0;
	}
	return !is_extension(p->protocol) || p->fragment == LATER_FRAGMENT;
}

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

/* Take a frame apart as far as it makes sense; family 0: it is not IP, or can't be read. */
INLINE void parse(struct frame *f, struct view *p)
{
	u32 type = parse_link(f, p), whole = type != 0;

	MEET();
	if (type == 0x0800)
		whole = parse_ipv4(f, p);
	else if (type == 0x86dd)
		whole = parse_ipv6(f, p);
	p->malformed = !whole;
	MEET();
	if (p->family && !p->malformed)
		parse_transport(f, p);
	MEET();
}

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

/* Long lists. IPv4: two bits for every /24: none of it (0), all of it (1), or look at its 256 bits (2). These are
 * found by rank: `ranks` says how many such /24s there are before each word of 32, the rest is counted here. */
#define LIST4_WORDS (1 << 19)

INLINE u64 pairs_set(u64 pairs)
{
	u64 sums = (pairs & 0x3333333333333333ULL) + (pairs >> 2 & 0x3333333333333333ULL);

	return ((sums + (sums >> 4)) & 0x0f0f0f0f0f0f0f0fULL) * 0x0101010101010101ULL >> 56;
}

INLINE u32 in_list4(u64 *blocks, u64 *parts, u64 count, u64 address)
{
	u64 word = address >> 13, shift = (address >> 8 & 31) * 2, states, place;
	u32 *ranks = (u32 *)(blocks + LIST4_WORDS);

	word &= LIST4_WORDS - 1;
	OPAQUE(word);
	word &= LIST4_WORDS - 1;
	states = blocks[word];
	if ((states >> shift & 3) < 2)
		return states >> shift & 3;
	place = ranks[word] + pairs_set((states & ((1ULL << shift) - 1)) >> 1 & 0x5555555555555555ULL);
	place = place * 4 + (address >> 6 & 3);
	OPAQUE(place);
	return place < count * 4 ? parts[place] >> (address & 63) & 1 : 0;
}

/* IPv6: a bit for the hash of the first 32 address bits, before any of the exact lookups. */
INLINE u32 may_list6(u64 *filter, u64 hi)
{
	u32 bit = (u32)(hi >> 32) * 0x9e3779b1u >> 8;
	u64 word = bit >> 6;

	OPAQUE(word);
	word &= 0x3ffff;
	return filter[word] >> (bit & 63) & 1;
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

struct list6_key {
	u64 hi, lo, length;
};

INLINE u32 in_list6(void *prefixes, u64 hi, u64 lo, u64 length)
{
	struct list6_key key = {hi, lo, length};

	return bpf_map_lookup_elem(prefixes, &key) != NULL;
}

#endif
