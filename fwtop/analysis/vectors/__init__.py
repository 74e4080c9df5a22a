"""What attacks mean together: parts of one, several of one kind, and what shows in state."""
