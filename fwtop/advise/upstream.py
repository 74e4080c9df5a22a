"""When nothing on this machine helps: the text to send to the provider, with a FlowSpec rule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fwtop.advise.facts import Facts
from fwtop.advise.flowspec import FlowSpec
from fwtop.advise.scene import Finding, Scene, count, plural
from fwtop.advise.traffic import weighted_top
from fwtop.model.address import Prefix, format_address
from fwtop.model.percent import percent
from fwtop.model.rule import Match, Range
from fwtop.model.snapshot import Proposal
from fwtop.model.wording import describe

_HELPS = 0.5  # of the attack stopped: then the machine can go on
_TOLERABLE = 0.1  # of normal traffic: when every rule hits more, the provider may know better
_NIC_LOSS = 0.02  # of what arrived lost in the card's ring: the machine is beyond its link or its core
_ONE_LENGTH = 0.95
_ONE_TARGET = 0.9
_TOP = 10


def upstream(scene: Scene, finding: Finding, others: Sequence[Proposal]) -> Proposal | None:
    """Return the call for help where the link is full, packets are lost before any rule, or nothing fits."""
    reason = pressure(scene) or _unhelped(others)
    if not reason:
        return None
    facts = Facts(scene.traffic, finding.rows)
    rule = FlowSpec(_target(facts), _filter(finding.match, facts))
    return Proposal(
        number=0,
        kind="upstream",
        summary=f"call the provider: {reason}",
        attack_share=0.0,
        collateral_share=0.0,
        commands=(
            "\n".join(_text(scene, finding, facts, rule)),
            rule.text,
            f"# the same as NLRI (RFC 8955): {rule.nlri.hex()}",
        ),
    )


def _text(scene: Scene, finding: Finding, facts: Facts, rule: FlowSpec) -> list[str]:
    """Write what a provider's desk needs: what, whither, how much, since when, from whom, and the filter."""
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(scene.traffic.started + scene.traffic.seconds))
    text = [
        f"{finding.title} against {rule.destination}: {count(facts.pps)} packets/s, "
        f"{_bits(scene, finding) / 1e6:,.1f} Mbit/s, {plural(facts.sources, 'source')} seen, "
        f"measured over {scene.traffic.seconds:.0f} s until {until} UTC.",
        *finding.evidence,
    ]
    if finding.spoof.probability < scene.config.spoof_threshold:
        text.append(f"Top sources: {', '.join(_top_sources(scene, finding))}")
    else:
        text.append("The sources are forged: please filter by the fields below, not by source.")
    return [*text, f"Please drop {describe(rule.match)} to {rule.destination}."]


def _filter(match: Match, facts: Facts) -> Match:
    """Return what a router can match of an attack: its fields, and its length where it has one."""
    length = facts.top("ip_length")
    if match.ip_length is None and length.share > _ONE_LENGTH:
        return replace(match, ip_length=Range(length.value, length.value))
    return match


def _target(facts: Facts) -> Prefix:
    """Return the address that is attacked or, of a carpet, the prefix that holds those that are."""
    packets, rows = facts.traffic.packets, facts.rows
    family = int(packets.family[rows[0]])
    mine = rows[packets.family[rows] == family]
    if facts.destinations.share >= _ONE_TARGET:
        return Prefix.parse(facts.target)
    hi, lo = packets.dst_hi[mine], packets.dst_lo[mine]
    low = (int(hi.min()) << 64) | int(lo[hi == hi.min()].min())
    high = (int(hi.max()) << 64) | int(lo[hi == hi.max()].max())
    bits = 32 if family == 4 else 128
    length = bits - (low ^ high).bit_length()
    return Prefix(family, low >> (bits - length) << (bits - length), length)


def _unhelped(others: Sequence[Proposal]) -> str:
    """Say why none of the other proposals is enough; "" where one is."""
    if any(p.attack_share >= _HELPS and p.collateral_share <= _TOLERABLE for p in others):
        return ""
    mild = [p.attack_share for p in others if p.collateral_share <= _TOLERABLE]
    if mild and max(mild) > 0:
        return f"what can be dropped here without much harm is {percent(max(mild))} of it"
    return "no rule on this machine tells it from normal traffic"


def pressure(scene: Scene) -> str:
    """Say that the link is full or packets are lost before any rule; "" where neither is so."""
    config, counters = scene.config, scene.counters
    lost = sum(drop.packets for drop in counters.drops if drop.layer == "nic")
    if scene.traffic.live and lost > _NIC_LOSS * max(1, counters.arrived_packets):
        return f"the network card loses {plural(lost, 'packet')} before any rule"
    rate = counters.arrived_bytes * 8 / max(counters.seconds, 1e-6)
    link = config.link_bits_per_second
    if link is not None and rate > config.link_full * link:
        return f"the link is full ({percent(rate / link)} of {link / 1e9:g} Gbit/s)"
    return ""


def _bits(scene: Scene, finding: Finding) -> float:
    traffic = scene.traffic
    weight = traffic.weight[finding.rows] * traffic.packets.length[finding.rows]
    return float(weight.sum()) * 8 / traffic.seconds


def _top_sources(scene: Scene, finding: Finding) -> list[str]:
    traffic, packets = scene.traffic, scene.traffic.packets
    keys = traffic.source_key[finding.rows]
    top, sums = weighted_top(keys, traffic.weight[finding.rows])
    found = []
    for key, weight in zip(top[:_TOP], sums[:_TOP], strict=True):
        at = int(finding.rows[np.argmax(keys == key)])
        address = format_address(int(packets.family[at]), int(packets.src_hi[at]), int(packets.src_lo[at]))
        found.append(f"{address} ({percent(weight / float(sums.sum()), 1)})")
    return found
