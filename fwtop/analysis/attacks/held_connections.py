"""Attacks that hold a server's connections, and clients that hold them for a reason (docs/HELD.md).

The sockets of this host show them, not packets. Everything follows from one reading of struct tcp_info: on a
connection without an answer `since_sent` is its age (net/ipv4/tcp_minisocks.c sets lsndtime), and `held` is
the time that the peer's window kept data back. Thresholds come from the tools and programs named beside them,
run in the lab against nginx and Apache (tests/kernel/test_slow_attacks.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from fwtop.analysis.connections import HANDSHAKE, SILENT_SECONDS, Held, flows_of, flows_of_packets, source_of
from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.entries import Feature, Group, Hypothesis, Least, Proof, Says, cut, noted
from fwtop.analysis.severity import ACCEPT, WORKERS
from fwtop.analysis.spoofing import Spoof
from fwtop.analysis.window.traffic import TCP, Rows, host_key, payload
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import F64, Connections, Mask, SocketTable
from fwtop.render.numbers import percent, plural

_SURE = 0.8  # probability from which an attack is named
_FEWEST = 20  # connections in a group worth looking at
_WAITING_SECONDS = 2.0  # for the rest of a request; a page takes less to answer
_SAID_SECONDS = 20.0  # without another piece: a whole request (slowhttptest goes on after 10 s)
_STALLED_SECONDS = 1.0
_AFTER = 0.05  # seconds by which data came after the last answer
_SMALL_WINDOW = 2_920  # bytes: two segments on Ethernet
_CRUMB = 128.0  # mean bytes of a piece of a request; a browser sends it as one segment
_SAME = 8  # bytes by which requests of one tool differ
_FRESH_SECONDS = 60.0
_LEAST_KNOWN = 5  # samples of requests from which their method is known
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


@cut(Proof.SOCKETS, complete=True)
def held_connections(context: AnalysisContext) -> Iterator[Group]:
    """Connections to one port that keep something waiting, in numbers: unused, waiting or stalled ones."""
    table, memory = context.sockets, context.memory.connections
    if table is None:
        return
    memory.read(context.traffic.started + context.traffic.seconds, table)
    none = context.features(np.zeros(0, np.intp))
    for place, (behaviour, held) in enumerate(groups(table)):
        yield Group(
            context,
            none,
            Least(),
            {"port": held.port, **_measured(context, held, behaviour)},
            known_spoof=_REAL,
            held=held,
            order=(held.number, -place),
            sure=_SURE,
        )


_told = partial(noted, unknown=math.nan)  # what a reading doesn't tell
unused = _told("unused", "yes or no",
    "Whether they have sent nothing for 2 s since the handshake, and got nothing.")  # fmt: skip
waiting = _told("waiting", "yes or no",
    "Whether they have sent something, and the server has not answered for 2 s.")  # fmt: skip
stalled = _told(
    "stalled", "yes or no",
    "Whether they take less than two segments, while more waits, and have kept data back for 1 s in all.",
)  # fmt: skip
held_number = _told("held_number", "connections", "Connections to the port that do the same.")
held_each = _told("held_each", "connections",
    "Connections of the source of a connection (of IPv6 its /64), in the median.")  # fmt: skip
of_port = _told("of_port", "share", "Part of the port's connections.")
times_usual = _told("times_usual", "times", "Times as many as there were before, at least 10.")
served_before = _told("served_before", "share", "Part from sources that the port has answered before.")
answered_lately = _told("answered_lately", "share",
    "Part from sources that were answered in the last two to four minutes, on any port.")  # fmt: skip
never_answered = _told("never_answered", "share",
    "Part that never got an answer: of a pool's connections earlier requests were answered.")  # fmt: skip
in_pieces = _told(
    "in_pieces", "share",
    "Part that sent two or more pieces of at most 128 bytes on average, and got no answer but of TLS.",
)  # fmt: skip
all_said = _told(
    "all_said", "share",
    "Part that sent one piece and nothing for 20 s or more: slow tools go on every 10 to 15 s.",
)  # fmt: skip
begun_alike = _told("begun_alike", "share",
    "Part of the first pieces with the same length within 8 bytes: one tool made them.")  # fmt: skip
announced_bodies = _told(
    "announced_bodies", "share",
    "Part of the sampled requests that announce a body (POST, PUT, PATCH), no header lines later.",
)  # fmt: skip
form_data = _told("form_data", "share",
    "Part that sends form data, not header lines: of those whose request wasn't seen.")  # fmt: skip
foreign = _told("foreign", "share",
    "Part whose sampled pieces are of neither HTTP nor TLS: logs, measurements, messages.")  # fmt: skip
sending_pace = _told("sending_pace", "bytes a second",
    "Bytes a second that a connection sends, in the median.")  # fmt: skip
fresh = _told("fresh", "share", "Part that is younger than a minute.")
peers_window = _told("peers_window", "bytes", "Bytes that the peers accept, in the median.")
taken = _told("taken", "segments",
    "Segments of answers that were sent, in the median: an ordinary window takes ten at once.")  # fmt: skip
held_seconds = _told("held_seconds", "seconds",
    "Seconds without a request, an answer, or room in the peer's window, in the median.")  # fmt: skip
listen_queue = _told("listen_queue", "share",
    "Part of the port's listen queue in use: the server accepts too slowly.")  # fmt: skip
lost_handshakes = _told("lost_handshakes", "handshakes a second",
    "Handshakes that were lost to a full listen queue.")  # fmt: skip


def groups(table: SocketTable) -> Iterator[tuple[Feature, Held]]:
    """Yield what is worth judging: connections to a port that keep something waiting, in numbers."""
    every = table.connections
    done = _behaviours(every)
    for port in np.flatnonzero(np.bincount(every.port)).tolist():
        doing = {behaviour: (every.port == port) & mask for behaviour, mask in done.items()}
        # Requests that the server has not read count to the slow readers of the same sources who occupy it
        unread = doing[waiting] & (every.unread > 0)
        if doing[stalled].sum() > (doing[waiting] & ~unread).sum():
            source = source_of(every)
            unread &= np.isin(source, source[doing[stalled]])
            doing[waiting], doing[stalled] = doing[waiting] & ~unread, doing[stalled] | unread
        for behaviour, mine in doing.items():
            if mine.sum() >= _FEWEST:
                yield behaviour, Held(port, every.select(mine), table)


def _behaviours(held: Connections) -> dict[Feature, Mask]:
    """Mark the connections that do the same; none does two things."""
    asked, answered = held.segments_in > 0, held.segments_out > 0
    quiet = held.unsent == 0
    pending = ~answered | (held.since_sent > held.since_received + _AFTER)
    small = held.window < np.maximum(2 * held.mss, _SMALL_WINDOW)
    return {
        unused: ~asked & ~answered & (held.since_received >= SILENT_SECONDS),
        waiting: asked & quiet & pending & (held.since_sent >= _WAITING_SECONDS),
        stalled: asked & small & (held.unsent > held.window) & (held.held >= _STALLED_SECONDS),
    }


def _measured(context: AnalysisContext, group: Held, behaviour: Feature) -> dict[str, Any]:
    """Return the features of a group by name; one that isn't known is left out."""
    held, table, memory = group.connections, group.table, context.memory.connections
    found: dict[str, Any] = {
        **{one.name: one is behaviour for one in (unused, waiting, stalled)},
        "held_number": group.number,
        "held_each": _per_source(group),
        "of_port": len(held) / max(int((table.connections.port == group.port).sum()), 1),
        "lost_handshakes": table.overflows_per_s,
    }
    queue, usual = table.queue(group.port), memory.usual(group, behaviour.name)
    if queue is not None and queue.limit:
        found["listen_queue"] = queue.waiting / queue.limit
    if usual is not None:
        found["times_usual"] = group.number / max(usual, 10.0)
        found["served_before"] = float(np.isin(group.source, memory.known).mean())
    if behaviour is unused:
        found["fresh"] = float((held.since_received < _FRESH_SECONDS).mean())
        found["held_seconds"] = float(np.median(held.since_received))
        if (lately := memory.answered) is not None:  # a sample misses their other connections
            found["answered_lately"] = min(float(np.isin(group.source, lately).mean()) / table.share, 1.0)
    elif behaviour is waiting:
        found |= _of_requests(context, group)
    else:
        keeps = held.unsent > held.window
        found["peers_window"] = float(np.median(held.window[keeps]))
        found["held_seconds"] = float(np.median(held.held[keeps]))
        found["taken"] = float(np.median(held.segments_out[keeps]))
    return found


