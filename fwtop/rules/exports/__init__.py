"""Rules as text for other programs: shell commands, and files for ipset, iptables and nft."""
