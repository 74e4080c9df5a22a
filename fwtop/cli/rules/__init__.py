"""Verbs on rules: those that make one, those on rules that are there, lists, policies, playbooks."""
