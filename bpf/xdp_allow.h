/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Peers that pass in their role only: SSH sessions, resolvers, time servers, gateways, and conversations of hosts
 * behind this machine (see fwtop/model/addresses/roles.py).
 *
 * Checked for packets that a rule would drop. Most packets of a flood fail the port checks before the lookup. */
#ifndef FWTOP_XDP_ALLOW_H
#define FWTOP_XDP_ALLOW_H

#include "xdp.h"

#define PORT_WORDS 1024
#define XDP_PEERS 8192
#define XDP_BEHIND 4096
#define PEER_PROBES 16
#define GATEWAY 0 /* in place of protocol and port */
#define LOGIN 0x86 /* in place of the protocol: the port is ours, to which a session's peer may open others */
#define ROLE(protocol, port) ((protocol) << 16 | (port))

/* A hash table with open addressing. `key` is written last, and a used place never becomes empty again, so that no
 * lookup ends too early. Writer: fwtop/guardian/mechanisms/compiled/slots.py. */
struct xdp_peer {
	u64 hi, lo;
	u64 key; /* family << 24 | ROLE; 0: empty, 1: removed */
};

struct xdp_behind { /* a peer and the host that it may talk to */
	u64 hi, lo, host_hi, host_lo;
	u64 key; /* as above */
};

struct xdp_allow {
	u64 tcp_ports[PORT_WORDS]; /* bitmap of the source ports of TCP peers, and of the ports of logins */
	struct xdp_peer peers[XDP_PEERS];
	u64 behind_ports[PORT_WORDS]; /* bitmap of the peers' TCP ports in conversations */
	struct xdp_behind behind[XDP_BEHIND];
};

INLINE u32 is_peer(u32 family, u64 hi, u64 lo, u32 role)
{
	struct xdp_allow *allow = MAP_VALUE(FWTOP_XDP_ALLOW_FD);
	u64 key = (u64)family << 24 | role;
	u64 first = ((hi ^ key) * 0x9e3779b97f4a7c15ULL + lo) * 0xd6e8feb86659fd93ULL >> 51, place;

#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PEER_PROBES; i++) {
		struct xdp_peer *peer;

		place = first + i;
		OPAQUE(place);
		peer = &allow->peers[place & (XDP_PEERS - 1)];
		if (peer->key == 0)
			return 0;
		if (peer->key == key && peer->lo == lo && peer->hi == hi)
			return 1;
	}
	return 0;
}

INLINE u32 is_tcp_port(u64 port)
{
	struct xdp_allow *allow = MAP_VALUE(FWTOP_XDP_ALLOW_FD);
	u64 word = port >> 6;

	OPAQUE(word);
	return allow->tcp_ports[word & (PORT_WORDS - 1)] >> (port & 63) & 1;
}

/* SYN without ACK, RST and FIN opens a connection, which only gateways may, for BGP, and who is logged in. */
INLINE u32 tcp_in_role(u32 family, u64 hi, u64 lo, u32 sport, u32 dport, u32 flags)
{
	u32 role = ROLE(6, sport);

	if (is_tcp_port(dport) && is_peer(family, hi, lo, ROLE(LOGIN, dport)))
		return 1;
	if (dport == 179)
		role = GATEWAY;
	else if ((flags & 0x17) == 0x02 || !is_tcp_port(sport))
		return 0;
	return is_peer(family, hi, lo, role);
}

/* For nearly every packet of a flood, two comparisons say that it has neither a port that somebody answers from nor
 * one of BFD. */
#define LAST_ANSWERING 547 /* DHCPv6 */
#define FIRST_BFD 3784
#define LAST_BFD 4784

INLINE u32 may_have_role(u32 sport, u32 dport)
{
	return sport <= LAST_ANSWERING || dport - FIRST_BFD <= LAST_BFD - FIRST_BFD;
}

INLINE u32 udp_in_role(u32 family, u64 hi, u64 lo, u32 sport, u32 dport)
{
	u32 role = ROLE(17, sport);
	u32 answer = sport == 53 ? dport >= 1024 : sport == 123;

	if (family == 4 ? sport == 67 && dport == 68 : sport == 547 && dport == 546)
		answer = 1;
	if (!answer) {
		if (dport != 3784 && dport != 3785 && dport != 4784)
			return 0;
		role = GATEWAY;
	}
	return is_peer(family, hi, lo, role);
}

INLINE u32 may_talk(u32 family, u64 hi, u64 lo, u64 host_hi, u64 host_lo, u32 role)
{
	struct xdp_allow *allow = MAP_VALUE(FWTOP_XDP_ALLOW_FD);
	u64 key = (u64)family << 24 | role;
	u64 first = ((hi ^ key) * 0x9e3779b97f4a7c15ULL + lo) * 0xd6e8feb86659fd93ULL, place;

	first = ((first ^ host_hi) * 0x9e3779b97f4a7c15ULL + host_lo) * 0xd6e8feb86659fd93ULL >> 52;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PEER_PROBES; i++) {
		struct xdp_behind *it;

		place = first + i;
		OPAQUE(place);
		it = &allow->behind[place & (XDP_BEHIND - 1)];
		if (it->key == 0)
			return 0;
		if (it->key == key && it->lo == lo && it->hi == hi && it->host_lo == host_lo && it->host_hi == host_hi)
			return 1;
	}
	return 0;
}

