"""DNS as it is in packets: names, types, sizes of answers. Reads hostile bytes; never raises on them.

Sources: RFC 1035 (wire form), 6891 (EDNS), 8482 (ANY).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fwtop.advise.facts import Facts
from fwtop.advise.traffic import Rows, Traffic, payload
from fwtop.model.dns import TYPES
from fwtop.model.packets import U8
from fwtop.model.percent import percent
from fwtop.model.text import dns_name_text, safe_text

HEADER = 12
_LARGE_TYPES = frozenset({16, 46, 48, 99, 255})  # types that are asked for to get large answers
_PARSED = 256  # shares to ±6 percentage points at most
_SMALL = 600  # payload bytes: a resolver's ordinary answer is no larger


@dataclass(frozen=True, slots=True)
class Question:
    """The first question of a message. `wire` is the name as it stands in the packet."""

    labels: tuple[bytes, ...]  # lower-cased
    wire: bytes
    qtype: int | None  # None: cut off
    answers: int
    response: bool
    cut: bool = False  # the sample ends within the name
    edns: int | None = None  # bytes of answer that it has room for; 0: no EDNS, None: cut off or not seen

    @property
    def name(self) -> str:
        """Dotted name, safe to show."""
        return dns_name_text(list(self.labels))

    @property
    def parent(self) -> tuple[bytes, ...]:
        """The labels after the first."""
        return self.labels[1:]


def parse_question(message: bytes) -> Question | None:
    """Read a DNS message's first question; None where there is none or its name is broken or cut."""
    if len(message) < HEADER + 1 or int.from_bytes(message[4:6], "big") == 0:
        return None
    labels: list[bytes] = []
    at = HEADER
    while True:
        if at >= len(message):
            return _cut(message, labels)
        size = message[at]
        if size == 0:
            break
        if size > 63 or at - HEADER + size > 254:
            return None  # compression makes no sense in the first name
        labels.append(message[at + 1 : at + 1 + size].lower())
        if at + 1 + size > len(message):
            return _cut(message, labels)
        at += 1 + size
    wire = message[HEADER : at + 1].lower()
    qtype = int.from_bytes(message[at + 1 : at + 3], "big") if at + 3 <= len(message) else None
    answers, response = int.from_bytes(message[6:8], "big"), message[2] >= 0x80
    return Question(tuple(labels), wire, qtype, answers, response, edns=_edns(message, at + 5))


def _edns(message: bytes, at: int) -> int | None:
    """Read the room for answers (RFC 6891 6.1.2) that a message without other records names behind `at`."""
    others, more = int.from_bytes(message[6:10], "big"), int.from_bytes(message[10:12], "big")
    if others == 0 and more == 0:
        return 0
    option = message[at : at + 5]
    return int.from_bytes(option[3:5], "big") if others == 0 and option[:3] == b"\0\0\x29" else None


def edns_evidence(parsed: list[Question]) -> list[str]:
    """Say what room for answers nearly all questions name: tools take one figure, or leave EDNS out."""
    rooms = Counter(question.edns for question in parsed if question.edns is not None)
    if rooms.total() < 0.5 * len(parsed) or not rooms:
        return []
    room, most = rooms.most_common(1)[0]
    share = percent(most / rooms.total())
    return [f"{share} take answers of up to {room:,} bytes (EDNS)" if room else f"{share} are without EDNS"]


def _cut(message: bytes, labels: list[bytes]) -> Question | None:
    """Return what a sample that ends within the name shows of it."""
    if not labels or not labels[0]:
        return None
    answers, response = int.from_bytes(message[6:8], "big"), message[2] >= 0x80
    return Question(tuple(labels), message[HEADER:].lower(), None, answers, response, cut=True)


def questions(traffic: Traffic, rows: Rows, limit: int = _PARSED) -> list[Question]:
    """Parse the questions of at most `limit` of the rows, evenly taken."""
    packets = traffic.packets
    rows = Facts(traffic, rows).spread(limit)
    found = []
    for row in rows.tolist():
        start = int(packets.payload_offset[row])
        message = packets.data[row, start : int(packets.captured[row])].tobytes()
        question = parse_question(message)
        if question is not None:
            found.append(question)
    return found


