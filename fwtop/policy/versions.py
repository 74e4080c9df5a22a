"""The policies that were kept, newest last: their text, and what their lists held.

A version is a JSON file; lists are files named by the hash of their contents, which versions share. Each
file is written whole and renamed into place, so that a crash leaves the old state. `pending` is the version
that is being put in: if a crash interrupts that, the next command undoes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import UNSET, Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import pack_prefixes, unpack_prefixes
from fwtop.model.errors import FwtopError
from fwtop.model.files import replacing, sync_directory
from fwtop.model.paths import GUARDIAN_DIRECTORY
from fwtop.model.rule import Mode
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json
from fwtop.policy.document import Policy, parse
from fwtop.policy.schema import ListTable

KEPT = 20  # versions


class Version(Struct, frozen=True):
    """A policy that was kept."""

    number: int
    kept: float  # Unix seconds
    note: str  # where it came from
    text: str
    lists: dict[str, str]  # name → hash of the contents


class Versions:
    """The versions of one network namespace."""

    def __init__(self, netns: str | None, directory: Path = GUARDIAN_DIRECTORY / "policy") -> None:
        """Take the name of the namespace, None for that of the machine."""
        self._directory = directory / ("machine" if netns is None else f"netns-{netns}")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from changing the policy meanwhile; raises FwtopError if one is doing so."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unwritable(self._directory, error) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = "another 'fwtop policy' is changing the policy or waits for an answer"
                raise FwtopError(f"{who}; nothing was changed") from None
            yield
        finally:
            os.close(lock)

    def all(self) -> list[Version]:
        """Return the versions that can be read, oldest first."""
        found = map(_read, self._directory.glob("[0-9]*.json"))
        return sorted(filter(None, found), key=lambda version: version.number)

    def newest(self) -> Policy | None:
        """Return the policy that was kept last; None without any. Raises FwtopError."""
        known = self.all()
        return self.policy_of(known[-1]) if known else None

    def newest_lists(self) -> set[str]:
        """Return the names of its lists."""
        return lists_of(self.all()[-1:])

    def unreadable(self) -> list[str]:
        """Return the names of damaged versions."""
        good = {f"{version.number}.json" for version in self.all()}
        return sorted(path.name for path in self._directory.glob("[0-9]*.json") if path.name not in good)

    def find(self, number: int) -> Version:
        """Return a version; raises FwtopError."""
        known = self.all()
        for version in known:
            if version.number == number:
                return version
        numbers = ", ".join(str(version.number) for version in known) or "none"
        line = f"there is no policy {number}; there are: {numbers}; nothing was changed"
        raise FwtopError(line, reason="not_found", field="version")

    def policy_of(self, version: Version) -> Policy:
        """Return what a version says, with its lists as they were; raises FwtopError."""
        return self._parsed(version)[0]

    def beside_text(self, version: Version) -> dict[str, Sequence[Prefix]]:
        """Return the lists whose entries came from files, not from the text; raises FwtopError."""
        return self._parsed(version)[1]

    def _parsed(self, version: Version) -> tuple[Policy, dict[str, Sequence[Prefix]]]:
        beside: dict[str, Sequence[Prefix]] = {}

        def entries(name: str, table: ListTable) -> Sequence[Prefix]:
            held = self._read_list(version.lists.get(name, ""))
            if table.file is not UNSET:
                beside[name] = held
            return held

        return parse(version.text, f"policy {version.number}", entries), beside

    def modes(self) -> dict[str, Mode]:
        """Return the modes of groups that were switched."""
        try:
            return of_json(dict[str, Mode], self._groups.read_bytes())
        except (OSError, ValueError):
            return {}

    def switch(self, group: str, mode: Mode) -> None:
        """Keep a group's mode for the next boot, and for policies to come; raises FwtopError."""
        try:
            _write(self._groups, to_json(self.modes() | {group: mode}))
        except OSError as error:
            raise _unwritable(self._directory, error) from None

    @property
    def _groups(self) -> Path:
        return self._directory / "groups"

    def prepare(self, policy: Policy, note: str) -> Version:
        """Record a policy that is about to be installed, without making it the newest; raises FwtopError."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            numbers = [int(path.stem) for path in self._directory.glob("[0-9]*.json") if path.stem.isdigit()]
            hashes = {name: self._write_list(entries) for name, entries in policy.lists.items()}
            version = Version(max(numbers, default=0) + 1, time.time(), note, policy.text, hashes)
            _write(self._pending, to_json(version))
        except OSError as error:
            raise _unwritable(self._directory, error) from None
        return version

    def pending(self) -> Version | None:
        """Return the version whose installation was not finished, None if there is none."""
        return _read(self._pending)

    def keep(self, version: Version) -> None:
        """Make a prepared version the newest, and forget the oldest; raises FwtopError."""
        try:
            self._pending.replace(self._directory / f"{version.number}.json")
            sync_directory(self._directory)
            for old in self.all()[:-KEPT]:
                (self._directory / f"{old.number}.json").unlink(missing_ok=True)
            self._drop_lists()
        except OSError as error:
            raise _unwritable(self._directory, error) from None

    def abandon(self) -> None:
        """Discard the prepared version."""
        if self._directory.exists():
            self._pending.unlink(missing_ok=True)
            self._drop_lists()

    @property
    def _pending(self) -> Path:
        return self._directory / "pending"

    def _write_list(self, entries: Sequence[Prefix]) -> str:
        packed = pack_prefixes(entries)
        name = hashlib.sha256(packed).hexdigest()
        path = self._directory / f"{name}.list"
        if not path.exists():
            _write(path, zlib.compress(packed, 1))
        return name

    def _read_list(self, name: str) -> Sequence[Prefix]:
        try:
            packed = zlib.decompress((self._directory / f"{name}.list").read_bytes())
            if hashlib.sha256(packed).hexdigest() == name:
                return unpack_prefixes(packed)
        except (OSError, ValueError, zlib.error):
            pass
        raise FwtopError("what the list held is lost or damaged")

    def _drop_lists(self) -> None:
        pending = self.pending()
        used = {name for version in self.all() for name in version.lists.values()}
        used |= set(pending.lists.values()) if pending is not None else set()
        for path in self._directory.glob("*.list"):
            if path.stem not in used:
                path.unlink(missing_ok=True)


def _read(path: Path) -> Version | None:
    try:
        return of_json(Version, path.read_bytes())
    except (OSError, ValueError):
        return None


def _write(path: Path, data: bytes) -> None:
    with replacing(path, "wb") as file:
        file.write(data)


def _unwritable(directory: Path, error: OSError) -> FwtopError:
    return FwtopError(f"cannot write to {safe_text(directory)}: {error.strerror}; nothing was changed")


def lists_of(versions: Sequence[Version]) -> set[str]:
    """Return the names of the lists that these versions have."""
    return {name for version in versions for name in version.lists}