def _per_source(group: Held) -> float:
    """Return how many connections the source of a connection has, in the median: one proxy is no crowd.

    Of a sample the mean is estimated: each connection of the same source is there with the sample's share.
    """
    _, place, counts = np.unique(group.source, return_inverse=True, return_counts=True)
    of_each, share = counts[place], group.table.share
    return float(np.median(of_each)) if share >= 1 else 1 + float((of_each - 1).mean()) / share


def _of_requests(context: AnalysisContext, group: Held) -> dict[str, float]:
    """Return the features of connections that wait for an answer.

    Behind TLS a first answer is the handshake, and requests have no lengths that tell.
    """
    held, memory = group.connections, context.memory.connections
    pieces, flows = _pieces(context, group), flows_of(held)
    encrypted = memory.encrypted(group.port, pieces=[piece for _, piece in pieces])
    received, segments = memory.answers.since(held)
    size = held.received.astype(np.float64)
    never = held.segments_out <= (HANDSHAKE if encrypted else 0)
    crumbs = received.astype(np.float64) / np.maximum(segments, 1) <= _CRUMB
    found = {
        "in_pieces": float(((segments >= 2) & never & crumbs).mean()),
        "all_said": float(((segments == 1) & (held.since_received >= _SAID_SECONDS)).mean()),
        "held_seconds": float(np.median(held.since_sent)),
        "sending_pace": float(np.median(size / np.maximum(held.since_sent, 1.0))),
    }
    if encrypted:
        return found
    found["never_answered"] = float(never.mean())
    first = size[held.segments_in == 1]
    if len(first) >= _LEAST_KNOWN:
        found["begun_alike"] = float((np.abs(first - np.median(first)) <= _SAME).mean())
    _hear(context, pieces)
    for name, known in (
        ("announced_bodies", memory.posts(flows)),
        ("form_data", memory.forms(flows)),
        ("foreign", _foreign(context, pieces)),
    ):
        if len(known) >= _LEAST_KNOWN:
            found[name] = float(known.mean())
    return found


