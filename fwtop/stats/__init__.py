"""From packets to tables: the window, heavy hitters, ports, payloads, shares with intervals, the ledger."""
