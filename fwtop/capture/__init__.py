"""Capture files to packets: pcap and pcapng, also gzipped."""
