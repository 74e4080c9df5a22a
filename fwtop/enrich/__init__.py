"""Country and autonomous system of addresses."""
