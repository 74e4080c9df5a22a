"""Packet headers to columns."""
