"""How a window is cut into groups, and the features that are measured of them."""
