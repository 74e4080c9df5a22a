"""Features of any group: size, rate, sources, lengths, ports, and how its flows look."""

from __future__ import annotations

import numpy as np

from fwtop.analysis.context import NEW, AnalysisContext
from fwtop.analysis.engine.entries import Group, Least, feature
from fwtop.analysis.window.traffic import Rows
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Mask

_ALL = 0.98  # of the packets have a value: a rule may ask for it
_FEW = 64  # peers: in a class where more are usual, newcomers are no news


@feature("times the least that counts")
def threshold_ratio(group: Group) -> float:
    """The smallest of samples, share and peak rate, each divided by the least that is called an attack.

    The rate is compared with the configured floor and with the baseline of its traffic class.
    """
    least = group.least
    return group.context.prominence(
        group.packets,
        floor_pps=getattr(group.context.config, least.floor) * least.times,
        normal=least.normal,
        shaped=least.shaped,
    )


ENOUGH = threshold_ratio.at_least(1)  # as large as the least that counts


@feature("samples")
def samples(group: Group) -> float:
    """Sampled packets."""
    return group.packets.n


@feature("share")
def share(group: Group) -> float:
    """Part of all arrived packets."""
    return group.packets.share


@feature("packets a second")
def rate(group: Group) -> float:
    """Mean rate over the window."""
    return group.packets.pps


@feature("packets a second")
def peak(group: Group) -> float:
    """Rate in the busiest second."""
    return group.packets.peak_pps


@feature("packets a second")
def pace(group: Group) -> float:
    """Rate in the busiest second, but no more than all packets: few packets at once are no rate."""
    return min(group.packets.peak_pps, group.packets.packets)


@feature("sources")
def sources(group: Group) -> float:
    """Distinct source addresses seen."""
    return group.packets.sources


@feature("packets a second")
def per_source(group: Group) -> float:
    """Mean rate of a source."""
    return group.packets.pps_per_source


@feature("probability")
def spoofed(group: Group) -> float:
    """Probability that the source addresses are forged."""
    return group.spoof.probability


@feature("bytes")
def mean_length(group: Group) -> float:
    """Mean IP length."""
    return group.packets.mean_length


@feature("lengths")
def lengths(group: Group) -> float:
    """Distinct IP lengths."""
    return group.packets.top("ip_length").distinct


@feature("share")
def same_length(group: Group) -> float:
    """Part that has the most common IP length."""
    return group.packets.top("ip_length").share


@feature("share")
def same_port(group: Group) -> float:
    """Part that goes to the most common destination port."""
    return group.packets.top("dport").share


@feature("port")
def port(group: Group) -> float:
    """The most common destination port."""
    return group.packets.top("dport").value


@feature("ports")
def ports(group: Group) -> float:
    """Distinct destination ports."""
    return group.packets.top("dport").distinct


@feature("share")
def flow_singles(group: Group) -> float:
    """Part whose flow was sampled once."""
    return group.packets.flow_singles


@feature("yes or no")
def observed_live(group: Group) -> float:
    """Whether the window was observed live, so that rates mean something; a capture may be cut or thinned."""
    return group.context.traffic.live


def of_protocol(group: Group, *, flags: tuple[int, int] | None = None) -> Match:
    """Match the protocol, and the ports that nearly all have."""
    top = {name: group.packets.top(name) for name in ("protocol", "dport", "sport")}
    return Match(
        protocol=top["protocol"].value,
        dport=top["dport"].value if top["dport"].share > _ALL else None,
        sport=top["sport"].value if top["sport"].share > _ALL and top["sport"].value else None,
        tcp_flags=flags,
    )


def to_port(group: Group) -> Match:
    """Match the protocol, and the destination port that nearly all have."""
    dport = group.packets.top("dport")
    return Match(
        protocol=group.packets.top("protocol").value, dport=dport.value if dport.share > _ALL else None
    )


def newcomers_first(context: AnalysisContext, every: Mask, normal: str) -> Group:
    """Return the packets of sources that the baseline of a class doesn't have; all if these are no attack.

    Beside a tunnel, a flood at its rate is as much as usual twice: as a whole it is no news, without the
    tunnel's packets it is.
    """
    usual = context.baseline_sources(normal)
    whole = np.flatnonzero(every)
    if not 0 < len(usual) <= _FEW:
        return _compared(context, whole, normal)
    known = np.isin(context.traffic.source_key[whole], usual)
    if not known.any() or known.all():
        return _compared(context, whole, normal)
    group = Group(context, context.features(whole[~known]), Least(normal=NEW))
    group.otherwise = lambda: _compared(context, whole, normal)
    return group


def _compared(context: AnalysisContext, rows: Rows, normal: str) -> Group:
    return Group(context, context.features(rows), Least(normal=normal))


def unclaimed_of(context: AnalysisContext, protocol: int) -> Mask:
    """Mark unclaimed packets of an IP protocol, without later fragments."""
    packets = context.traffic.packets
    return np.asarray((packets.protocol == protocol) & context.unclaimed & ~context.traffic.later)


def match_ip_protocol(group: Group) -> Match:
    """Match the protocol that nearly all have."""
    top = group.packets.top("protocol")
    return Match(protocol=top.value if top.share > 0.98 else None)
