"""Measured tables for developers, outside the installed program: `python -m benches list`."""
