"""The sections of a report, each made of the facts once, for all formats."""