INLINE u32 is_behind_port(u64 port)
{
	struct xdp_allow *allow = MAP_VALUE(FWTOP_XDP_ALLOW_FD);
	u64 word = port >> 6;

	OPAQUE(word);
	return allow->behind_ports[word & (PORT_WORDS - 1)] >> (port & 63) & 1;
}

/* What a peer sends from its port, or a host to that port; only answers come from a resolver's. */
INLINE u32 tcp_behind(u32 family, u64 s_hi, u64 s_lo, u64 d_hi, u64 d_lo, u32 sport, u32 dport, u32 flags)
{
	if ((flags & 0x17) == 0x02)
		return 0;
	if (is_behind_port(sport) && may_talk(family, s_hi, s_lo, d_hi, d_lo, ROLE(6, sport)))
		return 1;
	return dport != 53 && is_behind_port(dport) && may_talk(family, d_hi, d_lo, s_hi, s_lo, ROLE(6, dport));
}

INLINE u32 udp_behind(u32 family, u64 s_hi, u64 s_lo, u64 d_hi, u64 d_lo, u32 sport, u32 dport)
{
	if (sport == 53 ? dport >= 1024 : sport == 123)
		return may_talk(family, s_hi, s_lo, d_hi, d_lo, ROLE(17, sport));
	if (dport != 3784 && dport != 3785 && dport != 4784)
		return 0;
	return may_talk(family, d_hi, d_lo, s_hi, s_lo, ROLE(17, dport));
}

INLINE u32 is_routing(u32 protocol)
{
	return protocol == 89 || protocol == 112;
}

INLINE u32 is_gateways(u32 family, u32 protocol)
{
	return protocol == (family == 4 ? 1 : 58) || is_routing(protocol);
}

INLINE u32 any_in_role(struct frame *f, struct view *p)
{
	u32 ported = p->fragment != LATER_FRAGMENT;

	if (p->protocol == 6)
		return ported && (tcp_in_role(p->family, p->src_hi, p->src_lo, p->sport, p->dport, p->tcp_flags) ||
				  tcp_behind(p->family, p->src_hi, p->src_lo, p->dst_hi, p->dst_lo, p->sport, p->dport,
					     p->tcp_flags));
	if (p->protocol == 17)
		return ported && (udp_in_role(p->family, p->src_hi, p->src_lo, p->sport, p->dport) ||
				  udp_behind(p->family, p->src_hi, p->src_lo, p->dst_hi, p->dst_lo, p->sport, p->dport));
	if (is_routing(p->protocol) &&
	    may_talk(p->family, p->src_hi, p->src_lo, p->dst_hi, p->dst_lo, ROLE(p->protocol, 0)))
		return 1;
	return is_gateways(p->family, p->protocol) && is_peer(p->family, p->src_hi, p->src_lo, GATEWAY);
}

INLINE u32 plain_in_role(struct frame *f, struct plain *p, u32 family, u32 protocol, u64 hi, u64 lo, u64 to_hi, u64 to_lo)
{
	u32 sport, dport;

	if (is_gateways(family, protocol))
		return is_peer(family, hi, lo, GATEWAY);
	if (p->transport + 4 > f->end)
		return 0;
	sport = BE16(p->transport);
	dport = BE16(p->transport + 2);
	if (protocol == 17)
		return may_have_role(sport, dport) && (udp_in_role(family, hi, lo, sport, dport) ||
						       udp_behind(family, hi, lo, to_hi, to_lo, sport, dport));
	if (p->transport + 14 > f->end)
		return 0;
	return tcp_in_role(family, hi, lo, sport, dport, p->transport[13]) ||
	       tcp_behind(family, hi, lo, to_hi, to_lo, sport, dport, p->transport[13]);
}

/* The same of packets whose protocol is known. */
INLINE u32 plain_4_role(struct frame *f, struct plain *p, u32 protocol)
{
	return plain_in_role(f, p, 4, protocol, 0, BE32(p->ip + 12), 0, BE32(p->ip + 16));
}

INLINE u32 plain_6_role(struct frame *f, struct plain *p, u32 protocol)
{
	return plain_in_role(f, p, 6, protocol, BE64(p->ip + 8), BE64(p->ip + 16), BE64(p->ip + 24), BE64(p->ip + 32));
}

INLINE u32 plain_4_in_role(struct frame *f, struct plain *p)
{
	return plain_4_role(f, p, p->ip[9]);
}

INLINE u32 plain_6_in_role(struct frame *f, struct plain *p)
{
	return plain_6_role(f, p, p->ip[6]);
}

/* Neighbour discovery is the ARP of IPv6 and must always pass. Hop limit 255 proves that a packet comes from the
 * link (RFC 4861, 6.1 and 7.1): router advertisement, neighbour solicitation and advertisement. */
INLINE u32 any_neighbour(struct view *p)
{
	return p->protocol == 58 && p->family == 6 && p->ttl == 255 && p->fragment == NOT_FRAGMENTED &&
	       p->icmp_type >= 134 && p->icmp_type <= 136;
}

#endif
