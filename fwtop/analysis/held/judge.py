"""The judgement on held connections: one reading of the sockets to findings."""

from __future__ import annotations

import math
import re
from collections.abc import Collection

import numpy as np
from msgspec import Struct

from fwtop.analysis.context import AnalysisContext, Finding, count
from fwtop.analysis.held.behaviour import WAITING, Group, Said, flow_of, flows_of, groups, measured, source_of
from fwtop.analysis.held.hypotheses import HYPOTHESES, Hypothesis
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.traffic import TCP, Rows, mix, payload
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match
from fwtop.model.traffic.connections import Connections, SocketTable
from fwtop.model.traffic.packets import F64, U64, PacketBatch
from fwtop.render.numbers import percent, plural

_SURE = 0.8  # probability from which an attack is named
_BODIES = (b"POST", b"PUT ", b"PATC")
_METHODS = (*_BODIES, b"GET ", b"HEAD", b"OPTI", b"DELE")
_NAMED = 3  # sources
_PIECE = 64  # bytes of data that tell whose they are: slowhttptest's header names have up to 34
_OF_THE_WEB = re.compile(  # a request, a header line, form data, a TLS record
    rb"[A-Z]{3,7} [/*]|[\w-]+:|[\w.%+*~=&-]{24}|[\w.%+*~=&-]*$|\r?\n|[\x14-\x17]\x03"
)
_FORM = re.compile(rb"[\w.%+*~=&-]+")
_HEADER = re.compile(rb"[\w-]+:|[ -~]*\r?\n|[ :/;,()]$")  # a line, its end, or one of its bytes
_REAL = Spoof(0.0, ("every connection finished its handshake",))


class Held(Struct, frozen=True):
    """The connections of an attack, for proposals: whose they are, and what else the port serves."""

    hypothesis: Hypothesis
    group: Group
    senders: tuple[tuple[Prefix, int], ...]  # most first, as read
    others: Connections  # to the same port, of other sources or doing something else


class Explained(Struct, frozen=True):
    """A group with the probabilities of its explanations, likeliest first."""

    group: Group
    ranked: tuple[tuple[Hypothesis, float], ...]

    @property
    def attack(self) -> float:
        """Probability that any attack explains it."""
        return sum(share for one, share in self.ranked if one.kind)

    @property
    def best(self) -> Hypothesis:
        """The likeliest attack."""
        return next(one for one, _ in self.ranked if one.kind)


def held_connections(context: AnalysisContext) -> list[Finding]:
    """Find attacks that hold the server's connections: each by what its own connections do."""
    table = context.sockets
    if table is None:
        return []
    memory = context.held_memory
    now = context.traffic.started + context.traffic.seconds
    memory.read(now, table)
    found: list[Explained] = []
    numbers: dict[tuple[int, str], int] = {}
    for group in groups(table):
        numbers[group.port, group.behaviour] = group.number
        found.append(explained(measured(group, table, _said(context, group), memory.past(now, group))))
    attacks = sorted((one for one in found if one.attack >= _SURE), key=lambda one: -one.group.number)
    memory.forget_closed(table)
    memory.learn(now, table, numbers, quiet=not attacks)
    kept: list[Explained] = []
    for one in attacks:
        if not any(_same(one.group, other.group) for other in kept):
            kept.append(one)
    return [_finding(context, table, one) for one in kept]


def explained(group: Group) -> Explained:
    """Let the hypotheses about what a group does compete."""
    scores = [(one, one.score(group)) for one in HYPOTHESES if one.behaviour == group.behaviour]
    most = max(score for _, score in scores)
    odds = [(one, math.exp(score - most)) for one, score in scores]
    whole = sum(share for _, share in odds)
    ranked = sorted(((one, share / whole) for one, share in odds), key=lambda item: -item[1])
    return Explained(group, tuple(ranked))


def _same(group: Group, greater: Group) -> bool:
    """Check whether another group of the port is most likely of the same attack: by its sources."""
    return group.port == greater.port and float(np.isin(group.source, greater.source).mean()) > 0.5


def _finding(context: AnalysisContext, table: SocketTable, one: Explained) -> Finding:
    group, best = one.group, one.best
    everyone = table.connections
    theirs = np.isin(source_of(everyone), group.source) & (everyone.segments_out == 0)  # young ones, too
    mine = theirs | np.isin(everyone.cookie, group.connections.cookie)
    others = everyone.select((everyone.port == group.port) & ~mine)
    held = Held(best, group, tuple(group.senders()), others)
    return Finding(
        best.kind,
        best.name,
        _rows(context, group, others),
        round(min(one.attack, 0.99), 3),
        tuple(_evidence(held)),
        _REAL,
        Match(protocol=TCP, dport=group.port),
        state=True,
        held=held,
    )


