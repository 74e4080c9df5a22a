"""A cache of kernel definitions and compiled programs, until the next boot.

Reading BTF and compiling take 0.3 s on an idle machine and seconds on one under attack; later starts, and
other namespaces, skip both. Entries are keyed by kernel and sources and live in /run. Only root writes them,
and cached code passes the verifier like any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from fwtop.model.files import replacing
from fwtop.model.paths import RUN_DIRECTORY


def load(name: str, key: object) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return the value stored under this name and key, or None."""
    path = _path(name, key)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
            return json.loads(file.read())
    except (OSError, ValueError):
        return None


def store(name: str, key: object, value: object) -> None:
    """Store a JSON value; failures are ignored, as the next start computes it again."""
    path = _path(name, key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with replacing(path, permissions=0o600) as file:
            json.dump(value, file)


def prune(name: str, keep: int) -> None:
    """Delete all but the latest `keep` entries under this name."""
    with contextlib.suppress(OSError):
        paths = sorted(RUN_DIRECTORY.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)
        for path in paths[: max(0, len(paths) - keep)]:
            path.unlink(missing_ok=True)


def _path(name: str, key: object) -> Path:
    kernel = os.uname()
    text = json.dumps([kernel.release, kernel.version, kernel.machine, key], sort_keys=True)
    return RUN_DIRECTORY / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"
