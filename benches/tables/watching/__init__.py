"""Tables on the cost and speed of watching, and on the screen."""
