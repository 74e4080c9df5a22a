"""Groups of SYNs and of packets with invalid flags. Sources: RFC 4987 (SYN), RFC 9293."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext, count
from fwtop.analysis.engine.group import Group, Least, Proof, cut, feature
from fwtop.analysis.groups.measures import of_protocol
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.features import Features, header_words
from fwtop.analysis.window.tcp_view import ACK, SYN, flag_names
from fwtop.analysis.window.traffic import Rows, mix
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Mask
from fwtop.render.numbers import percent

BARE = 5  # words of a TCP header without options
_ANSWERS = (
    2.0  # RSTs for each SYN: its SYN-ACK is repeated (tcp_synack_retries), and a second SYN answered, too
)
_CHANCE = 4.0  # standard deviations by which a sample may hold more RSTs than SYNs
_FIELDS = {
    "tcp_window": "window",
    "tcp_seq": "sequence number",
    "ip_id": "IP id",
    "sport": "source port",
    "ttl": "TTL",
}


@cut(Proof.HANDSHAKES)
def invalid_flags(context: AnalysisContext) -> Iterator[Group]:
    """TCP packets with flags that no stack sends: Xmas, null, SYN+FIN and the like."""
    features = context.features(context.tcp.odd & context.unclaimed)
    if features.n:
        flags = flag_names(features.top("tcp_flags").value)
        yield Group(context, features, Least("reflection_pps", "tcp.odd", shaped=True), {"flags": flags})


@feature("share")
def same_flags(group: Group) -> float:
    """Part that has the most common TCP flags."""
    return group.packets.top("tcp_flags").share


def match_flags(group: Group) -> Match:
    """Match ports and flags that nearly all have."""
    top = group.packets.top("tcp_flags")
    return of_protocol(group, flags=(63, top.value & 63) if top.share > 0.9 else None)


@cut(Proof.HANDSHAKES)
def unanswered_syns(context: AnalysisContext) -> Iterator[Group]:
    """SYNs that no connection follows; of those among a crowd of visitors, only the ones without options."""
    tcp = context.tcp
    unanswered = tcp.syn & context.unclaimed & ~tcp.completed
    if not unanswered.any():
        return
    unanswered &= ~context.traffic.of_flows(tcp.unseen)  # flows with truncated flags may have continued
    if not context.sparse:
        unanswered &= context.unestablished
    features = context.features(unanswered)
    if features.n < context.config.min_samples:
        return
    completed = float(tcp.completed[tcp.syn & context.unclaimed].mean())
    # If connections can be followed, none of these was completed
    followed = completed if context.sparse else 0.0
    bare = context.features(features.rows[header_words(context.traffic, features.rows) == BARE])
    least = Least(normal="tcp.syn")
    made = bare.share > 0.1 * features.share and context.significant(
        bare, floor_pps=context.config.flood_pps, normal="tcp.syn"
    )
    if made and bare.share < 0.9 * features.share and _crowd(context, features):
        features = bare
    notes = {"completed_syns": completed, "bare": made}
    yield Group(context, features, least, notes, completed=followed)


@feature("yes or no")
def without_options(group: Group) -> float:
    """Whether a flood's worth of the SYNs carry no TCP options, as no operating system sends them."""
    return bool(group.notes["bare"])


@feature("yes or no")
def visitor_crowd(group: Group) -> float:
    """Whether most SYNs at this time become connections; in a thin sample, whether more packets follow."""
    return _crowd(group.context, group.packets)


def _crowd(context: AnalysisContext, features: Features) -> bool:
    tcp, weight = context.tcp, context.traffic.weight
    if context.sparse:
        return float(weight[tcp.ack | tcp.fin].sum()) > 1.5 * features.packets
    # Of a connection that goes on, a sample holds one of the next two packets by this chance
    seen = 1 - (1 - 1 / context.traffic.one_in) ** 2
    return features.packets < (1 - 0.5 * seen) * float(weight[tcp.syn].sum())


@feature("packets a second")
def slow_rate(group: Group) -> float:
    """Rate over the window, of a short one over a second."""
    return group.packets.packets / max(group.context.traffic.seconds, 1.0)


