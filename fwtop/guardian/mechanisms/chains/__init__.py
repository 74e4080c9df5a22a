"""Rules in table raw of iptables: lines, ipsets, and lines beside those of others."""
