"""Panels of rows, their columns, and the details of a row."""