@feature("packets a second")
def rate_per_target(group: Group) -> float:
    """Rate for each address of this host that is tried."""
    return group.packets.pps / max(1, group.packets.destinations.distinct)


@feature("fields")
def constants(group: Group) -> float:
    """TCP and IP header fields that have one value, although those of real hosts differ; 20 sources tell."""
    return len(_constants(group))


def constant_fields(group: Group) -> list[str]:
    """Write which fields are constant."""
    found = _constants(group)
    return [f"{percent(share)} have {_FIELDS[name]} {value}" for name, (share, value) in found.items()]


def _constants(group: Group) -> dict[str, tuple[float, int]]:
    """Find the header fields in which one value dominates.

    Linux sets IP ID 0 only in SYN-ACKs and RSTs, IPv6 has IDs only in fragments; TTL 64 or 128 is common on a
    LAN, too. Established connections keep their source port.
    """
    if "constants" not in group.notes:
        features = group.packets
        names = [name for name in _FIELDS if name != "sport" or group.cut == unanswered_syns.name]
        if features.top("family").value != 4:
            names.remove("ip_id")
        found = features.constants(tuple(names), 0.9) if features.sources >= 20 else {}
        group.notes["constants"] = {name: (top.share, top.value) for name, top in found.items()}
    result: dict[str, tuple[float, int]] = group.notes["constants"]
    return result


def target_port(group: Group) -> list[str]:
    """Write where they go."""
    dport = group.packets.top("dport")
    if dport.share > 0.3:
        return [f"{percent(dport.share)} go to port {dport.value}"]
    return [f"they go to {dport.distinct:,} different ports"]


def carried_data(group: Group) -> list[str]:
    """Write that they carry data."""
    load = group.context.traffic.packets.payload_length[group.packets.rows]
    return [f"they carry data (mean {load.mean():.0f} bytes)"] if (load > 0).mean() > 0.5 else []


def with_resets(group: Group) -> Rows:
    """Claim the SYNs and the RSTs that they cause."""
    return np.sort(np.concatenate([group.packets.rows, _resets(group)]))


def resets_included(group: Group) -> list[str]:
    """Write how many RSTs were claimed."""
    resets = _resets(group)
    if not len(resets):
        return []
    return [f"{count(group.context.traffic.weight[resets].sum())} RSTs of the same sources are included"]


def match_syn(group: Group) -> Match:
    """Match SYNs to the ports that nearly all have."""
    return of_protocol(group, flags=(SYN | ACK, SYN))


def stray(context: AnalysisContext, mask: Mask) -> Mask:
    """Mark unclaimed packets outside connections that nobody asked for.

    If sampling is dense, only those of sources without any connection.
    """
    stray = mask & context.unclaimed & ~context.tcp.real & ~context.solicited
    return stray if context.sparse else np.asarray(stray & context.unestablished)


def _resets(group: Group) -> Rows:
    """Find the RSTs of hosts that got a SYN-ACK for a SYN their kernel never sent (Moore et al. 2001).

    Besides the owners of forged addresses, these are the senders themselves if a tool bypasses their kernel.
    A thin sample hardly holds both packets of a flow, so all RSTs of its sources to the ports it hits count.
    """
    if "resets" not in group.notes:
        group.notes["resets"] = _find_resets(group.context, group.packets)
    result: Rows = group.notes["resets"]
    return result


def _find_resets(context: AnalysisContext, features: Features) -> Rows:
    traffic = context.traffic
    pool: Rows = traffic.rows(context.tcp.rst & context.unclaimed)
    pool = pool[header_words(traffic, pool) == BARE]
    if len(pool) == 0:
        return pool
    aimed = mix(traffic.source_key, traffic.packets.dport.astype(np.uint64))
    mine: Rows = pool[among(aimed[pool], aimed[features.rows])]
    chance = _CHANCE * float(np.sqrt(traffic.weight[mine].sum() * traffic.one_in))
    answered = float(traffic.weight[mine].sum()) <= _ANSWERS * features.packets + chance
    return mine if answered else mine[:0]
