"""Playbooks: what operators under attack did by hand over days, planned for this machine, one rule each."""
