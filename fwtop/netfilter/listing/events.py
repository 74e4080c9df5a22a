"""Changes to nf_tables as the kernel tells them, a transaction at a time with its process, and as lines.

Sources: net/netfilter/nf_tables_api.c (nf_tables_commit, nf_tables_gen_notify),
include/uapi/linux/netfilter/{nfnetlink,nf_tables}.h.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from fwtop.kernel import netlink
from fwtop.kernel.netlink import NETFILTER_HEADER_BYTES, NETLINK_NETFILTER, attributes, c_string
from fwtop.model.ruleset import NFT, NOTIFIED, OTHERS, OURS, RuleEvent
from fwtop.model.text import safe_text
from fwtop.netfilter.listing.nf_tables import elements_in, expressions, key_of
from fwtop.netfilter.listing.output import NAME, TEXT, is_own_name, is_own_rule
from fwtop.netfilter.nf_tables import FAMILIES
from fwtop.render.numbers import utc
from fwtop.render.observation import rfc3339

_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_NFNLGRP_NFTABLES = 7
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h
_BUFFER_BYTES = 8 << 20  # of a transaction with many rules
_RECEIVE_BYTES = 1 << 18
_SUBSYSTEM = 10  # NFNL_SUBSYS_NFTABLES
_NEWGEN = 15  # NFT_MSG_NEWGEN: the end of a transaction
_OBJECTS = ((0, "table"), (3, "chain"), (6, "rule"), (9, "set"), (18, "object"), (22, "flowtable"))
_EVENTS = {first: f"{what}_added" for first, what in _OBJECTS} | {
    first + 2: f"{what}_removed" for first, what in _OBJECTS
}  # by NFT_MSG_*
_NEWSETELEM, _DELSETELEM = 12, 14
_RULE, _CHAIN = frozenset({6, 8}), frozenset({3, 5})
_MOST = 5_000  # events of a transaction; the others are counted


class _Transaction(Struct):
    """What was told of a transaction so far."""

    events: list[RuleEvent] = field(default_factory=list)
    more: int = 0
    elements: Counter[tuple[str, str, str, bool]] = field(default_factory=Counter)


class Notifications:
    """A socket that becomes readable when nf_tables of this namespace changes; raises OSError."""

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        self._sock = socket.socket(socket.AF_NETLINK, kind, NETLINK_NETFILTER)
        self._sock.bind((0, 0))  # without a port of its own the kernel takes it for the sender
        with contextlib.suppress(OSError):  # what is lost is told
            self._sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._sock.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
        self._sock.setblocking(False)
        self._open = _Transaction()

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._sock.fileno()

    def read(self) -> list[RuleEvent]:
        """Return the events of the transactions that ended; what the kernel had to drop is an event, too."""
        found: list[RuleEvent] = []
        while True:
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                found.append(RuleEvent(time.time(), "notifications_lost", NOTIFIED, OTHERS, NFT))
                continue
            for kind, body in netlink.messages(data):
                if kind >> 8 == _SUBSYSTEM:
                    found += self._take(kind & 0xFF, body)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _take(self, kind: int, body: bytes) -> Iterator[RuleEvent]:
        if kind == _NEWGEN:
            yield from self._ended(body)
            return
        found = dict(attributes(body, NETFILTER_HEADER_BYTES))
        family, table = FAMILIES.get(body[0], ""), c_string(found.get(1, b""))
        if kind in (_NEWSETELEM, _DELSETELEM):
            count = elements_in(found.get(3, b""))
            self._open.elements[family, table, c_string(found.get(2, b"")), kind == _NEWSETELEM] += count
        elif kind in _EVENTS and len(self._open.events) < _MOST:
            self._open.events.append(_event(kind, family, table, found, body))
        else:
            self._open.more += 1

    def _ended(self, body: bytes) -> Iterator[RuleEvent]:
        """Return a transaction's events, now that the process is known."""
        done, self._open = self._open, _Transaction()
        found = dict(attributes(body, NETFILTER_HEADER_BYTES))
        process: dict[str, Any] = {}
        if 2 in found and 3 in found:  # NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME
            name = safe_text(c_string(found[3]), limit=16)
            process = {"process": {"pid": int.from_bytes(found[2], "big"), "name": name}}
        for event in [*done.events, *_element_events(done.elements)]:
            event.about.update(process)
            yield event
        if done.more:
            yield RuleEvent(
                time.time(), "more_changes", NOTIFIED, OTHERS, NFT, {"count": done.more, **process}
            )


def _event(kind: int, family: str, table: str, found: dict[int, bytes], body: bytes) -> RuleEvent:
    about: dict[str, Any] = {"family": family, "table": safe_text(table, limit=NAME)}
    ours = is_own_name(table)
    if kind in _RULE:
        chain, text = c_string(found.get(2, b"")), expressions(body)
        ours = is_own_rule(table, chain, text)
        about["chain"] = safe_text(chain, limit=NAME)
        about["handle"] = int.from_bytes(found.get(3, b""), "big")
        about["rule"] = safe_text(text, limit=TEXT)
        about["key"] = key_of(family, table, chain, str(about["handle"]))
    elif kind in _CHAIN:
        chain = c_string(found.get(3, b""))
        ours = is_own_rule(table, chain, "")
        about["chain"] = safe_text(chain, limit=NAME)
    elif 2 in found and kind > max(_CHAIN):
        about["name"] = safe_text(c_string(found[2]), limit=NAME)
        if "set" in _EVENTS[kind]:
            about["key"] = key_of(family, table, "set", c_string(found[2]))
    return RuleEvent(time.time(), _EVENTS[kind], NOTIFIED, OURS if ours else OTHERS, NFT, about)


def _element_events(elements: Counter[tuple[str, str, str, bool]]) -> list[RuleEvent]:
    """Return an event for each set whose elements changed."""
    sets = dict.fromkeys(key[:3] for key in elements)
    return [
        RuleEvent(
            time.time(),
            "set_changed",
            NOTIFIED,
            OURS if is_own_name(table) else OTHERS,
            NFT,
            {
                "family": family,
                "table": safe_text(table, limit=NAME),
                "name": safe_text(name, limit=NAME),
                "key": key_of(family, table, "set", name),
                "added": elements[family, table, name, True],
                "removed": elements[family, table, name, False],
            },
        )
        for family, table, name in list(sets)[:_MOST]
    ]


def event_json(event: RuleEvent) -> dict[str, Any]:
    """Return an event for JSON."""
    known = {"how": event.how, "by": event.by, "source": event.source}
    return {"at": rfc3339(event.at), "event": event.event, **known, **event.about}


def event_text(document: dict[str, Any]) -> str:
    """Write an event's document as a line for people."""
    about = {name: value for name, value in document.items() if name not in _SAID}
    process = about.pop("process", None)
    moment = datetime.fromisoformat(document["at"]).timestamp()
    words = [utc(moment), document["event"].replace("_", " "), document["source"]]
    words += [
        str(value) if name in _BARE else f"{name} {value}" for name, value in about.items() if value != ""
    ]
    if process:
        words.append(f"by {process['name']} (process {process['pid']})")
    whose = "fwtop's" if document["by"] == "fwtop" else ""
    how = f"[{document['how']}]" if document["how"] else ""
    return " ".join(word for word in (*words, whose, how) if word)


# Written in places of their own, or for programs only
_SAID = frozenset(
    {"seq", "cursor", "at", "event", "how", "by", "source", "status", "key", "change", "guardian"}
)
_BARE = frozenset({"family", "table", "chain", "place", "rule", "name", "text"})
