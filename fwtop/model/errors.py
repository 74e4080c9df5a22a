"""The one exception that reaches the user as a line instead of a traceback."""

from __future__ import annotations


class FwtopError(Exception):
    """What was wrong, what was left untouched, what to do: one line for people, and an exit status.

    `code` is 1 (failed), 2 (wrong usage) or 3 (a privilege or kernel feature is missing).
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
