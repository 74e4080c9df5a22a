"""The guardian's records of its rules: rules with their lives, named lists, and what was there before."""
