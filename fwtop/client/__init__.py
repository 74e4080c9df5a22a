"""The clients of the guardian; other programs: `from fwtop.client import connect` (docs/API.md)."""

from fwtop.client.program import FwtopError, Program, connect

__all__ = ["FwtopError", "Program", "connect"]
