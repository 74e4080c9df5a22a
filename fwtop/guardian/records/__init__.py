"""The guardian's records of its rules: the journal, its copy below /run, and the kernel's own state."""
