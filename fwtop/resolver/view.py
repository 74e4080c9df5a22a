"""Counts of DNS questions and answers as a frozen value, as text and as JSON.

A process that met hostile bytes makes it, so its fields hold numbers, bytes and prefixes, but no text.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.text import dns_name_text
from fwtop.model.traffic.dns import split_wire, type_text
from fwtop.render.numbers import percent

ROWS = 20  # of each table
RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}
_SHOWN = 5
_RANDOM_NAMES, _ONCE = 100, 0.8  # names below a zone, and their share of the questions about it
_NAMED = 0.02  # share of the questions from which a name is told
_Count = Annotated[int, Meta(ge=0)]
_Rows = Meta(max_length=ROWS)


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
