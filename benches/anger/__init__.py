"""A night in anger: tools of others come and go beside steady clients, and a hand on the keys."""