def _hear(context: AnalysisContext, pieces: list[tuple[int, bytes]]) -> None:
    """Remember what requests announce.

    What comes in the same window as the request may be the rest of its head, and isn't counted.
    """
    requests = {flow: piece[:4] in _BODIES for flow, piece in pieces if piece[:4] in _METHODS}
    parts: dict[int, bool] = {}
    for flow, piece in pieces:
        form = _FORM.fullmatch(piece) is not None
        if flow not in requests and (form or _HEADER.match(piece)):
            parts[flow] = parts.get(flow, True) and form
    context.memory.connections.hear(requests, parts)


def _foreign(context: AnalysisContext, pieces: list[tuple[int, bytes]]) -> F64:
    """Tell of each of these connections with sampled data whether it is of neither HTTP nor TLS (1 or 0).

    Parts of a request are header lines or form data; where its beginning was seen, whatever follows is.
    """
    said: dict[int, bool] = {}
    known = context.memory.connections.posts_of
    for flow, piece in pieces:
        said[flow] = said.get(flow, True) and flow not in known and not _OF_THE_WEB.match(piece)
    return np.array([*said.values()], np.float64)


def _pieces(context: AnalysisContext, group: Held) -> list[tuple[int, bytes]]:
    """Return the sampled data of these connections: the connection, and the first bytes of the piece."""
    packets, rows = context.traffic.packets, _to_port(context, group.port)
    rows = rows[packets.payload_length[rows] > 0]
    flows = flows_of_packets(packets.select(rows))
    inside = np.isin(flows, flows_of(group.connections))
    matrix, held = payload(packets, rows[inside], _PIECE)
    texts = (one[:n].tobytes() for one, n in zip(matrix, held.tolist(), strict=True))
    return [(flow, text) for flow, text in zip(flows[inside].tolist(), texts, strict=True) if text]


def _to_port(context: AnalysisContext, port: int) -> Rows:
    packets = context.traffic.packets
    return np.flatnonzero((packets.protocol == TCP) & (packets.dport == port) & ~context.traffic.later)


def packets_of_sources(group: Group) -> Rows:
    """Claim the sampled packets of the sources to the port, but those of connections that are answered."""
    context, held = group.context, group.held
    if held is None:
        return group.packets.rows
    rows = _to_port(context, held.port)
    some = context.traffic.packets.select(rows)
    source = host_key(some.family, some.src_hi, some.src_lo)
    mine = np.isin(source, held.source) & ~np.isin(flows_of_packets(some), flows_of(held.others))
    return rows[mine & context.unclaimed[rows]]


def match_server(group: Group) -> Match:
    """Match TCP to the server's port."""
    return Match(protocol=TCP, dport=int(group.notes["port"]))


