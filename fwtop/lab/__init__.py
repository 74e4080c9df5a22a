"""Attacks on a victim in network namespaces of its own, with the truth of what was sent."""
