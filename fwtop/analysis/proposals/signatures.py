"""Signatures: byte strings that the packets of an attack share, and normal ones and browsers' lack.

Anchored ones come from columns of the payload matrix where one byte dominates, with masks for bytes that
vary between them; unanchored ones from 6-byte windows counted over packets (as Autograph and EarlyBird,
2004). Each is extended to its full length for display, and cut to the shortest separating piece for
rules. If a tool sends several payloads, the search continues in the unexplained rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.proposals.everyday import is_everyday
from fwtop.analysis.proposals.matching import WIDTH, Texts
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.window.traffic import ICMP, ICMP6, TCP, UDP, Rows, Traffic
from fwtop.model.rule import PayloadMatch
from fwtop.model.text import dns_name_text
from fwtop.model.traffic.packets import U8, U64, Fragment, Mask
from fwtop.model.traffic.protocols import split_wire, wire_name

_ROWS = 512
_LOADED = 0.1  # of the packets must have a payload
_FRAGMENTED = 0.3  # of the packets are later fragments
_SEEDED = 128  # packets that seed the search: random payloads are detected quickly
_COMMON = 0.97  # of the packets must share a byte of a signature
_PIECES = (8, 16, 32)  # bytes of a rule's match: shorter ones match unseen traffic by chance
_PIECES_GUESS = (16, 32)  # without a baseline, longer ones are safer
_SHORTEST = 4  # bytes of a constant part: 2**-32 by chance at a fixed offset
_FILLED = 16  # bytes of one value: fewer are padding
_TRIED = 6  # pieces of one length
_LONGEST = 64  # that are shown
_WORD = re.compile(rb"[A-Za-z0-9_-]{2,}")
_GRAM = 6
_SHARED = 0.15  # of the packets must share a string
_GAP = 8  # varying bytes that a mask bridges
_MASKED_BITS = 40  # that a masked signature must fix
_ROUNDS = 4
_REST = 0.05  # of the packets: a smaller rest gets no signature
_WORTH = 0.04
_HEADER = 12  # bytes of a DNS message before its question (RFC 1035, 4.1.1)
_SAMPLE = 512
_SAME = 0.97  # of the queries: then all of the attack share it
_EVERYDAY = (1, 28, 65)  # A, AAAA, HTTPS: common types
_ODD = 0.9  # of the queries for a rare type: the rest may be clients'
_ENOUGH = 0.95
_VISITS = 20  # fewer normal requests don't show what clients have in common


class Signature(Struct, frozen=True):
    """What an attack's payloads have in common; shares (0 to 1) are of packets that have a payload.

    `match` is the shortest piece that separates, `whole` the full constant part.
    """

    match: PayloadMatch
    whole: PayloadMatch
    attack_share: float
    baseline_share: float


def find_signatures(
    traffic: Traffic, rows: Rows, normal: Texts, config: AdviseConfig, *, guess: bool
) -> list[Signature]:
    """Return the separating signatures, best first; empty if the payload has no constant part."""
    packets = traffic.packets
    loaded = rows[packets.payload_length[rows] > 0]
    later = packets.fragment[loaded] == Fragment.LATER
    begun = loaded[~later]
    found = []
    if len(loaded) and later.mean() > _FRAGMENTED:
        attack = _sample(traffic, loaded)
        good = _good(_free(attack), attack, normal, config, guess=guess)
        found = [one for one in good if one.match.offset is None]  # in later fragments, too: no fixed offset
    if len(begun) >= max(10, _LOADED * len(rows)):
        attack = _sample(traffic, begun)
        left = np.ones(len(attack), np.bool_)
        for _ in range(_ROUNDS):  # a tool may send several payloads: search in the unexplained rest
            if left.sum() < max(10, _REST * len(attack)):
                break
            best = _best(attack, left, normal, config, guess=guess)
            if best is None:
                break
            found.append(best)
            left &= ~attack.hits(best.match)
    return sorted(found, key=lambda one: -round(one.attack_share, 2))


def _sample(traffic: Traffic, rows: Rows) -> Texts:
    return Texts.of(
        traffic.packets, rows[np.linspace(0, len(rows) - 1, min(_ROWS, len(rows))).astype(np.intp)]
    )


def _best(attack: Texts, left: Mask, normal: Texts, config: AdviseConfig, *, guess: bool) -> Signature | None:
    """Return the signature that explains most of the rest."""
    rest = attack.select(left)
    for candidates in (_runs, _masked, _free):
        if good := _good(candidates(rest), attack, normal, config, guess=guess):
            most = max(round(one.attack_share, 2) for one in good)
            equal = [one for one in good if round(one.attack_share, 2) == most]
            # Of equals prefer those absent from normal traffic, then those with more distinct bytes
            return max(equal, key=lambda one: _rarity(one, normal)) if len(equal) > 1 else equal[0]
    return None


def _good(
    wholes: list[PayloadMatch], attack: Texts, normal: Texts, config: AdviseConfig, *, guess: bool
) -> list[Signature]:
    """Return those that separate the attack from normal traffic, cut to the shortest pieces that do."""
    found = []
    for whole in wholes:
        match = _shortened(whole, normal, _PIECES_GUESS if guess else _PIECES)
        one = Signature(match, whole, attack.share(match), normal.share(match))
        is_rare = one.baseline_share <= config.collateral_limit and not is_everyday(match.data, whole.data)
        if is_rare and one.attack_share >= _WORTH:
            found.append(one)
    return found


def _rarity(one: Signature, normal: Texts) -> tuple[bool, int]:
    nowhere = one.match.mask is None and not normal.has(PayloadMatch(one.match.data))
    return nowhere, _richness(one.whole.data)


def _runs(texts: Texts) -> list[PayloadMatch]:
    """Find runs of columns in which nearly all packets share a byte."""
    best, share = _majority(texts.matrix, texts)
    common = share >= _COMMON
    edges = np.flatnonzero(np.diff(np.concatenate(([0], common.view(np.int8), [0]))))
    spans = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a >= _SHORTEST]
    runs = [run for a, b in spans for run in _in_parts(best[a:b].tobytes(), a)]
    return sorted(runs, key=lambda run: (is_everyday(run.data), -_richness(run.data)))[:3]


def _in_parts(data: bytes, offset: int) -> Iterator[PayloadMatch]:
    """Yield what is shown of a run, and as long as everybody sends that the rest, from the next line on."""
    while len(data) >= _SHORTEST:
        yield PayloadMatch(data[:_LONGEST], offset)
        if not is_everyday(data[:_LONGEST], data):
            break
        end = data[:_LONGEST].rfind(b"\r\n")
        size = end if end > 0 and len(data) > _LONGEST else _LONGEST
        data, offset = data[size:], offset + size


def _masked(texts: Texts) -> list[PayloadMatch]:
    """Find constant bytes and nibbles with varying ones in between."""
    best, share = _majority(texts.matrix, texts)
    top_half, half_share = _majority(texts.matrix >> np.uint8(4), texts)
    care = np.where(share >= _COMMON, 0xFF, np.where(half_share >= _COMMON, 0xF0, 0)).astype(np.uint8)
    data = np.where(care == 0xFF, best, top_half << 4).astype(np.uint8) & care
    fixed = np.flatnonzero(care)
    if len(fixed) == 0:
        return []
    groups = np.split(fixed, np.flatnonzero(np.diff(fixed) > _GAP) + 1)
    found = []
    for group in groups:
        first, end = int(group[0]), min(int(group[-1]) + 1, int(group[0]) + _LONGEST)
        bits = int(np.unpackbits(care[first:end]).sum())
        if bits >= _MASKED_BITS and (care[first:end] == 0xFF).sum() >= 2:
            found.append(PayloadMatch(data[first:end].tobytes(), first, care[first:end].tobytes()))
    return found


def _majority(matrix: U8, texts: Texts) -> tuple[U8, NDArray[np.float64]]:
    """Return the most common value of each column and its share of all packets, without padding."""
    n, width = matrix.shape
    flat = matrix.astype(np.intp) + np.arange(width) * 256
    inside = np.arange(width) < texts.length[:, None]
    counts = np.bincount(flat[inside], minlength=width * 256).reshape(width, 256)
    return counts.argmax(1).astype(np.uint8), counts.max(1) / max(n, 1)


def _free(texts: Texts) -> list[PayloadMatch]:
    """Find a window that most packets contain at any offset, and extend it."""
    n = len(texts)
    if n == 0:
        return []
    few = texts.select(np.linspace(0, n - 1, min(n, _SEEDED)).astype(np.intp))
    grams = _grams(few.matrix)
    valid = np.arange(grams.shape[1]) + _GRAM <= few.length[:, None]
    packet = np.broadcast_to(np.arange(len(few))[:, None], grams.shape)[valid]
    values, inverse = np.unique(grams[valid], return_inverse=True)
    if len(values) == 0:
        return []
    pairs = np.unique(inverse.astype(np.int64) * len(few) + packet)
    counts = np.bincount(pairs // len(few), minlength=len(values))
    most = int(counts.max())
    if most < _SHARED * len(few):
        return []
    strings = [int(values[i]).to_bytes(_GRAM, "big") for i in np.flatnonzero(counts >= 0.9 * most)[:256]]
    strings = [text for text in strings if len(set(text)) > 2]
    seeds = sorted(strings, key=lambda text: -_richness(text))[:1]
    return [_extended(seed, texts) for seed in seeds]


def _grams(matrix: U8) -> U64:
    size = matrix.shape[1] - _GRAM + 1
    grams = np.zeros((len(matrix), size), np.uint64)
    for i in range(_GRAM):
        grams = (grams << np.uint64(8)) | matrix[:, i : i + size]
    return grams


def _extended(seed: bytes, texts: Texts) -> PayloadMatch:
    """Extend a string by the bytes that nearly all its occurrences share."""
    have = np.flatnonzero(texts.hits(PayloadMatch(seed)))
    starts = np.array([texts.matrix[row].tobytes().find(seed) for row in have], np.int64)
    reach = np.arange(-_LONGEST, _LONGEST)
    places = starts[:, None] + reach
    inside = (places >= 0) & (places < texts.length[have][:, None])
    around = texts.matrix[have[:, None], np.clip(places, 0, WIDTH - 1)].astype(np.intp)
    flat = around + np.arange(len(reach)) * 256
    counts = np.bincount(flat[inside], minlength=len(reach) * 256).reshape(len(reach), 256)
    common = counts.max(1) >= _COMMON * len(have)
    best = counts.argmax(1).astype(np.uint8)
    first = last = _LONGEST
    while first > 0 and common[first - 1]:
        first -= 1
    while last < 2 * _LONGEST and common[last]:
        last += 1
    data = best[first : min(last, first + _LONGEST)].tobytes()
    fixed = int(starts.min()) == int(starts.max())
    return PayloadMatch(data, int(starts[0]) - (_LONGEST - first) if fixed else None)


def _shortened(whole: PayloadMatch, normal: Texts, sizes: tuple[int, ...]) -> PayloadMatch:
    """Cut to the shortest piece absent from normal traffic; of equal length, the most varied."""
    data = whole.data
    if whole.mask is not None:
        return whole
    for size in sizes:
        if size >= len(data):
            break
        pieces = [_in_whole_words(whole, at, at + size) for at in _richest(data, size)]
        filled = len(set(data)) == 1 and size >= _FILLED
        varied = [one for one in pieces if filled or len(set(one.data)) > 1]
        rare = [one for one in varied if not normal.has(one) and not is_everyday(one.data, data)]
        if rare:  # prefer pieces absent at every offset
            return next((one for one in rare if not normal.has(PayloadMatch(one.data))), rare[0])
    return whole


def _in_whole_words(whole: PayloadMatch, first: int, last: int) -> PayloadMatch:
    """Return a piece with all of the words that it begins and ends in, if they fit."""
    begin, end = first, last
    for word in _WORD.finditer(whole.data):
        begin = word.start() if word.start() < first < word.end() else begin
        end = word.end() if word.start() < last < word.end() else end
    if end - begin > _PIECES[-1]:
        begin, end = first, last
    return PayloadMatch(whole.data[begin:end], None if whole.offset is None else whole.offset + begin)


def _richest(data: bytes, size: int) -> list[int]:
    """Return the offsets of the pieces with most distinct bytes, without much overlap."""
    chosen: list[int] = []
    for at in sorted(range(len(data) - size + 1), key=lambda i: -_richness(data[i : i + size])):
        if all(abs(at - other) >= size // 2 for other in chosen):
            chosen.append(at)
            if len(chosen) == _TRIED:
                break
    return chosen


def _richness(data: bytes) -> int:
    """Score distinct bytes, and discount 0x00 and 0xff, which are common."""
    return len(set(data)) * 4 + len(data) - 3 * data.count(0) - data.count(255)


def signatures(context: AnalysisContext, finding: Finding, normal: Normal) -> list[Signature]:
    """Return signatures that separate the finding's payloads from normal ones, best first."""
    if finding.state or finding.match.protocol not in (TCP, UDP, ICMP, ICMP6):
        return []
    config = context.config
    named = _named(context, finding, normal)
    if any(s.attack_share >= _ENOUGH and s.baseline_share <= config.collateral_limit for s in named):
        return named
    if finding.requests and not _visited(context, finding, normal):
        return named
    found = find_signatures(context.traffic, finding.rows, normal.texts, config, guess=normal.guess)
    return [*named, *found]


