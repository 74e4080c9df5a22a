"""Mechanism without policy: bpf(2), BTF, netlink, links, routes, procfs, namespaces, programs."""
