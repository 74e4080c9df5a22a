"""Requests and connections that come without pauses, of bots that stay below the rate of browsers."""

from fwtop.analysis.engine.hypothesis import Hypothesis, Says, at_least, if_so
from fwtop.analysis.groups.askers import even_sources, forwarded
from fwtop.analysis.groups.measures import per_source, samples, threshold_ratio, to_port
from fwtop.analysis.groups.records import records_alike
from fwtop.analysis.groups.requests import requests_described, with_their_connections
from fwtop.analysis.groups.steady import (
    connections_without_pauses,
    forms_sent,
    page_resources,
    received_each,
    request_size,
    requests_without_pauses,
    steady_above_normal,
    steady_share,
    tls_requests_without_pauses,
)

_ENOUGH = (at_least(threshold_ratio, 1), at_least(samples, 30), at_least(steady_share, 0.5))
_ABOVE = Says(steady_above_normal, 2, -2.5, 10, 2.0, "{rate:count}/s, normally up to {usual:count}")
_EVEN = if_so(even_sources, 1.5, "all sources send about as much")
_STEADY = (
    _ABOVE,
    _EVEN,
    Says(per_source, 2, -1.0, 5, 1.0, "each source asks {per_source:.1f} times per second without a pause"),
)
_LIMIT = "a limit of requests or connections for each source; blocking the sources"

STEADY_ENTRIES = (
    Hypothesis(
        "requests without pauses", requests_without_pauses, -2.0,
        kind="http_flood",
        title="HTTP flood",
        needs=_ENOUGH,
        lead="{amount:HTTP requests} ({rate:count}/s) from {senders}, who ask without pauses",
        evidence=(
            *_STEADY,
            Says(page_resources, 0.1, 1.0, 0.5, -3.0),  # browsers that wait for a slow server ask for these
            Says(forms_sent, 0.5, 0.0, 0.9, 1.5, "{forms_sent:percent} send a form, as those who guess "
                                                  "passwords do"),
            Says(forwarded, 0.05, 0.0, 0.5, -6.0),
        ),
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "requests inside TLS without pauses", tls_requests_without_pauses, -2.5,
        kind="http_flood",
        title="Flood of requests inside TLS",
        # HTTP/1 asks in more; what moves in a game or a device reports takes less
        needs=(*_ENOUGH, at_least(request_size, 70)),
        lead=(
            "{amount:requests inside TLS} ({rate:count}/s) from {senders}, who ask without pauses",
            "what they ask can't be read",
        ),
        evidence=(
            *_STEADY,
            Says(received_each, 100, -3.0, 300, 0.5, "each is answered with {received_each:count} bytes"),
            Says(request_size, 70, -2.0, 110, 0.5),
            Says(records_alike, 0.3, 0.0, 0.9, 1.0, "{records_alike:percent} have one of two sizes"),
        ),
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "connections opened without pauses", connections_without_pauses, -2.0,
        kind="syn_flood",
        title="TCP connection flood",
        needs=_ENOUGH,
        lead="{amount:connections} ({rate:count}/s) from {senders} to port {port:.0f}, again and again",
        evidence=(
            _ABOVE,
            _EVEN,
            Says(per_source, 1.5, -1.5, 3, 1.0, "each source opens {per_source:.1f} per second; clients keep "
                                                "the one that they have"),
        ),
        match=to_port,
        rows=with_their_connections,
        stopped_by="a limit of connections for each source; blocking the sources",
    ),
)  # fmt: skip
