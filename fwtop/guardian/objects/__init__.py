"""The kernel objects of rules, installed and removed: chains, sets, tables, sysctls, programs."""
