"""The measured tables, one per module."""
