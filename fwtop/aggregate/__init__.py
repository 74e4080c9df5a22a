"""From packets to tables: the window, heavy hitters, ports, payload statistics."""
