"""The life of rules: checked, installed, confirmed, counted, expired, undone."""
