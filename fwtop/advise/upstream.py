"""When nothing on this machine helps: the text to send to the provider, with a FlowSpec rule (RFC 8955)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count
from fwtop.advise.traffic import weighted_top
from fwtop.model.address import format_address
from fwtop.model.rule import Match
from fwtop.model.snapshot import Proposal

_HELPS = 0.5  # of the attack stopped: then the machine can go on
_TOLERABLE = 0.1  # of normal traffic: when every rule hits more, the provider may know better
_NIC_LOSS = 0.02  # of what arrived lost in the card's ring: the machine is beyond its link or its core


def upstream(scene: Scene, finding: Finding, others: Sequence[Proposal]) -> Proposal | None:
    """Return the call for help where the link is full, packets are lost before any rule, or nothing fits."""
    reason = pressure(scene) or _unhelped(others)
    if not reason:
        return None
    facts = Facts(scene.traffic, finding.rows)
    text = [
        f"{finding.title} against {facts.target}: {count(facts.pps)} packets/s, "
        f"{_bits(scene, finding) / 1e6:,.1f} Mbit/s, {facts.sources:,} sources seen.",
        *finding.evidence,
    ]
    if finding.spoof.probability < scene.config.spoof_threshold:
        text.append(f"Top sources: {', '.join(_top_sources(scene, finding))}")
    else:
        text.append("The sources are forged: please filter by the fields below, not by source.")
    return Proposal(
        number=0,
        kind="upstream",
        summary=f"call the provider: {reason}",
        attack_share=0.0,
        collateral_share=0.0,
        commands=("\n".join(text), flowspec(finding.match, facts)),
    )


def flowspec(match: Match, facts: Facts) -> str:
    """Write a match as a FlowSpec route in ExaBGP's form, rate 0 (drop)."""
    packets = facts.traffic.packets
    at = int(facts.rows[0])
    bits = 32 if packets.family[at] == 4 else 128
    parts = [f"destination {facts.target}/{bits};"]
    if match.protocol is not None:
        parts.append(f"protocol ={match.protocol};")
    if match.sport is not None:
        parts.append(f"source-port ={match.sport};")
    if match.dport is not None:
        parts.append(f"destination-port ={match.dport};")
    if match.tcp_flags is not None:
        parts.append(f"tcp-flags ={match.tcp_flags[1]};")
    if match.fragment:
        parts.append("fragment [ is-fragment first-fragment ];")
    length = facts.top("ip_length")
    if length.share > 0.95:
        parts.append(f"packet-length ={length.value};")
    return f"flow {{ match {{ {' '.join(parts)} }} then {{ rate-limit 0; }} }}"


def _unhelped(others: Sequence[Proposal]) -> str:
    """Say why none of the other proposals is enough; "" where one is."""
    if any(p.attack_share >= _HELPS and p.collateral_share <= _TOLERABLE for p in others):
        return ""
    mild = [p.attack_share for p in others if p.collateral_share <= _TOLERABLE]
    if mild and max(mild) > 0:
        return f"what can be dropped here without much harm is {max(mild):.0%} of it"
    return "no rule on this machine tells it from normal traffic"


def pressure(scene: Scene) -> str:
    """Say that the link is full or packets are lost before any rule; "" where neither is so."""
    config, counters = scene.config, scene.counters
    lost = sum(drop.packets for drop in counters.drops if drop.layer == "nic")
    if scene.traffic.live and lost > _NIC_LOSS * max(1, counters.arrived_packets):
        return f"{count(lost)} packets are lost in the network card before any rule"
    rate = counters.arrived_bytes * 8 / max(counters.seconds, 1e-6)
    link = config.link_bits_per_second
    if link is not None and rate > config.link_full * link:
        return f"the link is full ({rate / link:.0%} of {link / 1e9:g} Gbit/s)"
    return ""


def _bits(scene: Scene, finding: Finding) -> float:
    traffic = scene.traffic
    weight = traffic.weight[finding.rows] * traffic.packets.length[finding.rows]
    return float(weight.sum()) * 8 / traffic.seconds


def _top_sources(scene: Scene, finding: Finding) -> list[str]:
    traffic, packets = scene.traffic, scene.traffic.packets
    keys = traffic.source_key[finding.rows]
    top, _ = weighted_top(keys, traffic.weight[finding.rows])
    found = []
    for key in top[:10]:
        at = int(finding.rows[np.argmax(keys == key)])
        found.append(
            format_address(int(packets.family[at]), int(packets.src_hi[at]), int(packets.src_lo[at]))
        )
    return found
