"""Names of DNS questions as columns of bytes: what is asked again, by the same words, or below one zone.

Sources: RFC 1035 4.1.2 (wire form), 1034 4.3 and 2181 5 (who asks keeps the answer for its time to live).
"""

from __future__ import annotations

import numpy as np

from fwtop.advise.dns import HEADER
from fwtop.advise.traffic import Rows, Traffic, distinct_texts, mix, payload
from fwtop.model.packets import F64, I64, U8, U64, Mask

_BEGIN = 24  # bytes of a name that are compared
_NAME = 96  # bytes in which a name's end is looked for
_WORD = 3  # letters: fewer are a word by chance
_LONGEST = 16  # letters of a word that are compared


def beginnings(traffic: Traffic, rows: Rows) -> U64:
    """Hash the first bytes of each question's name, without regard to case."""
    name = _names(traffic, rows, _BEGIN)
    over = np.logical_or.accumulate(name == 0, axis=1)
    return distinct_texts(np.where(over, np.uint8(0), name & np.uint8(0xDF)))


def kinds(traffic: Traffic, rows: Rows) -> U64:
    """Hash each question's name and whether recursion is wanted: a tool's stay apart from resolvers'."""
    return beginnings(traffic, rows) ^ wants_recursion(traffic, rows).astype(np.uint64)


def counts_of(keys: U64) -> I64:
    """Return for each row how many rows have the same key."""
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse], np.int64)


def asked_again(traffic: Traffic, rows: Rows) -> tuple[I64, F64]:
    """Return how often each row's source asks that very question, and how often a second."""
    keys = mix(beginnings(traffic, rows), traffic.source_key[rows])
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    pace = np.bincount(inverse, traffic.weight[rows]) / max(traffic.seconds, 1.0)
    return np.asarray(counts[inverse], np.int64), np.asarray(pace[inverse], np.float64)


def asked_by_others(traffic: Traffic, rows: Rows) -> Mask:
    """Tell questions for names that more than one source asks for: nobody draws one at random again."""
    names = beginnings(traffic, rows)
    pairs = mix(names, traffic.source_key[rows])
    _, first = np.unique(pairs, return_index=True)
    known, sources = np.unique(names[first], return_counts=True)
    return np.asarray(sources[np.searchsorted(known, names)] > 1)


def worded(traffic: Traffic, rows: Rows, least: float) -> Mask:
    """Tell names whose first label begins with a word (letters only) that at least so many rows share."""
    name = _names(traffic, rows, 1 + _LONGEST)
    size = name[:, :1].astype(np.int64)
    letters = name[:, 1:] & np.uint8(0xDF)
    is_letter = (letters >= 0x41) & (letters <= 0x5A) & (np.arange(_LONGEST) < size)
    word = np.logical_and.accumulate(is_letter, axis=1)
    text = np.where(word, letters, np.uint8(0))
    return np.asarray((word.sum(1) >= _WORD) & (counts_of(distinct_texts(text)) >= least))


def wants_recursion(traffic: Traffic, rows: Rows) -> Mask:
    """Tell questions with the RD bit."""
    matrix, length = payload(traffic.packets, rows, HEADER)
    return np.asarray((length >= HEADER) & ((matrix[:, 2] & 1) != 0))


def below(traffic: Traffic, rows: Rows, zone: bytes) -> Mask:
    """Tell names that have labels in front of the zone (in wire form, lower case)."""
    name = _names(traffic, rows, _NAME)
    end = np.argmax(name == 0, axis=1)
    start = end + 1 - len(zone)
    held = (name == 0).any(1) & (start > 0)
    place = np.maximum(start, 0)[:, None] + np.arange(len(zone))
    found = name[np.arange(len(rows))[:, None], place]
    upper = (found >= 0x41) & (found <= 0x5A)
    same = np.where(upper, found | np.uint8(0x20), found) == np.frombuffer(zone, np.uint8)
    return np.asarray(held & same.all(1))


def _names(traffic: Traffic, rows: Rows, width: int) -> U8:
    matrix, _ = payload(traffic.packets, rows, HEADER + width)
    return matrix[:, HEADER:]
