"""What the guardian remembers of its rules: the journal, its copy below /run, and the kernel's own state."""