def described(group: Group) -> list[str]:
    """Write whose connections they are, what they do, and how the server fares."""
    senders = group.held.senders if group.held is not None else ()
    most = ", ".join(f"{prefix} has {number:,}" for prefix, number in senders[:_NAMED])
    each = plural(round(group[held_each]), "connection")
    lines = [f"{plural(len(senders), 'source')}, {each} each: {most}"]
    if group[in_pieces] > 0.1:
        pace = f"{group[sending_pace]:,.0f} bytes/s each"
        lines.append(
            f"{percent(group[in_pieces])} send a piece now and then, {pace}, and keep the server waiting"
        )
    if group[begun_alike] > 0.8:
        lines.append(f"{percent(group[begun_alike])} began with the same number of bytes: one tool made them")
    if group[announced_bodies] > 0.5:
        lines.append(f"{percent(group[announced_bodies])} of the sampled requests announce a body")
    if group[form_data] > 0.5:
        lines.append(f"{percent(group[form_data])} of the others that were sampled send form data")
    if group[waiting] and math.isnan(group[never_answered]):
        lines.append("the port speaks TLS: a slow body looks the same there")
    lines.append(f"they are {percent(group[of_port])} of the connections to that port")
    if group[times_usual] > 2:
        lines.append(f"{group[times_usual]:,.0f} times as many as usual")
    if group[listen_queue] > 0.5:
        lines.append(
            f"the listen queue is {percent(group[listen_queue])} full: the server accepts too slowly"
        )
    if group[lost_handshakes] >= 1:
        lines.append(f"{group[lost_handshakes]:,.0f} handshakes/s are lost because the listen queue is full")
    return lines


# A server that suffers: what holds its connections does harm, whatever it is.
_SUFFERS = (listen_queue.says(0.2, 0.0, 0.9, 1.5), lost_handshakes.says(0.0, 0.0, 20.0, 1.5))
# Browsers open six connections to a host, most wait for nothing; tools need their 200 from few addresses.
_BY_FEW = held_each.says(1.5, -3.0, 3.5, 3.0)
_NEW = (times_usual.says(1.5, -4.0, 3.0, 1.0), served_before.says(0.3, 0.5, 0.9, -2.5))
_REQUESTS = (
    _BY_FEW,
    held_number.says(30.0, -4.0, 120.0, 2.0),  # servers have 150 (Apache) to 768 (nginx) places
    in_pieces.says(0.0, -0.5, 0.2, 3.5),
    never_answered.says(0.3, -3.0, 0.9, 1.0),
    all_said.says(0.5, 0.0, 0.9, -6.0),
    begun_alike.says(0.3, -1.5, 0.9, 1.0),
    sending_pace.says(500.0, 0.0, 4_000.0, -12.0),  # who sends so much is not slow
    foreign.says(0.1, 0.0, 0.6, -8.0),
    *_NEW,
    *_SUFFERS,
)
_STOPPED_BY = "blocking the sources, or a limit of connections for each; time limits of the server"


def _attack(
    name: str, prior: float, behaviour: Feature, evidence: tuple[Says, ...], *,
    kind: str, does: str, nginx: str, apache: str,
) -> Hypothesis:  # fmt: skip
    return Hypothesis(
        name, held_connections, prior,
        kind=kind,
        exhausts=(WORKERS, ACCEPT),
        holds=held_number,
        needs=(behaviour.yes,),
        lead="{held_number:count} connections to port {port:.0f} " + does,
        evidence=evidence,
        details=(described,),
        match=match_server,
        rows=packets_of_sources,
        stopped_by=_STOPPED_BY,
        settings=(f"# nginx: {nginx}", f"# Apache: {apache}"),
    )  # fmt: skip


def _clients(name: str, prior: float, behaviour: Feature, *evidence: Says) -> Hypothesis:
    return Hypothesis(name, held_connections, prior, needs=(behaviour.yes,), evidence=evidence)


