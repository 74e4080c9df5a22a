"""Rules that a recorder installs by itself, as far as the operator allows, and takes back if wrong."""
