"""Errors that reach the user as one line instead of a traceback."""

from __future__ import annotations

# What a program may rely on (docs/API.md): the word for a code of which nothing more is known
REASONS = {1: "failed", 2: "invalid", 3: "no_access"}


class FwtopError(Exception):
    """One line for the user (what failed, what is unchanged, what to do) and an exit status.

    `code` is 1 (failed), 2 (wrong usage) or 3 (a privilege or kernel feature is missing). For programs,
    `reason` is a stable word for what is wrong, `field` the field of the request that is to blame (None:
    none), and `retryable` says whether the same request may succeed later.
    """

    def __init__(
        self,
        message: str,
        code: int = 1,
        *,
        reason: str = "",
        field: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason or REASONS.get(code, REASONS[1])
        self.field = field
        self.retryable = retryable

    def document(self) -> dict[str, object]:
        """Return it as the JSON that a command prints instead of what was asked for."""
        about = {"code": self.code, "reason": self.reason, "field": self.field, "retryable": self.retryable}
        return {"schema": 1, "ok": False, "error": str(self), **about}

    @staticmethod
    def of(error: Exception) -> FwtopError:
        """Return an error as it is, or an unforeseen one as a line that names its type."""
        return error if isinstance(error, FwtopError) else FwtopError(f"{type(error).__name__}: {error}")


CONSOLE_DATA_BYTES = 512 << 20  # RLIMIT_DATA of the console, some 400 MiB more than it normally uses
CONSOLE_OUT_OF_MEMORY = (
    f"the console needed more memory than it may have ({CONSOLE_DATA_BYTES >> 20} MiB) and ended; "
    "unconfirmed rules are taken back"
)
