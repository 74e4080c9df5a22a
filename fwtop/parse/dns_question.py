"""The first question of a DNS message. Reads hostile bytes; never raises on them.

Sources: RFC 1035 (wire form), 6891 (EDNS).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from fwtop.model.text import dns_name_text

HEADER = 12
_FIELDS = struct.Struct(">2xHHHHH")  # flags, and the numbers of questions and records


class Question(NamedTuple):
    """The first question of a message. `wire` is the name in wire form."""

    labels: tuple[bytes, ...]  # lower-cased
    wire: bytes
    qtype: int | None  # None: cut off
    answers: int
    response: bool
    cut: bool = False  # the captured bytes end within the name
    edns: int | None = None  # requestor's payload size; 0: no EDNS, None: not captured

    @property
    def name(self) -> str:
        """Dotted name, safe to show."""
        return dns_name_text(list(self.labels))


def parse_question(message: bytes) -> Question | None:
    """Parse the first question of a DNS message; None if there is none, or its name is invalid."""
    end = len(message)
    if end < HEADER + 1:
        return None
    flags, questions, answers, others, more = _FIELDS.unpack_from(message)
    if questions == 0:
        return None
    text = message.lower()
    labels: list[bytes] = []
    at = HEADER
    while True:
        if at >= end:
            return _cut(message, labels)
        size = message[at]
        if size == 0:
            break
        if size > 63 or at - HEADER + size > 254:
            return None  # compression makes no sense in the first name
        labels.append(text[at + 1 : at + 1 + size])
        if at + 1 + size > end:
            return _cut(message, labels)
        at += 1 + size
    wire = text[HEADER : at + 1]
    qtype = int.from_bytes(message[at + 1 : at + 3], "big") if at + 3 <= end else None
    alone = answers == 0 and others == 0
    edns = _edns(message, at + 5, more) if alone else None
    return Question(tuple(labels), wire, qtype, answers, flags >= 0x8000, edns=edns)


def _edns(message: bytes, at: int, more: int) -> int | None:
    """Parse the requestor's payload size (RFC 6891 6.1.2) at `at`, of a message without other records."""
    if more == 0:
        return 0
    option = message[at : at + 5]
    return int.from_bytes(option[3:5], "big") if option[:3] == b"\0\0\x29" else None


def _cut(message: bytes, labels: list[bytes]) -> Question | None:
    """Return the captured labels of a truncated name."""
    if not labels or not labels[0]:
        return None
    answers, response = int.from_bytes(message[6:8], "big"), message[2] >= 0x80
    return Question(tuple(labels), message[HEADER:].lower(), None, answers, response, cut=True)
