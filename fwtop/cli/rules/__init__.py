"""Verbs that install, show and remove rules."""
