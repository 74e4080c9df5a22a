/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The way of nearly all packets: headers at places known beforehand, read where they lie.
 *
 * Plain is an untagged Ethernet frame in one buffer with IPv4 (no options, no fragment) or IPv6 (no extension
 * headers), and TCP, UDP or ICMP whose lengths agree. All others go the way of xdp_parse.h, which costs four times as
 * much; both give the same verdict. The generated `plain_*_verdict` functions know family and protocol and ask
 * no rule that can't hit those. They read fields anew for each rule (see MEET): a load from the first cache
 * line costs less than a register that must be kept, and the verifier forgets what earlier rules compared.
 */
#ifndef FWTOP_XDP_PLAIN_H
#define FWTOP_XDP_PLAIN_H

#include "xdp.h"

#define PLAIN_BYTES 1600 /* a longer frame may lie in several buffers */
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

/* Of a case in a switch over protocols: set the cell's slot where headers are whole, or leave it NOT_PLAIN. */
#define PLAIN_CASE(family, number, whole)                                                          \
	case number:                                                                               \
		if (whole) {                                                                       \
			cell->protocol = number;                                                   \
			cell->slot = plain_##family##_##number##_verdict(f, &p, cell);             \
		}                                                                                  \
		break

INLINE void judge_plain4(struct frame *f, struct xdp_cell *cell, u32 wire)
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
	MEET();
	if (cell->slot < XDP_MAX_RULES && plain_4_allowed(&p))
		cell->slot = XDP_NONE;
}

/* As any_neighbour. */
INLINE u32 plain_neighbour(struct plain *p)
{
	return p->ip[6] == 58 && p->ip[7] == 255 && p->transport[0] >= 134 && p->transport[0] <= 136;
}

INLINE void judge_plain6(struct frame *f, struct xdp_cell *cell, u32 wire)
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
	MEET();
	if (cell->slot < XDP_MAX_RULES && (plain_6_allowed(&p) || plain_neighbour(&p)))
		cell->slot = XDP_NONE;
}

/* As `judge`, of plain packets; cell->slot stays NOT_PLAIN of others. `wire` is all of the frame, in one piece. */
INLINE void judge_plain(struct frame *f, struct xdp_cell *cell, u32 wire)
{
	u16 type;

	if (f->data + MAC_HEADER + 28 > f->end)
		return;
	type = *(u16 *)(f->data + 12);
	if (type == NETWORK16(0x0800))
		judge_plain4(f, cell, wire);
	else if (type == NETWORK16(0x86dd))
		judge_plain6(f, cell, wire);
}

#endif
