"""The engine of judgement: groups of packets, their features, and hypotheses that compete for them."""
