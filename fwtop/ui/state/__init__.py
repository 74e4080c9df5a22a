"""What the screen derives from snapshots and remembers between them; nothing here draws."""
