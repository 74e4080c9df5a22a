"""Who the clients of each service are: a bounded table that no attacker can empty or make grow.

A client has had a real TCP connection, or got an answer over UDP or, where answers aren't seen, sends to a
service in calm again and again; a lone SYN or datagram makes nobody one.
How long it is known counts calm time only. Three quarters of the room belong to who is known longest, the
rest to who came last: any number of newcomers displaces newcomers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from fwtop.analysis.window.counting import among, run_edges
from fwtop.analysis.window.traffic import TCP, Rows, Traffic, mix
from fwtop.model.traffic.packets import F64, KINDS, U8, U32, U64, Mask
from fwtop.stats.services import Doors, plain_numbers

_ROOM, _PER_SERVICE = 12_288, 8_192  # larger columns cost a page fault for each 512 clients
LONG_SECONDS = 30.0  # between the first and the last time in calm: bots of an onset are seen for less
_ABSENT_SECONDS = 30 * 86_400.0  # after which a client counts as new where room is short
_ACQUAINTED_SECONDS = 900.0
_NONE: U32 = np.zeros(0, np.uint32)


def client_key(source: U64, service: U32) -> U64:
    """Return a hash of each client of a service."""
    return mix(source, service.astype(np.uint64))


class Clients(Struct, frozen=True):
    """Clients in columns by ascending `key`; times are Unix seconds. Columns are replaced, never modified."""

    key: U64
    service: U32  # its number, as `ServiceKey.number`
    door: U32  # protocol and port by which it was last reached
    family: U8
    hi: U64
    lo: U64
    first: F64
    calm: F64  # last seen while nothing attacked; 0: never
    last: F64
    before: F64  # packets in calm
    since: F64  # packets since the present attack began

    def __len__(self) -> int:
        return len(self.key)

    @staticmethod
    def of(columns: list[np.ndarray] | None = None) -> Clients:
        """Return the table of these columns, or an empty one; raises ValueError if they don't fit."""
        types = [KINDS[kind] for kind in Clients.__annotations__.values()]
        columns = columns if columns is not None else [np.zeros(0, kind) for kind in types]
        if [one.dtype for one in columns] != types or len({one.shape for one in columns}) != 1:
            raise ValueError("not a stored table of clients")
        if columns[0].ndim != 1 or len(columns[0]) > _ROOM:
            raise ValueError("not a stored table of clients")
        return Clients(*columns).select(np.argsort(columns[0]))

    def select(self, rows: np.ndarray) -> Clients:
        """Return some rows."""
        return Clients(*(column[rows] for column in asdict(self).values()))

    @property
    def source(self) -> U64:
        """Hash of each address, as `Traffic.source_key`."""
        return mix(self.hi, self.lo)

    @property
    def seconds(self) -> F64:
        """How long each is known, in calm."""
        return np.maximum(self.calm - self.first, 0.0)

    @property
    def long_known(self) -> Mask:
        """Those known over some time before an attack."""
        return np.asarray(self.seconds >= LONG_SECONDS)

    def acquainted(self, traffic: Traffic) -> Mask:
        """Mark the packets of sources that were clients over TCP in the last minutes.

        A measurement or a call agrees on its UDP stream over a TCP connection, which is silent meanwhile.
        """
        now = traffic.started + traffic.seconds
        lately = (self.door >> 16 == TCP) & (self.last >= now - _ACQUAINTED_SECONDS)
        return among(traffic.source_key, self.source[lately])

    def moved(self, moves: Mapping[int, int]) -> Clients:
        """Return the table after services were found to have other numbers."""
        old = np.array(sorted(moves), np.uint32)
        at = np.searchsorted(old, self.service)
        hit = np.append(old, np.uint32(0))[at] == self.service
        hit &= at < len(old)
        if not hit.any():
            return self
        new = np.array([*(moves[one] for one in old.tolist()), 0], np.uint32)
        service = np.where(hit, new[at], self.service).astype(np.uint32)
        moved = replace(self, key=client_key(self.source, service), service=service)
        moved = moved.select(np.argsort(self.first, kind="stable"))  # of one known twice the elder stays
        return moved.select(np.unique(moved.key, return_index=True)[1])

    def met(self, traffic: Traffic, rows: Rows, doors: Doors, *, quiet: bool, held: U32 = _NONE) -> Clients:
        """Return the table with the clients whose packets these are; `held` services are in quarantine."""
        packets = traffic.packets
        if not len(rows):
            return self
        now = traffic.started + traffic.seconds
        service = doors.numbers(packets, rows)
        door = plain_numbers(packets.protocol[rows], packets.dport[rows])
        key, at, place = np.unique(
            client_key(traffic.source_key[rows], service), return_index=True, return_inverse=True
        )
        count = np.asarray(np.bincount(place, traffic.weight[rows]), np.float64)
        quieter = quiet & ~among(service[at], held)
        calm = np.where(quieter, now, 0.0)
        mine, when = rows[at], np.full(len(key), now)
        met = Clients(
            key, service[at], door[at], packets.family[mine], packets.src_hi[mine], packets.src_lo[mine],
            when, calm, when, count * quieter, count * ~quieter,
        )  # fmt: skip
        return self._joined(met, now, quiet=quiet)

    def on_hold(self, earlier: Clients) -> tuple[Clients, U64]:
        """Return the table without what is new in `calm` since an earlier one, and the keys of that."""
        at = np.searchsorted(earlier.key, self.key)
        was = np.where(among(self.key, earlier.key), np.append(earlier.calm, 0.0)[at], 0.0)
        return replace(self, calm=was), self.key[self.calm > was]

    def in_calm(self, keys: U64, now: float) -> Clients:
        """Return the table where these clients, of those that are still there, were seen in calm."""
        seen = among(self.key, keys)
        return (
            replace(self, calm=np.where(seen, np.maximum(self.calm, now), self.calm)) if len(keys) else self
        )

    def _joined(self, met: Clients, now: float, *, quiet: bool) -> Clients:
        old = among(met.key, self.key)
        at = np.searchsorted(self.key, met.key[old])
        calm, last, before, door = self.calm.copy(), self.last.copy(), self.before.copy(), self.door.copy()
        since = np.zeros(len(self)) if quiet else self.since.copy()
        calm[at] = np.maximum(calm[at], met.calm[old])
        last[at], door[at] = now, met.door[old]
        before[at] += met.before[old]
        since[at] += met.since[old]
        known = replace(self, door=door, calm=calm, last=last, before=before, since=since)
        if old.all():
            return known
        pairs: Iterable[Any] = zip(asdict(known).values(), asdict(met.select(~old)).values(), strict=True)
        columns: list[Any] = [np.concatenate(pair) for pair in pairs]
        joined = Clients(*columns)
        joined = joined.select(np.argsort(joined.key))
        if len(joined) > _PER_SERVICE:
            joined = joined.select(joined._chosen(joined.service, _PER_SERVICE, now))
        return joined.select(joined._chosen(joined.family * 0, _ROOM, now)) if len(joined) > _ROOM else joined

    def _chosen(self, group: np.ndarray, most: int, now: float) -> Mask:
        """Mark those that stay, at most so many in a group."""
        steady = np.where(self.last >= now - _ABSENT_SECONDS, self.seconds, 0.0)
        kept = _first(group, -steady, most - most // 4)
        return kept | _first(group, np.where(kept, np.inf, -self.last), most // 4)


def _first(group: np.ndarray, order: F64, most: int) -> Mask:
    """Mark the first `most` of each group."""
    rows = np.lexsort((order, group))
    edges = run_edges(group[rows])
    place = np.arange(len(rows)) - np.repeat(edges[:-1], np.diff(edges))
    marked = np.zeros(len(rows), np.bool_)
    marked[rows[place < most]] = True
    return marked
