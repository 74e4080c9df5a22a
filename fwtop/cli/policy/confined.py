"""Read a policy's text in a process without rights, files and network; root reads what it made of it.

The text may be that of a program which is not root's, now (docs/API.md) or when an older version is put back.
So the parsers of TOML and of the command line see it in a child that can do nothing but answer. Its answer is
taken as a request is: rules field by field, lists by name and as text.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from fwtop.cli.policy.document import SECONDS, Draft, read_draft
from fwtop.cli.policy.schema import ListTable
from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.kernel.procfs import read_text
from fwtop.model.errors import FwtopError
from fwtop.model.rule import POLICY, Kind
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json
from fwtop.sandbox.confine import confine
from fwtop.sandbox.privileges import close_inherited, drop_privileges
from fwtop.sandbox.syscalls import Profile

_CPU_SECONDS, _PATIENCE_SECONDS = 30, 60.0
_MEMORY_BYTES = 1 << 30  # more than the process that is forked has mapped
_MOST_BYTES = 1 << 26  # of the answer
_PIECE = 1 << 16
_LIMITS = (
    (resource.RLIMIT_CPU, _CPU_SECONDS),
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_NPROC, 0),
    (resource.RLIMIT_CORE, 0),
)
_SAMPLE = """schema = 1
[list.a]
[[port]]
service = "443/tcp"
acl = "a"
[[limit]]
per = 24
rate = "1/s"
[[signature]]
string = "x"
[[signature]]
dns = "example.com"
hex = "aa"
"""
_KINDS = frozenset(
    {Kind.PROTECT, Kind.IPSET, Kind.XDP, Kind.TC, Kind.NFTABLES, Kind.HASHLIMIT, Kind.CONNLIMIT, Kind.STRING}
)


class _Said(Struct, frozen=True):
    """The child's answer: a draft or an error."""

    rules: tuple[dict[str, Any], ...]
    lists: Mapping[str, ListTable]
    max_change: float
    error: str = ""
    code: int = 0


def draft_of(text: str, name: str) -> Draft:
    """Read a policy's text; raises FwtopError (code 2) as `read_draft`, or 1 if that could not be done."""
    reader, writer = os.pipe()
    try:
        child = os.fork()
    except OSError as error:  # out of memory or processes, as is likely under attack
        os.close(reader)
        os.close(writer)
        line = f"{safe_text(name)}: its reader could not be started: {error.strerror}; nothing was changed"
        raise FwtopError(line) from None
    if not child:
        os.close(reader)
        _answer(text, name, writer)
    os.close(writer)
    try:
        said = _read(reader, child)
    finally:
        os.close(reader)
        os.waitpid(child, 0)
    try:
        return _draft_of(of_json(_Said, said))
    except ValueError:
        line = f"{safe_text(name)}: its reader ended without an answer; nothing was changed"
        raise FwtopError(line) from None


def _answer(text: str, name: str, writer: int) -> NoReturn:
    """Read the text in this process, which is the child, and write what it says."""
    with suppress(BaseException):
        try:
            _confine()
            draft = read_draft(text, name)
            said = _Said(tuple(rule.to_dict() for rule in draft.rules), draft.tables, draft.max_change)
        except FwtopError as error:
            said = _Said((), {}, 1.0, str(error), error.code)
        with open(writer, "wb", closefd=False) as file:
            file.write(to_json(said))
    os._exit(0)


def _confine() -> None:
    with suppress(FwtopError):  # the last rule is wrong: now modules are loaded that can't be opened later
        read_draft(_SAMPLE, "")
    mapped = int(read_text("/proc/self/statm").split()[0]) * resource.getpagesize()
    os.chdir("/")
    close_inherited()
    drop_privileges()
    confine(Profile.DISSECTOR)
    for limit, value in (*_LIMITS, (resource.RLIMIT_AS, mapped + _MEMORY_BYTES)):
        resource.setrlimit(limit, (value, value))


def _draft_of(said: _Said) -> Draft:
    """Check what the child said; raises FwtopError for a mistake in the text, ValueError for no draft."""
    if said.error:
        raise FwtopError(safe_text(said.error, limit=2000), 2 if said.code == 2 else 1)
    rules = tuple(map(rule_of_wire, said.rules))
    if any(rule.kind not in _KINDS or not said.lists.keys() >= set(rule.lists_used) for rule in rules):
        raise ValueError("a policy has no such rule")
    bare = (replace(rule, ttl_seconds=SECONDS, created_by=POLICY, replaces="") for rule in rules)
    return Draft(tuple(bare), said.lists, said.max_change)


def _read(reader: int, child: int) -> bytes:
    """Return what the child says; ends it when that is too much or takes too long."""
    pieces: list[bytes] = []
    size, end = 0, time.monotonic() + _PATIENCE_SECONDS
    while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(reader, _PIECE)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
        if size > _MOST_BYTES:
            break
    os.kill(child, signal.SIGKILL)
    return b""
