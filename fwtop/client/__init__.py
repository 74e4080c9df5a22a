"""The one client of the guardian."""
