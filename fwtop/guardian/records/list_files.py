"""Named lists on the tmpfs below /run: a file for each, and another one for a change not at its end yet.

A changed list is written before the kernel gets it, and takes the old one's place once the kernel has it. So
a guardian that dies at any point leaves the list as it was before or as it is after. A list is gone with the
boot, as the rules are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct

from fwtop.guardian.records.files import replace_file
from fwtop.model.addresses.list_rows import rows_of_bytes
from fwtop.model.addresses.named_list import NamedList
from fwtop.model.errors import FwtopError
from fwtop.model.wire import of_json, to_json

_PREFIX, _SUFFIX, _NEXT = "named-", ".list", ".next"


class Recorded(Struct, frozen=True):
    """A list and what is kept with it."""

    named: NamedList
    number: int  # of the list, in the names of its pinned maps
    stamp: int  # of its last change, another one for each
    unfinished: bool = False  # the kernel may have some of a change that did not come to its end


class _Head(Struct, frozen=True):
    """The first line of a file; the rows and, where some end, the ends of all follow."""

    boot: str
    name: str
    number: int
    stamp: int
    row_bytes: int


class ListFiles:
    """The files of one namespace."""

    def __init__(self, directory: Path, boot: str) -> None:
        """Take the directory of the namespace's records, and the boot that they are good for."""
        self._directory = directory
        self._boot = boot

    def load(self) -> Iterator[Recorded]:
        """Yield the lists; a file that makes no sense is skipped, and a change without its end is dropped."""
        for path in sorted(self._directory.glob(f"{_PREFIX}*{_SUFFIX}")):
            unfinished = path.with_suffix(_NEXT).exists()
            try:
                found = self._read(path, unfinished=unfinished)
                path.with_suffix(_NEXT).unlink(missing_ok=True)
            except (OSError, ValueError):
                continue
            if found is not None:
                yield found

    def write(self, recorded: Recorded) -> None:
        """Record a list in place of what was recorded of it, in one step; raises FwtopError."""
        self._put(recorded, _SUFFIX)

    def begin(self, recorded: Recorded) -> None:
        """Record a list as the kernel is to get it, beside what it has; raises FwtopError."""
        self._put(recorded, _NEXT)

    def finish(self, name: str) -> None:
        """Take what was begun for what the kernel has; raises FwtopError."""
        try:
            self._path(name, _NEXT).rename(self._path(name))
        except OSError as error:
            raise _unwritable(name, error) from None

    def abandon(self, name: str) -> None:
        """Drop what was begun; raises FwtopError."""
        self._unlink(name, _NEXT)

    def drop(self, name: str) -> None:
        """Forget a list; raises FwtopError."""
        self._unlink(name, _SUFFIX)

    def _path(self, name: str, suffix: str = _SUFFIX) -> Path:
        return self._directory / f"{_PREFIX}{name}{suffix}"

    def _put(self, recorded: Recorded, suffix: str) -> None:
        named = recorded.named
        rows = named.rows.tobytes()
        ends = named.ends.astype("<f8").tobytes() if named.ends is not None else b""
        head = _Head(self._boot, named.name, recorded.number, recorded.stamp, len(rows))
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path(named.name, suffix), b"".join((to_json(head), b"\n", rows, ends)))
        except OSError as error:
            raise _unwritable(named.name, error) from None

    def _unlink(self, name: str, suffix: str) -> None:
        try:
            self._path(name, suffix).unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(name, error) from None

    def _read(self, path: Path, *, unfinished: bool) -> Recorded | None:
        """Read a file; None if it is another boot's, which is removed. Raises OSError, ValueError."""
        text, _, body = path.read_bytes().partition(b"\n")
        head = of_json(_Head, text)
        if head.boot != self._boot:
            path.unlink()
            return None
        rows, left = rows_of_bytes(body[: head.row_bytes]), body[head.row_bytes :]
        ends = np.frombuffer(left, "<f8").copy() if left else None
        if ends is not None and len(ends) != len(rows):
            raise ValueError("not as many ends as rows")
        return Recorded(NamedList(head.name, rows, ends), head.number, head.stamp, unfinished)


def _unwritable(name: str, error: OSError) -> FwtopError:
    return FwtopError(f"list {name} can't be recorded in /run ({error.strerror}); nothing was changed")
