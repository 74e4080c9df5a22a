"""What lasts longer than a window: one memory of all attacks, their proposals and their numbers."""
