"""Spare the console libraries that others import and it never uses."""

from __future__ import annotations

import sys
from types import SimpleNamespace


def without_openssl() -> None:
    """Make asyncio and hashlib do without OpenSSL, 2 MB; to be called before anything imports them.

    The console opens no connections, and Python has the hashes that it needs of its own.
    """
    for name in ("ssl", "_hashlib"):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # documented: import then fails


def without_masked_arrays() -> None:
    """Make NumPy do without numpy.ma, 1.1 MB, which the first np.unique would import in 18 ms.

    np.unique and np.median only ask it whether an array is masked; none of the console's is.
    """
    import numpy as np  # here: without_openssl() comes before everything else

    np.ma = SimpleNamespace(is_masked=_no, isMaskedArray=_no)  # type: ignore[assignment]


def _no(_: object) -> bool:
    return False
