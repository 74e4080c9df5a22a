/* The first packet that a rule of each network namespace drops, by CLOCK_MONOTONIC. */
#define LOAD(to, from) bpf_probe_read_kernel(&to, sizeof(to), (void *)(from))

BPF_HASH(first, u32, u64, 4096);

RAW_TRACEPOINT_PROBE(kfree_skb)
{
	u64 dev = 0, net = 0, now = bpf_ktime_get_ns();
	u32 number = 0;

	if (ctx->args[2] != FWTOP_NETFILTER_DROP)
		return 0;
	LOAD(dev, ctx->args[0] + OFF_DEV);
	LOAD(net, dev + OFF_DEV_NET);
	LOAD(number, net + OFF_NET_INUM);
	first.insert(&number, &now);
	return 0;
}
