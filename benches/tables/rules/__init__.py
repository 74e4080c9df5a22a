"""Tables on what rules cost, and on putting them in."""
