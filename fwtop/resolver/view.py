"""Counts of DNS questions and answers: of packets that begin with their IP header, and as a frozen value.

What counts reads hostile bytes, so the value that it hands over holds numbers, bytes and prefixes, but no
text; text and JSON are made of it outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, field

from fwtop.model.addresses.address import Prefix
from fwtop.model.text import dns_name_text
from fwtop.model.traffic.protocols import TCP, UDP, split_wire, type_text
from fwtop.parse.dns_question import HEADER, parse_question
from fwtop.render.numbers import percent
from fwtop.resolver.servers import PORT

ROWS = 20  # of each table
RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
_SHOWN = 5
_RANDOM_NAMES, _ONCE = 100, 0.8  # names below a zone, and their share of the questions about it
_NAMED = 0.02  # share of the questions from which a name is told
_Count = Annotated[int, Meta(ge=0)]
_Rows = Meta(max_length=ROWS)
_SYN, _ACK = 2, 16
_MOST = 50_000  # names, zones and prefixes that are kept apart
_FEW = 64  # names and prefixes remembered of each other
_PREFIX = {4: 24, 6: 56}
_LOOPBACK = 127
_OFTEN, _FEW_NAMES = 100, 3  # questions of a prefix, and names: more of the same than any cache lets through
_RESOLVER_NAMES = 30  # that a prefix asks in the time of a look


class Totals(Struct):
    """What was seen in all; sizes in bytes of IP packets, an answer in fragments counts whole."""

    questions: _Count = 0
    question_bytes: _Count = 0
    answers: _Count = 0
    answer_bytes: _Count = 0
    truncated: _Count = 0  # answers that send the client to TCP
    tcp: _Count = 0  # connections that were begun
    from_dns_port: _Count = 0  # questions from port 53
    from_port_0: _Count = 0
    malformed: _Count = 0


class NameRow(Struct, frozen=True):
    """Questions about a name. `wire` is its wire form: what a rule matches."""

    wire: bytes
    questions: _Count
    prefixes: _Count  # that asked, at most 64
    asked_bytes: _Count
    answers: _Count
    answered_bytes: _Count

    @property
    def name(self) -> str:
        """The name, safe to show."""
        return dns_name_text(split_wire(self.wire)[0])

    @property
    def factor(self) -> float:
        """Bytes answered for each byte asked."""
        known = self.answers and self.asked_bytes and self.questions
        return self.answered_bytes / self.answers / (self.asked_bytes / self.questions) if known else 0.0


class ZoneRow(Struct, frozen=True):
    """Questions about names below a zone."""

    wire: bytes
    questions: _Count
    names: _Count  # different ones
    first_label: Annotated[int, Meta(ge=1, le=63)] | None  # bytes of their first labels, None: they differ
    failures: _Count

    @property
    def name(self) -> str:
        """The zone, safe to show."""
        return dns_name_text(split_wire(self.wire)[0])


class View(Struct, frozen=True):
    """Counts of `seconds`; all are of the packets sampled, 1 in `one_in`."""

    seconds: float
    one_in: int
    totals: Totals
    by_type: Annotated[tuple[tuple[_Count, _Count], ...], _Rows]
    by_code: Annotated[tuple[tuple[_Count, _Count], ...], _Rows]
    prefixes: Annotated[tuple[tuple[Prefix, _Count], ...], _Rows]  # that ask, the busiest first
    asking: _Count  # prefixes
    usual: float  # questions a second that prefixes of real clients ask
    names: Annotated[tuple[NameRow, ...], _Rows]
    zones: Annotated[tuple[ZoneRow, ...], _Rows]

    @property
    def types(self) -> dict[str, int]:
        """Questions by type."""
        return {type_text(number): count for number, count in self.by_type}

    @property
    def codes(self) -> dict[str, int]:
        """Answers by code."""
        return {RCODES.get(number, f"RCODE{number}"): count for number, count in self.by_code}

    @property
    def factor(self) -> float:
        """Bytes answered for each byte asked."""
        return self.totals.answer_bytes / max(self.totals.question_bytes, 1)

    def rate(self, count: float) -> float:
        """Return a count of sampled packets as a rate."""
        return count * self.one_in / self.seconds if self.seconds > 0 else 0.0

    def share(self, count: int) -> float:
        """Return the share of the questions."""
        return count / max(self.totals.questions, 1)

    def lines(self) -> tuple[str, ...]:
        """Return the view as text, without indentation."""
        total = self.totals
        asked, answered = self.rate(total.questions), self.rate(total.answers)
        sampled = f", 1 in {self.one_in} looked at" if self.one_in > 1 else ""
        lines = [
            f"{asked:,.0f} questions and {answered:,.0f} answers a second by UDP, "
            f"{self.rate(total.tcp):,.0f} connections by TCP, in {self.seconds:g} s{sampled}",
            f"answers are {self.factor:.1f} times as large as questions; "
            f"{percent(self._truncated)} send the client to TCP",
        ]
        asking = {str(prefix): count for prefix, count in self.prefixes}
        for what, rows in (("types", self.types), ("codes", self.codes), ("asked by", asking)):
            if rows:
                whole = total.answers if what == "codes" else total.questions
                busiest = [*rows.items()][:_SHOWN]
                shown = (f"{name} {percent(count / max(whole, 1))}" for name, count in busiest)
                lines.append(f"{what}: {', '.join(shown)}")
        for row in [row for row in self.names if self.share(row.questions) >= _NAMED][:_SHOWN]:
            share = percent(self.share(row.questions))
            lines.append(f"{share} ask {row.name}, which is answered with {row.factor:.1f} times the bytes")
        for zone in self.zones[:1]:
            share = percent(self.share(zone.questions))
            lines.append(f"{share} ask {zone.names:,} different names below {zone.name}")
        return tuple(lines)

    @property
    def _truncated(self) -> float:
        return self.totals.truncated / max(self.totals.answers, 1)

    def to_json(self) -> dict[str, Any]:
        """Return the view as JSON; rates are a second, estimated where packets were sampled."""
        rate = self.rate
        return {
            "seconds": self.seconds,
            "sampled_one_in": self.one_in,
            "questions_per_s": round(rate(self.totals.questions), 1),
            "answers_per_s": round(rate(self.totals.answers), 1),
            "tcp_per_s": round(rate(self.totals.tcp), 1),
            "amplification": round(self.factor, 2),
            "truncated_share": round(self._truncated, 4),
            "from_port_53_per_s": round(rate(self.totals.from_dns_port), 1),
            "from_port_0_per_s": round(rate(self.totals.from_port_0), 1),
            "malformed_per_s": round(rate(self.totals.malformed), 1),
            "types": {name: round(rate(count), 1) for name, count in self.types.items()},
            "codes": {name: round(rate(count), 1) for name, count in self.codes.items()},
            "asking_prefixes": self.asking,
            "prefixes": {str(prefix): round(rate(count), 1) for prefix, count in self.prefixes},
            "names": [
                {"name": row.name, "wire": row.wire.hex(), "questions_per_s": round(rate(row.questions), 1),
                 "prefixes": row.prefixes, "amplification": round(row.factor, 2)}
                for row in self.names
            ],
            "zones": [
                {"name": row.name, "questions_per_s": round(rate(row.questions), 1), "names": row.names,
                 "failures_per_s": round(rate(row.failures), 1)}
                for row in self.zones
            ],
        }  # fmt: skip


def is_random(names: int, questions: int) -> bool:
    """Whether nearly every question about a zone is about another name, as no cache can answer."""
    return names >= _RANDOM_NAMES and names >= _ONCE * questions


_Key = TypeVar("_Key")


class Name(Struct):
    """Questions about one name, and what was answered."""

    questions: int = 0
    asked_bytes: int = 0
    answers: int = 0
    answered_bytes: int = 0
    prefixes: set[str] = field(default_factory=set)

    def row(self, wire: bytes) -> NameRow:
        """Return what a view says of it."""
        counts = self.asked_bytes, self.answers, self.answered_bytes
        return NameRow(wire, self.questions, len(self.prefixes), *counts)


class Zone(Struct):
    """Questions about names below a parent: random ones are asked once each."""

    questions: int = 0
    names: set[bytes] = field(default_factory=set)
    lengths: Counter[int] = field(default_factory=Counter)  # of first labels
    failures: int = 0  # answers with an error, or that the name does not exist

    def row(self, wire: bytes) -> ZoneRow:
        """Return what a view says of it, with the length of first labels that nearly all have."""
        length, most = _top(self.lengths)[0]
        alike = most >= 0.9 * self.questions and 0 < length < 64
        return ZoneRow(wire, self.questions, len(self.names), length if alike else None, self.failures)


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
        if question.wire in self.names or len(self.names) < _MOST:
            name = self.names.setdefault(question.wire, Name())
            name.questions += 1
            name.asked_bytes += length
            if len(name.prefixes) < _FEW:
                name.prefixes.add(source)
        first = question.wire[0]
        parent = question.wire[1 + first :]
        if len(question.labels) > 1 and (parent in self.zones or len(self.zones) < _MOST):
            zone = self.zones.setdefault(parent, Zone())
            zone.questions += 1
            zone.lengths[first] += 1
            if len(zone.names) < _MOST:
                zone.names.add(question.wire[1 : 1 + first])

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
        tuple(name.row(wire) for wire, name in names),
        tuple(zone.row(wire) for wire, zone in zones),
    )


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
    size = _PREFIX[family]
    spare = (32 if family == 4 else 128) - size
    return str(Prefix(family, value >> spare << spare, size)), protocol, at, length
