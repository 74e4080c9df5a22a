"""What nothing else explains: a surge is an attack if it is far above normal, or nearly all rejected."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait, count
from fwtop.analysis.engine.entries import CERTAIN, Group, Hypothesis, Least, Proof, cut, feature, matching
from fwtop.analysis.measures import general
from fwtop.analysis.measures.general import observed_live, samples, share, spoofed
from fwtop.analysis.memory import CLASSES, classes
from fwtop.analysis.severity import CORE, LINK, TABLE
from fwtop.analysis.window.traffic import TCP, UDP
from fwtop.model.rule import Match
from fwtop.model.traffic.counters import FIREWALLS
from fwtop.model.traffic.packets import Fragment
from fwtop.render.numbers import percent

_LEAST = 60  # sampled packets
_SURGE = 10.0  # times the rate of the least flood
_NEARLY_ALL = 0.98
_REFUSED = 0.8  # of the arriving packets
_NOBODY = ("NO_SOCKET", "IP_NOPROTO")  # dropped because no socket or protocol accepts such packets
_COLUMNS = {
    "protocol": "protocol",
    "dport": "to port",
    "sport": "from port",
    "ip_length": "length",
    "ttl": "TTL",
}


@cut(Proof.REST)
def unexplained(context: AnalysisContext) -> Iterator[Group]:
    """Packets that nothing explains, outside of connections and neighbour discovery."""
    traffic = context.traffic
    ordinary = context.tcp.real | context.benign | traffic.group
    rows = traffic.rows(context.unclaimed & ~ordinary & (traffic.packets.family != 0))
    if len(rows) >= _LEAST:
        yield Group(context, context.features(rows[~general.neighbours(traffic)[rows]]), Least())


@feature("yes or no")
def scattered(group: Group) -> float:
    """Whether hardly two packets share a destination, as in the view of a network telescope."""
    return group.context.scattered(group.packets)


@feature("times")
def above_all_normal(group: Group) -> float:
    """Rate of the busiest second against all that is normal, times the configured factor, and a flood's."""
    context, pps = group.context, group.packets.peak_pps
    baseline, flood_pps = context.baseline, _SURGE * context.config.flood_pps
    if not baseline.ready or not context.traffic.live or pps < flood_pps:
        return 0.0
    rates = [baseline.rate(name) for name in baseline.mean]
    usual = sum(rate for rate in rates if rate is not None)
    group.notes["usually"] = usual
    return pps / (context.config.baseline_factor * usual + flood_pps)


@feature("share")
def rejected(group: Group) -> float:
    """Part of arriving packets that this host rejects; 0 if as usual, or below ten times the least flood."""
    context, rows = group.context, group.packets.rows
    if not context.traffic.live or group.packets.pps < _SURGE * context.config.flood_pps:
        return 0.0
    kinds = np.unique(classes(context.traffic.packets)[rows]).tolist()
    usual = sum(context.baseline.rate(CLASSES[kind]) or 0.0 for kind in kinds)
    if group.packets.pps <= context.config.learn_factor * usual:
        return 0.0
    drops = context.counters.drops
    refused = sum(one.packets for one in drops if one.layer in FIREWALLS or one.reason in _NOBODY)
    return min(1.0, refused / max(1, context.counters.arrived_packets))


def surge(group: Group) -> list[str]:
    """Write what is unusual: the rate, or that nearly all is rejected."""
    if group[above_all_normal] > 1:
        return [f"{count(group.packets.peak_pps)} packets/s, normally up to {count(group.notes['usually'])}"]
    part = group[rejected]
    return [f"{percent(part)} of the arriving packets are rejected by this host"] if part > _REFUSED else []


def shared_fields(group: Group) -> list[str]:
    """Write which header fields most have in common."""
    found = []
    for column, name in _COLUMNS.items():
        top = group.packets.top(column)
        if top.share > 0.8 and (top.value or column == "protocol"):
            found.append(f"{percent(top.share)} have {name} {top.value}")
    return found


def match_shared(group: Group) -> Match:
    """Match the fields that nearly all packets share."""
    features = group.packets
    later = features.top("fragment").value == Fragment.LATER
    ported = features.top("protocol").value in (TCP, UDP) and features.top("protocol").share > _NEARLY_ALL
    return matching("protocol", *(("sport", "dport") if ported and not later else ()))(group)


_LEAD = "{amount:packets of no known kind} from {senders}, mean length {mean_length:.0f} bytes"

ENTRIES = (
    *(
        Hypothesis(
            name, unexplained, 0.1,
            kind="unknown_flood",
            exhausts=(LINK, CORE, TABLE),
            bearable=general.few_long_flows,
            traits=Trait.NAMELESS | Trait.UNKNOWN,
            title="Unknown flood",
            needs=(samples.at_least(60), scattered.no, *needs),
            lead=_LEAD,
            details=(surge, shared_fields),
            match=match_shared,
            stopped_by="a signature of what the packets share; a limit for each source",
        )
        for name, needs in (
            ("surge far above normal",
             (observed_live.yes, share.at_least(0.5), above_all_normal.at_least(1))),
            ("surge that this host rejects",
             (observed_live.yes, share.at_least(0.5), rejected.at_least(0.8))),
            ("capture of almost only forged packets",
             (observed_live.no, share.at_least(0.8), spoofed.at_least(0.8))),
        )
    ),
    Hypothesis("scans of a network for hosts", unexplained, CERTAIN, needs=(scattered.yes,)),
    Hypothesis("mixed remainder", unexplained, 2.0, needs=(share.at_most(0.499),)),
)  # fmt: skip
