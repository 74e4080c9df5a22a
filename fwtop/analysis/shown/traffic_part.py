"""A part of the traffic, such as that of one attack or one prefix, in tables of its own."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.context import ANY, AnalysisContext, Finding
from fwtop.analysis.proposals.matching import in_prefixes, match_rows
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.shown.packet_signatures import packet_signatures
from fwtop.analysis.shown.payload_table import shown_payloads
from fwtop.analysis.window.traffic import Rows, Traffic
from fwtop.model.traffic.counters import Counters, DropCount
from fwtop.model.traffic.packets import Mask, PacketBatch
from fwtop.model.traffic.snapshot import PartTraffic, TrafficPart
from fwtop.model.traffic.window import OriginLookup, Window
from fwtop.stats.engine import Engine


class JudgedTraffic(Struct, frozen=True):
    """A judged window: everything that the tables of a part of it need. Never changes."""

    window: Window
    context: AnalysisContext
    normal: Normal
    findings: Mapping[str, Finding] = field(default_factory=dict)  # by `Attack.key`

    @staticmethod
    def of(
        window: Window, context: AnalysisContext, normal: Normal, findings: Mapping[str, Finding]
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
        whole,
        traffic=only,
        counters=window.counters,
        unclaimed=whole.unclaimed[rows],
        findings=findings,
    )
