"""Verbs on what was recorded: sessions and captures, listed, played, reported."""
