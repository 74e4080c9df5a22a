"""Explain why a rule has no effect: what takes precedence over it, and where the packets go instead."""
