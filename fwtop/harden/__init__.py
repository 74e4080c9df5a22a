"""Playbooks: defences that took operators days by hand, planned for this machine, applied as one rule."""
