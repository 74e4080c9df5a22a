"""Keep operators' sessions tracked while a SYN proxy makes connection tracking strict.

Strict tracking takes up no connection in its middle (nf_conntrack_tcp_loose 0). So after `conntrack -F` the
host's own rules on states would drop what belongs to a session. What the table has of a session is
remembered, and put back when it is gone; TCP bridges the second until then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.sessions import Session, connections
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.traffic.protocols import TCP
from fwtop.netfilter import ctnetlink
from fwtop.netfilter.ctnetlink import Entry
from fwtop.rules.kinds import of

SECONDS = 1.0  # between two looks
_TIMEOUT_SECONDS = 600  # of an entry that was put back, until its next packet


class StrictTracking:
    """The sessions to proxied ports, how they were opened, and what the table had of each."""

    def __init__(self) -> None:
        self._opened: dict[Session, Entry] = {}
        self._kept: dict[Session, bytes] = {}
        self._due = 0.0

    def look(self, rules: Iterable[Rule], allow: AllowList, now: float) -> float | None:
        """Put back what the table lost of sessions; return when to look again, None if there are none.

        Raises FwtopError where the table can't be read or written.
        """
        parts = (part for rule in rules for part in (rule.parts or (rule,)))
        ports = {part.match.dport for part in parts if of(part.kind).answers}
        wanted = {
            entry.session
            for entry in allow.entries
            if entry.session is not None and entry.session.local_port in ports
        }
        self._kept = {session: kept for session, kept in self._kept.items() if session in wanted}
        if not wanted:
            return None
        if now >= self._due:
            self._due = now + SECONDS
            self._learn(wanted)
            try:
                for session in wanted & self._opened.keys():
                    self._restore(session)
            except OSError as error:
                raise FwtopError(f"sessions are not kept in the connection table: {error.strerror}") from None
        return max(self._due, time.monotonic())

    def _learn(self, wanted: set[Session]) -> None:
        """Find out to which of our addresses sessions go that are new."""
        self._opened = {session: entry for session, entry in self._opened.items() if session in wanted}
        if wanted <= self._opened.keys():
            return
        for own, session in connections({session.local_port for session in wanted}):
            if session in wanted:
                peer, ports = session.peer, (session.peer_port, session.local_port)
                self._opened[session] = Entry(peer.family, TCP, peer.packed, own.packed, *ports)

    def _restore(self, session: Session) -> None:
        opened = self._opened[session]
        found = ctnetlink.find(opened)
        if found is not None:
            self._kept[session] = found
            return
        with contextlib.suppress(FileExistsError):
            ctnetlink.establish(opened, self._kept.get(session), _TIMEOUT_SECONDS)
