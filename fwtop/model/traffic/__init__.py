"""What was seen: packets as columns, counters, windows, snapshots, sessions."""
