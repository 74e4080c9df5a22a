"""Root's files in /etc/fwtop/fleet: who this machine is in its fleet, whose signatures count, and for what.

All are root's alone to write, and so is the directory. A file with a mistake in it is refused whole, and all
documents with it: a restriction that was mistyped must not be none.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from fwtop.fleet.document import EVERYWHERE, Refusal, is_name
from fwtop.guardian.rules.validate import MAX_TTL_SECONDS
from fwtop.model.errors import FwtopError
from fwtop.model.files import ConfigText, read_regular
from fwtop.model.paths import MACHINE_FILE
from fwtop.model.rule import Kind
from fwtop.model.settings_file import must, read, some_of
from fwtop.model.text import safe_text

SIGNERS, REVOKED, RESTRICTIONS = "signers", "revoked", "restrictions.toml"
WIDE, CLOSED = "wide", "closed"  # what two must sign, if two_signers says so
_MOST_BYTES = 1 << 20
_ROOT = frozenset({0})
T = TypeVar("T", bound=Struct)


def _are_names(values: Any) -> bool:  # noqa: ANN401 - whatever TOML holds
    return all(isinstance(one, str) and is_name(one) for one in values)


_Name = Annotated[str, must("a name of letters, digits and '_.@:-'", is_name)]
_Names = Annotated[tuple[str, ...], must("a list of names of letters, digits and '_.@:-'", _are_names)]


class Machine(Struct, frozen=True):
    """machine.toml: who this machine is. Nobody claims a label over the wire."""

    fleet: _Name
    name: _Name
    labels: _Names = ()
    frozen: bool = False  # nothing new; what is in force stays, and can be undone
    max_addresses: Annotated[int, Meta(ge=0)] = 1 << 24  # that all rules of the fleet may block here

    @property
    def all_labels(self) -> frozenset[str]:
        """The labels that documents are for: its own, its name, and that of all machines."""
        return frozenset((EVERYWHERE, self.name, *self.labels))


class Restriction(Struct, frozen=True):
    """What a signer may do by himself; without a table he may do all that this machine's guard lets pass."""

    labels: _Names = ()  # only documents for machines with one of them
    kinds: Annotated[tuple[str, ...], some_of(kind.value for kind in Kind)] = ()  # only these kinds of rules
    count_only: bool = False
    max_addresses: Annotated[int, Meta(ge=0)] | None = None  # of a document's rules; each names its sources
    widest_ipv4: Annotated[int, Meta(ge=0, le=32)] = 0  # prefix lengths of sources
    widest_ipv6: Annotated[int, Meta(ge=0, le=128)] = 0
    max_ttl_seconds: Annotated[int, Meta(ge=1, le=MAX_TTL_SECONDS)] = MAX_TTL_SECONDS
    needs_second: bool = False  # he never signs alone


class Restrictions(Struct, frozen=True):
    """restrictions.toml."""

    two_signers: Annotated[tuple[str, ...], some_of((WIDE, CLOSED), once=True)] = ()
    signer: dict[str, Restriction] = {}


class Membership(Struct, frozen=True):
    """All of these files."""

    machine: Machine
    restrictions: Restrictions
    signers: bytes
    revoked: bytes | None


def read_membership(directory: Path) -> Membership:
    """Read the files of a directory; raises FwtopError, Refusal.NO_FLEET where there are none."""
    found = _content(directory, MACHINE_FILE)
    if found is None:
        line = (
            f"this machine belongs to no fleet: there is no {directory / MACHINE_FILE}; nothing was changed"
        )
        raise FwtopError(line, reason=Refusal.NO_FLEET)
    _check_directory(directory)
    signers = _content(directory, SIGNERS)
    if signers is None:
        line = f"nobody may sign for this machine: there is no {directory / SIGNERS}; nothing was changed"
        raise FwtopError(line, reason=Refusal.UNSIGNED)
    given = _content(directory, RESTRICTIONS) or b""
    return Membership(
        _settings(Machine, directory / MACHINE_FILE, found),
        _settings(Restrictions, directory / RESTRICTIONS, given),
        signers,
        _content(directory, REVOKED),
    )


def _settings(cls: type[T], path: Path, content: bytes) -> T:
    text = content.decode("utf-8", "replace")
    reading = read(cls, ConfigText(str(path), text, "it is not UTF-8" if "\ufffd" in text else ""))
    if lines := reading.lines("no document of the fleet counts"):
        raise FwtopError(f"{lines[0]}; nothing was changed")
    return reading.value


def _content(directory: Path, name: str) -> bytes | None:
    try:
        return read_regular(directory / name, _MOST_BYTES, owners=_ROOT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(directory / name, error) from None


def _check_directory(directory: Path) -> None:
    about = os.stat(directory)
    if about.st_uid or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _unreadable(directory, OSError(errno.EPERM, "others than root may write it: chmod go-w"))


def _unreadable(path: Path, error: OSError) -> FwtopError:
    line = f"{safe_text(path)}: {error.strerror}; no document of the fleet counts; nothing was changed"
    return FwtopError(line)
