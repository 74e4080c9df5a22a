"""What is known about addresses: country and autonomous system."""
