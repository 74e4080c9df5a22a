/* SPDX-License-Identifier: GPL-2.0-or-later */
/* At the end of the netfilter input and forward hooks: count and sample accepted packets. */
#include "skb.h"

#define ACCEPT 1
#define HOOK_FORWARD 2

#ifdef OFF_NFCT
#define IP_CT_NEW 2 /* in the low bits of the entry's address */
#define IPS_CONFIRMED (1 << 3)

/* This hook runs just before conntrack confirms: an unconfirmed entry is about to be added to the table. */
INLINE u32 opens_connection(u64 skb)
{
	u64 entry = LOAD64(skb, OFF_NFCT), status = IPS_CONFIRMED;

	if ((entry & 7) != IP_CT_NEW || entry < 8)
		return 0;
	bpf_probe_read_kernel(&status, sizeof(status), (void *)((entry & ~7ull) + OFF_CT_STATUS));
	return !(status & IPS_CONFIRMED);
}
#endif

/* With br_netfilter, packets that a bridge passes on come by here, too: fwtop_bridged counts these. */
INLINE u32 is_bridged(u64 state, u64 in, u32 ifindex)
{
	return LOAD8(state, OFF_STATE_HOOK) == HOOK_FORWARD && role_of(ifindex) == FWTOP_BRIDGE &&
	       LOAD64(state, OFF_STATE_OUT) == in;
}

PROGRAM(fwtop_accepted)
int fwtop_accepted(u64 *context)
{
	u64 state = LOAD64(context, 0), skb = LOAD64(context, 8), dev;
	u32 ifindex, weight, fragments;
	struct fwtop_counters *counters;
	struct packet packet;

	if (!is_counting())
		return ACCEPT;
	dev = LOAD64(state, OFF_STATE_IN);
	if (!dev)
		return ACCEPT;
	ifindex = LOAD32(dev, OFF_DEV_IFINDEX);
	if (!is_watched(ifindex))
		return ACCEPT;
	counters = this_cpu_counters();
	if (!counters)
		return ACCEPT;
#ifdef OFF_NFCT
	if (opens_connection(skb))
		counters->new_connections++;
#endif
	if (is_bridged(state, dev, ifindex))
		return ACCEPT;
	packet = packet_of(skb);
	count(&counters->accepted[LOAD8(state, OFF_STATE_HOOK) == HOOK_FORWARD], packet.segments, packet.length);
	fragments = fragments_of(counters, skb, LOAD8(state, OFF_STATE_PF) == 2 /* NFPROTO_IPV4 */);
	if (fragments > 1)
		counters->reassembled += fragments - 1;
	weight = sampled(counters, FWTOP_ACCEPTED);
	if (weight)
		emit(counters, FWTOP_ACCEPTED, weight, &packet, ifindex, 0);
	return ACCEPT;
}
