"""Which service packets go to: by address, protocol and port, before DNAT and after; and what each gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from fwtop.model.addresses.address import Prefix
from fwtop.model.service import Service, plain_number
from fwtop.model.traffic.packets import F64, KINDS, U8, U16, U32, U64, Fragment, Mask, PacketBatch, Window
from fwtop.model.traffic.protocols import NAMES, TCP, UDP
from fwtop.stats.destinations import SERVICES
from fwtop.stats.sums import mixed

_ROOM = 512
_UDP = 1 << 16  # ports of TCP come before those of UDP
_MOST = 64  # shown
_SYN, _SYN_ACK = 0x02, 0x12
_ALL = slice(None)
Rows = NDArray[np.intp]


def plain_numbers(protocol: U8, port: U16) -> U32:
    """Return the number of each service of which only protocol and port are known."""
    return np.asarray(protocol.astype(np.uint32) << np.uint32(16) | port.astype(np.uint32))


class Doors(Struct, frozen=True, dict=True):
    """Where services are reached, in columns by ascending `key`. Bounded: those that are gone longest go."""

    key: U64  # a hash of address (none: all), protocol and port
    plain: U32
    number: U32  # of the service
    owned: U8  # 1: who listens is known
    exact: U8  # 1: at one address
    last: F64  # Unix seconds when it was there

    def __len__(self) -> int:
        return len(self.key)

    @staticmethod
    def of(columns: Sequence[np.ndarray] | None = None) -> Doors:
        """Return the table of these columns, or an empty one; raises ValueError if they don't fit."""
        types = [KINDS[kind] for kind in Doors.__annotations__.values()]
        columns = columns if columns is not None else [np.zeros(0, kind) for kind in types]
        fitting = [one.dtype for one in columns] == types and len({one.shape for one in columns}) == 1
        if not fitting or columns[0].ndim != 1 or len(columns[0]) > _ROOM:
            raise ValueError("not a stored table of services")
        return Doors(*columns)._select(np.argsort(columns[0]))

    @staticmethod
    def to(services: Sequence[Service], numbers: Iterable[int], now: float = 0.0) -> Doors:
        """Return the doors of services with these numbers; of two behind one door the first is meant."""
        rows: dict[tuple[Prefix | None, int], tuple[int, bool]] = {}
        for service, number in zip(services, numbers, strict=True):
            for address, port in service.doors:
                door = Prefix.parse(address) if address else None, plain_number(service.protocol, port)
                rows.setdefault(door, (number, bool(service.key.owner)))
        chosen = list(rows.items())[:_ROOM]
        hi = np.array([door.hi if door else 0 for (door, _), _ in chosen], np.uint64)
        lo = np.array([door.lo if door else 0 for (door, _), _ in chosen], np.uint64)
        plain = np.array([plain for (_, plain), _ in chosen], np.uint32)
        exact = np.array([door is not None for (door, _), _ in chosen], np.uint8)
        return Doors.of([
            np.where(exact, _at_address(plain, hi, lo), mixed(plain.astype(np.uint64))),
            plain,
            np.array([number for _, (number, _) in chosen], np.uint32),
            np.array([owned for _, (_, owned) in chosen], np.uint8),
            exact,
            np.full(len(chosen), now),
        ])  # fmt: skip

    def places(self, packets: PacketBatch, rows: Rows | slice = _ALL, local: Mask | None = None) -> Rows:
        """Return the row of the door that each packet goes to; their count where there is none.

        Doors at all addresses are those of `local` packets only, if that is given.
        """
        protocol, port = packets.protocol[rows], packets.dport[rows]
        slot = np.where(protocol == UDP, port.astype(np.uint32) | np.uint32(_UDP), port)
        found = self._everywhere[slot].astype(np.intp)
        found[(protocol != TCP) & (protocol != UDP)] = len(self)
        if local is not None:
            found[~local] = len(self)
        near = np.flatnonzero(self._at_one_address[slot] < len(self))
        if len(near):
            plain = plain_numbers(protocol[near], port[near])
            there = self._find(_at_address(plain, packets.dst_hi[rows][near], packets.dst_lo[rows][near]))
            hit = there < len(self)
            found[near[hit]] = there[hit]
        return found

    def numbers(self, packets: PacketBatch, rows: Rows | slice = _ALL) -> U32:
        """Return the number of the service that each packet goes to."""
        plain = plain_numbers(packets.protocol[rows], packets.dport[rows])
        if not len(self):
            return plain
        places = self.places(packets, rows)
        return np.where(places < len(self), np.append(self.number, np.uint32(0))[places], plain)

    def at(self, plain: int) -> U32:
        """Return the numbers of the services that protocol and port may stand for."""
        return np.append(self.number[self.plain == plain], np.uint32(plain))

    def number_of(self, service: Service) -> int:
        """Return the number that a service is known by."""
        one = Doors.to((service,), (service.key.number,))
        return int(np.append(self.number, one.number[0])[self._find(one.key)[0]])

    def told(self, services: Sequence[Service], now: float) -> tuple[Doors, dict[int, int]]:
        """Return the table with what is there now, and which numbers are others from now on.

        Who listened stays known where nobody is known now: a server restarts, or was not looked up yet.
        """
        new = Doors.to(services, [service.key.number for service in services], now)
        at = self._find(new.key)
        was = at < len(self)
        kept = was & (new.owned == 0)
        number = np.where(kept, np.append(self.number, np.uint32(0))[at], new.number)
        owned = np.where(kept, np.append(self.owned, np.uint8(0))[at], new.owned)
        before = np.where(was, np.append(self.number, np.uint32(0))[at], new.plain)
        first = (new.owned == 1) & (~was | (np.append(self.owned, np.uint8(0))[at] == 0)) & (before != number)
        moves: dict[int, set[int]] = {}
        for old, now_is in zip(before[first].tolist(), number[first].tolist(), strict=True):
            moves.setdefault(old, set()).add(now_is)
        gone = self._select(np.flatnonzero(~np.isin(self.key, new.key)))
        gone = gone._select(np.argsort(-gone.last, kind="stable")[: _ROOM - len(new)])
        new = replace(new, number=number.astype(np.uint32), owned=owned.astype(np.uint8))
        columns = zip(asdict(new).values(), asdict(gone).values(), strict=True)
        joined = Doors.of([np.concatenate(pair) for pair in columns])
        return joined, {old: is_now.pop() for old, is_now in moves.items() if len(is_now) == 1}

    @cached_property
    def _everywhere(self) -> NDArray[np.int16]:
        return self._by_slot(self.exact == 0)

    @cached_property
    def _at_one_address(self) -> NDArray[np.int16]:
        return self._by_slot(self.exact == 1)

    def _by_slot(self, which: Mask) -> NDArray[np.int16]:
        """Return the row of a door for each port, of TCP and then of UDP; their count where there is none."""
        rows = np.flatnonzero(which)
        slots = np.full(2 * _UDP, len(self), np.int16)
        slots[self.plain[rows] & np.uint32(0xFFFF) | np.where(self.plain[rows] >> 16 == UDP, _UDP, 0)] = rows
        return slots

    def _find(self, keys: U64) -> Rows:
        at = np.searchsorted(self.key, keys)
        return np.where(np.append(self.key, np.uint64(0))[at] == keys, at, len(self))

    def _select(self, rows: np.ndarray) -> Doors:
        return Doors(*(column[rows] for column in asdict(self).values()))


