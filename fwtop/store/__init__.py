"""Stored sessions (SQLite)."""
