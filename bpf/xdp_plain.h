/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The fast path for nearly all packets: headers at fixed offsets.
 *
 * Plain is an untagged Ethernet frame in one buffer with IPv4 (no options, no fragment) or IPv6 (no extension
 * headers), and TCP, UDP or ICMP with consistent lengths. Others take the general path of xdp_parse.h, at four
 * times the cost and with the same verdict. The generated `plain_*_verdict` functions know family and protocol,
 * and skip rules that can't match these. They load fields again for each rule (see BARRIER): a load from the first
 * cache line is cheaper than keeping a register, and the verifier forgets earlier comparisons.
 */
#ifndef FWTOP_XDP_PLAIN_H
#define FWTOP_XDP_PLAIN_H

#include "xdp.h"

#define PLAIN_BYTES 1600 /* longer frames may be fragmented across buffers */
#define MAC_HEADER 14
#define NETWORK16(value) ((u16)((value) >> 8 | ((value)&255) << 8))

INLINE u32 plain_tcp(struct frame *f, struct plain *p, u32 start)
{
	u32 size;

	if (p->transport + 20 > f->end)
		return 0;
	size = (p->transport[12] >> 4) * 4;
	p->payload = start + size;
	return size >= 20 && p->payload <= p->payload_end;
}

INLINE u32 plain_udp(struct plain *p, u32 start)
{
	u32 size = BE16(p->transport + 4), end = start + size;

	if (size < 8 || end > p->payload_end)
		return 0;
	p->payload = start + 8;
	p->payload_end = end;
	return 1;
}

INLINE u32 plain_icmp(struct plain *p, u32 start)
{
	p->payload = start + 8;
	return p->payload <= p->payload_end;
}

/* A case of a switch over protocols: sets counters->slot if the headers are complete, or leaves NOT_PLAIN. Roles are
 * compared where the protocol is known. */
#define PLAIN_CASE(family, number, whole)                                                          \
	case number:                                                                               \
		if (whole) {                                                                       \
			counters->protocol = number;                                                   \
			counters->slot = plain_##family##_##number##_verdict(f, &p, counters);             \
			BARRIER();                                                                         \
			if (counters->slot < XDP_MAX_RULES && plain_##family##_role(f, &p, number))        \
				counters->slot = XDP_NONE;                                                 \
		}                                                                                  \
		break

INLINE void evaluate_plain4(struct frame *f, struct xdp_counters *counters, u32 wire)
{
	const u32 start = MAC_HEADER + 20;
	u8 *ip = f->data + MAC_HEADER;
	struct plain p = {ip, ip + 20, 0, MAC_HEADER + BE16(ip + 2)};

	if (ip[0] != 0x45 || *(u16 *)(ip + 6) & NETWORK16(0x3fff) || p.payload_end > wire)
		return;
	switch (ip[9]) {
		PLAIN_CASE(4, 17, plain_udp(&p, start));
		PLAIN_CASE(4, 6, plain_tcp(f, &p, start));
		PLAIN_CASE(4, 1, plain_icmp(&p, start));
	}
	BARRIER();
	if (counters->slot < XDP_MAX_RULES && plain_4_listed(&p))
		counters->slot = XDP_NONE;
}

/* As any_neighbour. */
INLINE u32 plain_neighbour(struct plain *p)
{
	return p->ip[6] == 58 && p->ip[7] == 255 && p->transport[0] >= 134 && p->transport[0] <= 136;
}

INLINE void evaluate_plain6(struct frame *f, struct xdp_counters *counters, u32 wire)
{
	const u32 start = MAC_HEADER + 40;
	u8 *ip = f->data + MAC_HEADER;
	struct plain p = {ip, ip + 40, 0};

	if (ip + 48 > f->end)
		return;
	p.payload_end = start + BE16(ip + 4);
	if (ip[0] >> 4 != 6 || p.payload_end > wire)
		return;
	switch (ip[6]) {
		PLAIN_CASE(6, 17, plain_udp(&p, start));
		PLAIN_CASE(6, 6, plain_tcp(f, &p, start));
		PLAIN_CASE(6, 58, plain_icmp(&p, start));
	}
	BARRIER();
	if (counters->slot < XDP_MAX_RULES && (plain_6_listed(&p) || plain_neighbour(&p)))
		counters->slot = XDP_NONE;
}

/* Like `evaluate`, for plain packets; leaves NOT_PLAIN for others. The `wire` bytes of the frame are linear. */
INLINE void evaluate_plain(struct frame *f, struct xdp_counters *counters, u32 wire)
{
	u16 type;

	if (f->data + MAC_HEADER + 28 > f->end)
		return;
	type = *(u16 *)(f->data + 12);
	if (type == NETWORK16(0x0800))
		evaluate_plain4(f, counters, wire);
	else if (type == NETWORK16(0x86dd))
		evaluate_plain6(f, counters, wire);
}

#endif
