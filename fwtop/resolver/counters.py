"""Count questions and answers, read from packets that begin with their IP header. Reads hostile bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct, field

from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.parse.dns_question import HEADER, parse_question
from fwtop.resolver.servers import PORT
from fwtop.resolver.view import ROWS, NameRow, Totals, View, ZoneRow, is_random

_SYN, _ACK = 2, 16
_MOST = 50_000  # names, zones and prefixes that are kept apart
_FEW = 64  # names and prefixes remembered of each other
_PREFIX = {4: 24, 6: 56}
_LOOPBACK = 127
_OFTEN, _FEW_NAMES = 100, 3  # questions of a prefix, and names: more of the same than any cache lets through
_RESOLVER_NAMES = 30  # that a prefix asks in the time of a look
_Key = TypeVar("_Key")


class Name(Struct):
    """Questions about one name, and what was answered."""

    questions: int = 0
    asked_bytes: int = 0
    answers: int = 0
    answered_bytes: int = 0
    prefixes: set[str] = field(default_factory=set)


class Zone(Struct):
    """Questions about names below a parent: random ones are asked once each."""

    questions: int = 0
    names: set[bytes] = field(default_factory=set)
    lengths: Counter[int] = field(default_factory=Counter)  # of first labels
    failures: int = 0  # answers with an error, or that the name does not exist


class DnsCounters(Totals):
    """What was seen."""

    types: Counter[int] = field(default_factory=Counter)
    rcodes: Counter[int] = field(default_factory=Counter)
    prefixes: Counter[str] = field(default_factory=Counter)
    asked: dict[str, set[bytes]] = field(default_factory=dict)  # by prefix: some of the names
    names: dict[bytes, Name] = field(default_factory=dict)  # by wire form
    zones: dict[bytes, Zone] = field(default_factory=dict)

    def packet(self, data: bytes, *, incoming: bool) -> None:
        """Count one packet, a question if `incoming`, else an answer."""
        found = _transport(data)
        if found is None:
            return
        source, protocol, at, length = found
        if protocol == TCP:
            if incoming and len(data) > at + 13 and data[at + 13] & (_SYN | _ACK) == _SYN:
                self.tcp += 1
            return
        message = data[at + 8 :]
        if len(message) < HEADER:
            self.malformed += incoming
        elif incoming and message[2] < 0x80:
            self._question(message, length, source, int.from_bytes(data[at : at + 2], "big"))
        elif not incoming and message[2] >= 0x80:
            self._answer(message, length)

    def _question(self, message: bytes, length: int, source: str, port: int) -> None:
        self.questions += 1
        self.question_bytes += length
        self.from_dns_port += port == PORT
        self.from_port_0 += port == 0
        if len(self.prefixes) < _MOST or source in self.prefixes:
            self.prefixes[source] += 1
        question = parse_question(message)
        if question is None or question.qtype is None:
            self.malformed += 1
            return
        self.types[question.qtype] += 1
        if source in self.prefixes and len(asked := self.asked.setdefault(source, set())) < _FEW:
            asked.add(question.wire)
        name = self._name(question.wire)
        if name is not None:
            name.questions += 1
            name.asked_bytes += length
            if len(name.prefixes) < _FEW:
                name.prefixes.add(source)
        if len(question.labels) > 1:
            self._below(question.wire)

    def _below(self, wire: bytes) -> None:
        first = wire[0]
        parent = wire[1 + first :]
        if parent not in self.zones and len(self.zones) >= _MOST:
            return
        zone = self.zones.setdefault(parent, Zone())
        zone.questions += 1
        zone.lengths[first] += 1
        if len(zone.names) < _MOST:
            zone.names.add(wire[1 : 1 + first])

    def _name(self, wire: bytes) -> Name | None:
        if wire not in self.names and len(self.names) >= _MOST:
            return None
        return self.names.setdefault(wire, Name())

    def _answer(self, message: bytes, length: int) -> None:
        self.answers += 1
        self.answer_bytes += length
        self.truncated += bool(message[2] & 2)
        self.rcodes[message[3] & 15] += 1
        question = parse_question(message)
        if question is None:
            return
        if (name := self.names.get(question.wire)) is not None:
            name.answers += 1
            name.answered_bytes += length
        parent = question.wire[1 + question.wire[0] :] if question.wire else b""
        if message[3] & 15 and (zone := self.zones.get(parent)) is not None:
            zone.failures += 1


def view_of(counts: DnsCounters, seconds: float, one_in: int) -> View:
    """Return what was counted, cut to what a view holds."""
    names = sorted(counts.names.items(), key=lambda item: -item[1].questions)[:ROWS]
    zones = sorted(counts.zones.items(), key=lambda item: (-len(item[1].names), -item[1].questions))[:ROWS]
    return View(
        seconds,
        one_in,
        Totals(*(getattr(counts, name) for name in Totals.__struct_fields__)),
        _top(counts.types),
        _top(counts.rcodes),
        tuple((Prefix.parse(prefix), count) for prefix, count in _top(counts.prefixes)),
        len(counts.prefixes),
        _usual(counts) * one_in / seconds,
        tuple(
            NameRow(
                wire, name.questions, len(name.prefixes), name.asked_bytes, name.answers, name.answered_bytes
            )
            for wire, name in names
        ),
        tuple(
            ZoneRow(wire, zone.questions, len(zone.names), _first_label(zone), zone.failures)
            for wire, zone in zones
        ),
    )


def _first_label(zone: Zone) -> int | None:
    """Return the length that nearly all first labels have, None if they differ."""
    length, most = _top(zone.lengths)[0]
    return length if most >= 0.9 * zone.questions and 0 < length < 64 else None


def _usual(counts: DnsCounters) -> int:
    """Return what 95 % of the prefixes do not exceed, or more if one that asks many names does: a resolver.

    An address that is forged for a reflection asks few names, often; random ones below one zone are no names.
    """
    rates = sorted(
        count
        for prefix, count in counts.prefixes.items()
        if count < _OFTEN or len(counts.asked.get(prefix, ())) > _FEW_NAMES
    )
    if not rates:
        return 0
    invented = {parent for parent, zone in counts.zones.items() if is_random(len(zone.names), zone.questions)}
    real = (
        count
        for prefix, count in counts.prefixes.items()
        if sum(wire[1 + wire[0] :] not in invented for wire in counts.asked.get(prefix, ()))
        >= _RESOLVER_NAMES
    )
    return max(rates[int(0.95 * (len(rates) - 1))], *real, 0)


def _top(counted: Mapping[_Key, int]) -> tuple[tuple[_Key, int], ...]:
    """Return the most frequent; Counter.most_common would import a module, which the sandbox denies."""
    return tuple(sorted(counted.items(), key=lambda item: -item[1])[:ROWS])


def _transport(data: bytes) -> tuple[str, int, int, int] | None:
    """Return source prefix, protocol, where the transport header starts, and IP length; None: not counted.

    The length of a UDP datagram is its own: it may come in fragments. What the machine asks itself is left
    out.
    """
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= 28:
        at, protocol, family, value = (data[0] & 15) * 4, data[9], 4, int.from_bytes(data[12:16], "big")
        local = data[12] == _LOOPBACK
    elif version == 6 and len(data) >= 48:
        at, protocol, family, value = 40, data[6], 6, int.from_bytes(data[8:24], "big")
        local = value == 1
    else:
        return None
    if local or protocol not in (UDP, TCP) or len(data) < at + 8:
        return None
    length = at + int.from_bytes(data[at + 4 : at + 6], "big") if protocol == UDP else len(data)
    return _prefix(family, value), protocol, at, length


def _prefix(family: int, value: int) -> str:
    length = _PREFIX[family]
    spare = (32 if family == 4 else 128) - length
    return str(Prefix(family, value >> spare << spare, length))
