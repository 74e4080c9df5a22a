"""Measured tables and the testbed they are measured on."""
