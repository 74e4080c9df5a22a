"""Groups of requests and connections that come without pauses: people read, programs go on.

Each bot may well stay below the rate of a browser that loads a page. What shows: its requests go on through
the whole window, all bots send about as many, and together they are far more than usual. Inside TLS only the
sizes of records and acknowledgements show. Sources: RFC 8446 5.1, RFC 9293 3.10 (what a client acknowledges,
it received).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, feature
from fwtop.analysis.habits import LOGINS, request_records, without_pause
from fwtop.analysis.measures.general import ENOUGH, per_source, samples, to_port
from fwtop.analysis.measures.tcp import (
    acknowledged,
    even_sources,
    forwarded,
    parsed_requests,
    records_alike,
    requests_described,
    with_their_connections,
)
from fwtop.analysis.parsers import http
from fwtop.analysis.severity import ACCEPT, TABLE, service
from fwtop.analysis.window.traffic import Rows
from fwtop.model.traffic.severity import Harm

_SERVICES = 8  # looked at, the busiest
# The least that counts, by what it costs the server: a connection, a request, a login (keys are agreed upon)
_OPENED, _ASKED, _LOGGED_IN = 0.25, 0.1, 0.025  # of the least rate of unasked packets
_RESOURCES = b"css js png jpg jpeg gif svg webp avif ico woff2 woff".split()


@cut(Proof.REQUESTS)
def requests_without_pauses(context: AnalysisContext) -> Iterator[Group]:
    """HTTP/1 requests to one service of sources that ask throughout the window."""
    data = context.data_rows
    asks = data[http.starts_request(context.traffic.packets, data)]
    yield from _by_service(context, asks, "steady requests")


@cut(Proof.REQUESTS)
def tls_requests_without_pauses(context: AnalysisContext) -> Iterator[Group]:
    """Requests inside TLS to one service of sources that ask throughout the window."""
    data = context.data_rows
    asks = data[request_records(context.traffic.packets, data)]
    yield from _by_service(context, asks, "steady requests")


@cut(Proof.VOLUME)
def connections_without_pauses(context: AnalysisContext) -> Iterator[Group]:
    """SYNs to one service of sources that open connections throughout the window, and use them."""
    syns = context.traffic.rows(context.tcp.syn & context.tcp.real & context.unclaimed)
    yield from _by_service(context, syns, "steady connections")


def _by_service(context: AnalysisContext, rows: Rows, column: str) -> Iterator[Group]:
    """Yield what goes to each service without a pause, beside the service's habit."""
    traffic, baseline = context.traffic, context.baseline
    if len(rows) < context.config.min_samples:
        return
    service = baseline.doors.numbers(traffic.packets, rows)
    numbers, counts = np.unique(service, return_counts=True)
    for number in numbers[np.argsort(-counts, kind="stable")[:_SERVICES]]:
        mine = rows[service == number]
        some = context.features(mine[without_pause(traffic, mine, traffic.source_id[mine])])
        if some.n < context.config.min_samples:
            continue
        sizes = np.sort(np.bincount(traffic.packets.payload_length[some.rows].astype(np.intp)))[::-1]
        login = int(some.top("dport").value) in LOGINS
        least = _ASKED if column == "steady requests" else _LOGGED_IN if login else _OPENED
        usual = baseline.habits.usual(column, number[None])
        notes = {
            "usual": usual,
            "least": context.config.reflection_pps * least,
            "one_size": float(sizes[:2].sum()) / some.n,
            "login": login,
        }
        yield Group(
            context, some, Least("reflection_pps", usual, shaped=True, times=least), notes, spoof_prior=-4.0
        )


@feature("times the normal rate")
def steady_above_normal(group: Group) -> float:
    """Rate of the busiest second against the service's habit, or the least that counts; 0 if unknown."""
    usual = group.notes["usual"]
    if usual is None or not group.context.traffic.live:
        return 0.0
    return group.packets.peak_pps / max(float(usual), float(group.notes["least"]))


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
    steps = acknowledged(group)
    return float(np.maximum(steps, 0).sum(dtype=np.int64)) / max(1, len(steps))


@feature("yes or no")
def login_port(group: Group) -> float:
    """Whether the port is one where users log in: of a shell, a mailbox, files or a desktop."""
    return bool(group.notes["login"])


_EVEN = even_sources.if_so(1.5, "all sources send about as much")
_STEADILY = (ENOUGH, samples.at_least(30))
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
