"""The allow-list: who is never cut off, and in which role."""
