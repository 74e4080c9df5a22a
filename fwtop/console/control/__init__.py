"""What the screen asks of the guardian, and the rules as the console sees them."""
