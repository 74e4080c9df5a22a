"""Policies: a file of lists and rules, applied as a whole, kept, undone and restored at boot."""
