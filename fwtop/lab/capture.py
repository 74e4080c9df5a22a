"""A capture replayed into the lab."""
