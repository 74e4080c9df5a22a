"""Values only: addresses, packets, counters, rules, snapshots, sanitised text."""
