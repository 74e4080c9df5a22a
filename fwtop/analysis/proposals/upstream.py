"""Mitigation by the provider: the text to send, with a FlowSpec rule."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.context import AnalysisContext, Finding, count
from fwtop.analysis.proposals.matching import always_pass
from fwtop.analysis.proposals.services import without_rule
from fwtop.analysis.severity import lost_in_nic
from fwtop.analysis.window.features import Features, targets_of
from fwtop.analysis.window.traffic import weighted_top
from fwtop.model.addresses.address import Prefix, format_address
from fwtop.model.rule import Match, Range
from fwtop.model.traffic.snapshot import Proposal
from fwtop.render.numbers import percent, plural
from fwtop.rules.exports.flowspec import FlowSpec
from fwtop.rules.words import describe

_HELPS = 0.5  # of the attack that a local rule must stop to be enough
_TOLERABLE = 0.1  # of normal traffic that a local rule may hit
_FROM_LINK = 0.5  # of the attack
_ONE_LENGTH = 0.95
_ONE_TARGET = 0.9
_TOP = 10
# Neighbour discovery from the link: no rule drops it, no provider sees it
_ONLY_THE_SWITCH = (
    "only the switch can stop it: no rule drops neighbour discovery from the link, or IPv6 ends"
)
_ON_THE_SWITCH = (
    "# on the switch: RA Guard (RFC 6105), a limit of neighbour discovery for each port\n"
    "# if no router of this link is needed: sysctl -w net.ipv6.conf.all.accept_ra=0"
)


def upstream(
    context: AnalysisContext, finding: Finding, others: Sequence[tuple[float, float]]
) -> Proposal | None:
    """Return a request to the provider if the link is full, the NIC loses packets, or no local rule helps.

    `others` has for each local rule the shares (0 to 1) that it stops of the finding and of normal traffic.
    """
    reason = pressure(context) or _unhelped(others)
    if not reason:
        return None
    features = Features(context.traffic, finding.rows)
    if always_pass(context.traffic.packets)[finding.rows].mean() > _FROM_LINK:
        return without_rule(finding, "switch", _ONLY_THE_SWITCH, (_ON_THE_SWITCH,))
    rule = FlowSpec(_target(features), _with_length(finding.match, features))
    text = "\n".join(_text(context, finding, features, rule))
    commands = text, rule.text, f"# the same as NLRI (RFC 8955): {rule.nlri.hex()}"
    return without_rule(finding, "upstream", f"call the provider: {reason}", commands)


def _text(context: AnalysisContext, finding: Finding, features: Features, rule: FlowSpec) -> list[str]:
    """Write the facts for the provider: attack, target, rates, time, sources, and filter."""
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(context.traffic.started + context.traffic.seconds))
    text = [
        f"{finding.title} against {rule.destination}: {count(features.pps)} packets/s, "
        f"{_bits(context, finding) / 1e6:,.1f} Mbit/s, {plural(features.sources, 'source')} seen, "
        f"measured over {context.traffic.seconds:.0f} s until {until} UTC.",
        *finding.evidence,
    ]
    if finding.spoof.probability < context.config.spoof_threshold:
        text.append(f"Top sources: {', '.join(_top_sources(context, finding))}")
    else:
        text.append("The sources are spoofed: please filter by the fields below, not by source.")
    return [*text, f"Please drop {describe(rule.match)} to {rule.destination}."]


def _with_length(match: Match, features: Features) -> Match:
    """Return what a router can match: the fields of the attack, and its length if constant."""
    length = features.top("ip_length")
    if match.ip_length is None and length.share > _ONE_LENGTH:
        return replace(match, ip_length=Range(length.value, length.value))
    return match


def _target(features: Features) -> Prefix:
    """Return the attacked address or, for carpet bombing, the prefix of all targets."""
    if features.destinations.share >= _ONE_TARGET:
        return Prefix.parse(features.target)
    return targets_of(features.traffic, features.rows).prefix


def _unhelped(others: Sequence[tuple[float, float]]) -> str:
    """Say why no other proposal is enough; empty if one is."""
    mild = [stopped for stopped, harmed in others if harmed <= _TOLERABLE]
    if mild and max(mild) >= _HELPS:
        return ""
    if mild and max(mild) > 0:
        return f"only {percent(max(mild))} of it can be dropped here without much harm"
    return "no rule on this host separates it from normal traffic"


def pressure(context: AnalysisContext) -> str:
    """Describe a full link or packet loss in the NIC; empty if there is neither."""
    config, counters = context.config, context.counters
    if context.traffic.live and (lost := lost_in_nic(counters)):
        return f"the NIC lost {plural(lost, 'packet')} in {counters.seconds:.0f} s, before any rule"
    rate = counters.arrived_bytes * 8 / max(counters.seconds, 1e-6)
    link = config.link_bits_per_second
    if link is not None and rate > config.link_full * link:
        return f"the link is full ({percent(rate / link)} of {link / 1e9:g} Gbit/s)"
    return ""


def _bits(context: AnalysisContext, finding: Finding) -> float:
    traffic = context.traffic
    weight = traffic.weight[finding.rows] * traffic.packets.length[finding.rows]
    return float(weight.sum()) * 8 / traffic.seconds


def _top_sources(context: AnalysisContext, finding: Finding) -> list[str]:
    traffic, packets = context.traffic, context.traffic.packets
    keys = traffic.source_key[finding.rows]
    top, sums = weighted_top(keys, traffic.weight[finding.rows])
    found = []
    for key, weight in zip(top[:_TOP], sums[:_TOP], strict=True):
        at = int(finding.rows[np.argmax(keys == key)])
        address = format_address(int(packets.family[at]), int(packets.src_hi[at]), int(packets.src_lo[at]))
        found.append(f"{address} ({percent(weight / float(sums.sum()), 1)})")
    return found
