"""Alarms: what the operator is told while nobody watches, delivered by a process of its own."""

AT_ONCE = "--at-once"  # to the process: alarms wait on disk
