/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The very end of the netfilter input and forward hooks: count and sample what the rules let through. */
#include "skb.h"

#define ACCEPT 1
#define HOOK_FORWARD 2

#ifdef OFF_NFCT
#define IP_CT_NEW 2 /* in the low bits beside the entry's address */
#define IPS_CONFIRMED (1 << 3)

/* This hook runs just before conntrack confirms: a new entry that is not confirmed is one more in the table. */
INLINE u32 opens_connection(u64 skb)
{
	u64 entry = LOAD64(skb, OFF_NFCT), status = IPS_CONFIRMED;

	if ((entry & 7) != IP_CT_NEW || entry < 8)
		return 0;
	bpf_probe_read_kernel(&status, sizeof(status), (void *)((entry & ~7ull) + OFF_CT_STATUS));
	return !(status & IPS_CONFIRMED);
}
#endif

PROGRAM(fwtop_accepted)
int fwtop_accepted(u64 *context)
{
	u64 state = LOAD64(context, 0), skb = LOAD64(context, 8), dev;
	u32 ifindex, weight, fragments;
	struct fwtop_cell *cell;
	struct packet packet;

	if (!is_open())
		return ACCEPT;
	dev = LOAD64(state, OFF_STATE_IN);
	if (!dev)
		return ACCEPT;
	ifindex = LOAD32(dev, OFF_DEV_IFINDEX);
	if (!is_watched(ifindex))
		return ACCEPT;
	cell = this_cell();
	if (!cell)
		return ACCEPT;
	packet = packet_of(skb);
	count(&cell->accepted[LOAD8(state, OFF_STATE_HOOK) == HOOK_FORWARD], packet.segments, packet.length);
	fragments = fragments_of(cell, skb, LOAD8(state, OFF_STATE_PF) == 2 /* NFPROTO_IPV4 */);
	if (fragments > 1)
		cell->reassembled += fragments - 1;
#ifdef OFF_NFCT
	if (opens_connection(skb))
		cell->new_connections++;
#endif
	weight = sampled(cell, FWTOP_ACCEPTED);
	if (weight)
		emit(cell, FWTOP_ACCEPTED, weight, &packet, ifindex, 0);
	return ACCEPT;
}
