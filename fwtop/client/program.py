"""fwtop for programs: lists, rules, policies, status and what changes, as plain Python values (docs/API.md).

Needs Python 3.11 and its standard library, no root, only a group that [access] in guard.toml names. This
module and fwtop/model/errors.py are all of it: other programs may carry both along.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

from fwtop.model.errors import FwtopError

__all__ = ["FwtopError", "Program", "connect", "connect_directly"]
RUN_DIRECTORY = Path("/run/fwtop")
_NAMES = Path("/run/netns")
_MAX_PACKET = 1 << 20  # bytes of a message to or from the guardian itself
_VERSIONS = (1, 1)  # of the protocol, that this module speaks
_PAGE = 10_000  # entries of a list in one answer
_SECONDS = 960.0  # for an answer; the guardian gives up before
_RETRY_SECONDS = 0.5
_CONFIRM_SECONDS = 30
_READS = frozenset(
    ("status", "ruleread", "why", "plan", "survey", "rules", "listshow", "listtest", "listread", "policyread")
)


class Program:
    """A connection to the guardian of a namespace; each method raises FwtopError when it is refused.

    Not for several threads at once. A lost connection is made anew: what only reads is asked again, and a
    change raises FwtopError with `retryable`, as nobody knows whether it was made.
    """

    def __init__(self, path: Path, netns: int | None, *, readonly: bool = False) -> None:
        """Connect to a socket; `netns` is the inode of the namespace that must be behind it."""
        self._path = path
        self._netns = netns
        self._readonly = readonly
        self._number = 0
        self._connected: tuple[socket.socket, BinaryIO | _Packets] | None = None
        self.scopes: tuple[str, ...] = ()  # what this program may do
        self.guardian: dict[str, Any] = {}  # its pid, build, netns
        self._open()

    def request(self, verb: str, **fields: object) -> dict[str, Any]:
        """Send any request of the protocol and return the answer's data."""
        return self._request(verb, fields)

    def request_with(self, descriptor: int, verb: str, **fields: object) -> dict[str, Any]:
        """Do that with a sealed memory file, for the guardian itself (`connect_directly`)."""
        return self._request(verb, {**fields, "attached": True}, descriptor)

    def _request(
        self, verb: str, fields: Mapping[str, object], descriptor: int | None = None
    ) -> dict[str, Any]:
        again = verb in _READS or (verb == "apply" and _has_key(fields.get("rule")))
        for last in (not again, True):
            try:
                if self._connected is None:
                    self._open()
                return self._exchange(verb, fields, descriptor)
            except (OSError, EOFError) as error:
                self.close()
                if last:
                    line = f"{self._path}: the connection was lost: {error}; nobody knows whether it was done"
                    raise FwtopError(line, reason="unavailable", retryable=True) from None
        raise AssertionError

    def watch(
        self, *, since: str = "", events: Iterable[str] = (), by: str = "", state: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Yield what changes on this machine, whoever changes it, without end; on a connection of its own.

        Begins with the state unless `since` is the cursor of a document that was read. After a lost
        connection it goes on behind the last document; what could not be told meanwhile is a document `gap`,
        and the state follows it.
        """
        fields: dict[str, object] = {"events": [*events], "by": by, "state": state}
        while True:
            try:
                with Program(self._path, self._netns, readonly=True) as own:
                    began = own._exchange("watch", {**fields, "since": since})
                    since = since or began["cursor"]
                    own._parts()[0].settimeout(None)
                    while True:
                        document = own._read()
                        if "ok" in document:  # the last words of who closes
                            raise _refusal(document)
                        since = document["cursor"]
                        yield document
            except (OSError, EOFError):
                time.sleep(_RETRY_SECONDS)
            except FwtopError as error:
                if not error.retryable:
                    raise
                time.sleep(_RETRY_SECONDS)

    def status(self, *, finished: bool = False) -> dict[str, Any]:
        """Return the rules with their counters, the allow-list, warnings and the guardian's state."""
        return self.request("status", finished=finished)

    def lists(self) -> list[dict[str, Any]]:
        """Return what is to be told of each list."""
        return list(self.request("listshow")["lists"])

    def change_list(
        self,
        action: str,
        name: str,
        entries: Iterable[str] = (),
        *,
        ttl_seconds: int | None = None,
        if_stamp: int | None = None,
    ) -> dict[str, int]:
        """Create, add, remove, replace or delete; all of the entries or none. Returns what was counted.

        With `if_stamp` only a list that still has this stamp is changed (else `reason` is "changed").
        """
        fields = {"action": action, "name": name, "entries": [*entries], "ttl_seconds": ttl_seconds}
        return self.request("listchange", **fields, if_stamp=if_stamp)

    def test(self, name: str, entry: str) -> str | None:
        """Return the entry of a list that holds an address or prefix, None if there is none."""
        found: str | None = self.request("listtest", name=name, entry=entry)["entry"]
        return found

    def entries(self, name: str) -> Iterator[tuple[str, float | None]]:
        """Yield a list's entries, each with the seconds that it has left, None: it stays.

        Raises FwtopError also if the list changes meanwhile.
        """
        for entry, left, *_ in self._pages(name, counters=False):
            yield entry, left

    def counters(self, name: str) -> Iterator[tuple[str, int | None]]:
        """Yield a list's entries, each with the packets that rules counted of it, None: not counted."""
        for entry, _, packets in self._pages(name, counters=True):
            yield entry, packets

    def plan(self, rule: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a rule would run, and why it would be refused, if it would be."""
        return self.request("plan", rule=dict(rule))

    def apply(
        self, rule: Mapping[str, Any], *, confirm_seconds: int = _CONFIRM_SECONDS, key: str = ""
    ) -> dict[str, Any]:
        """Install a rule and return its status; it ends after `confirm_seconds` unless kept (0: it stays).

        While a rule of this user's with the same `key` is active and does the same, that one's status is
        returned and nothing done: such a request may be repeated.
        """
        given = {**rule, "key": key} if key else dict(rule)
        found: dict[str, Any] = self.request("apply", rule=given, confirm_seconds=confirm_seconds)["status"]
        return found

    def rule(self, rule_id: str) -> dict[str, Any]:
        """Return a rule with all of its sources, as `apply` takes it; `status` shows the first of them."""
        found: dict[str, Any] = self.request("ruleread", id=rule_id)["rule"]
        return found

    def change(
        self,
        rule_id: str,
        rule: Mapping[str, Any],
        *,
        confirm_seconds: int = _CONFIRM_SECONDS,
        if_stamp: int | None = None,
    ) -> dict[str, Any]:
        """Have an active rule match other packets or keep another rate, in place; returns its status.

        `rule` is as `rule()` returned it, with another `match` or `limit`. It is as before after
        `confirm_seconds` unless kept. With `if_stamp` only if its status has this `stamp`.
        """
        fields = {"rule": dict(rule), "confirm_seconds": confirm_seconds, "if_stamp": if_stamp}
        found: dict[str, Any] = self.request("rulechange", id=rule_id, **fields)["status"]
        return found

    def keep(self, rule_id: str, ttl_seconds: int | None = None) -> dict[str, Any]:
        """Confirm a rule, or renew its time to live; returns its status."""
        found: dict[str, Any] = self.request("keep", id=rule_id, ttl_seconds=ttl_seconds)["status"]
        return found

    def renew(self, rule_id: str, confirm_seconds: int = _CONFIRM_SECONDS) -> dict[str, Any]:
        """Have a rule's trial last so long from now; all of it takes an hour at most. Returns its status."""
        found: dict[str, Any] = self.request("renew", id=rule_id, confirm_seconds=confirm_seconds)["status"]
        return found

    def undo(self, *rule_ids: str) -> dict[str, Any]:
        """End rules."""
        return self.request("undo", ids=rule_ids)

    def why(self, rule_id: str) -> list[str]:
        """Return sentences on what a rule matches, or why it matches nothing."""
        return list(self.request("why", id=rule_id)["sentences"])

    def read_policy(
        self,
        action: str,
        text: str = "",
        *,
        lists: Mapping[str, Iterable[str]] | None = None,
        format: str = "nft",
        version: int | None = None,
    ) -> dict[str, Any]:
        """Check a policy's text, tell what it would change (diff), export it; list or show what was kept.

        `lists` holds the entries of long lists by name. An export's files are in data["texts"], by name.
        """
        about = {} if version is None else {"version": version}
        return self.request(
            "policyread", action=action, text=text, format=format, lists=_listed(lists), **about
        )

    def change_policy(
        self,
        action: str,
        text: str = "",
        *,
        lists: Mapping[str, Iterable[str]] | None = None,
        version: int | None = None,
        confirm_seconds: int = _CONFIRM_SECONDS,
    ) -> dict[str, Any]:
        """Apply a policy or roll back to a version, tried for a while (0: at once); keep, renew or undo it.

        What is tried ends with this connection, too.
        """
        fields = {"text": text, "version": version, "confirm_seconds": confirm_seconds}
        return self.request("policychange", action=action, lists=_listed(lists), **fields)

    def close(self) -> None:
        """Close the connection; the next request makes another one."""
        for one in self._connected or ():
            one.close()
        self._connected = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def _open(self) -> None:
        """Connect and say hello; raises FwtopError."""
        try:
            self._connected = self._stream() or self._packets()
            hello = {"role": "program", "versions": _VERSIONS, "readonly": self._readonly}
            answer = self._exchange("hello", hello)
            if self._netns not in (None, answer["guardian"]["netns"]):
                raise FwtopError(f"{self._path} serves another network namespace: name yours")
        except (OSError, EOFError) as error:
            self.close()
            if isinstance(error, PermissionError):
                line = f"{self._path}: no access: see [access] in guard.toml"
                raise FwtopError(line, 3, reason="no_access") from None
            line = f"{self._path}: nobody serves programs; 'sudo fwtop api' or its systemd unit does"
            raise FwtopError(line, 3, reason="unavailable", retryable=True) from None
        except FwtopError:
            self.close()
            raise
        self.scopes, self.guardian = tuple(answer["scopes"]), answer["guardian"]

    def _stream(self) -> tuple[socket.socket, BinaryIO] | None:
        sock = _connected(socket.SOCK_STREAM, self._path)
        return None if sock is None else (sock, sock.makefile("rb"))

    def _packets(self) -> tuple[socket.socket, _Packets]:
        """Connect to the guardian itself, which has no `watch`, where nobody serves the stream."""
        inode = self._netns
        if inode is None:
            inode = os.stat(_NAMES / self._path.stem.removeprefix("api-")).st_ino
        sock = _connected(socket.SOCK_SEQPACKET, self._path.with_name(f"{inode}.api"))
        if sock is None:
            raise EOFError("neither is there")
        return sock, _Packets(sock)

    def _exchange(
        self, verb: str, fields: Mapping[str, object], descriptor: int | None = None
    ) -> dict[str, Any]:
        self._number += 1
        message = json.dumps({"verb": verb, "number": self._number, **fields}).encode() + b"\n"
        sock, reader = self._parts()
        try:
            if verb == "watch" and isinstance(reader, _Packets):
                raise OSError(errno.EMSGSIZE, "")
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # perhaps it said why
                if descriptor is None:
                    sock.sendall(message)
                else:
                    socket.send_fds(sock, [message], [descriptor])
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            line = "changes, and long requests, take the stream: start 'sudo fwtop api'; nothing was changed"
            raise FwtopError(line, reason="unavailable", retryable=bool(fields.get("since"))) from None
        answer = self._read()
        if not answer["ok"]:
            raise _refusal(answer)
        data: dict[str, Any] = answer["data"]
        return data

    def _parts(self) -> tuple[socket.socket, BinaryIO | _Packets]:
        if self._connected is None:
            raise EOFError("it was closed")
        return self._connected

    def _read(self) -> dict[str, Any]:
        line = self._parts()[1].readline()
        if not line.endswith(b"\n"):
            raise EOFError("its other side closed it")
        found: dict[str, Any] = json.loads(line)
        return found

    def _pages(self, name: str, *, counters: bool) -> Iterator[list[Any]]:
        first, total, stamp = 0, 1, None
        while first < total:
            data = self.request("listread", name=name, first=first, count=_PAGE, counters=counters)
            if stamp not in (None, data["stamp"]):
                line = f"list {name} was changed while it was read; try again"
                raise FwtopError(line, reason="changed", retryable=True)
            stamp, total = data["stamp"], data["total"]
            yield from data["entries"]
            first += _PAGE


class _Packets:
    """Reads answers from the guardian's own socket: a message each, long ones in parts."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def readline(self) -> bytes:
        """Return an answer with a line's end; b"": it is closed."""
        part = self._sock.recv(_MAX_PACKET)
        whole = part.removeprefix(b"+")
        while part[:1] == b"+":
            part = self._sock.recv(_MAX_PACKET)
            whole += part[1:]
        return whole + b"\n" if whole else b""

    def close(self) -> None:
        """Nothing is left to close."""


def _connected(kind: int, path: Path) -> socket.socket | None:
    """Return a connection; None if nobody listens there. Raises PermissionError."""
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.settimeout(_SECONDS)
    try:
        sock.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    return sock


def connect(
    netns: str | None = None, *, readonly: bool = False, run_directory: Path = RUN_DIRECTORY
) -> Program:
    """Connect to the guardian of a network namespace (None: the present one); raises FwtopError."""
    own = os.stat("/proc/self/ns/net").st_ino
    name = _name_of(own) if netns is None else netns
    path = run_directory / (f"api-{name}.sock" if name is not None else "api.sock")
    return Program(path, own if netns is None else None, readonly=readonly)


def connect_directly(*, run_directory: Path = RUN_DIRECTORY) -> Program:
    """Connect to the guardian of the present network namespace itself, without the stream.

    Whoever follows nothing needs no server of the stream, which is a process more.
    """
    return Program(run_directory / "no-stream", os.stat("/proc/self/ns/net").st_ino)


def _name_of(inode: int) -> str | None:
    """Return the `ip netns` name of a namespace, None if it has none."""
    for path in _NAMES.glob("*"):
        with contextlib.suppress(OSError):
            if path.stat().st_ino == inode:
                return path.name
    return None


def _refusal(answer: Mapping[str, Any]) -> FwtopError:
    known = {name: answer[name] for name in ("reason", "field", "retryable")}
    return FwtopError(answer["error"], answer["code"] or 1, **known)


def _has_key(rule: object) -> bool:
    return isinstance(rule, dict) and bool(rule.get("key"))


def _listed(lists: Mapping[str, Iterable[str]] | None) -> dict[str, list[str]]:
    return {name: [*entries] for name, entries in (lists or {}).items()}
