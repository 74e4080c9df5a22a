"""Parsers of protocols in payloads; they never raise on hostile bytes."""
