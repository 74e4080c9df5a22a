"""Floods of connections that are opened and hardly used, and slow requests, as packets show them.

Sources: RFC 4987 1; Hansen, "Slowloris" (2009); R.U.D.Y. (2010); Cambiaso et al., "Slow DoS attacks:
definition and categorisation" (2013).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, feature, noted
from fwtop.analysis.measures.general import ENOUGH, FEW, pace, sources, spoofed, to_port
from fwtop.analysis.measures.tcp import BY_FEW, flows_of
from fwtop.analysis.parsers import http
from fwtop.analysis.severity import ACCEPT, TABLE, WORKERS
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, payload
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


silent = noted("silent", "connections",
    "Connections that completed the handshake half a second ago and have sent no data.")  # fmt: skip


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
    # Of sources with few samples little is known; of hardly any others, openings that no data answers tell
    known = (seen >= _TELL) & (syn > 0)
    if known.sum() >= _TELL:
        part = float(syn[known & mute].sum()) / float(syn[known].sum())
    else:
        part = 1 - min(1.0, float(data.sum()) / max(1.0, float(syn.sum())))
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


acknowledged = noted("acknowledged", "times",
    "ACKs without data for each opening: the handshakes are finished.")  # fmt: skip


no_data_share = noted("no_data_share", "share",
    "Part of the openings to the port whose sources never send data.")  # fmt: skip
silent_share = noted("silent_share", "share", "Part of the port's connections that are silent.")


def match_opened(group: Group) -> Match:
    """Match SYNs to the port."""
    return Match(protocol=TCP, dport=int(group.notes["silent_port"]), tcp_flags=(SYN | ACK, SYN))


_SLOW_FLOWS = 50
_SLOW_SECONDS = 1.0  # between two pieces of a request
_CRUMB = 64  # bytes per piece; the next request of a browser is larger
_WATCHED_SECONDS = 8.0


@cut(Proof.REQUESTS)
def slow_requests(context: AnalysisContext) -> Iterator[Group]:
    """HTTP requests in small pieces that never end, and all that belongs to their connections."""
    traffic, tcp = context.traffic, context.tcp
    packets = traffic.packets
    if context.sparse or traffic.seconds < _WATCHED_SECONDS:
        return
    rows = traffic.rows(tcp.ack & context.unclaimed & (packets.payload_length > 0))
    if len(rows) < 3 * _SLOW_FLOWS:
        return
    asks = http.starts_request(traffic.packets, rows)
    asking = traffic.of_flows(rows[asks])[rows]
    rows, asks = rows[asking], asks[asking]
    if asks.sum() < _SLOW_FLOWS:
        return
    first, _ = payload(packets, rows, 1)
    load = packets.payload_length[rows].astype(np.float64)
    flows = flows_of(context, rows)
    crumb = ~asks & (load <= _CRUMB) & (first[:, 0] < 0x80)  # WebSocket frames begin above
    size = len(flows.packets)
    crumbs, requests = np.bincount(flows.place, crumb, size), np.bincount(flows.place, asks, size)
    pace = (flows.last - flows.first) / 1e9 / np.maximum(flows.packets - 1, 1)
    slow = (requests == 1) & (crumbs >= 2) & (crumbs + 1 == flows.packets) & (pace >= _SLOW_SECONDS)
    if not slow.any():
        return
    features = context.features(tcp.tcp & context.unclaimed & traffic.of_flows(rows[slow[flows.place]]))
    notes = {
        "slow": int(slow.sum()),
        "slow_share": float(slow.sum()) / size,
        "piece": float(load[crumb].mean()),
        "every_seconds": float(np.median(pace[slow])),
    }
    yield Group(context, features, Least(), notes, completed=1.0)


slow = noted("slow", "connections",
    "Connections whose request comes in pieces of at most 64 bytes, a second or more apart.")  # fmt: skip
slow_share = noted("slow_share", "share",
    "Part of the connections with requests whose requests come in such small, late pieces.")  # fmt: skip


_OPENED = (
    "{opened:count} connections ({opened_rate:count}/s) to port {silent_port:.0f} of {senders}, "
    "from whom no data comes"
)
_flood = partial(
    Hypothesis,
    kind="syn_flood",
    exhausts=(WORKERS, ACCEPT, TABLE),
    traits=Trait.APART | Trait.OPENINGS,
    match=match_opened,
    stopped_by="a limit of connections for each source",
)
ENTRIES = (
    _flood(
        "TCP connection flood", of=silent_connections, prior=1.8,  # RFC 4987 1
        holds=silent,
        needs=(
            ENOUGH, silent.at_least(100), silent_rate.at_least(20), silent_each.at_least(2),
            silent_share.at_least(0.5),
        ),
        evidence=(silent_each.says(2, -2.0, 3, 0.0), silent_share.says(0.5, -2.5, 0.7, 0.0)),
        lead=(
            "{silent:count} connections of {senders} to port {silent_port:.0f} ({silent_rate:count}/s) "
            "finished the handshake and sent no data",
            "{silent_share:percent} of the connections to that port do so",
        ),
    ),
    _flood(
        "TCP connection flood by sources that send no data", of=sources_without_data,
        title="TCP connection flood",
        holds=opened,
        needs=(
            ENOUGH, opened.at_least(100), opened_rate.at_least(20), opened_each.at_least(2),
            acknowledged.at_least(0.5),
        ),
        lead=_OPENED,
        evidence=(no_data_share.says(0.4, -3.0, 0.9, 2.5), opened_each.says(2, -1.0, 5, 0.5)),
    ),
    *(
        Hypothesis(
            f"one program that looks whether {what}", cut, 1.0,
            needs=(ENOUGH, sources.at_most(FEW)),
            evidence=(*BY_FEW, pace.says(100, 1.5, 500, -2.0)),
        )
        for what, cut in (
            ("ports answer", silent_connections), ("services answer", sources_without_data),
        )
    ),
    _flood(
        "fake TCP sessions of forged sources", of=sources_without_data,
        title="Flood of fake TCP sessions",
        holds=opened,
        needs=(
            ENOUGH, opened.at_least(100), opened_rate.at_least(20), acknowledged.at_least(0.5),
            spoofed.at_least(0.9),
        ),
        lead=(_OPENED, "the sources are forged: their acknowledgements answer nothing that this host said"),
        evidence=(no_data_share.says(0.4, -3.0, 0.9, 2.5),),
        match=to_port,
        stopped_by="a SYN proxy: forged sources never see its cookies",
    ),
    Hypothesis(
        "slow HTTP attack", slow_requests, 2.2,  # Slowloris (2009), R.U.D.Y. (2010)
        kind="http_flood",
        exhausts=(WORKERS, ACCEPT),
        holds=slow,
        traits=Trait.REQUESTS,
        title="Slow HTTP attack",
        needs=(slow.at_least(50), slow_share.at_least(0.2)),
        lead=(
            "{slow:count} connections of {senders} started requests and finished none: they send "
            "{piece:.0f} bytes every {every_seconds:.0f} s",
            "{slow_share:percent} of the connections with requests are held open this way (Slowloris, "
            "R.U.D.Y.): only {amount:packets}, but each connection occupies a worker",
        ),
        match=to_port,
        stopped_by="a limit of connections for each source; time limits of the server",
    ),
)  # fmt: skip
