"""Dialogs: details, choices, and the rule dialog with its editor."""
