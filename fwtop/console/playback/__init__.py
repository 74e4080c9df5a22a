"""Stored sessions and capture files as a feed for the screen."""
