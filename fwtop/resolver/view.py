"""Counts of DNS questions and answers as a frozen value, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.dns import type_text
from fwtop.render.numbers import percent

if TYPE_CHECKING:  # only the child that reads packets needs it, and what it imports
    from fwtop.resolver.counters import DnsCounters

_Key = TypeVar("_Key")

ROWS = 20  # of each table
RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
_SHOWN = 5
_RANDOM_NAMES, _ONCE = 100, 0.8  # names below a zone, and their share of the questions about it
_OFTEN, _FEW_NAMES = 100, 3  # questions of a prefix, and names: more of the same than any cache lets through
_RESOLVER_NAMES = 30  # that a prefix asks in the time of a look
_NAMED = 0.02  # share of the questions from which a name is told
_TOTALS = (
    "questions", "question_bytes", "answers", "answer_bytes", "truncated", "tcp", "from_dns_port",
    "from_port_0", "malformed",
)  # fmt: skip


class NameRow(Struct, frozen=True):
    """Questions about a name. `wire` is its wire form: what a rule matches."""

    wire: bytes
    name: str
    questions: int
    prefixes: int  # that asked, at most 64
    factor: float  # bytes answered for each byte asked


class ZoneRow(Struct, frozen=True):
    """Questions about names below a zone."""

    wire: bytes
    name: str
    questions: int
    names: int  # different ones
    first_label: int | None  # bytes of their first labels, None: they differ
    failures: int


class View(Struct, frozen=True):
    """Counts of `seconds`; all are of the packets sampled, 1 in `one_in`. Totals by their names."""

    seconds: float
    one_in: int
    totals: dict[str, int]
    types: tuple[tuple[str, int], ...]
    rcodes: tuple[tuple[str, int], ...]
    prefixes: tuple[tuple[str, int], ...]  # that ask, the busiest first
    asking: int  # prefixes
    usual: float  # questions a second that prefixes of real clients ask
    names: tuple[NameRow, ...]
    zones: tuple[ZoneRow, ...]

    @property
    def factor(self) -> float:
        """Bytes answered for each byte asked."""
        return self.totals["answer_bytes"] / max(self.totals["question_bytes"], 1)

    def rate(self, count: float) -> float:
        """Return a count of sampled packets as a rate."""
        return count * self.one_in / self.seconds if self.seconds > 0 else 0.0

    def share(self, count: int) -> float:
        """Return the share of the questions."""
        return count / max(self.totals["questions"], 1)

    def lines(self) -> tuple[str, ...]:
        """Return the view as text, without indentation."""
        total = self.totals
        asked, answered = self.rate(total["questions"]), self.rate(total["answers"])
        sampled = f", 1 in {self.one_in} looked at" if self.one_in > 1 else ""
        lines = [
            f"{asked:,.0f} questions and {answered:,.0f} answers a second by UDP, "
            f"{self.rate(total['tcp']):,.0f} connections by TCP, in {self.seconds:g} s{sampled}",
            f"answers are {self.factor:.1f} times as large as questions; "
            f"{percent(self._of_answers('truncated'))} send the client to TCP",
        ]
        for what, rows in (("types", self.types), ("codes", self.rcodes), ("asked by", self.prefixes)):
            if rows:
                whole = total["answers" if what == "codes" else "questions"]
                shown = (f"{name} {percent(count / max(whole, 1))}" for name, count in rows[:_SHOWN])
                lines.append(f"{what}: {', '.join(shown)}")
        for row in [row for row in self.names if self.share(row.questions) >= _NAMED][:_SHOWN]:
            share = percent(self.share(row.questions))
            lines.append(f"{share} ask {row.name}, which is answered with {row.factor:.1f} times the bytes")
        for zone in self.zones[:1]:
            share = percent(self.share(zone.questions))
            lines.append(f"{share} ask {zone.names:,} different names below {zone.name}")
        return tuple(lines)

    def _of_answers(self, name: str) -> float:
        return self.totals[name] / max(self.totals["answers"], 1)

    def to_json(self) -> dict[str, Any]:
        """Return the view as JSON; rates are a second, estimated where packets were sampled."""
        rate = self.rate
        return {
            "seconds": self.seconds,
            "sampled_one_in": self.one_in,
            "questions_per_s": round(rate(self.totals["questions"]), 1),
            "answers_per_s": round(rate(self.totals["answers"]), 1),
            "tcp_per_s": round(rate(self.totals["tcp"]), 1),
            "amplification": round(self.factor, 2),
            "truncated_share": round(self._of_answers("truncated"), 4),
            "from_port_53_per_s": round(rate(self.totals["from_dns_port"]), 1),
            "from_port_0_per_s": round(rate(self.totals["from_port_0"]), 1),
            "malformed_per_s": round(rate(self.totals["malformed"]), 1),
            "types": {name: round(rate(count), 1) for name, count in self.types},
            "codes": {name: round(rate(count), 1) for name, count in self.rcodes},
            "asking_prefixes": self.asking,
            "prefixes": {name: round(rate(count), 1) for name, count in self.prefixes},
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


def counts_of(counts: DnsCounters) -> dict[str, Any]:
    """Return the counts as JSON, cut to what a view holds."""
    names = sorted(counts.names.items(), key=lambda item: -item[1].questions)[:ROWS]
    zones = sorted(counts.zones.items(), key=lambda item: (-len(item[1].names), -item[1].questions))[:ROWS]
    return {
        **{name: getattr(counts, name) for name in _TOTALS},
        "types": _top(counts.types),
        "rcodes": _top(counts.rcodes),
        "prefixes": _top(counts.prefixes),
        "asking": len(counts.prefixes),
        "usual": _usual(counts),
        "names": [
            [
                wire.hex(),
                name.questions,
                len(name.prefixes),
                name.asked_bytes,
                name.answers,
                name.answered_bytes,
            ]
            for wire, name in names
        ],
        "zones": [
            [wire.hex(), zone.questions, len(zone.names), _top(zone.lengths)[0], zone.failures]
            for wire, zone in zones
        ],
    }


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


def is_random(names: int, questions: int) -> bool:
    """Whether nearly every question about a zone is about another name, as no cache can answer."""
    return names >= _RANDOM_NAMES and names >= _ONCE * questions


def _top(counted: Mapping[_Key, int]) -> list[tuple[_Key, int]]:
    """Return the most frequent; Counter.most_common would import a module, which the sandbox denies."""
    return sorted(counted.items(), key=lambda item: -item[1])[:ROWS]


def view_of(counts: dict[str, Any], seconds: float, one_in: int) -> View:
    """Read what `counts_of` wrote in a process that met hostile bytes; raises FwtopError."""
    try:
        return View(
            seconds,
            one_in,
            {name: _count(counts[name]) for name in _TOTALS},
            tuple((type_text(_count(number)), _count(n)) for number, n in counts["types"][:ROWS]),
            tuple(
                (RCODES.get(number, f"RCODE{_count(number)}"), _count(n))
                for number, n in counts["rcodes"][:ROWS]
            ),
            tuple((safe_text(prefix, limit=64), _count(n)) for prefix, n in counts["prefixes"][:ROWS]),
            _count(counts["asking"]),
            _count(counts["usual"]) * one_in / seconds,
            tuple(_name_row(row) for row in counts["names"][:ROWS]),
            tuple(_zone_row(row) for row in counts["zones"][:ROWS]),
        )
    except (KeyError, TypeError, ValueError, IndexError):
        raise FwtopError("questions and answers could not be counted; nothing was changed") from None


def _name_row(row: list[Any]) -> NameRow:
    from fwtop.resolver.counters import name_text

    wire, (questions, prefixes, asked, answers, answered) = bytes.fromhex(row[0]), map(_count, row[1:])
    factor = answered / answers / (asked / questions) if answers and asked and questions else 0.0
    return NameRow(wire, name_text(wire), questions, prefixes, factor)


def _zone_row(row: list[Any]) -> ZoneRow:
    from fwtop.resolver.counters import name_text

    wire, questions, names, failures = bytes.fromhex(row[0]), _count(row[1]), _count(row[2]), _count(row[4])
    length, most = map(_count, row[3])
    same = length if most >= 0.9 * questions and 0 < length < 64 else None
    return ZoneRow(wire, name_text(wire), questions, names, same, failures)


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("not a count")
    return value
