"""Named lists on the tmpfs below /run: for each a file with the list, and then its changes.

A change is appended before the kernel gets it, and a mark after it once the kernel has it: what has no mark
never happened. So a guardian that dies at any point leaves the list as it was before or as it is after, and
the record of a small change to a list of a million prefixes costs bytes, not megabytes. A list is gone with
the boot, as the rules are.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.records.files import replace_file
from fwtop.model.addresses.named_list import Change, NamedList
from fwtop.model.addresses.port_rows import rows_of_bytes
from fwtop.model.errors import FwtopError

_HEAD = struct.Struct("<4sIQI")  # magic, kind, length and CRC-32 of what follows
_MAGIC = b"FWL1"
_BASE, _CHANGE, _DONE = 1, 2, 3
_CHANGE_HEAD = struct.Struct("<QdQ")  # stamp, end of what is added, bytes of what is added
_BASE_HEAD = struct.Struct("<IQ")  # bytes of the description, of the rows
_MOST_CHANGES = 64  # since the list itself was written; a longer log takes long to replay
_PREFIX, _SUFFIX = "named-", ".log"


class Recorded(Struct, frozen=True):
    """A list and what is kept with it."""

    named: NamedList
    number: int  # of the list, in the names of its pinned maps
    stamp: int  # of its last change, another one for each
    unfinished: bool = False  # the kernel may have some of a change that did not come to its end


class ListLog:
    """The files of one namespace."""

    def __init__(self, directory: Path, boot: str) -> None:
        """Take the directory of the namespace's records, and the boot that they are good for."""
        self._directory = directory
        self._boot = boot
        self._sizes: dict[str, int] = {}  # of the files up to the last mark
        self._changes: dict[str, int] = {}  # since the list was written

    def load(self) -> Iterator[Recorded]:
        """Yield the lists; a file that makes no sense is skipped."""
        for path in sorted(self._directory.glob(f"{_PREFIX}*{_SUFFIX}")):
            try:
                found = self._read(path)
            except (OSError, ValueError, KeyError, TypeError, struct.error):
                continue
            if found is not None:
                yield found

    def write(self, recorded: Recorded) -> None:
        """Write a whole list in place of what was recorded of it, in one step; raises FwtopError."""
        named = recorded.named
        told = {"boot": self._boot, "name": named.name, "number": recorded.number, "stamp": recorded.stamp}
        text, rows = json.dumps(told).encode(), named.rows.tobytes()
        ends = named.ends.astype("<f8").tobytes() if named.ends is not None else b""
        body = _record(_BASE, _BASE_HEAD.pack(len(text), len(rows)) + text + rows + ends)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path(named.name), body)
        except OSError as error:
            raise _unwritable(named.name, error) from None
        self._sizes[named.name], self._changes[named.name] = len(body), 0

    def begin(self, name: str, change: Change, stamp: int) -> None:
        """Append a change that the kernel is to get; raises FwtopError, and nothing is appended then."""
        added = change.added.tobytes()
        head = _CHANGE_HEAD.pack(stamp, change.end, len(added))
        try:
            _append(self._path(name), _record(_CHANGE, head + added + change.removed.tobytes()))
        except OSError as error:
            self.abandon(name)
            raise _unwritable(name, error) from None

    def finish(self, recorded: Recorded) -> None:
        """Mark the last change as done; raises FwtopError.

        `recorded` is the list with that change: from time to time it is written anew.
        """
        name = recorded.named.name
        try:
            _append(self._path(name), _record(_DONE, b""))
            self._sizes[name] = self._path(name).stat().st_size
        except OSError as error:
            raise _unwritable(name, error) from None
        self._changes[name] += 1
        if self._changes[name] >= _MOST_CHANGES:
            try:
                self.write(recorded)
            except FwtopError:  # the longer record says the same
                self._changes[name] = 0

    def abandon(self, name: str) -> None:
        """Cut off a change without its mark."""
        try:
            os.truncate(self._path(name), self._sizes[name])
        except OSError as error:
            raise _unwritable(name, error) from None

    def drop(self, name: str) -> None:
        """Forget a list; raises FwtopError."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise _unwritable(name, error) from None
        self._sizes.pop(name, None)
        self._changes.pop(name, None)

    def _path(self, name: str) -> Path:
        return self._directory / f"{_PREFIX}{name}{_SUFFIX}"

    def _read(self, path: Path) -> Recorded | None:
        """Replay a file; None if it is another boot's. Cuts off what has no mark."""
        data = path.read_bytes()
        found: Recorded | None = None
        waiting: Recorded | None = None
        size, changes = 0, 0
        for at, kind, body in _records(data):
            if kind == _BASE:
                found = self._base(body)
                if found is None:
                    path.unlink()
                    return None
            elif found is None:
                return None
            elif kind == _CHANGE:
                waiting = _changed(found, body)
                continue
            elif waiting is not None:
                found, waiting, changes = waiting, None, changes + 1
            size = at
        if found is None:
            return None
        name = found.named.name
        self._sizes[name], self._changes[name] = size, changes
        if size < len(data):
            self.abandon(name)
            found = replace(found, unfinished=True)
        return found

    def _base(self, body: bytes) -> Recorded | None:
        text_bytes, row_bytes = _BASE_HEAD.unpack_from(body)
        start = _BASE_HEAD.size + text_bytes
        told = json.loads(body[_BASE_HEAD.size : start])
        if told["boot"] != self._boot:
            return None
        rows = rows_of_bytes(body[start : start + row_bytes])
        ends = (
            np.frombuffer(body[start + row_bytes :], "<f8").copy() if len(body) > start + row_bytes else None
        )
        return Recorded(NamedList(str(told["name"]), rows, ends), int(told["number"]), int(told["stamp"]))


def _changed(before: Recorded, body: bytes) -> Recorded:
    stamp, end, size = _CHANGE_HEAD.unpack_from(body)
    start = _CHANGE_HEAD.size
    added, removed = body[start : start + size], body[start + size :]
    change = Change(rows_of_bytes(added), rows_of_bytes(removed), end)
    return replace(before, named=before.named.changed(change), stamp=stamp)


def _record(kind: int, body: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, kind, len(body), zlib.crc32(body)) + body


def _records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the end, kind and contents of each whole record."""
    at = 0
    while at + _HEAD.size <= len(data):
        magic, kind, length, check = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if magic != _MAGIC or len(body) != length or zlib.crc32(body) != check:
            return
        at += _HEAD.size + length
        yield at, kind, body


def _append(path: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]


def _unwritable(name: str, error: OSError) -> FwtopError:
    return FwtopError(f"list {name} can't be recorded in /run ({error.strerror}); nothing was changed")
