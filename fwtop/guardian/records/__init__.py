"""The guardian's records of its rules: the journal, named lists, and the kernel's own state."""
