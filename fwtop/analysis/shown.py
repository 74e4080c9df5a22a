"""What tables show beside whole windows: payloads with signatures, and a part of the traffic by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.context import ANY, AnalysisContext, Finding
from fwtop.analysis.packet_signatures import packet_signatures
from fwtop.analysis.proposals.matching import Texts, in_prefixes, match_rows, payload_rows
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.proposals.signatures import Signature
from fwtop.analysis.window.traffic import Rows, Traffic
from fwtop.model.rule import PayloadMatch
from fwtop.model.text import payload_text
from fwtop.model.traffic.counters import Counters, DropCount
from fwtop.model.traffic.packets import F64, U32, Fragment, Mask, OriginLookup, PacketBatch, Window
from fwtop.model.traffic.snapshot import PartTraffic, Payload, Share, Tables, TrafficPart
from fwtop.stats.engine import Engine
from fwtop.stats.sums import wilson_interval


class JudgedTraffic(Struct, frozen=True):
    """A judged window: everything that the tables of a part of it need. Never changes."""

    window: Window
    context: AnalysisContext
    normal: Normal
    findings: Mapping[int, Finding] = field(default_factory=dict)  # by `Incident.id`

    @staticmethod
    def of(
        window: Window, context: AnalysisContext, normal: Normal, findings: Mapping[int, Finding]
    ) -> JudgedTraffic:
        """Keep what is needed: the context has a subset of the packets that arrived."""
        none = PacketBatch.empty(window.arrived.data.shape[1])
        return JudgedTraffic(replace(window, arrived=none, accepted=none), context, normal, findings)


def part_traffic(
    judged: JudgedTraffic, part: TrafficPart, lookup: OriginLookup, top: int
) -> PartTraffic | None:
    """Return the tables of a part; shares are of its own packets.

    None if the window has no packets of it: then an attack may have ended, or be a state.
    """
    traffic, finding = judged.context.traffic, judged.findings.get(part.attack)
    if part.attack and (finding is None or finding.state):
        return None
    rows = finding.rows if finding is not None else np.arange(len(traffic))
    rows = rows[_inside(part, traffic.packets, rows, lookup)]
    if not len(rows):
        return None
    lost = judged.window.dropped
    lost = lost.select(_claimed(finding, lost) & _inside(part, lost, np.arange(len(lost)), lookup))
    window, only = _cut_out(judged.window, lost, traffic, rows)
    # A window without an end keeps the packets as they are, and two feedings don't join them: a copy of
    # an attack's packets takes 10 MB.
    engine = Engine(lookup, window_seconds=math.inf, top=top, live=window.live)
    engine.feed(window.arrived, window.counters, window.started)
    engine.feed(window.dropped, None, window.started)
    tables = engine.tables()
    context = _context(judged.context, window, only, rows)
    return PartTraffic(
        part,
        tables,
        shown_payloads(tables, only, (), judged.normal),
        packet_signatures(window, context, judged.normal),
    )


def _inside(part: TrafficPart, packets: PacketBatch, rows: Rows, lookup: OriginLookup) -> Mask:
    """Mark those of the rows whose sources are in the part."""
    hit = np.ones(len(rows), np.bool_)
    columns = (packets.family[rows], packets.src_hi[rows], packets.src_lo[rows])
    if part.prefix is not None:
        hit &= in_prefixes(*columns, [part.prefix])
    if part.asn is not None:
        hit &= lookup.columns(*columns).asn == part.asn
    if part.country:
        hit &= lookup.columns(*columns).country == int.from_bytes(part.country.encode()[:2], "big")
    return hit


def _claimed(finding: Finding | None, dropped: PacketBatch) -> Mask:
    """Mark the samples of drops with the fields that all packets of the attack share."""
    if finding is None:
        return np.ones(len(dropped), np.bool_)
    if finding.match == ANY:
        return np.zeros(len(dropped), np.bool_)
    return match_rows(finding.match, dropped)


def _cut_out(window: Window, lost: PacketBatch, whole: Traffic, rows: Rows) -> tuple[Window, Traffic]:
    """Return the window as if only these packets had arrived and been dropped."""
    weight = whole.weight[rows]
    packets = replace(whole.packets.select(rows), weight=weight)
    hooked = sum(drop.packets for drop in window.counters.drops if drop.layer not in ("nic", "xdp"))
    share = float(lost.weight.sum()) / max(float(window.dropped.weight.sum()), 1e-9)
    counters = Counters(
        window.seconds,
        round(float(weight.sum())),
        round(float(weight @ packets.length)),
        drops=(DropCount("netfilter", "", round(hooked * share)),),
        one_in=whole.one_in,
    )
    only = replace(whole, packets=packets, outbound=whole.outbound.select(slice(0, 0)), weight=weight)
    return replace(window, arrived=packets, dropped=lost, counters=counters), only


def _context(whole: AnalysisContext, window: Window, only: Traffic, rows: Rows) -> AnalysisContext:
    """Return the context with the attacks' claims on these rows."""
    place = np.full(len(whole.traffic), -1)
    place[rows] = np.arange(len(rows))
    findings = [replace(one, rows=(now := place[one.rows])[now >= 0]) for one in whole.findings]
    return replace(
        whole, traffic=only, counters=window.counters, unclaimed=whole.unclaimed[rows], findings=findings
    )


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
    signatures: list[Payload] = []
    for row in sorted(made, key=lambda row: -len(row.data)):  # a longer one may contain a shorter one
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
    chosen = []
    for packets, weight in ((traffic.packets, traffic.weight), (traffic.outbound, traffic.outbound.weight)):
        rows = np.linspace(0, len(packets) - 1, math.ceil(len(packets) / step)).astype(np.intp)
        chosen.append((payload_rows(match, packets, rows), weight[rows], packets.length[rows]))
    hit, weight, length = (np.concatenate(column) for column in zip(*chosen, strict=True))
    share = estimate(hit, weight, length, traffic)
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
