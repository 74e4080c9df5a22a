"""Groups of requests and connections that come without pauses: people read, programs go on.

Each bot may well stay below the rate of a browser that loads a page. What shows: its requests go on through
the whole window, all bots send about as many, and together they are far more than usual. Inside TLS only the
sizes of records and acknowledgements show. Sources: RFC 8446 5.1, RFC 9293 3.10 (what a client acknowledges,
it received).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Normal, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, feature, noted
from fwtop.analysis.measures.general import ENOUGH, per_source, samples, to_port
from fwtop.analysis.measures.tcp import (
    even_sources,
    forwarded,
    parsed_requests,
    records_alike,
    requests_described,
    with_their_connections,
)
from fwtop.analysis.parsers import http, tls
from fwtop.analysis.severity import ACCEPT, TABLE, service
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, word
from fwtop.model.traffic.packets import Mask, PacketBatch
from fwtop.model.traffic.severity import Harm

_ONE_SEGMENT = 1_440  # bytes: a request with its cookies, no upload
_ACK_AT = 8  # of the acknowledgement number in the TCP header (RFC 9293 3.1)
_REQUESTS = 5  # of a source: with fewer, chance may spread them
_REST = 0.5  # of the window, that a source which pauses rests at least
_SHORT = 2.0  # seconds: a page loads that long
_DEAR = 4.0  # times what a packet costs the server that a request costs
_LOGIN = 10.0  # times what a connection costs: keys are agreed upon, a password is hashed
_LOGINS = (21, 22, 23, 110, 143, 587, 993, 995, 3389, 5900)
_RESOURCES = b"css js png jpg jpeg gif svg webp avif ico woff2 woff".split()


def request_records(packets: PacketBatch, rows: Rows) -> Mask:
    """Mark the rows that hold one request inside TLS: application data that fits into their segment."""
    size, is_data = tls.application_data(packets, rows)
    whole = (size + 5 <= packets.payload_length[rows]) & (packets.payload_length[rows] <= _ONE_SEGMENT)
    return np.asarray(is_data & whole & np.isin(packets.dport[rows], tls.HTTPS))


@cut(Proof.REQUESTS)
def requests_without_pauses(context: AnalysisContext) -> Iterator[Group]:
    """HTTP/1 requests of sources that ask throughout the window."""
    yield from _steady(context, http.starts_request)


@cut(Proof.REQUESTS)
def tls_requests_without_pauses(context: AnalysisContext) -> Iterator[Group]:
    """Requests inside TLS of sources that ask throughout the window."""
    yield from _steady(context, request_records)


@cut(Proof.VOLUME)
def connections_without_pauses(context: AnalysisContext) -> Iterator[Group]:
    """SYNs to one port of sources that open connections throughout the window, and use them."""
    packets = context.traffic.packets
    syns = context.traffic.rows(context.tcp.syn & context.tcp.real & context.unclaimed)
    if len(syns) < context.config.min_samples:
        return
    port = int(np.bincount(packets.dport[syns]).argmax())
    usual = context.baseline.rate("tcp.syn") if context.baseline.ready else None
    yield from _of_steady(context, syns[packets.dport[syns] == port], "tcp.syn", usual)


def _steady(context: AnalysisContext, starts: Callable[[PacketBatch, Rows], Mask]) -> Iterator[Group]:
    data = context.data_rows
    usual = context.baseline.rate_of_payloads(starts) if context.baseline.ready and len(data) else None
    yield from _of_steady(context, data[starts(context.traffic.packets, data)], starts, usual)


def _of_steady(context: AnalysisContext, rows: Rows, normal: Normal, usual: float | None) -> Iterator[Group]:
    packets, every = context.traffic.packets, context.features(rows)
    if every.n < context.config.min_samples:
        return
    some = context.features(rows[_tireless(every)])
    if some.n:
        counts = np.sort(np.bincount(packets.payload_length[some.rows].astype(np.intp)))[::-1]
        dear = _LOGIN if int(some.top("dport").value) in _LOGINS else 1.0
        notes = {
            "steady": some.packets / every.packets,
            "usual": usual,
            "one_size": float(counts[:2].sum()) / some.n,
            "dear": dear,
        }
        least = Least("reflection_pps", normal, shaped=True, times=1 / dear)
        yield Group(context, some, least, notes, spoof_prior=-4.0)


def _tireless(features: Features) -> Mask:
    """Mark the rows of sources that rest for less than half of the window, at its beginning and end, too."""
    traffic = features.traffic
    if traffic.seconds < _SHORT:
        return np.zeros(features.n, np.bool_)
    every, source = traffic.packets.time_ns, traffic.source_id[features.rows]
    time = every[features.rows]
    size = int(source.max()) + 1
    first, last = np.full(size, every.max()), np.full(size, every.min())
    np.minimum.at(first, source, time)
    np.maximum.at(last, source, time)
    longest = np.maximum(first - every.min(), every.max() - last)
    order = np.lexsort((time, source))
    same = source[order][1:] == source[order][:-1]
    np.maximum.at(longest, source[order][1:][same], np.diff(time[order])[same])
    often = np.bincount(source, minlength=size) >= _REQUESTS
    return np.asarray((often & (longest < _REST * traffic.seconds * 1e9))[source])


steady_share = noted("steady_share", "share",
    "Part of the requests whose sources ask throughout the window.", note="steady")  # fmt: skip


@feature("times the normal rate")
def steady_above_normal(group: Group) -> float:
    """Rate of the busiest second against what is usual, or a quarter of the least flood's; 0 if unknown."""
    usual = group.notes["usual"]
    if usual is None or not group.context.traffic.live:
        return 0.0
    least: float = group.context.config.reflection_pps / (_DEAR * group.notes["dear"])
    return group.packets.peak_pps / max(float(usual), least)


