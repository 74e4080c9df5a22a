"""The attacks of a snapshot: what the findings of one window mean, what they hit, and their history."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, Trait
from fwtop.analysis.fate import Fate
from fwtop.analysis.timeline import Activity, Timeline, history
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, Traffic, weighted_top
from fwtop.model.addresses.address import format_address
from fwtop.model.traffic.protocols import NAMES
from fwtop.model.traffic.snapshot import Attack
from fwtop.render.numbers import plural

_REAL = 0.3  # probability of forged sources, below which they count as real

_ARP = 0x0806  # ethertype
_MAIN = 0.8  # share of the packets that a target has
_STILL = 0.3  # a target named once is kept while it has this share
_MANY = 1_000  # sources, from which the number of their networks is told
_UNMET = 0.02  # share of packets from sources that were not sampled


class Life(Struct, frozen=True):
    """A finding, when it was active in the window, and what became of its packets."""

    finding: Finding
    active: Activity
    fate: Fate

    @property
    def onset(self) -> tuple[float, float]:
        """First and last packet of its first pulse."""
        return self.active.pulses[0]


def attacks_of(
    context: AnalysisContext, lives: Sequence[Life], timeline: Timeline
) -> list[tuple[Attack, Finding]]:
    """Return the attacks and their findings, the greatest share first."""
    made: list[Attack] = []
    for life in lives:
        attack = _attack(context, life, timeline)
        same = sum(other.kind == attack.kind and other.target.startswith(attack.target) for other in made)
        made.append(replace(attack, target=f"{attack.target} #{same + 1}") if same else attack)
    cause = _cause(made, lives)
    named = [
        (
            replace(attack, effect_of=cause) if Trait.FULL_TABLE in life.finding.traits else attack,
            life.finding,
        )
        for attack, life in zip(made, lives, strict=True)
    ]
    return sorted(named, key=lambda item: -item[0].share)


def pps_of(context: AnalysisContext, finding: Finding) -> float:
    """Return the packets (or entries) a second of a finding."""
    return finding.pps if finding.pps is not None else context.traffic.pps(finding.rows)


def _cause(attacks: Sequence[Attack], lives: Sequence[Life]) -> str:
    """Return the key of the attack of which most packets pass, and so fill the table of connections."""
    passing = [
        (life.fate.reaching_pps, attack.pps, attack.key)
        for attack, life in zip(attacks, lives, strict=True)
        if len(life.finding.rows)
    ]
    return max(passing, default=(0.0, 0.0, ""))[2]


def _attack(context: AnalysisContext, life: Life, timeline: Timeline) -> Attack:
    finding, active, fate = life.finding, life.active, life.fate
    sampled = pps_of(context, finding)
    track = timeline.note(finding, active, context.traffic.started + context.traffic.seconds)
    pps = fate.pps or sampled
    if len(finding.rows) or finding.held is not None:
        track.target = target_of(context, finding, track.target)
    spoofed = finding.spoof.probability > context.config.spoof_threshold
    return Attack(
        finding.kind,
        finding.title,
        min(1.0, context.traffic.share(finding.rows)),
        pps,
        finding.confidence,
        spoofed,
        (*finding.evidence, *_on_sources(finding, spoofed=spoofed), *history(active, pps, track)),
        track.since,
        track.peak_pps,
        track.until if active.over else None,
        bps=context.traffic.bps(finding.rows) * (pps / sampled if sampled > 0 else 1.0),
        target=_target(finding, track.target),
        mine_share=fate.mine,
        other_share=fate.other,
        kernel_share=fate.kernel,
        sources=sources_of(context, finding, spoofed=spoofed),
        match=finding.match if len(finding.rows) or finding.held is not None else None,
        uncertain=not spoofed and finding.spoof.probability >= _REAL,
    )


def _target(finding: Finding, words: str) -> str:
    """Add the address to the words, where another attack of the same kind hits another address."""
    aside = finding.part and not finding.part.startswith("port ") and not words.startswith(finding.part)
    return f"{finding.part} {words}" if aside else words


def _on_sources(finding: Finding, *, spoofed: bool) -> list[str]:
    evidence = []
    if finding.spoof.evidence:
        unsure = "real" if finding.spoof.probability < _REAL else "of uncertain origin"
        verdict = "spoofed" if spoofed else unsure
        evidence.append(f"sources look {verdict}: {'; '.join(finding.spoof.evidence[:3])}")
    if spoofed:
        evidence.append("blocking sources is not offered: it would hit the owners of the spoofed addresses")
    return evidence


class Target(Struct, frozen=True):
    """What most packets of an attack have in common, and how many share it."""

    words: str
    share: float


def target_of(context: AnalysisContext, finding: Finding, before: str = "") -> str:
    """Name the target: port, origin port of a reflection, else the address and protocol.

    A target named `before` is kept while a good part of the packets still go there, so that the attack keeps
    its identity.
    """
    if finding.held is not None:
        return f"tcp/{finding.held.port}"
    found = _targets(context.traffic, finding.rows)
    if before and any(target.words == before and target.share >= _STILL for target in found):
        return before
    return next((target.words for target in found if target.share >= _MAIN), before and "*")


def _targets(traffic: Traffic, rows: Rows) -> list[Target]:
    if not len(rows):
        return []
    packets, weight = traffic.packets, traffic.weight[rows]
    if not packets.family[rows].any():
        return [Target("ARP" if (packets.ethertype[rows] == _ARP).all() else "not IP", 1.0)]
    protocol, ported = packets.protocol[rows], ~traffic.later[rows]
    out = []
    for side, word in (("dport", "/"), ("sport", " from ")):
        ports = getattr(packets, side)[rows]
        heads = ported & (ports > 0)
        keys = protocol[heads].astype(np.uint32) << np.uint32(16) | ports[heads]
        out += [
            Target(f"{_name(key >> 16)}{word}{key & 0xFFFF}", share)
            for key, share in _top(keys, weight[heads], float(weight[ported].sum()))
        ]
    first = rows[0]
    several = bool((traffic.dest_key != traffic.dest_key[first]).any())
    only = several and bool((traffic.dest_key[rows] == traffic.dest_key[first]).all())
    address = format_address(*(int(getattr(packets, name)[first]) for name in ("family", "dst_hi", "dst_lo")))
    for number, share in _top(protocol, weight, float(weight.sum())):
        out += [Target(f"{address} {_name(number)}", share)] if only else []
        out.append(Target(_name(number), share))
    return out


def _top(values: np.ndarray, weight: np.ndarray, whole: float) -> list[tuple[int, float]]:
    if not len(values) or whole <= 0:
        return []
    found, sums = weighted_top(values, weight)
    return [(int(value), float(part) / whole) for value, part in zip(found[:4], sums[:4], strict=True)]


def _name(protocol: int) -> str:
    return NAMES.get(protocol, f"protocol {protocol}")


def sources_of(context: AnalysisContext, finding: Finding, *, spoofed: bool) -> str:
    """Tell the senders: forged, or how many, of how many networks."""
    if finding.held is not None:
        return plural(len(finding.held.senders), "source")
    if spoofed:
        return "spoofed"
    if not len(finding.rows) or not context.traffic.packets.family[finding.rows].any():
        return ""
    features = Features(context.traffic, finding.rows)
    number, sampled = features.sources, features.packets > 1.05 * features.n and features.singles > _UNMET
    words = plural(number, "source")
    if sampled:
        words = f"~{_roughly(_estimated(features))} sources"
    if number < _MANY:
        return words
    packets, rows = context.traffic.packets, finding.rows
    four = packets.family[rows] == 4
    networks = np.where(four, packets.src_lo[rows] >> np.uint64(16), packets.src_hi[rows] >> np.uint64(32))
    size = "/16s" if bool(four.all()) else "networks" if bool(four.any()) else "/32s"
    return f"{words}, {len(np.unique(networks)):,} {size}"


def _roughly(number: float) -> str:
    """Round to two digits: 340, 1,200, 45k."""
    step = 10 ** max(len(str(int(number))) - 2, 0)
    rounded = round(number / step) * step
    return f"{rounded // 1_000:,}k" if rounded >= 10_000 else f"{rounded:,}"


def _estimated(features: Features) -> float:
    """Estimate the number of sources from those sampled once and twice (Chao 1984): a lower bound."""
    counts = features.source_counts
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    unseen = once * (once - 1) / (2 * (twice + 1))
    return min(features.sources + unseen, features.packets)
