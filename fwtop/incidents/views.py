"""An incident as the screen, the store and programs get it."""

from __future__ import annotations

import time

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, count
from fwtop.analysis.fate import Fate
from fwtop.analysis.sighting import Sighting, pps_of
from fwtop.analysis.standing import known_before
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows
from fwtop.incidents.tracker import Tracked
from fwtop.model.traffic.snapshot import Incident
from fwtop.render.numbers import plural

_REAL = 0.3  # probability of forged sources, below which they count as real
_MANY = 1_000  # sources, from which the number of their networks is told
_MOST = 0.5  # of a sender's packets decide whether it is a client
_UNSEEN = 0.02  # share of packets from sources that were not sampled


class Sighted(Struct, frozen=True):
    """A finding of a window, and what became of its packets."""

    finding: Finding
    seen: Sighting
    fate: Fate


def incident_of(context: AnalysisContext, sighted: Sighted, tracked: Tracked) -> Incident:
    """Return an incident that the window shows."""
    finding, fate = sighted.finding, sighted.fate
    has_packets = len(finding.rows) > 0 or finding.held is not None
    sampled = pps_of(context, finding)
    pps = fate.pps or sampled
    spoofed = finding.spoof.probability > context.config.spoof_threshold
    # Another attack of the same kind hits another address
    aside = not finding.part.startswith("port ") and not tracked.target.startswith(finding.part)
    return Incident(
        finding.kind,
        finding.title,
        min(1.0, context.traffic.share(finding.rows)),
        pps,
        finding.confidence,
        spoofed,
        (*finding.evidence, *_on_sources(finding, spoofed=spoofed), *history(tracked, pps)),
        tracked.began,
        tracked.peak_pps,
        tracked.ended,
        bps=context.traffic.bps(finding.rows) * (pps / sampled if sampled > 0 else 1.0),
        target=f"{finding.part} {tracked.target}" if aside else tracked.target,
        mine_share=fate.mine,
        other_share=fate.other,
        kernel_share=fate.kernel + fate.crowded,
        undeliverable_share=fate.kernel,
        sources=sources_of(context, finding, spoofed=spoofed),
        match=finding.match if has_packets else None,
        uncertain=not spoofed and finding.spoof.probability >= _REAL,
        id=tracked.id,
        letter=tracked.letter,
        paused=tracked.paused,
        last=tracked.until,
        held_pps=tracked.held_pps,
        completes=_completes(context, finding),
        holds=finding.held.number if finding.held is not None else 0,
        holds_of=finding.held.of_port if finding.held is not None else 0,
    )


_PART = 0.05  # of its packets; fewer belong to real connections by chance


def _completes(context: AnalysisContext, finding: Finding) -> bool:
    """Test whether an attack's senders complete handshakes."""
    real = float(context.tcp.real[finding.rows].mean()) if len(finding.rows) else 0.0
    return finding.requests or finding.held is not None or real >= _PART


def resting(tracked: Tracked) -> Incident | None:
    """Return an incident that the window doesn't show: as it was, without a rate; None: never."""
    before = tracked.shown
    if before is None:
        return None
    gone = tracked.paused is not None or tracked.ended is not None
    if not gone:  # the observation can't tell, or its packets go on unnamed
        return replace(before, last=tracked.until)
    paused, ended, last, held_pps = tracked.paused, tracked.ended, tracked.until, tracked.held_pps
    return replace(
        before, pps=0.0, bps=0.0, share=0.0, paused=paused, ended=ended, last=last, held_pps=held_pps
    )


def _on_sources(finding: Finding, *, spoofed: bool) -> list[str]:
    evidence = []
    if finding.spoof.evidence:
        unsure = "real" if finding.spoof.probability < _REAL else "of uncertain origin"
        verdict = "spoofed" if spoofed else unsure
        evidence.append(f"sources look {verdict}: {'; '.join(finding.spoof.evidence[:3])}")
    if spoofed:
        evidence.append("blocking sources is not offered: it would hit the owners of the spoofed addresses")
    return evidence


def sources_of(context: AnalysisContext, finding: Finding, *, spoofed: bool) -> str:
    """Tell the senders: forged, or how many, of how many networks."""
    if finding.held is not None:
        return plural(len(finding.held.senders), "source")
    if spoofed:
        return "spoofed"
    if not len(finding.rows) or not context.traffic.packets.family[finding.rows].any():
        return ""
    rows = _senders(context, finding)
    features = Features(context.traffic, rows)
    words = plural(features.sources, "source")
    if features.packets > 1.05 * features.n and features.singles > _UNSEEN:  # the sample misses some
        words = f"~{_roughly(min(features.likely_sources, features.packets))} sources"
    if features.sources < _MANY:
        return words
    packets = context.traffic.packets
    four = packets.family[rows] == 4
    networks = np.where(four, packets.src_lo[rows] >> np.uint64(16), packets.src_hi[rows] >> np.uint64(32))
    size = "/16s" if bool(four.all()) else "networks" if bool(four.any()) else "/32s"
    return f"{words}, {len(np.unique(networks)):,} {size}"


def _senders(context: AnalysisContext, finding: Finding) -> Rows:
    """Return an attack's packets without those of clients, whose packets to the same port look alike.

    Clients are known from before it, or send mostly what is no attack's: unless it needs connections, as what
    opens and closes those needn't be claimed. Packets of nobody else: all are.
    """
    traffic, numbers, rows = context.traffic, context.traffic.source_id, finding.rows
    claimed = np.bincount(numbers, traffic.weight * ~context.unclaimed)
    aside = (claimed < _MOST * np.bincount(numbers, traffic.weight))[numbers[rows]]
    aside &= not _completes(context, finding)
    aside |= among(traffic.source_key[rows], known_before(context))
    return rows if aside.all() else rows[~aside]


def _roughly(number: float) -> str:
    """Round to two digits: 340, 1,200, 45k."""
    step = 10 ** max(len(str(int(number))) - 2, 0)
    rounded = round(number / step) * step
    return f"{rounded // 1_000:,}k" if rounded >= 10_000 else f"{rounded:,}"


def history(tracked: Tracked, pps: float) -> list[str]:
    """Write its peak, its pulses, the incident that it replaced and its end, as far as they apply."""
    notes = []
    if tracked.peak_pps > 1.2 * pps:
        notes.append(f"its peak was {count(tracked.peak_pps)} packets/s")
    if tracked.waves > 1:
        notes.append(f"it comes in pulses: {tracked.waves} so far")
    if tracked.follows:
        notes.append(f"it replaced {tracked.follows}: the attacker changed the vector")
    if tracked.ended is not None:
        notes.append(f"it ended at {time.strftime('%H:%M:%S', time.gmtime(tracked.ended))} UTC")
    return notes
