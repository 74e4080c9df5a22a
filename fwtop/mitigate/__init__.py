"""Rules and the guardian: drivers, allow-list, journal, confirm-or-revert."""
