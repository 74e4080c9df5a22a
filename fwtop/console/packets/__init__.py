"""Sampled packets: the newest ones, decoded, and as pcap files."""
