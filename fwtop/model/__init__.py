"""Frozen values that every other part shares; imports the standard library and numpy only."""
