"""The console's source of packets and counters: ring buffer, maps, duty cycle, scaling, interfaces, NFLOG."""
