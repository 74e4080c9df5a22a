"""Connections that this host serves, as its sockets show them, and what is remembered of earlier readings."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.habits import LEAST, Habits, Reading
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import host_key, mix
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import F64, U16, U64, Connections, Mask, PacketBatch, SocketTable

SILENT_SECONDS = 2.0  # between handshake and request; a browser's request comes at once
_SAME = 0.5  # of the connections are of sources of a greater group: they belong to its attack


def flows_of(held: Connections) -> U64:
    """Hash the columns that tell a connection from all others."""
    return _flow(held.hi, held.lo, held.peer_port, held.port)


def flows_of_packets(packets: PacketBatch) -> U64:
    """Hash the same of each packet."""
    return _flow(packets.src_hi, packets.src_lo, packets.sport, packets.dport)


def _flow(hi: U64, lo: U64, peer_port: np.ndarray, port: np.ndarray) -> U64:
    ports = peer_port.astype(np.uint64) << np.uint64(16) | port.astype(np.uint64)
    return mix(mix(hi, lo), ports)


def source_of(held: Connections) -> U64:
    """Hash the source of each connection."""
    return host_key(held.family, held.hi, held.lo)


class Held(Struct, frozen=True, eq=False, dict=True):
    """The connections to one port that do the same."""

    port: int
    connections: Connections
    table: SocketTable  # all connections that were read

    @cached_property
    def source(self) -> U64:
        """Of each connection its source, as a hash."""
        return source_of(self.connections)

    @property
    def number(self) -> int:
        """How many there are, estimated."""
        return round(len(self.connections) / self.table.share)

    @property
    def of_port(self) -> int:
        """How many the port has in all, estimated."""
        return round(int((self.table.connections.port == self.port).sum()) / self.table.share)

    @cached_property
    def senders(self) -> tuple[tuple[Prefix, int], ...]:
        """The sources (address, or IPv6 /64) and how many of the connections each has, most first."""
        held = self.connections
        _, first, counts = np.unique(self.source, return_index=True, return_counts=True)
        found = []
        for at, number in zip(first.tolist(), counts.tolist(), strict=True):
            six = int(held.family[at]) == 6
            value = int(held.hi[at]) << 64 if six else int(held.lo[at])
            found.append((Prefix(6, value, 64) if six else Prefix(4, value, 32), number))
        return tuple(sorted(found, key=lambda item: (-item[1], item[0])))

    @cached_property
    def others(self) -> Connections:
        """Connections to the port that are of other sources, or do something else."""
        every = self.table.connections
        theirs = np.isin(source_of(every), self.source) & (every.segments_out == 0)  # young ones, too
        mine = theirs | np.isin(every.cookie, self.connections.cookie)
        return every.select((every.port == self.port) & ~mine)

    def belongs_to(self, greater: Held) -> bool:
        """Check whether these are most likely of the same attack, by their sources."""
        return self.port == greater.port and float(np.isin(self.source, greater.source).mean()) > _SAME


BEHAVIOURS = ("open", "unused", "waiting", "stalled")  # all, and those that do this
_SETTLE_SECONDS = 30.0  # what comes so long before an attack is named may be part of it
_LEARNED_SECONDS = 10.0  # of quiet, from which there is a usual number
_MOST_SOURCES, _MOST_PORTS = 16_384, 64
_REMEMBERED = 30  # earlier states of what is usual
_REMEMBER_SECONDS = 60.0  # between two of them
_RECENT_SECONDS = 120.0  # a server ends connections in reserve sooner
_RECORD = re.compile(rb"[\x14-\x17]\x03[\x00-\x04]")  # a TLS record begins (RFC 8446, 5.1)
_LEAST_RECORDS = 3
HANDSHAKE = 8  # segments of a server's TLS handshake at most: certificates, and tickets


class _Reading(Struct, frozen=True):
    at: float  # Unix seconds
    numbers: Reading  # of connections by port and BEHAVIOURS
    port: U16  # of each connection
    source: U64
    served: Mask  # those that got answers


class Learned(Struct, frozen=True):
    """What is usual of connections, as learned up to a time."""

    at: float = 0.0  # Unix seconds
    seconds: float = 0.0  # of quiet
    usual: Habits = field(default_factory=lambda: Habits.of(width=len(BEHAVIOURS)))  # by port
    known: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # sources that were served before


class LastAnswers:
    """What each connection had received when its last answer was sent.

    Of a connection that was answered before it was first read, that is what it had received then.
    """

    def __init__(self) -> None:
        self._cookie = np.zeros(1, np.uint64)  # ascending; no socket has 0
        self._out = self._received = self._segments = np.zeros(1, np.uint64)

    def read(self, held: Connections) -> None:
        """Compare with the reading before; what is closed is forgotten."""
        at = self._places(held)
        same = (self._cookie[at] == held.cookie) & (self._out[at] == held.segments_out)
        answered = held.segments_out > 0
        received = np.where(same, self._received[at], held.received * answered)
        segments = np.where(same, self._segments[at], held.segments_in * answered)
        if len(held):
            order = np.argsort(held.cookie)
            self._cookie, self._out = held.cookie[order], held.segments_out[order].astype(np.uint64)
            self._received = received[order].astype(np.uint64)
            self._segments = segments[order].astype(np.uint64)

    def since(self, held: Connections) -> tuple[U64, U64]:
        """Return the bytes and segments that connections of the last reading received since."""
        at = self._places(held)
        return held.received - self._received[at], held.segments_in.astype(np.uint64) - self._segments[at]

    def _places(self, held: Connections) -> np.ndarray:
        return np.searchsorted(self._cookie, held.cookie).clip(max=len(self._cookie) - 1)


class ConnectionMemory:
    """Learns what is usual from quiet readings, with a delay, and guarded as all habits; bounded."""

    def __init__(self) -> None:
        self._now = 0.0  # Unix seconds, of the last reading
        self._numbers: dict[tuple[int, str], int] = {}  # of connections in it, by port and behaviour
        self._pending: deque[_Reading] = deque()
        self.learned = Learned()
        self._earlier: deque[Learned] = deque(maxlen=_REMEMBERED)  # to go back to
        self._began: float | None = None
        self._last: SocketTable | None = None
        self._last_learned: SocketTable | None = None
        self.answers = LastAnswers()
        self._recent = self._before = np.zeros(0, np.uint64)  # sources that were answered, in two stretches
        self._turned = 0.0  # when the first began, Unix seconds
        self._encrypted: set[int] = set()  # ports
        self.posts_of: dict[int, bool] = {}  # by connection: whether its HTTP request announced a body
        self._forms: dict[int, bool] = {}  # by connection

    def read(self, now: float, table: SocketTable) -> None:
        """Take a reading, before its groups are judged."""
        self._now, self._numbers = now, {}
        self._began = now if self._began is None else min(now, self._began)
        if self._last is table:
            return
        self._last = table
        self.answers.read(table.connections)
        if now - self._turned >= _RECENT_SECONDS:
            self._turned, self._before, self._recent = now, self._recent, np.zeros(0, np.uint64)
        self._recent = np.union1d(self._recent, source_of(table.connections)[self._served(table)])

    def usual(self, held: Held, behaviour: str) -> float | None:
        """Return how many did the same before; None as long as nothing is known. Notes how many do now."""
        self._numbers[held.port, behaviour] = held.number
        usual = self.learned.usual.usual(behaviour, np.array([held.port], np.uint32), BEHAVIOURS)
        return (usual or 0.0) if self.learned.seconds >= _LEARNED_SECONDS else None

    @property
    def known(self) -> U64:
        """Sources that were served before."""
        return self.learned.known

    @property
    def answered(self) -> U64 | None:
        """Sources that were answered lately; None in the first seconds."""
        watched = self._began is not None and self._now - self._began >= _LEARNED_SECONDS
        return np.union1d(self._recent, self._before) if watched else None

    def encrypted(self, port: int, pieces: Sequence[bytes]) -> bool:
        """Tell whether a port speaks TLS, by what its clients send now or sent before."""
        records = sum(_RECORD.match(piece) is not None for piece in pieces)
        if records >= max(_LEAST_RECORDS, 0.8 * len(pieces)):
            self._encrypted.add(port)
        elif pieces and records < 0.2 * len(pieces):
            self._encrypted.discard(port)
        return port in self._encrypted

    def hear(self, posts: Mapping[int, bool], forms: Mapping[int, bool]) -> None:
        """Keep of connections whether their request announces a body, and whether pieces are form data.

        A connection that is held says its request once, and the window forgets it after seconds. A piece that
        isn't form data is a header line, and who sends one has sent no body so far.
        """
        self.posts_of |= posts
        for flow, form in forms.items():
            self._forms[flow] = self._forms.get(flow, True) and form

    def posts(self, flows: U64) -> F64:
        """Return which requests of these connections announced a body, without header lines later."""
        known = (flow for flow in flows.tolist() if flow in self.posts_of)
        return np.array([self.posts_of[flow] and self._forms.get(flow, True) for flow in known], np.float64)

    def forms(self, flows: U64) -> F64:
        """Return which of these connections, of those whose request wasn't seen, send form data."""
        unknown = (flow for flow in flows.tolist() if flow in self._forms and flow not in self.posts_of)
        return np.array([self._forms[flow] for flow in unknown], np.float64)

    def learn(self, config: AdviseConfig, *, quiet: bool, left: Sequence[Held] = ()) -> None:
        """Learn from the last reading, once it was judged; while an attack lasts nothing is learned.

        What is `left` of an ended one teaches nothing, and keeps nothing from being learned.
        """
        table = self._last
        if table is None:
            return
        if self.posts_of or self._forms:  # of what is closed they are forgotten
            still = set(flows_of(table.connections).tolist())
            self.posts_of = {flow: post for flow, post in self.posts_of.items() if flow in still}
            self._forms = {flow: form for flow, form in self._forms.items() if flow in still}
        if not quiet:
            self._pending.clear()
            return
        if self._last_learned is table:
            return
        self._last_learned = table
        if left:
            theirs = np.concatenate([held.connections.cookie for held in left])
            own = ~np.isin(table.connections.cookie, theirs)
            table = replace(table, connections=table.connections.select(own))
            gone = {(held.port, held.number) for held in left}
            numbers = self._numbers.items()
            self._numbers = {key: number for key, number in numbers if (key[0], number) not in gone}
        held = table.connections
        reading = _Reading(self._now, self._counted(table), held.port, source_of(held), self._served(table))
        self._pending.append(reading)
        while self._pending and self._pending[0].at <= self._now - _SETTLE_SECONDS:
            self._keep(self._pending.popleft(), config)

    def _counted(self, table: SocketTable) -> Reading:
        """Return how many connections of the busiest ports do what."""
        ports, counts = np.unique(table.connections.port.astype(np.uint32), return_counts=True)
        busiest = np.sort(np.argsort(-counts, kind="stable")[:_MOST_PORTS])
        numbers = [[self._numbers.get((port, one), 0) for one in BEHAVIOURS] for port in ports[busiest]]
        rates = np.array(numbers, np.float64).reshape(-1, len(BEHAVIOURS))
        rates[:, 0] = counts[busiest] / table.share
        return Reading(ports[busiest], rates)

    def _keep(self, reading: _Reading, config: AdviseConfig) -> None:
        was, patience, factor = self.learned, config.quarantine_seconds, config.learn_factor
        if not self._earlier or reading.at >= self._earlier[-1].at + _REMEMBER_SECONDS:
            self._earlier.append(replace(was, at=reading.at))
        passed = min(_SETTLE_SECONDS, self._pending[0].at - reading.at if self._pending else 1.0)
        usual = was.usual.learned(reading.numbers, passed, reading.at, patience, factor, LEAST)
        bots = reading.source[among(reading.port, usual.waiting)]  # or not: that is what shows by and by
        new = np.setdiff1d(reading.source[reading.served], bots)
        self.learned = Learned(reading.at, was.seconds + passed, usual, _with_sources(was.known, new))

    # -- the operator's word (learning.py)

    def forget(self, since: float) -> None:
        """Go back to what was usual before a time: an attack was learned since."""
        self._pending.clear()
        if self.learned.at <= since or not self._earlier:
            return
        earlier = [one for one in self._earlier if one.at <= since]
        self.learned = earlier[-1] if earlier else self._earlier[0]
        self._earlier = deque(earlier, _REMEMBERED)

    def accept(self, groups: Sequence[Held], factor: float) -> None:
        """Take what ports have now as usual, and who holds these groups as served before."""
        if self._last is None:
            return
        now, was = self._counted(self._last), self.learned
        ports = np.isin(now.number, [group.port for group in groups])
        usual = was.usual.accepted(Reading(now.number[ports], now.rates[ports]), self._now, factor, LEAST)
        sources = np.unique(np.concatenate([group.source for group in groups]))
        seconds = max(was.seconds, _LEARNED_SECONDS)
        self.learned = Learned(self._now, seconds, usual, _with_sources(was.known, sources))

    def restore(self, learned: Learned) -> None:
        """Take back what was last said."""
        self._pending.clear()
        self.learned = learned

    def _served(self, table: SocketTable) -> Mask:
        """Mark the connections that have got answers; a TLS handshake alone is none."""
        held = table.connections
        handshake = np.where(np.isin(held.port, [*self._encrypted]), HANDSHAKE, 0)
        return np.asarray((held.segments_out > handshake) & (held.unsent == 0))


def _with_sources(known: U64, more: U64) -> U64:
    """Return sources with others, as far as there is room."""
    return np.union1d(known, np.setdiff1d(more, known)[: _MOST_SOURCES - len(known)]) if len(more) else known
