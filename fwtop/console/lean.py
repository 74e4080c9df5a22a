"""Keep libraries out of the console that its dependencies import but it never uses."""

from __future__ import annotations

import sys


def without_openssl() -> None:
    """Make asyncio and hashlib do without OpenSSL, 2 MB; to be called before anything imports them.

    The console opens no connections, and Python has the hashes that it needs of its own.
    """
    for name in ("ssl", "_hashlib"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # documented: import then fails
