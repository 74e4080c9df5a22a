"""Alarms for operators who are not watching, delivered by a process of its own."""

AT_ONCE = "--at-once"  # to the process: alarms wait on disk