def matches(found: Mapping[str, Sequence[Signature]]) -> dict[str, list[PayloadMatch]]:
    """Return the matches of each finding's signatures, by `Finding.key`."""
    return {key: [one.match for one in signatures] for key, signatures in found.items()}


def _visited(context: AnalysisContext, finding: Finding, normal: Normal) -> bool:
    """Check for enough normal requests to the same port to compare with."""
    ports = normal.packets.dport[normal.loaded]
    aimed = np.isin(ports, np.unique(context.traffic.packets.dport[finding.rows]))
    return int(aimed.sum()) >= _VISITS


def _named(context: AnalysisContext, finding: Finding, normal: Normal) -> list[Signature]:
    """Return the match for the DNS name of the finding, with the type if all queries share it."""
    wire, packets = finding.dns_name, context.traffic.packets
    if wire is None:
        return []
    rows = finding.rows[
        (packets.payload_length[finding.rows] > _HEADER) & (packets.fragment[finding.rows] != Fragment.LATER)
    ]
    if len(rows) == 0:
        return []
    sample = rows[np.linspace(0, len(rows) - 1, min(_SAMPLE, len(rows))).astype(np.intp)]
    attack = Texts.of(packets, sample)
    moving = Trait.RANDOM_NAMES in finding.traits
    name = _named_match(_common_end(attack, wire), None) if moving else _named_match(wire, _HEADER)
    asked = None if moving else _asked_type(attack, name)
    match = name if asked is None else PayloadMatch(name.data + asked, name.offset, None, name.dns_name)
    return [Signature(match, match, attack.share(match), normal.texts.share(match))]


