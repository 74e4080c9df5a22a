"""Floods of TLS handshakes, cheap for the client, expensive for the server (RFC 8446, THC-SSL-DOS)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, feature, noted
from fwtop.analysis.measures.general import ENOUGH, FEW, rate, sources, threshold_ratio, to_port
from fwtop.analysis.measures.tcp import (
    BY_FEW,
    LIMIT,
    even_sources,
    fast_rows,
    outside_connections,
    usual_payloads,
    with_connections,
    with_their_connections,
)
from fwtop.analysis.parsers import tls
from fwtop.analysis.severity import ACCEPT, service
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, payload
from fwtop.model.text import payload_text
from fwtop.model.traffic.packets import Mask
from fwtop.render.numbers import percent

_PATIENCE_NS = 500_000_000  # after which a client has its answer and continues
_ENOUGH = 100
_TOLD = 40  # hellos of a thin sample, from which their part of the data is known to a tenth
_PROBERS = 10  # monitoring hosts that check a server about once a second
_SEVERAL = 3  # hellos of one source
_WHOLE = 1.5  # packets per sample, up to which connections are mostly complete
_HANDSHAKE = 22
_BARE = 5  # SYN, ACK, hello, ACK of the server's answer, FIN or RST
_HANDSHAKES = 10  # handshake records on one connection: a client needs 3
_FAST = 0.3  # of the hellos
_DEAR = 4.0  # times what a request costs the server
_BUSY_PPS = 6.0  # sessions of a source: as many connections as a browser opens, anew every second
_ALL = 0.95  # of the hellos have one fingerprint


@cut(Proof.REQUESTS)
def client_hellos(context: AnalysisContext) -> Iterator[Group]:
    """TLS client hellos: all, those of fast sources or of busy ones, and those after which nothing comes."""
    packets = context.traffic.packets
    data = context.data_rows
    every = _group(context, data[tls.starts_hello(packets, data)], "all")
    if every.packets.n == 0 or every[threshold_ratio] < 1:
        return
    features, limit = every.packets, context.config.request_rate_per_source
    yield every
    fast = fast_rows(features, limit)
    if fast.mean() > _FAST:
        yield _group(context, features.rows[fast], "fast", fast_hellos=float(fast.mean()), limit=limit)
    else:
        each = features.pps / features.likely_sources
        busy = fast_rows(features, _BUSY_PPS) | (each > _BUSY_PPS)
        if busy.mean() > _FAST:
            yield _group(context, features.rows[busy], "busy", busy_hellos=float(busy.mean()))
    parsed = _parsed(every)
    if _several_each(features) or _same_print(parsed) > _ALL:
        stalled = _stalled(context, features)
        probes = features.sources < _PROBERS and float(stalled.sum()) / context.traffic.seconds < limit
        if stalled.sum() >= _ENOUGH and not probes:
            yield _group(context, features.rows[stalled], "stalled", stalled_hellos=float(stalled.mean()))


def _group(context: AnalysisContext, rows: Rows, part: str, **notes: float) -> Group:
    features = context.features(rows)
    stray = features.n > 0 and outside_connections(context, features)
    least = Least("reflection_pps", tls.starts_hello, shaped=True)
    return Group(
        context, features, least, {"part": part, "stray": stray, **notes}, spoof_prior=0.0 if stray else -4.0
    )


no_handshake = noted("no_handshake", "yes or no", "Whether they belong to no connection.", note="stray")
busy_hellos = noted("busy_hellos", "share",
    "Part of the hellos whose sources open six sessions a second or more; 0 for other groups.")  # fmt: skip


@feature("share")
def same_ja4(group: Group) -> float:
    """Part of the hellos that has the most common JA4 fingerprint; 0 below 100."""
    return _same_print(_parsed(group))


@feature("times the normal rate")
def hellos_above_normal(group: Group) -> float:
    """Rate of sessions against the baseline's, or a quarter of the least flood's; 0 where none is known."""
    if not (group.context.baseline.ready and group.context.traffic.live):
        return 0.0
    group.notes["usual"] = usual = usual_payloads(group.context, tls.starts_hello) or 0.0
    return group.packets.peak_pps / max(usual, group.context.config.reflection_pps / _DEAR)


fast_hellos = noted(
    "fast_hellos", "share",
    "Part of the hellos whose sources open more sessions a second than browsers do; 0 for other groups.",
)  # fmt: skip


stalled_hellos = noted("stalled_hellos", "share",
    "Part of the hellos after which the connection sends nothing; 0 for other groups.")  # fmt: skip


@feature("share")
def only_hellos(group: Group) -> float:
    """Part of their senders' data segments that are hellos, in a thin sample, if they close about as often.

    In real sessions the hello is at most one of three data segments. Clients of a slow server retry, but
    don't close. 0 where sources are few and their hellos differ.
    """
    features = group.packets
    if group.notes["part"] != "all" or features.n < _TOLD or features.sources < _PROBERS:
        return 0.0
    if not (_several_each(features) or _same_print(_parsed(group)) > _ALL):
        return 0.0
    return _nothing_else(group.context, features)


def hellos_described(group: Group) -> list[str]:
    """Write the server name and the JA4 fingerprint that most have."""
    sentences, parsed = [], _parsed(group)
    names = Counter(hello.server_name for hello in parsed if hello.server_name)
    prints = Counter(hello.ja4 for hello in parsed if hello.ja4)
    for name, n in names.most_common(1):
        sentences.append(f"{percent(n / len(parsed))} request server name {payload_text(name, limit=60)!r}")
    return [*sentences, *(f"{percent(n / len(parsed))} have JA4 {ja4}" for ja4, n in prints.most_common(1))]


def with_their_sessions(group: Group) -> Rows:
    """Claim all TCP packets of the same clients to the same ports, if they have connections."""
    context, features = group.context, group.packets
    if group.notes["stray"]:
        return features.rows[~context.tcp.real[features.rows]]
    return group.once("sessions", lambda: with_connections(context, features))


def _parsed(group: Group) -> list[tls.Hello]:
    return group.once("parsed", lambda: tls.hellos(group.context.traffic, group.packets.spread(384)))


@cut(Proof.REQUESTS)
def repeated_handshakes(context: AnalysisContext) -> Iterator[Group]:
    """TLS handshake records of connections that hold more of them than a client needs."""
    traffic = context.traffic
    data = context.data_rows
    if context.sparse or not len(data):
        return
    head, length = payload(traffic.packets, data, 3)
    data = data[(head[:, 0] == _HANDSHAKE) & (head[:, 1] == 3) & (length == 3)]
    counts = np.bincount(traffic.flow_id[data], minlength=1)
    features = context.features(data[counts[traffic.flow_id[data]] >= _HANDSHAKES])
    flows = int((counts >= _HANDSHAKES).sum())
    if flows:
        notes = {"renegotiating": flows, "each": features.n / flows}
        yield Group(context, features, Least("reflection_pps", "", shaped=True), notes, spoof_prior=-4.0)


renegotiating = noted("renegotiating", "connections",
    "Connections with ten or more handshake records: a client needs 3.")  # fmt: skip


def _stalled(context: AnalysisContext, features: Features) -> Mask:
    """Mark the hellos after which a connection sends nothing, of those old enough or closed.

    Browsers finish the handshake, send requests and acknowledge; they retry if the server is slow. A source
    that opens several connections and closes each during the handshake is no browser.
    Empty if sampling or a short capture hides that.
    """
    traffic = context.traffic
    time = traffic.packets.time_ns
    rows = traffic.rows(context.tcp.tcp)
    flow = traffic.flow_id
    closed = traffic.of_flows(context.tcp.fin | context.tcp.rst)
    old = (time[features.rows] < time.max() - _PATIENCE_NS) | closed[features.rows]
    if context.sparse or traffic.one_in > _WHOLE or old.sum() < _ENOUGH:
        return np.zeros(features.n, np.bool_)
    packets = np.bincount(flow[rows], minlength=int(flow.max()) + 1)
    data = np.bincount(flow[rows], traffic.packets.payload_length[rows] > 0, len(packets))
    short = packets <= _BARE
    if _several_each(features):
        short |= np.bincount(flow[rows], context.tcp.fin[rows], len(packets)) > 0
    return np.asarray(((data == 1) & short)[flow[features.rows]] & old)


def _nothing_else(context: AnalysisContext, features: Features) -> float:
    """Return the share of hellos among their senders' data; 0 if these don't close about as often."""
    traffic = context.traffic
    if traffic.one_in <= _WHOLE:
        return 0.0
    said = np.zeros(len(traffic), np.bool_)
    said[features.rows] = True
    mine = traffic.of_sources(said) & (traffic.packets.dport == features.top("dport").value) & context.tcp.tcp
    data = mine & (traffic.packets.payload_length > 0)
    part = features.packets / max(1.0, float(traffic.weight[data].sum()))
    closed = float(traffic.weight[mine & (context.tcp.fin | context.tcp.rst)].sum())
    return part if closed >= 0.5 * features.packets else 0.0


def _several_each(features: Features) -> bool:
    """Check whether a source sends several hellos, with those that the sample misses."""
    return features.packets >= _SEVERAL * features.likely_sources


def _same_print(parsed: list[tls.Hello]) -> float:
    """Return the share of the most common JA4; 0 if too few tell."""
    prints = Counter(hello.ja4 for hello in parsed if hello.ja4)
    return max(prints.values(), default=0) / len(parsed) if len(parsed) >= _ENOUGH else 0.0


_HELLOS = "{amount:TLS client hellos} ({rate:count}/s) from {senders}"

_flood = partial(
    Hypothesis,
    of=client_hellos,
    kind="tls_flood",
    exhausts=(service(1_000), ACCEPT),  # RSA signatures/s of one core
    traits=Trait.REQUESTS,
    title="TLS handshake flood",
    details=(hellos_described,),
    match=to_port,
    rows=with_their_sessions,
    stopped_by=LIMIT,
)
ENTRIES = (
    _flood(
        "TLS handshakes outside of connections", prior=2.6,
        needs=(ENOUGH, no_handshake.yes),
        lead=(_HELLOS, "they belong to no connection: there was no TCP handshake"),
        stopped_by="dropping TCP packets outside of connections",
    ),
    _flood(
        "TLS handshakes faster than browsers begin them", prior=2.4,
        needs=(fast_hellos.at_least(0.3),),
        lead=(_HELLOS, "their sources open more than {limit:.0f} sessions/s each"),
    ),
    _flood(
        "TLS handshakes that are not finished", prior=2.2,
        needs=(stalled_hellos.at_least(0.5),),
        lead=(_HELLOS, "{stalled_hellos:percent} of their connections send nothing after the hello"),
    ),
    _flood(
        "TLS handshakes and nothing else", prior=2.0,
        needs=(ENOUGH, only_hellos.at_least(0.55)),
        lead=(_HELLOS, "{only_hellos:percent} of the data segments of their senders are hellos, "
                       "and they close as often"),
        evidence=(only_hellos.says(0.55, -3.0, 0.8, 0.0),),
    ),
    _flood(
        "repeated TLS sessions", prior=-1.2,
        needs=(ENOUGH, busy_hellos.at_least(0.3)),
        lead=(_HELLOS, "each source begins {per_source:.1f} sessions/s; a browser keeps the few that it "
                       "opens"),
        evidence=(
            even_sources.if_so(1.5, "all sources begin about as many"),
            same_ja4.above(0.95, 1.0),
            hellos_above_normal.says(1, 0.0, 5, 2.5, "{rate:count} sessions/s, normally up to "
                                                       "{usual:count}"),
        ),
    ),
    Hypothesis(
        "one program that opens sessions", client_hellos, 1.0,
        needs=(fast_hellos.at_least(0.3), sources.at_most(FEW)),
        evidence=(*BY_FEW, rate.says(50, 1.0, 1_000, -1.0), hellos_above_normal.says(5, 0.0, 50, -3.0)),
    ),
    Hypothesis(
        "TLS renegotiation flood", repeated_handshakes, 2.2,  # CVE-2011-1473, THC-SSL-DOS
        kind="tls_flood",
        exhausts=(service(1_000), ACCEPT),  # RSA signatures/s of one core
    traits=Trait.REQUESTS,
        needs=(renegotiating.at_least(3), ENOUGH),
        lead="{amount:handshake records} ({rate:count}/s) from {senders} on {renegotiating:count} "
        "connections, {each:.0f} each: a client needs 3",
        match=to_port,
        rows=with_their_connections,
        stopped_by="turning renegotiation off in the server",
    ),
)  # fmt: skip