def questions_of(facts: Facts) -> list[Question]:
    """Parse the questions of some of these rows, once."""
    if "dns" not in facts.notes:
        facts.notes["dns"] = questions(facts.traffic, facts.rows)
    found: list[Question] = facts.notes["dns"]
    return found


def type_name(qtype: int | None) -> str:
    """Return the mnemonic of a type, or TYPEn (RFC 3597)."""
    return "?" if qtype is None else TYPES.get(qtype, f"TYPE{qtype}")


def resolver_traffic(facts: Facts) -> bool:
    """Tell the ordinary answers to a resolver from reflected ones.

    Ordinary: many different names, small, to many ports. Reflected: one or two names that give large
    answers, or a type that nobody asks for so often, or all to one port.
    """
    parsed = questions_of(facts)
    if facts.top("dport").share > 0.9 and facts.sources > 8:
        return False
    if len(parsed) < 10:
        return facts.mean_length < 400 and facts.sources < 20
    names = Counter(question.labels for question in parsed)
    types = Counter(question.qtype for question in parsed)
    repeated = names.most_common(1)[0][1] / len(parsed)
    # A resolver asks for a name once, of one server, from a port of its own; victims hear it from all
    if facts.sources > 100 and len(names) < 0.1 * len(parsed):
        return False
    large = sum(n for qtype, n in types.items() if qtype in _LARGE_TYPES) / len(parsed)
    return not (repeated > 0.3 or large > 0.4 or facts.mean_length > 900)


def without_other_names(traffic: Traffic, facts: Facts) -> Rows:
    """Leave out small answers about other names than the reflected ones: a resolver's ordinary work."""
    parsed = questions_of(facts)
    names = Counter(question.wire for question in parsed)
    if len(parsed) < 20 or names.most_common(1)[0][1] < 0.25 * len(parsed):
        return facts.rows
    used = [wire for wire, n in names.items() if n > 0.02 * len(parsed)]
    packets = traffic.packets
    candidates = np.flatnonzero(packets.payload_length[facts.rows] < _SMALL)
    matrix, length = payload(packets, facts.rows[candidates], HEADER + 255)
    other = length >= HEADER + 5
    for wire in used:
        want = np.frombuffer(wire, np.uint8)
        end = np.minimum(HEADER + len(want), length)
        agree = (_lower(matrix[:, HEADER : HEADER + len(want)]) == want).cumprod(1).sum(1)
        other &= agree < end - HEADER
    keep = np.ones(facts.n, np.bool_)
    keep[candidates[other]] = False
    return facts.rows[keep]


def _lower(text: U8) -> U8:
    return np.where((text >= 0x41) & (text <= 0x5A), text | 0x20, text)


def answer_evidence(facts: Facts) -> tuple[list[str], bytes | None]:
    """Say what the answers are about; also return the name in wire form when most share it."""
    parsed = questions_of(facts)
    if not parsed:
        return [], None
    names = Counter((question.wire, question.labels) for question in parsed)
    (wire, labels), most = names.most_common(1)[0]
    whole = not any(question.cut for question in parsed)
    types = Counter(type_name(question.qtype) for question in parsed)
    kind, of_kind = types.most_common(1)[0]
    share = most / len(parsed)
    sentences = [f"{percent(of_kind / len(parsed))} answer a question of type {kind}"] if kind != "?" else []
    if share >= 0.2:
        shown = dns_name_text(list(labels))
        sentences.append(f"{percent(share)} are about the name {safe_text(shown, limit=80)}")
    else:
        sentences.append(f"{len(names):,} different names in {len(parsed):,} parsed answers")
    records = sum(question.answers for question in parsed) / len(parsed)
    sentences.append(f"{records:.0f} answer records each on average")
    return sentences, wire if share >= 0.5 and len(wire) > 1 and whole else None
