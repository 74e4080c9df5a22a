"""Every rule and set on the machine with its counters, whoever made it."""
