"""Alarms: what the operator is told while nobody watches, delivered by a process of its own."""
