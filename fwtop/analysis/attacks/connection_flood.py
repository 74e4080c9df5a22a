"""Floods of connections that are opened and hardly used. Source: RFC 4987 1."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, Says, at_least, cut, feature, noted
from fwtop.analysis.measures.general import ENOUGH, spoofed, to_port
from fwtop.analysis.measures.tcp import flows_of
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP
from fwtop.model.rule import Match

_SETTLED_NS = 500_000_000  # a younger connection may still send data
_SILENT_PACKETS = 5.0  # SYN, ACK, and FIN or RST
_MANY = 100  # connections at least
_FEW = 10  # sampled openings
_FORGED = 0.9  # probability
_TELL = 4  # samples of a source, and sources, that tell whether they send data


@cut(Proof.VOLUME)
def silent_connections(context: AnalysisContext) -> Iterator[Group]:
    """Connections to one port that completed the handshake half a second ago and have sent no data."""
    traffic, tcp = context.traffic, context.tcp
    rows = traffic.rows(tcp.tcp & context.unclaimed & ~tcp.syn_ack & ~context.solicited)
    if context.sparse or len(rows) < 2 * _MANY:
        return
    flows = flows_of(context, rows)
    now = int(traffic.packets.time_ns.max())
    settled = flows.opened & flows.completed & (flows.first < now - _SETTLED_NS)
    empty = settled & (flows.data == 0) & (flows.packets <= _SILENT_PACKETS)
    if empty.sum() < max(_MANY, 0.5 * settled.sum()):
        return
    ports = traffic.packets.dport[rows]
    port = int(np.bincount(ports[empty[flows.place]]).argmax())
    mine = np.zeros(len(empty), np.bool_)
    mine[flows.place[ports == port]] = True
    empty &= mine
    features = context.features(rows[empty[flows.place]])
    opened = int(empty.sum())
    notes = {
        "silent_port": port,
        "silent": opened,
        "silent_share": opened / max(1, int((settled & mine).sum())),
    }
    yield Group(context, features, Least("reflection_pps", "tcp.syn"), notes, completed=1.0)


silent = noted(
    "silent", "connections",
    "Connections that completed the handshake half a second ago and have sent no data.",
)  # fmt: skip


@feature("connections a second")
def silent_rate(group: Group) -> float:
    """Silent connections a second; health checks of load balancers are fewer."""
    return float(group.notes["silent"]) / group.context.traffic.seconds


@feature("connections")
def silent_each(group: Group) -> float:
    """Silent connections of each source; a client that gave up has one."""
    return float(group.notes["silent"]) / max(1, group.packets.sources)


@cut(Proof.VOLUME)
def sources_without_data(context: AnalysisContext) -> Iterator[Group]:
    """TCP packets of sources without data to the port that most connections are opened to, however thin."""
    traffic, tcp = context.traffic, context.tcp
    mine = tcp.tcp & ~tcp.syn_ack & ~context.solicited
    openings = mine & tcp.syn & context.unclaimed
    if openings.sum() < _FEW:
        return
    port = int(np.bincount(traffic.packets.dport[openings], traffic.weight[openings]).argmax())
    # Of a flood of requests a thin sample leaves the sources whose data it misses: those that spoke count
    asked = [finding.rows for finding in context.findings if finding.requests]
    spoken = np.isin(np.arange(len(traffic)), np.concatenate(asked)) if asked else False
    rows = traffic.rows(mine & (context.unclaimed | spoken) & (traffic.packets.dport == port))
    source, weight = traffic.source_id[rows], traffic.weight[rows]
    size = int(source.max()) + 1
    seen = np.bincount(source, minlength=size)
    syn = np.bincount(source, weight * tcp.syn[rows], size)
    data = np.bincount(source, weight * (traffic.packets.payload_length[rows] > 0), size)
    bare = np.bincount(source, weight * (tcp.ack[rows] & ~tcp.fin[rows]), size) - data
    mute = data == 0
    known = (seen >= _TELL) & (syn > 0)  # of others, a sample tells little
    told = int(known.sum()) >= _TELL
    part = (
        float(syn[known & mute].sum()) / float(syn[known].sum())
        if told
        else 1 - min(1.0, float(data.sum()) / max(1.0, float(syn.sum())))
    )
    rows = rows[context.unclaimed[rows]]
    mute &= np.bincount(traffic.source_id[rows], minlength=size) > 0
    begun = float(syn[mute].sum())
    notes = {
        "silent_port": port,
        "opened": begun,
        "acknowledged": float(bare[mute].sum()) / max(1.0, begun),
        "no_data_share": part,
    }
    features = context.features(rows[mute[traffic.source_id[rows]]])
    forged = None
    if begun >= _MANY:  # by the SYNs alone: invented sessions use each address several times
        forged = context.spoof(features.rows[tcp.syn[features.rows]])
        forged = forged if forged.probability >= _FORGED else None
    least = Least("reflection_pps", "tcp.syn")
    yield Group(context, features, least, notes, completed=1.0, known_spoof=forged)


opened = noted("opened", "connections", "Connections that sources without data opened to the port.")


@feature("connections a second")
def opened_rate(group: Group) -> float:
    """Connections a second that sources without data opened."""
    return float(group.notes["opened"]) / max(1.0, group.context.traffic.seconds)


@feature("connections")
def opened_each(group: Group) -> float:
    """Connections that each source without data opened, with those that the sample misses."""
    return float(group.notes["opened"]) / max(1.0, group.packets.likely_sources)


acknowledged = noted(
    "acknowledged", "times",
    "ACKs without data for each opening: the handshakes are finished.",
)  # fmt: skip


@feature("share")
def no_data_share(group: Group) -> float:
    """Part of the openings to the port whose sources never send data.

    Of sources with four samples or more; where there are few of these, openings that no data segment answers.
    """
    return float(group.notes["no_data_share"])


silent_share = noted("silent_share", "share", "Part of the port's connections that are silent.")


def match_opened(group: Group) -> Match:
    """Match SYNs to the port."""
    return Match(protocol=TCP, dport=int(group.notes["silent_port"]), tcp_flags=(SYN | ACK, SYN))


ENTRIES = (
    Hypothesis(
        "TCP connection flood", silent_connections, 1.8,  # RFC 4987 1
        kind="syn_flood",
        traits=Trait.APART | Trait.OPENINGS,
        needs=(
            ENOUGH, at_least(silent, 100), at_least(silent_rate, 20), at_least(silent_each, 2),
            at_least(silent_share, 0.5),
        ),
        evidence=(Says(silent_each, 2, -2.0, 3, 0.0), Says(silent_share, 0.5, -2.5, 0.7, 0.0)),
        lead=(
            "{silent:count} connections of {senders} to port {silent_port:.0f} ({silent_rate:count}/s) "
            "finished the handshake and sent no data",
            "{silent_share:percent} of the connections to that port do so",
        ),
        match=match_opened,
        stopped_by="a limit of connections for each source",
    ),
    Hypothesis(
        "TCP connection flood by sources that send no data", sources_without_data, 0.0,
        kind="syn_flood",
        traits=Trait.APART | Trait.OPENINGS,
        title="TCP connection flood",
        needs=(
            ENOUGH, at_least(opened, 100), at_least(opened_rate, 20), at_least(opened_each, 2),
            at_least(acknowledged, 0.5),
        ),
        lead=(
            "{opened:count} connections ({opened_rate:count}/s) to port {silent_port:.0f} of {senders}, from "
            "whom no data comes",
        ),
        evidence=(
            Says(no_data_share, 0.4, -3.0, 0.9, 2.5),
            Says(opened_each, 2, -1.0, 5, 0.5),
        ),
        match=match_opened,
        stopped_by="a limit of connections for each source",
    ),
    Hypothesis(
        "fake TCP sessions of forged sources", sources_without_data, 0.0,
        kind="syn_flood",
        traits=Trait.APART | Trait.OPENINGS,
        title="Flood of fake TCP sessions",
        needs=(
            ENOUGH, at_least(opened, 100), at_least(opened_rate, 20), at_least(acknowledged, 0.5),
            at_least(spoofed, 0.9),
        ),
        lead=(
            "{opened:count} connections ({opened_rate:count}/s) to port {silent_port:.0f} of {senders}, from "
            "whom no data comes",
            "the sources are forged: their acknowledgements answer nothing that this host said",
        ),
        evidence=(Says(no_data_share, 0.4, -3.0, 0.9, 2.5),),
        match=to_port,
        stopped_by="a SYN proxy: forged sources never see its cookies",
    ),
)  # fmt: skip
