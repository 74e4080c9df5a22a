"""What a rule is in the kernel, and how it gets in and out: chains, sets, tables, sysctls, programs."""
