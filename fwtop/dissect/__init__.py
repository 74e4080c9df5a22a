"""One packet taken apart by scapy, in a process of its own."""
