"""What the clients' connections do, port by port: the groups that hypotheses compete for, and their features.

Everything follows from one reading of struct tcp_info: on a connection without an answer `since_sent` is its
age (net/ipv4/tcp_minisocks.c sets lsndtime), and `held` is the time that the peer's window kept data back.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.window.traffic import mix
from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.connections import Connections, SocketTable
from fwtop.model.traffic.packets import F64, U64, Mask

SILENT, WAITING, STALLED = "silent", "waiting", "stalled"
_SILENT_SECONDS = 2.0  # between handshake and request; a browser's request comes at once
_WAITING_SECONDS = 2.0  # for the rest of a request; a page takes less to answer
_STALLED_SECONDS = 1.0
_AFTER = 0.05  # seconds by which data came after the last answer
_SMALL_WINDOW = 2_920  # bytes: two segments on Ethernet
_CRUMB = 128.0  # mean bytes of a piece of a request; a browser sends it as one segment
_SAME = 8  # bytes by which requests of one tool differ
_FRESH_SECONDS = 60.0
_FEWEST = 20  # connections in a group worth looking at
_LEAST_KNOWN = 5  # samples of requests from which their method is known
HANDSHAKE = 8  # segments of a server's TLS handshake at most: certificates, and tickets


class Group(Struct, frozen=True):
    """The connections to one port that do the same, of which hypotheses say why."""

    behaviour: str
    port: int
    connections: Connections
    share: float  # of all connections, 0 to 1, that were read
    served: int  # connections to the port that were read
    source: U64  # of each connection: its address (IPv6: /64) as a hash
    features: dict[str, float] = field(default_factory=dict)  # by name; one that isn't known is left out

    @property
    def number(self) -> int:
        """How many there are, estimated."""
        return round(len(self.connections) / self.share)

    def senders(self) -> list[tuple[Prefix, int]]:
        """Return the sources (address, or IPv6 /64) and how many of the connections each has, most first."""
        held = self.connections
        _, first, counts = np.unique(self.source, return_index=True, return_counts=True)
        found = []
        for at, number in zip(first.tolist(), counts.tolist(), strict=True):
            six = int(held.family[at]) == 6
            value = int(held.hi[at]) << 64 if six else int(held.lo[at])
            found.append((Prefix(6, value, 64) if six else Prefix(4, value, 32), number))
        return sorted(found, key=lambda item: (-item[1], item[0]))


class Said(Struct, frozen=True):
    """What the sampled data of a group's connections says: of each that is known 1 or 0."""

    posts: F64  # whether the request announces a body
    forms: F64  # of those whose request wasn't seen: whether they send form data (1) or header lines (0)
    foreign: F64  # whether it is of another protocol than the web's
    encrypted: bool  # the port speaks TLS


class Past(Struct, frozen=True):
    """What earlier readings tell about a group."""

    received: U64  # by each connection since its last answer: bytes
    segments: U64  # the same, in segments with data
    usual: float | None = None  # connections that did the same before, None as long as nothing is known
    known: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # sources served before
    answered: U64 | None = None  # sources that were answered lately, None in the first seconds


def flow_of(hi: U64, lo: U64, peer_port: U64, port: U64) -> U64:
    """Hash the columns that tell a connection from all others."""
    return mix(mix(hi, lo), peer_port << np.uint64(16) | port)


def flows_of(held: Connections) -> U64:
    """Hash the same of each connection."""
    return flow_of(held.hi, held.lo, held.peer_port.astype(np.uint64), held.port.astype(np.uint64))


def source_of(held: Connections) -> U64:
    """Hash the source of each connection: its address, of IPv6 the /64 that one host may use."""
    return mix(held.hi, np.where(held.family == 6, np.uint64(0), held.lo))


def groups(table: SocketTable) -> Iterator[Group]:
    """Yield what is worth judging: connections to a port that keep something waiting, in numbers."""
    held = table.connections
    done = behaviours(held)
    for port in np.flatnonzero(np.bincount(held.port)).tolist():
        here = held.port == port
        doing = {behaviour: here & mask for behaviour, mask in done.items()}
        _move_queued(held, doing)
        for behaviour, mine in doing.items():
            if mine.sum() >= _FEWEST:
                chosen = held.select(mine)
                yield Group(behaviour, port, chosen, table.share, int(here.sum()), source_of(chosen))


