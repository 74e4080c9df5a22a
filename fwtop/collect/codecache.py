"""Keep what was learnt of the kernel and what was compiled for it, until the next boot.

Reading BTF and compiling cost 0.3 s on an idle machine, and seconds on one that is under attack: the second
start, and every further namespace, needs neither. What is kept is bound to the kernel and to the sources,
lies in /run (gone with the boot), is written by root only, and passes the kernel's verifier like any code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from fwtop.model.protocol import SOCKET_DIRECTORY


def recall(name: str, key: object) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return what `remember` kept under this name and key, or None."""
    path = _path(name, key)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
            return json.loads(file.read())
    except (OSError, ValueError):
        return None


def remember(name: str, key: object, value: object) -> None:
    """Keep a JSON value; where that can't be, the next start works it out again."""
    path = _path(name, key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{name}-", delete=False) as file:
            json.dump(value, file)
        os.replace(file.name, path)


def prune(name: str, keep: int) -> None:
    """Forget all but the latest that `remember` kept under this name."""
    with contextlib.suppress(OSError):
        paths = sorted(Path(SOCKET_DIRECTORY).glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)
        for path in paths[: max(0, len(paths) - keep)]:
            path.unlink(missing_ok=True)


def _path(name: str, key: object) -> Path:
    kernel = os.uname()
    text = json.dumps([kernel.release, kernel.version, kernel.machine, key], sort_keys=True)
    return Path(SOCKET_DIRECTORY) / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
