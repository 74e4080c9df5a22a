/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Types shared by all parts of the compiled rules: packets and maps.
 *
 * The loader generates the rules as functions, `any_verdict` among them, after the headers they use (xdp_allow.h,
 * xdp_lists.h, xdp_limit.h), and includes xdp_main.h after them.
 */
#ifndef FWTOP_XDP_H
#define FWTOP_XDP_H

#include "kernel.h"
#include "record.h"

#define XDP_MAX_RULES 256
#define XDP_RINGS 8   /* consoles that can watch at once */
#define XDP_CLASSES 8 /* enum fwtop_class; FWTOP_NOT_IP stays 0, as such packets pass */
#define XDP_NONE 0xffffffff
#define NOT_PLAIN 0xfffffffe /* xdp_plain.h: no verdict yet */

enum { NOT_FRAGMENTED, FIRST_FRAGMENT, LATER_FRAGMENT };

struct xdp_count {
	u64 packets;
	u64 bytes; /* on the wire, link header included */
};

/* A parsed packet: fields in host order, absent ones 0.
 *
 * It lives in a map, not on the stack: the verifier tracks every value on the stack along every path, and with
 * optional headers in any order it would need a million steps. Values in maps are unknown to it, so that paths
 * converge again (see BARRIER). */
struct view {
	u64 src_hi, src_lo, dst_hi, dst_lo; /* IPv4 in the low half */
	u32 wire;			    /* length of the frame */
	u32 family, protocol, ttl, ip_id, ip_length, fragment; /* ip_id: IPv4 only */
	u32 sport, dport, tcp_seq, tcp_flags, tcp_window, tcp_header, icmp_type;
	u32 offset, end;	  /* of the next header; of the IP packet */
	u32 payload, payload_end; /* start and end of the transport payload in the frame */
	u32 malformed;
};

/* Forces values back to memory, where the verifier forgets them. */
#define BARRIER() asm volatile("" ::: "memory")

/* A packet without options, tags or extension headers: see xdp_plain.h. */
struct plain {
	u8 *ip, *transport;
	u32 payload, payload_end; /* as in struct view */
};

/* Counters and scratch space of one CPU, written by the programs only. fwtop/xdp/maps.py has the same layout. */
struct xdp_counters {
	u64 parse_errors; /* packets with inconsistent or truncated headers */
	u64 lost;     /* samples that found a ring full */
	u32 left;     /* packets until the next sample */
	u32 drawn;    /* N of 1 in N when `left` was drawn */
	u64 tick;     /* jiffies when `now` was read */
	u64 now;      /* monotonic clock at that tick */
	u32 slot;     /* scratch: verdict on the current packet */
	u32 protocol; /* scratch: of the current packet */
	struct xdp_count classes[XDP_CLASSES];
	struct xdp_count rules[XDP_MAX_RULES];
	struct view view;
} __attribute__((aligned(64)));

struct xdp_slot { /* written by the guardian */
	u64 deadline; /* monotonic clock: the rule is disabled from then on, whether or not any process lives */
	u32 number;   /* of the rule; 0: free */
	u32 flags;    /* 1: runs at tc only, 2: counts only; for readers of the counters */
};

struct frame {
	u8 *data, *end;
	u32 packets; /* that it stands for: at tc several, merged by GRO */
};

#define LONGEST_HEADERS 0x7fff /* bound on the end of all parsed headers */

/* Returns the address of `size` bytes at `offset`, or NULL if the frame is shorter. */
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
