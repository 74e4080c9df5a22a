"""Netfilter's rule sets: iptables, nf_tables and ipset."""
