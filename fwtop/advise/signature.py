"""Byte strings that an attack's packets share and normal ones lack.

Anchored ones come from columns of the payload matrix where one byte dominates; free ones from 8-byte
windows counted over packets (the idea of Autograph and EarlyBird, 2004). Each is extended as far as it
holds and then cut to the shortest piece that still separates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fwtop.advise.config import AdviseConfig
from fwtop.advise.matching import payload_rows
from fwtop.advise.traffic import Rows, Traffic, payload
from fwtop.model.packets import I64, U8, U64, PacketBatch
from fwtop.model.rule import PayloadMatch

_WIDTH = 160
_ROWS = 1_024
_SEEDED = 160  # packets show whether most of them share a string; random payloads are found out fast
_COMMON = 0.97  # of the packets must have a byte at a place for it to be part of a signature
_SHORTEST = 4  # fewer bytes appear by chance: 2**-24 a place
_SHORTEST_GUESS = 8  # without a baseline, longer ones are safer
_LONGEST = 24
_GRAM = 8


@dataclass(frozen=True, slots=True)
class Signature:
    """A payload match with the share of the attack's and of the baseline's packets that have it."""

    match: PayloadMatch
    attack_share: float
    baseline_share: float


def find_signatures(
    traffic: Traffic, rows: Rows, normal: PacketBatch, config: AdviseConfig, *, guess: bool
) -> list[Signature]:
    """Return the signatures that separate, the best first; empty when the payload has no constant part."""
    if len(rows) == 0:
        return []
    loaded = rows[traffic.packets.payload_length[rows] > 0]
    if len(loaded) < max(10, 0.5 * len(rows)):
        return []
    sample = loaded[np.linspace(0, len(loaded) - 1, min(_ROWS, len(loaded))).astype(np.intp)]
    attack = traffic.packets.select(sample)
    matrix, length = payload(traffic.packets, sample, _WIDTH)
    shortest = _SHORTEST_GUESS if guess else _SHORTEST
    candidates = _anchored(matrix, length)
    found = _scored(candidates, attack, normal, shortest)
    if not any(s.attack_share >= config.target_share for s in found):
        found += _scored(_free(matrix, length), attack, normal, shortest)
    good = [s for s in found if s.baseline_share <= config.collateral_limit and s.attack_share >= 0.3]
    return sorted(good, key=lambda s: (-round(s.attack_share, 2), s.match.offset is None, len(s.match.data)))


def shares(match: PayloadMatch, attack: PacketBatch, normal: PacketBatch) -> tuple[float, float]:
    """Return the shares (unweighted) of two batches that have a payload match."""
    hits = [float(payload_rows(match, batch).mean()) if len(batch) else 0.0 for batch in (attack, normal)]
    return hits[0], hits[1]


def _scored(
    candidates: list[PayloadMatch], attack: PacketBatch, normal: PacketBatch, shortest: int
) -> list[Signature]:
    found = []
    for candidate in candidates:
        short = _shortened(candidate, normal, shortest)
        found.append(Signature(short, *shares(short, attack, normal)))
    return found


def _anchored(matrix: U8, length: I64) -> list[PayloadMatch]:
    """Find runs of columns in which one byte has nearly all packets."""
    n, width = matrix.shape
    flat = matrix.astype(np.intp) + np.arange(width) * 256
    inside = np.arange(width) < length[:, None]
    counts = np.bincount(flat[inside], minlength=width * 256).reshape(width, 256)
    best, top = counts.argmax(1), counts.max(1)
    common = top >= _COMMON * n
    runs = []
    start = None
    for column in range(width + 1):
        if column < width and common[column]:
            start = column if start is None else start
        elif start is not None:
            if column - start >= _SHORTEST:
                runs.append(PayloadMatch(bytes(best[start:column].astype(np.uint8)), start))
            start = None
    return sorted(runs, key=lambda run: -_richness(run.data))[:3]


def _free(matrix: U8, length: I64) -> list[PayloadMatch]:
    """Find an 8-byte window that most packets have somewhere, and extend it while they agree."""
    n, width = matrix.shape
    if width < _GRAM or n == 0:
        return []
    few = np.linspace(0, n - 1, min(n, _SEEDED)).astype(np.intp)
    grams = _grams(matrix[few])
    valid = np.arange(grams.shape[1]) + _GRAM <= length[few][:, None]
    packet = np.broadcast_to(np.arange(len(few))[:, None], grams.shape)[valid]
    values, inverse = np.unique(grams[valid], return_inverse=True)
    if len(values) == 0:
        return []
    pairs = np.unique(inverse.astype(np.int64) * len(few) + packet)
    counts = np.bincount(pairs // len(few), minlength=len(values))
    order = np.argsort(counts)[::-1][:16]
    strings = [int(values[i]).to_bytes(_GRAM, "big") for i in order if counts[i] > 0.5 * len(few)]
    strings = [text for text in strings if len(set(text)) > 2]
    if not strings:
        return []
    seed = max(strings, key=_richness)
    return [PayloadMatch(_extended(seed, matrix[: _ROWS // 2], length[: _ROWS // 2]), None)]


def _grams(matrix: U8) -> U64:
    size = matrix.shape[1] - _GRAM + 1
    grams = np.zeros((len(matrix), size), np.uint64)
    for i in range(_GRAM):
        grams = (grams << np.uint64(8)) | matrix[:, i : i + size]
    return grams


def _extended(seed: bytes, matrix: U8, length: I64) -> bytes:
    """Grow a string by the bytes that nearly all its occurrences have beside it."""
    texts = [row[:size].tobytes() for row, size in zip(matrix, length.tolist(), strict=True)]
    text = seed
    for forward in (True, False):
        while len(text) < _LONGEST:
            step = _neighbour(text, texts, forward=forward)
            if step is None:
                break
            text = text + step if forward else step + text
    return text


def _neighbour(text: bytes, texts: list[bytes], *, forward: bool) -> bytes | None:
    counts: dict[bytes, int] = {}
    have = 0
    for whole in texts:
        at = whole.find(text)
        if at < 0:
            continue
        have += 1
        beside = whole[at + len(text) : at + len(text) + 1] if forward else whole[max(0, at - 1) : at]
        if beside:
            counts[beside] = counts.get(beside, 0) + 1
    if not counts:
        return None
    byte = max(counts, key=lambda key: counts[key])
    return byte if counts[byte] >= _COMMON * have else None


def _shortened(candidate: PayloadMatch, normal: PacketBatch, shortest: int) -> PayloadMatch:
    """Cut to the shortest piece that normal traffic doesn't have; the richest piece of that length."""
    data = candidate.data
    for size in (shortest, 2 * shortest, _LONGEST):
        if size >= len(data):
            break
        pieces = range(len(data) - size + 1)
        at = max(pieces, key=lambda i: _richness(data[i : i + size]))
        offset = None if candidate.offset is None else candidate.offset + at
        piece = PayloadMatch(data[at : at + size], offset)
        if len(set(piece.data)) > 1 and not payload_rows(piece, normal).any():
            return piece
    offset = candidate.offset
    return PayloadMatch(data[:_LONGEST], offset)


def _richness(data: bytes) -> int:
    """Prefer different and rarely seen bytes: zeros and ones are everywhere."""
    return len(set(data)) * 4 + len(data) - 3 * data.count(0) - data.count(255)
