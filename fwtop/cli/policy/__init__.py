"""Permanent rules: named lists, protected ports, and policies applied as a whole and restored at boot."""
