/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What all parts of the compiled rules share: a packet in the making, and the maps.
 *
 * The loader writes the rules as functions, one of them `any_verdict`, behind what they call (xdp_lists.h,
 * xdp_limit.h), and includes xdp_main.h after them.
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
	u32 family, protocol, ttl, ip_id, ip_length, fragment; /* ip_id: IPv4 only */
	u32 sport, dport, tcp_seq, tcp_flags, tcp_window, tcp_header, icmp_type;
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

#endif
