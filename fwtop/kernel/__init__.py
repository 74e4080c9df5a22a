"""Mechanism without policy: bpf(2), BTF, netlink, links, iptables, ipset, procfs, namespaces, programs."""
