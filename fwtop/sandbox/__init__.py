"""Giving root away, and confining what is left: capabilities, seccomp, Landlock."""
