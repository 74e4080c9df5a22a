"""Everything that takes measurements in: BPF, ring buffers, NFLOG, counters, capture files."""
