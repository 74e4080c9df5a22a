"""Addresses and prefixes, single and by the million, and what operators name as sources."""
