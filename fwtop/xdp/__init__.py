"""Compiled rules, in the driver and at tc ingress: code, lists, shared maps, pins, attachment, loader."""
