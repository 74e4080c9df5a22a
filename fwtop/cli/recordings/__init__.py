"""Verbs on what was recorded: sessions, reports, replays, capture files."""
