"""The guardian for programs: lists, rules, policies and status as plain Python values.

The reference client of docs/API.md. It needs no root, only a group that [access] in guard.toml names; and
nothing but the standard library.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fwtop.client.connection import Connection
from fwtop.client.discovery import GuardianClient, exchange
from fwtop.kernel import namespaces
from fwtop.kernel.children import enlarge
from fwtop.kernel.descriptors import closing
from fwtop.model import paths
from fwtop.model.addresses.prefix_list import ATTACH_ABOVE, prefix_text, read_sources, sealed
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import (
    API_VERSION,
    DEFAULT_CONFIRM_SECONDS,
    MAX_PAGE,
    POLICY_FORMATS,
    PROGRAM,
    Answer,
    Apply,
    Hello,
    Keep,
    ListChange,
    ListRead,
    ListShow,
    ListTest,
    Plan,
    PolicyChange,
    PolicyRead,
    Request,
    RuleRead,
    Status,
    Undo,
    Why,
)


class Program:
    """A connection to the guardian of a namespace; each method raises FwtopError when it is refused."""

    def __init__(self, guardian: GuardianClient, scopes: tuple[str, ...]) -> None:
        """Take a connection on which hello was said; `connect` makes one."""
        self._guardian = guardian
        self.scopes = scopes  # what this program may do

    def request(self, request: Request) -> dict[str, Any]:
        """Send any request of the protocol and return the answer's data."""
        return self._guardian.demand(request).data

    def status(self, *, finished: bool = False) -> dict[str, Any]:
        """Return the rules with their counters, the allow-list, warnings and the guardian's state."""
        return self.request(Status(finished=finished))

    def lists(self) -> list[dict[str, Any]]:
        """Return what is to be told of each list."""
        return list(self.request(ListShow())["lists"])

    def change_list(
        self, action: str, name: str, entries: Iterable[str] = (), *, ttl_seconds: int | None = None
    ) -> dict[str, int]:
        """Create, add, remove, replace or delete; all of the entries or none. Returns what was counted."""
        given = tuple(entries)
        if len(given) <= ATTACH_ABOVE:
            return self.request(ListChange(name, action, ttl_seconds, entries=given))
        from fwtop.model.addresses.named_list import entries_of

        return self._guardian.change_list(ListChange(name, action, ttl_seconds), entries_of(given)).data

    def test(self, name: str, entry: str) -> str | None:
        """Return the entry of a list that holds an address or prefix, None if there is none."""
        found: str | None = self.request(ListTest(name, entry))["entry"]
        return found

    def entries(self, name: str) -> Iterator[tuple[str, float | None]]:
        """Yield a list's entries, each with the seconds that it has left, None: it stays.

        Raises FwtopError also if the list changes meanwhile.
        """
        first, total, stamp = 0, 1, None
        while first < total:
            data = self.request(ListRead(name, first, MAX_PAGE))
            if stamp not in (None, data["stamp"]):
                raise FwtopError(f"list {name} was changed while it was read; try again")
            stamp, total = data["stamp"], data["total"]
            yield from ((entry, left) for entry, left in data["entries"])
            first += MAX_PAGE

    def plan(self, rule: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a rule would run, and why it would be refused, if it would be."""
        return self._demand(Plan(dict(rule)))

    def apply(
        self, rule: Mapping[str, Any], *, confirm_seconds: int = DEFAULT_CONFIRM_SECONDS
    ) -> dict[str, Any]:
        """Install a rule and return its status; it ends after `confirm_seconds` unless kept (0: it stays)."""
        found: dict[str, Any] = self._demand(Apply(dict(rule), confirm_seconds))["status"]
        return found

    def _demand(self, request: Plan | Apply) -> dict[str, Any]:
        """Send a request with a rule, however long its list of sources is."""
        match = request.rule.get("match")
        sources = match.get("sources") if isinstance(match, dict) else None
        if not isinstance(match, dict) or not isinstance(sources, list) or len(sources) <= ATTACH_ABOVE:
            return self.request(request)
        from fwtop.model.addresses.named_list import entries_of

        rule = {**request.rule, "match": {**match, "sources": []}}
        return self._guardian.demand(
            replace(request, rule=rule, attached=True), sealed(entries_of(sources))
        ).data

    def rule(self, rule_id: str) -> dict[str, Any]:
        """Return a rule with all of its sources, as `apply` takes it; `status` shows the first of them."""
        answer, files = self._guardian.exchange(RuleRead(rule_id))
        rule: dict[str, Any] = answer.data["rule"]
        try:
            for file in files:
                rule["match"]["sources"] = [prefix_text(prefix) for prefix in read_sources(file)]
        finally:
            for file in files:
                os.close(file)
        return rule

    def keep(self, rule_id: str, ttl_seconds: int | None = None) -> dict[str, Any]:
        """Confirm a rule, or renew its time to live."""
        return self.request(Keep(rule_id, ttl_seconds))

    def undo(self, *rule_ids: str) -> dict[str, Any]:
        """End rules."""
        return self.request(Undo(rule_ids))

    def why(self, rule_id: str) -> list[str]:
        """Return sentences on what a rule matches, or why it matches nothing."""
        return list(self.request(Why(rule_id))["sentences"])

    def read_policy(
        self,
        action: str,
        text: str = "",
        *,
        lists: Mapping[str, Iterable[str]] | None = None,
        format: str = POLICY_FORMATS[0],
    ) -> dict[str, Any]:
        """Check a policy's text, tell what it would change (diff), export it, or list those that were kept.

        `lists` holds the entries of long lists by name. An export's files are in data["texts"], by name.
        """
        answer, descriptors = self._policy(PolicyRead(action, text, format), lists)
        data, texts = answer.data, {}
        for name, descriptor in zip(data.get("files", ()), descriptors, strict=True):
            with open(descriptor, encoding="utf-8") as file:
                file.seek(0)
                texts[name] = file.read()
        return {**data, "texts": texts} if texts else data

    def change_policy(
        self,
        action: str,
        text: str = "",
        *,
        lists: Mapping[str, Iterable[str]] | None = None,
        version: int | None = None,
        confirm_seconds: int = DEFAULT_CONFIRM_SECONDS,
    ) -> dict[str, Any]:
        """Apply a policy or roll back to a version, tried for a while (0: kept at once); keep or undo it.

        What is tried ends with this connection, too.
        """
        return self._policy(PolicyChange(action, text, version, confirm_seconds), lists)[0].data

    def _policy(
        self, request: PolicyRead | PolicyChange, lists: Mapping[str, Iterable[str]] | None
    ) -> tuple[Answer, list[int]]:
        """Ask with the lists in a memory file; the descriptors that come with the answer are the caller's."""
        if not lists:
            return self._guardian.exchange(request)
        from fwtop.model.addresses.named_list import entries_of
        from fwtop.model.addresses.prefix_list import bundle

        with closing(bundle({name: entries_of(entries) for name, entries in lists.items()})) as attached:
            return self._guardian.exchange(replace(request, attached=True), attached)

    def close(self) -> None:
        """Close the connection."""
        self._guardian.close()

    def __enter__(self) -> Program:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()


def connect(
    netns: str | None = None, *, readonly: bool = False, run_directory: Path = paths.RUN_DIRECTORY
) -> Program:
    """Connect to the guardian of a network namespace (None: the present one); raises FwtopError."""
    descriptor = namespaces.open_netns(netns)
    path = run_directory / f"{namespaces.inode(descriptor)}.api"
    os.close(descriptor)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        enlarge(sock)
        sock.connect(str(path))
    except OSError as error:
        sock.close()
        denied = isinstance(error, PermissionError)
        why = "no access: see [access] in guard.toml" if denied else "no guardian runs"
        raise FwtopError(f"{path}: {why}; 'sudo fwtop status' starts one and reads guard.toml", 3) from None
    connection = Connection(sock)
    try:
        hello = Hello(PROGRAM, readonly=readonly, version=API_VERSION)
        answer = exchange(connection, hello, hello.seconds)[0].agreed()
    except FwtopError:
        connection.close()
        raise
    return Program(GuardianClient(connection, answer.data["guardian"]), tuple(answer.data["scopes"]))
