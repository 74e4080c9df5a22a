"""What stays: named lists, protected ports, and policies, applied and undone as a whole, restored at boot."""
