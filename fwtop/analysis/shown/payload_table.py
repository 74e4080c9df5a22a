"""The payload table of an attack: signatures replace the payload prefixes that they explain."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.parsers.texts import Texts
from fwtop.analysis.proposals.matching import payload_rows
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.proposals.signatures import Signature
from fwtop.analysis.window.traffic import Traffic
from fwtop.model.rule import PayloadMatch
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import F64, U32, Fragment, Mask
from fwtop.model.traffic.snapshot import Payload, Share, Tables
from fwtop.stats.shares import wilson_interval

_SAME = 0.1  # of a signature's share: tolerance for a prefix to be explained by it
_SAMPLE = 2_048  # payloads used to extend prefixes
_ENOUGH = 50  # of them with the prefix, at least
_LONGEST = 64
_SEARCHED = 4_096  # packets searched for unanchored bytes


def shown_payloads(
    tables: Tables, traffic: Traffic, found: Iterable[Signature], normal: Normal
) -> tuple[Payload, ...]:
    """Return the payloads of the tables and the signatures, each with its share of normal packets.

    A signature replaces prefixes that it contains.
    """
    if len(normal.packets) == 0:
        return ()
    sample = _sample(traffic)
    made = [_payload(one.whole, traffic) for one in found if one.whole.mask is None]
    made.sort(key=lambda row: -len(row.data))
    signatures: list[Payload] = []
    for row in made:  # a longer one may contain a shorter one
        if not any(_explains(one, row) for one in signatures):
            signatures.append(row)
    tabled = [_lengthened(row, sample) for row in tables.payloads] if len(sample) else tables.payloads
    kept = [row for row in tabled if not any(_explains(one, row) for one in signatures)]
    rows = [*kept, *(one for one in signatures if not any(_says_more(row, one) for row in kept))]
    part = float(normal.pps[normal.packets.payload_length > 0].sum()) / max(1e-9, normal.total_pps)
    weight = max(1e-9, float(normal.pps[normal.loaded].sum()))
    shown = []
    for row in rows:
        match = PayloadMatch(row.data, row.offset, None, row.dns_name)
        have = part * float(normal.pps[normal.loaded][normal.texts.hits(match)].sum()) / weight
        shown.append(replace(row, baseline_share=have))
    return tuple(sorted(shown, key=lambda row: (-row.share.packets, row.data)))


def _sample(traffic: Traffic) -> Texts:
    """Return some payloads of both directions, as tables count both."""
    batches = (traffic.packets, traffic.outbound)
    loaded = [np.flatnonzero((one.payload_length > 0) & (one.fragment != Fragment.LATER)) for one in batches]
    part = min(1.0, _SAMPLE / max(1, sum(map(len, loaded))))
    texts = [
        Texts.of(one, rows[np.linspace(0, len(rows) - 1, math.ceil(part * len(rows))).astype(np.intp)])
        for one, rows in zip(batches, loaded, strict=True)
    ]
    return Texts(np.concatenate([one.matrix for one in texts]), np.concatenate([one.length for one in texts]))


def _lengthened(row: Payload, sample: Texts) -> Payload:
    """Extend a prefix by the bytes that all its packets share; tables compare only a few lengths."""
    if row.offset != 0 or row.dns_name is not None or len(row.data) >= _LONGEST:
        return row
    same = sample.select(sample.hits(PayloadMatch(row.data, 0)))
    if len(same) < _ENOUGH:
        return row
    first = same.matrix[0, :_LONGEST]
    agree = (same.matrix[:, :_LONGEST] == first).all(0)
    agree &= np.arange(_LONGEST) < int(same.length.min())
    end = int(np.argmin(agree)) if not agree.all() else _LONGEST
    if end <= len(row.data):
        return row
    data = first[:end].tobytes()
    return replace(row, data=data, text=payload_text(data))


def _payload(match: PayloadMatch, traffic: Traffic) -> Payload:
    """Count the packets of both directions that hold these bytes, as the tables' rows are counted."""
    whole = len(traffic) + len(traffic.outbound)
    step = max(1.0, whole / _SEARCHED) if match.offset is None else 1.0
    hits, chosen = [], []
    for packets, weight in ((traffic.packets, traffic.weight), (traffic.outbound, traffic.outbound.weight)):
        rows = np.linspace(0, len(packets) - 1, math.ceil(len(packets) / step)).astype(np.intp)
        hit = payload_rows(match, packets, rows)
        hits.append(hit)
        chosen.append((weight[rows], packets.length[rows]))
    weight, length = (np.concatenate(column) for column in zip(*chosen, strict=True))
    share = estimate(np.concatenate(hits), weight, length, traffic)
    return Payload(match.data, payload_text(match.data), match.offset, match.dns_name, share, 0.0)


def _explains(signature: Payload, row: Payload) -> bool:
    """Check whether a signature contains a row that is no more common, or is a part of a rarer one."""
    if row.share.share > signature.share.share * (1 + _SAME):
        return False
    if _holds(row, signature) and row.share.share < signature.share.share * (1 - _SAME):
        return True
    if signature.offset is None or row.offset is None:
        return signature.offset is row.offset and row.data in signature.data
    inner = row.offset - signature.offset
    return inner >= 0 and signature.data[inner : inner + len(row.data)] == row.data


def _says_more(row: Payload, signature: Payload) -> bool:
    """Check whether a row contains a signature and is as common."""
    same = _holds(row, signature) and row.dns_name == signature.dns_name
    return same and row.share.share >= signature.share.share * (1 - _SAME)


def _holds(row: Payload, signature: Payload) -> bool:
    """Check whether a row contains the bytes of a signature at its offset."""
    if row.offset is None or signature.offset is None:
        return row.offset is not None and signature.data in row.data
    inner = signature.offset - row.offset
    return inner >= 0 and row.data[inner : inner + len(signature.data)] == signature.data


def estimate(hit: Mask, weight: F64, length: U32, traffic: Traffic) -> Share:
    """Return which share of all packets the hits stand for, among evenly chosen ones of both directions.

    With its 95 % interval: Wilson's, on the effective number of samples.
    """
    total, part = float(weight.sum()), float(weight[hit].sum())
    share = part / total if total else 0.0
    chosen = len(hit) / max(1, len(traffic) + len(traffic.outbound))
    squared = float((weight * np.maximum(weight - chosen, 0.0)).sum())  # sampled packets are certain
    inverse_n = squared / (total * total) if total else 0.0
    low, high = map(float, wilson_interval(np.float64(share), np.float64(inverse_n)))
    count = share * traffic.both_ways
    size = float((weight[hit] * length[hit]).sum()) / part if part else 0.0
    return Share(round(count), round(count * size), count / traffic.seconds, share, low, high)
