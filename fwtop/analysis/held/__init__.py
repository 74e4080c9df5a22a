"""Attacks that hold connections instead of sending packets: slow requests, slow reading, silence."""