def _move_queued(held: Connections, doing: dict[str, Mask]) -> None:
    """Count requests that the server has not read to the slow readers of the same sources who occupy it."""
    waiting, stalled = doing[WAITING], doing[STALLED]
    queued = waiting & (held.unread > 0)
    if stalled.sum() > (waiting & ~queued).sum():
        source = source_of(held)
        queued &= np.isin(source, source[stalled])
        doing[WAITING], doing[STALLED] = waiting & ~queued, stalled | queued


def behaviours(held: Connections) -> dict[str, Mask]:
    """Mark the connections that do the same; none does two things."""
    asked, answered = held.segments_in > 0, held.segments_out > 0
    quiet = held.unsent == 0
    pending = ~answered | (held.since_sent > held.since_received + _AFTER)
    small = held.window < np.maximum(2 * held.mss, _SMALL_WINDOW)
    return {
        SILENT: ~asked & ~answered & (held.since_received >= _SILENT_SECONDS),
        WAITING: asked & quiet & pending & (held.since_sent >= _WAITING_SECONDS),
        STALLED: asked & small & (held.unsent > held.window) & (held.held >= _STALLED_SECONDS),
    }


def measured(group: Group, table: SocketTable, said: Said, past: Past) -> Group:
    """Return the group with its features."""
    held, number = group.connections, group.number
    features = {
        "connections": float(number),
        "per_source": _per_source(group),
        "sources": float(len(np.unique(group.source))),
        "of_port": len(held) / max(group.served, 1),
        "overflows": table.overflows_per_s,
    }
    queue = table.queue(group.port)
    if queue is not None and queue.limit:
        features["queue"] = queue.waiting / queue.limit
    if past.usual is not None:
        features["times_usual"] = number / max(past.usual, 10.0)
        features["known"] = float(np.isin(group.source, past.known).mean())
    if group.behaviour == SILENT:
        features["fresh"] = float((held.since_received < _FRESH_SECONDS).mean())
        features["seconds"] = float(np.median(held.since_received))
        if past.answered is not None:
            answered = float(np.isin(group.source, past.answered).mean())
            features["answered"] = min(answered / group.share, 1.0)  # a sample misses their other connections
    if group.behaviour == WAITING:
        features |= _of_requests(held, said, past)
    if group.behaviour == STALLED:
        keeps = held.unsent > held.window
        features["window"] = float(np.median(held.window[keeps]))
        features["seconds"] = float(np.median(held.held[keeps]))
        features["taken"] = float(np.median(held.segments_out[keeps]))
    return replace(group, features=features)


def _per_source(group: Group) -> float:
    """Return how many connections the source of a connection has, in the median: one proxy is no crowd.

    Of a sample the mean is estimated: each connection of the same source is there with the sample's share.
    """
    _, place, counts = np.unique(group.source, return_inverse=True, return_counts=True)
    of_each = counts[place]
    return float(np.median(of_each)) if group.share >= 1 else 1 + float((of_each - 1).mean()) / group.share


def _of_requests(held: Connections, said: Said, past: Past) -> dict[str, float]:
    """Return the features of connections that wait for an answer.

    Behind TLS a first answer is the handshake, and requests have no lengths that tell.
    """
    size = held.received.astype(np.float64)
    never = held.segments_out <= (HANDSHAKE if said.encrypted else 0)
    crumbs = past.received.astype(np.float64) / np.maximum(past.segments, 1) <= _CRUMB
    features = {
        "pieces": float(((past.segments >= 2) & never & crumbs).mean()),
        "seconds": float(np.median(held.since_sent)),
        "pace": float(np.median(size / np.maximum(held.since_sent, 1.0))),
    }
    first = size[held.segments_in == 1]
    if not said.encrypted:
        features["unanswered"] = float(never.mean())
        if len(first) >= _LEAST_KNOWN:
            features["alike"] = float((np.abs(first - np.median(first)) <= _SAME).mean())
    for name, known in (("posts", said.posts), ("forms", said.forms), ("foreign", said.foreign)):
        if len(known) >= _LEAST_KNOWN:
            features[name] = float(known.mean())
    return features