def _named_match(wire: bytes, offset: int | None) -> PayloadMatch:
    return PayloadMatch(wire, offset, None, dns_name_text(split_wire(wire)[0]))


def _common_end(attack: Texts, wire: bytes) -> bytes:
    """Extend a parent by the labels that nearly all queries share."""
    names = [split_wire(row[_HEADER:].tobytes().lower())[0] for row in attack.matrix]
    parent = split_wire(wire.lower())[0]
    below = [labels for labels in names if labels[-len(parent) :] == parent]
    while deeper := [labels for labels in below if len(labels) > len(parent) + 1]:
        label, n = Counter(labels[-len(parent) - 1] for labels in deeper).most_common(1)[0]
        if n < _SAME * len(below):
            break
        parent = [label, *parent]
    return wire_name(parent)


def _asked_type(attack: Texts, name: PayloadMatch) -> bytes | None:
    """Return the query type in wire form if nearly all queries share it."""
    end = _HEADER + len(name.data)
    rows = np.flatnonzero(attack.hits(name) & (attack.length >= end + 2))
    if len(rows) == 0 or len(rows) < _SAME * attack.hits(name).sum():
        return None
    types = Counter(attack.matrix[row, end : end + 2].tobytes() for row in rows)
    asked, n = types.most_common(1)[0]
    usual = int.from_bytes(asked, "big") in _EVERYDAY
    return asked if n >= (_SAME if usual else _ODD) * len(rows) else None
