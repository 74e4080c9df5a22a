/* SPDX-License-Identifier: GPL-2.0-or-later */
/* skb:kfree_skb: every packet that the kernel drops on its way in, by reason, sampled 1 in N.
 *
 * The tracepoint fires for all namespaces and for outgoing packets too. Ours are those that came in by a
 * watched interface (skb_iif) of our namespace; whose namespace it is, the device tells. Where a packet has
 * none any more the receiving socket does (kernels since 6.11), else the route that the packet had. On a UDP
 * socket's queue and in a fragment queue other data lies where `dev` was: the namespace's number then doesn't
 * fit, and the verifier has made the loads safe. */
#include "skb.h"

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

/* "Not specified" says nothing: the place in the kernel's code does. */
INLINE void count_site(struct fwtop_cell *cell, u64 address, u32 packets)
{
	u64 slot = (address >> 2) & 15;

#pragma unroll
	for (int i = 0; i < 8; i++) {
		struct fwtop_site *site = &cell->sites[slot + i];
		if (!site->address)
			site->address = address;
		if (site->address == address) {
			site->packets += packets;
			return;
		}
	}
	cell->sites[FWTOP_SITES - 1].packets += packets;
}

/* Where connection tracking put fragments together, a rule drops all of them as one packet. Only between the
 * netfilter hooks and the sockets is it certain that the buffer's scratch space (cb) is the IP layer's. */
INLINE void count_fragments(struct fwtop_cell *cell, u64 skb, u64 reason, struct packet *packet)
{
	u32 fragments;

	if ((reason != FWTOP_NETFILTER_DROP && reason != FWTOP_IP_RPFILTER) || packet->segments > 1)
		return;
	fragments = fragments_of(cell, skb, LOAD16(skb, OFF_PROTOCOL) == 0x0008 /* ETH_P_IP in network order */);
	if (fragments < 2)
		return;
	packet->segments = fragments;
	cell->refused += fragments - 1;
}

PROGRAM(fwtop_drop)
int fwtop_drop(u64 *context)
{
	u64 skb = LOAD64(context, 0), reason = FWTOP_NOT_SPECIFIED, dev;
	u32 ifindex, outbound = 0, weight;
	struct fwtop_cell *cell;
	struct packet packet;

	if (!is_open())
		return 0;
#ifdef FWTOP_HAS_REASON
	reason = (u32)LOAD64(context, 16);
#endif
	dev = LOAD64(skb, OFF_DEV);
	ifindex = LOAD32(skb, OFF_SKB_IIF);
	if (!ifindex && dev && reason == FWTOP_CPU_BACKLOG) /* before the stack noted where it came in */
		ifindex = LOAD32(dev, OFF_DEV_IFINDEX);
	else if (dev)
		outbound = LOAD32(dev, OFF_DEV_IFINDEX) != ifindex;
	if (!is_watched(ifindex) || !is_ours(skb, dev, context))
		return 0;
	cell = this_cell();
	if (!cell)
		return 0;
	OPAQUE(reason);
	if (reason >= FWTOP_REASONS)
		reason = FWTOP_REASONS - 1;
	packet = packet_of(skb);
	count_fragments(cell, skb, reason, &packet);
	count(&cell->drops[outbound != 0][reason], packet.segments, packet.length);
	if (reason == FWTOP_NOT_SPECIFIED)
		count_site(cell, LOAD64(context, 8), packet.segments);
	weight = sampled(cell, FWTOP_DROP);
	if (weight)
		emit(cell, FWTOP_DROP, weight, &packet, ifindex, reason);
	return 0;
}
