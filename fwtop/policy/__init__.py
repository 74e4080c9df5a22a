"""Policies: lists and rules that are always in force, tried, kept, and put back at boot."""