@feature("share")
def page_resources(group: Group) -> float:
    """Part of the requests that is for images, styles, scripts or fonts, as browsers ask for."""
    parsed = parsed_requests(group)
    ends = [request.path.rpartition(b".")[2].lower() for request in parsed]
    return sum(end in _RESOURCES for end in ends) / max(1, len(ends))


@feature("share")
def forms_sent(group: Group) -> float:
    """Part of the requests that sends something: POST, as a login does."""
    parsed = parsed_requests(group)
    return sum(request.method == b"POST" for request in parsed) / max(1, len(parsed))


@feature("bytes")
def request_size(group: Group) -> float:
    """Mean size of a request inside TLS: what moves in a game and what a device reports is smaller."""
    return float(group.context.traffic.packets.payload_length[group.packets.rows].mean())


@feature("bytes")
def received_each(group: Group) -> float:
    """Bytes that the clients acknowledge for each request; 0 in a thin sample."""
    traffic, rows = group.context.traffic, group.packets.rows
    if group.context.sparse:
        return 0.0
    packets, flow = traffic.packets, traffic.flow_id[rows]
    number = word(
        packets, rows, packets.payload_offset[rows].astype(np.intp) - packets.tcp_header[rows] + _ACK_AT
    )
    order = np.lexsort((packets.time_ns[rows], flow))
    same = flow[order][1:] == flow[order][:-1]
    steps = np.diff(number[order]).view(np.int32)[same]  # modulo 2^32
    return float(np.maximum(steps, 0).sum(dtype=np.int64)) / max(1, int(same.sum()))


@feature("yes or no")
def login_port(group: Group) -> float:
    """Whether the port is one where users log in: of a shell, a mailbox, files or a desktop."""
    return bool(group.notes["dear"] > 1)


_EVEN = even_sources.if_so(1.5, "all sources send about as much")
_STEADILY = (ENOUGH, samples.at_least(30), steady_share.at_least(0.5))
_ABOVE = steady_above_normal.says(2, -2.5, 10, 2.0, "{rate:count}/s, normally up to {usual:count}")
_STEADY = (
    _ABOVE,
    _EVEN,
    per_source.says(2, -1.0, 5, 1.0, "each source asks {per_source:.1f} times per second without a pause"),
)
_flood = partial(
    Hypothesis,
    kind="http_flood",
    exhausts=(service(200), ACCEPT),  # dynamic pages/s of one core
    traits=Trait.REQUESTS,
    needs=_STEADILY,
    match=to_port,
    rows=with_their_connections,
    stopped_by="a limit of requests or connections for each source; blocking the sources",
)
_opening = partial(
    _flood,
    of=connections_without_pauses,
    prior=-2.0,
    exhausts=(service(1_000), ACCEPT, TABLE),
    lead="{amount:connections} ({rate:count}/s) from {senders} to port {port:.0f}, again and again",
    evidence=(
        _ABOVE,
        _EVEN,
        per_source.says(
            1.5,
            -1.5,
            3,
            1.0,
            "each source opens {per_source:.1f} per second; clients keep the one that they have",
        ),
    ),
    stopped_by="a limit of connections for each source; blocking the sources",
)
ENTRIES = (
    _flood(
        "requests without pauses", of=requests_without_pauses, prior=-2.0,
        title="HTTP flood",
        lead="{amount:HTTP requests} ({rate:count}/s) from {senders}, who ask without pauses",
        evidence=(
            *_STEADY,
            page_resources.says(0.1, 1.0, 0.5, -3.0),  # browsers that wait for a slow server ask for these
            forms_sent.says(0.5, 0.0, 0.9, 1.5, "{forms_sent:percent} send a form, as those who guess "
                                                  "passwords do"),
            forwarded.says(0.05, 0.0, 0.5, -6.0),
        ),
        details=(requests_described,),
    ),
    _flood(
        "requests inside TLS without pauses", of=tls_requests_without_pauses, prior=-2.5,
        title="Flood of requests inside TLS",
        # HTTP/1 asks in more; what moves in a game or a device reports takes less
        needs=(*_STEADILY, request_size.at_least(70)),
        lead=(
            "{amount:requests inside TLS} ({rate:count}/s) from {senders}, who ask without pauses",
            "what they ask can't be read",
        ),
        evidence=(
            *_STEADY,
            received_each.says(100, -3.0, 300, 0.5, "each is answered with {received_each:count} bytes"),
            request_size.says(70, -2.0, 110, 0.5),
            records_alike.says(0.3, 0.0, 0.9, 1.0, "{records_alike:percent} have one of two sizes"),
        ),
    ),
    _opening(
        "connections opened without pauses",
        needs=(*_STEADILY, login_port.no),
        kind="syn_flood",
        traits=Trait.APART | Trait.OPENINGS,
        title="TCP connection flood",
    ),
    _opening(
        "password guessing",
        needs=(*_STEADILY, login_port.yes),
        kind="password_guessing",
        exhausts=(service(500), ACCEPT, TABLE),  # most are refused before the password is hashed
        otherwise=Harm.ABUSE,
        traits=Trait.APART,
    ),
)  # fmt: skip