def _evidence(held: Held) -> list[str]:
    group, features = held.group, held.group.features
    values = {name: f"{value:,.0f}" for name, value in features.items()}
    lines = [held.hypothesis.sentence.format(**values, n=count(group.number), port=group.port)]
    most = ", ".join(f"{prefix} has {number:,}" for prefix, number in held.senders[:_NAMED])
    lines.append(
        f"{plural(len(held.senders), 'source')}, {features['per_source']:.0f} connections each: {most}"
    )
    if features.get("pieces", 0.0) > 0.1:
        lines.append(
            f"{percent(features['pieces'])} send a piece now and then, {values['pace']} bytes/s each, and "
            "keep the server waiting"
        )
    if features.get("alike", 0.0) > 0.8:
        lines.append(f"{percent(features['alike'])} began with the same number of bytes: one tool made them")
    if features.get("posts", 0.0) > 0.5:
        lines.append(f"{percent(features['posts'])} of the sampled requests announce a body")
    if features.get("forms", 0.0) > 0.5:
        lines.append(f"{percent(features['forms'])} of the others that were sampled send form data")
    if group.behaviour == WAITING and "unanswered" not in features:
        lines.append("the port speaks TLS: a slow body looks the same there")
    lines.append(f"they are {percent(features['of_port'])} of the connections to that port")
    if features.get("times_usual", 0.0) > 2:
        lines.append(f"{features['times_usual']:,.0f} times as many as usual")
    if features.get("queue", 0.0) > 0.5:
        lines.append(f"the listen queue is {percent(features['queue'])} full: the server accepts too slowly")
    if features.get("overflows", 0.0) >= 1:
        lines.append(f"{values['overflows']} handshakes/s are lost because the listen queue is full")
    return lines


def _rows(context: AnalysisContext, group: Group, others: Connections) -> Rows:
    """Return the sampled packets of its sources to the port, but those of connections that are answered."""
    rows = _to_port(context, group.port)
    some = context.traffic.packets.select(rows)
    source = mix(some.src_hi, np.where(some.family == 6, np.uint64(0), some.src_lo))
    mine = np.isin(source, group.source) & ~np.isin(_flows(some), flows_of(others))
    return rows[mine & context.unclaimed[rows]]


def _to_port(context: AnalysisContext, port: int) -> Rows:
    packets = context.traffic.packets
    return np.flatnonzero((packets.protocol == TCP) & (packets.dport == port) & ~context.traffic.later)


def _flows(packets: PacketBatch) -> U64:
    ports = packets.sport.astype(np.uint64), packets.dport.astype(np.uint64)
    return flow_of(packets.src_hi, packets.src_lo, *ports)


def _said(context: AnalysisContext, group: Group) -> Said:
    """Return what the sampled data of these connections says; nothing of those without any.

    What comes in the same window as the request may be the rest of its head, and isn't counted.
    """
    none = np.zeros(0)
    if group.behaviour != WAITING:
        return Said(none, none, none, encrypted=False)
    pieces, memory, flows = _pieces(context, group), context.held_memory, flows_of(group.connections)
    if memory.encrypted(group.port, pieces=[piece for _, piece in pieces]):
        return Said(none, none, none, encrypted=True)
    requests = {flow: piece[:4] in _BODIES for flow, piece in pieces if piece[:4] in _METHODS}
    parts: dict[int, bool] = {}
    for flow, piece in pieces:
        form = _FORM.fullmatch(piece) is not None
        if flow not in requests and (form or _HEADER.match(piece)):
            parts[flow] = parts.get(flow, True) and form
    memory.hear(requests, parts)
    foreign = _foreign(pieces, memory.requested)
    return Said(memory.posts(flows), memory.forms(flows), foreign, encrypted=False)


def _foreign(pieces: list[tuple[int, bytes]], known: Collection[int]) -> F64:
    """Tell of each of these connections with sampled data whether it is of neither HTTP nor TLS (1 or 0).

    Parts of a request are header lines or form data; where its beginning was seen, whatever follows is.
    """
    said: dict[int, bool] = {}
    for flow, piece in pieces:
        said[flow] = said.get(flow, True) and flow not in known and not _OF_THE_WEB.match(piece)
    return np.array([*said.values()], np.float64)


def _pieces(context: AnalysisContext, group: Group) -> list[tuple[int, bytes]]:
    """Return the sampled data of these connections: the connection, and the first bytes of the piece."""
    packets, rows = context.traffic.packets, _to_port(context, group.port)
    rows = rows[packets.payload_length[rows] > 0]
    flows = _flows(packets.select(rows))
    inside = np.isin(flows, flows_of(group.connections))
    matrix, held = payload(packets, rows[inside], _PIECE)
    texts = (one[:n].tobytes() for one, n in zip(matrix, held.tolist(), strict=True))
    return [(flow, text) for flow, text in zip(flows[inside].tolist(), texts, strict=True) if text]