def address_numbers(hi: U64, lo: U64, seed: U64 | int = 0) -> U64:
    """Return a number for each address."""
    return mixed(lo, mixed(hi, seed))


def _at_address(plain: U32, hi: U64, lo: U64) -> U64:
    return address_numbers(hi, lo, mixed(plain.astype(np.uint64)))


def with_rates(services: tuple[Service, ...], window: Window) -> tuple[Service, ...]:
    """Return the services with what each got, the busiest first.

    Without any (nobody could be asked) the well-known ones stand in.
    """
    if not len(window.accepted):
        return services[:_MOST]
    known = services or tuple(Service(*place, name) for place, name in SERVICES.items())
    found = [
        replace(item, pps=pps)
        for item, pps in zip(known, _rates(window, known).tolist(), strict=True)
        if services or pps > 0
    ]
    return tuple(sorted(found, key=lambda item: -item.pps)[:_MOST])


def _rates(window: Window, services: Sequence[Service]) -> F64:
    """Accepted packets a second for each service, less those that the sockets dropped afterwards."""
    counters, accepted, dropped = window.counters, window.accepted, window.dropped
    if counters.seconds <= 0:
        return np.zeros(len(services))
    doors = Doors.to(services, range(len(services)))
    packets = _counts(doors, accepted, _local(accepted, window), counters.accepted_packets, len(services))
    for drop in counters.drops:
        if not drop.before_delivery and drop.code is not None:
            same = dropped.select(dropped.reason == drop.code)
            packets -= _counts(doors, same, np.ones(len(same), np.bool_), drop.packets, len(services))
    return np.maximum(packets, 0) / counters.seconds


def answering(window: Window) -> set[tuple[str, str, int]]:
    """Return who answers: protocol, address and port; "" and 0 where only the address is known to be in use.

    A listening TCP socket answers each SYN that gets to it. What a UDP socket answers leaves a trace only
    where connections are tracked, so one that packets get to counts.
    """
    found, accepted = set(window.answering), window.accepted
    doors = Doors.to(window.services, range(len(window.services)))
    rows = np.flatnonzero((accepted.protocol == UDP) | (accepted.tcp_flags & _SYN_ACK == _SYN))
    places = doors.places(accepted, rows, _local(accepted, window)[rows])
    rows = rows[(places < len(doors)) & (accepted.fragment[rows] != Fragment.LATER)]
    columns = (accepted.family, accepted.dst_hi, accepted.dst_lo, accepted.protocol, accepted.dport)
    keys = np.unique(np.stack([column[rows].astype(np.uint64) for column in columns], axis=1), axis=0)
    for family, hi, lo, protocol, port in keys[:_MOST].tolist():
        found.add((NAMES[protocol], str(Prefix.of_columns(family, hi, lo)), port))
    return found


def _counts(doors: Doors, samples: PacketBatch, local: Mask, packets: int | None, services: int) -> F64:
    """Count packets by service; the samples stand for so many, if that is known."""
    places = doors.places(samples, local=local)
    inside = np.flatnonzero((places < len(doors)) & (samples.fragment != Fragment.LATER))
    whole = float(samples.weight.sum())
    scale = packets / whole if packets is not None and whole > 0 else 1.0
    number = doors.number[places[inside]].astype(np.intp)
    return np.asarray(np.bincount(number, samples.weight[inside] * scale, services), np.float64)


def _local(samples: PacketBatch, window: Window) -> Mask:
    """Tell packets to this host from those that it forwards, if its addresses are known."""
    if not window.own:
        return np.ones(len(samples), np.bool_)
    own = (np.array([getattr(prefix, half) for prefix in window.own], np.uint64) for half in ("hi", "lo"))
    return np.isin(address_numbers(samples.dst_hi, samples.dst_lo), address_numbers(*own))
