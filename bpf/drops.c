/* SPDX-License-Identifier: GPL-2.0-or-later */
/* skb:kfree_skb: count packets dropped on their way in by reason, and sample them 1 in N.
 *
 * The tracepoint fires for all namespaces, and for outgoing packets too. Ours are those that arrived at a watched
 * interface (skb_iif) of our namespace. The namespace is that of the device; without a device, that of the
 * receiving socket (since Linux 6.11) or of the packet's route. On a UDP socket's queue and in a fragment queue
 * other data lies where `dev` was: then the namespace's number doesn't match, and the verifier has made the loads
 * safe. */
#include "skb.h"

#define TIME_WAIT 6 /* include/net/tcp_states.h */

INLINE u32 is_ours(u64 skb, u64 dev, u64 *context)
{
	u64 net = 0, out_dev = 0, route;
	u32 number = 0;

	if (dev)
		return is_our_netns(LOAD32(LOAD64(dev, OFF_DEV_NET), OFF_NET_INUM));
#ifdef FWTOP_HAS_RX_SK
	u64 socket = LOAD64(context, 24);

	if (socket)
		return is_our_netns(LOAD32(LOAD64(socket, OFF_SOCK_NET), OFF_NET_INUM));
#endif
	route = LOAD64(skb, OFF_REFDST) & ~1ull;
	if (!route || bpf_probe_read_kernel(&out_dev, 8, (void *)(route + OFF_DST_DEV)) ||
	    bpf_probe_read_kernel(&net, 8, (void *)(out_dev + OFF_DEV_NET)))
		return 0;
	bpf_probe_read_kernel(&number, 4, (void *)(net + OFF_NET_INUM));
	return is_our_netns(number);
}

/* For drops without a reason, the location in the kernel's code says where they happened. All CPUs share the
 * places; where two take the same one at once, one of them goes on to the next. */
INLINE void count_location(struct fwtop_counters *counters, u64 address, u32 packets)
{
	struct fwtop_locations *known = MAP_VALUE(FWTOP_LOCATIONS_FD);
	u64 slot = (address >> 2) & 15;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		volatile u64 *place = &known->address[slot + i];
		if (!*place)
			*place = address;
		if (*place == address) {
			counters->locations[slot + i] += packets;
			return;
		}
	}
	counters->locations[FWTOP_LOCATIONS - 1] += packets;
}

/* Fragments that connection tracking reassembled are dropped by a rule as one packet. Only between the netfilter
 * hooks and the sockets does the skb's control buffer (cb) certainly belong to the IP layer. */
INLINE void count_fragments(struct fwtop_counters *counters, u64 skb, u64 reason, struct packet *packet)
{
	u32 fragments;

	if ((reason != FWTOP_NETFILTER_DROP && reason != FWTOP_IP_RPFILTER) || packet->segments > 1)
		return;
	fragments = fragments_of(counters, skb, LOAD16(skb, OFF_PROTOCOL) == 0x0008 /* ETH_P_IP in network order */);
	if (fragments < 2)
		return;
	packet->segments = fragments;
	counters->dropped_fragments += fragments - 1;
}

/* A socket in TIME_WAIT takes its peer's last packets (the FIN after ours), and the kernel frees them as if it dropped
 * them, without a reason (tcp_v4_rcv, do_time_wait): they were delivered. */
INLINE u32 ends_in_time_wait(u64 reason, u64 *context)
{
#ifdef FWTOP_HAS_RX_SK
	u64 socket = LOAD64(context, 24);

	return reason == FWTOP_NOT_SPECIFIED && socket && LOAD8(socket, OFF_SOCK_STATE) == TIME_WAIT;
#else
	return 0;
#endif
}

PROGRAM(fwtop_drop)
int fwtop_drop(u64 *context)
{
	u64 skb = LOAD64(context, 0), reason = FWTOP_NOT_SPECIFIED, dev;
	u32 ifindex, outbound = 0, weight;
	struct fwtop_counters *counters;
	struct packet packet;

	if (!is_counting())
		return 0;
#ifdef FWTOP_HAS_REASON
	reason = (u32)LOAD64(context, 16);
#endif
	dev = LOAD64(skb, OFF_DEV);
	ifindex = LOAD32(skb, OFF_SKB_IIF);
	if (!ifindex && dev && reason == FWTOP_CPU_BACKLOG) /* dropped before skb_iif was set */
		ifindex = LOAD32(dev, OFF_DEV_IFINDEX);
	else if (dev)
		outbound = LOAD32(dev, OFF_DEV_IFINDEX) != ifindex;
	/* What a bridge passes on has the bridge's or the other port's device by then, and fwtop_bridged still ahead */
	if (reason == FWTOP_NETFILTER_DROP && role_of(ifindex) == FWTOP_PORT)
		outbound = 0;
	if (!is_watched(ifindex) || !is_ours(skb, dev, context) || ends_in_time_wait(reason, context))
		return 0;
	counters = this_cpu_counters();
	if (!counters)
		return 0;
	OPAQUE(reason);
	if (reason >= FWTOP_REASONS)
		reason = FWTOP_REASONS - 1;
	packet = packet_of(skb);
	count_fragments(counters, skb, reason, &packet);
	count(&counters->drops[outbound != 0][reason], packet.segments, packet.length);
	if (reason == FWTOP_NETFILTER_DROP && !outbound && LOAD64(skb, OFF_REFDST)) /* it had a route */
		counters->filtered += packet.segments;
	if (reason == FWTOP_NOT_SPECIFIED)
		count_location(counters, LOAD64(context, 8), packet.segments);
	weight = sampled(counters, FWTOP_DROP);
	if (weight)
		emit(counters, FWTOP_DROP, weight, &packet, ifindex, reason);
	return 0;
}