ENTRIES = (
    _attack(
        "Slow headers (Slowloris)", -1.0, waiting,
        (*_REQUESTS, announced_bodies.says(0.1, 1.0, 0.6, -4.0), form_data.says(0.1, 0.0, 0.6, -4.0)),
        kind="slow_headers",
        does="began a request and have not finished it for {held_seconds:count} s",
        nginx="client_header_timeout 10s; reset_timedout_connection on;",
        apache="RequestReadTimeout header=10-20,MinRate=500 (mod_reqtimeout); MPM event",
    ),
    _attack(
        "Slow body (R-U-Dead-Yet)", -2.0, waiting,
        (*_REQUESTS, announced_bodies.says(0.1, -4.0, 0.6, 4.0), form_data.says(0.1, -4.0, 0.6, 1.3)),
        kind="slow_body",
        does="announced a body and have not sent it for {held_seconds:count} s",
        nginx="client_body_timeout 10s; reset_timedout_connection on;",
        apache="RequestReadTimeout body=10-20,MinRate=500 (mod_reqtimeout); MPM event",
    ),
    _clients(
        "long polling", 1.0, waiting,  # one waiting request a page, often known before
        held_each.says(1.5, 2.5, 3.5, -2.0),
        in_pieces.says(0.0, 0.5, 0.2, -3.0),
    ),
    _clients(
        "requests of a proxy to a slow service", 0.0, waiting,  # keep-alive connections of few addresses
        held_each.says(3.0, -2.0, 10.0, 1.0),
        never_answered.says(0.3, 3.0, 0.9, -2.0),
        begun_alike.says(0.3, 2.0, 0.9, -1.0),
        served_before.says(0.3, -1.0, 0.9, 3.0),
        in_pieces.says(0.0, 0.5, 0.2, -3.0),
    ),
    _clients(
        "visitors of an overloaded server", 0.0, waiting,  # whole requests, of all lengths, six a browser
        begun_alike.says(0.3, 3.0, 0.9, -2.0),
        held_each.says(6.0, 1.0, 12.0, -3.0),
        listen_queue.says(0.2, -1.0, 0.9, 1.5),
        in_pieces.says(0.0, 0.5, 0.2, -4.0),
    ),
    _clients(
        "one-way streams of clients", 0.0, waiting,  # WebSocket, MQTT: no answer to each message
        held_each.says(1.5, 2.0, 3.5, -2.0),
        never_answered.says(0.3, 2.5, 0.9, -4.0),
        held_seconds.says(60.0, -1.0, 600.0, 9.0),  # servers end an unfinished request sooner
        foreign.says(0.1, 0.0, 0.6, 6.0),  # logs, measurements: nobody ever answers them
    ),
    _attack(
        "Idle connection flood", -1.0, unused,
        (
            held_each.says(2.0, -3.0, 4.0, 2.5),  # a browser keeps one or two in reserve
            held_number.says(40.0, -4.0, 120.0, 2.0),
            fresh.says(0.2, -3.0, 0.8, 1.0),
            answered_lately.says(0.1, 3.5, 0.6, -1.0),  # who keeps one in reserve uses another
            *_NEW,
            *_SUFFERS,
        ),
        kind="idle_connections",
        does="have sent nothing for {held_seconds:count} s since the handshake",
        nginx="client_header_timeout 10s; listen … deferred;",
        apache="RequestReadTimeout header=10 (mod_reqtimeout); AcceptFilter http httpready",
    ),
    _clients(
        "connections in reserve", 1.0, unused,  # browsers open them before they need them
        held_each.says(2.0, 2.0, 4.0, -2.0),
        answered_lately.says(0.1, -2.5, 0.6, 1.0),
    ),
    _clients(
        "pool of a proxy or an application", 0.0, unused,
        held_each.says(3.0, -2.0, 10.0, 1.0),
        fresh.says(0.2, 3.0, 0.8, -2.0),
        served_before.says(0.3, -1.0, 0.9, 3.0),
        listen_queue.says(0.2, 0.5, 0.9, -2.0),
    ),
    _attack(
        "Slow read", -1.0, stalled,
        (
            _BY_FEW,
            held_number.says(20.0, -4.0, 80.0, 2.0),
            peers_window.says(700.0, 1.0, 2_900.0, -0.5),
            held_seconds.says(1.0, -0.5, 5.0, 1.0),
            taken.says(12.0, 1.5, 40.0, -1.0),
            of_port.says(0.1, -0.5, 0.6, 1.0),
            *_NEW,
            *_SUFFERS,
        ),
        kind="slow_read",
        does="leave their answer waiting: their windows take {peers_window:count} bytes, and have kept data "
        "back for {held_seconds:count} s",
        nginx="send_timeout 10s; reset_timedout_connection on;",
        apache="Timeout 10; MPM event; mod_qos QS_SrvMinDataRate",
    ),
    _clients(
        "players that pause and slow downloads", 1.0, stalled,  # one or two connections a client
        held_each.says(1.5, 2.5, 3.5, -2.0),
        taken.says(12.0, -2.0, 40.0, 0.5),
        served_before.says(0.3, 0.0, 0.9, 1.5),
    ),
)  # fmt: skip
