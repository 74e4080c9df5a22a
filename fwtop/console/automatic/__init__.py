"""Automatic rules: a recorder installs them within the operator's policy, and removes wrong ones."""
