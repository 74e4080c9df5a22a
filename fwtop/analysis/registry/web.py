"""HTTP and TLS: floods of requests and handshakes, and the visitors that look like them."""

from fwtop.analysis.engine.hypothesis import CERTAIN, Hypothesis, Says, above, at_least, at_most, if_so, is_so
from fwtop.analysis.groups.askers import (
    agents_named_once,
    changing_agents,
    even_pages,
    even_sources,
    forwarded,
    proxies,
)
from fwtop.analysis.groups.frames import fast_frames, http2_requests
from fwtop.analysis.groups.hellos import (
    busy_hellos,
    client_hellos,
    fast_hellos,
    fast_records,
    hellos_above_normal,
    hellos_described,
    no_handshake,
    only_hellos,
    renegotiating,
    repeated_handshakes,
    same_ja4,
    stalled_hellos,
    tiny_records,
    with_their_sessions,
)
from fwtop.analysis.groups.measures import (
    pace,
    per_source,
    rate,
    samples,
    sources,
    threshold_ratio,
    to_port,
)
from fwtop.analysis.groups.records import (
    records_above_normal,
    records_alike,
    records_as_usual,
    records_each,
    requests_inside_tls,
)
from fwtop.analysis.groups.requests import (
    again_and_again,
    cache_busting,
    closed_again,
    closings,
    different_paths,
    each_connection,
    http_requests,
    of_fast_sources,
    of_strangers,
    page_load,
    random_paths,
    requests_above_normal,
    requests_described,
    same_request,
    unconnected,
    upgraded,
    whole,
    with_their_connections,
)

_ENOUGH = at_least(threshold_ratio, 1)  # as large as the least that counts
_LIMIT = "a limit of requests or connections for each source; a signature of the requests"
_REQUESTS = "{amount:HTTP requests} ({rate:count}/s) from {senders}"
_HELLOS = "{amount:TLS client hellos} ({rate:count}/s) from {senders}"

# A flash crowd has few requests per source, complete connections and shared pages; it is never called an
# attack, whatever its rate. Source: Jung et al., "Flash Crowds and DoS" (WWW 2002).
_HTTP = (
    Hypothesis(
        "requests outside of connections", http_requests, 3.2,
        kind="http_flood",
        title="HTTP flood",
        needs=(at_least(unconnected, 0.001), at_least(samples, 30)),
        lead=(_REQUESTS, "they belong to no connection: there was no handshake"),
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by="dropping TCP packets outside of connections",
    ),
    Hypothesis(
        "requests of sources without a connection", http_requests, 3.0,
        kind="http_flood",
        title="HTTP flood",
        needs=(at_least(of_strangers, 0.3), at_least(samples, 30)),
        lead=(_REQUESTS, "they belong to no connection: their sources made no handshake"),
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by="dropping TCP packets outside of connections",
    ),
    Hypothesis(
        "requests that bypass caches", http_requests, 2.8,
        kind="http_flood",
        title="HTTP flood",
        needs=(at_least(cache_busting, 0.001), at_least(samples, 30)),
        lead=(_REQUESTS, "{requests_with_unique_query_strings:percent} carry a unique query for one path, "
                         "to bypass caches"),
        evidence=(Says(pace, 5, -5.0, 50, 0.0),),  # a form that is tried by hand or by a scanner costs little
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "requests faster than browsers send them", http_requests, 2.4,
        kind="http_flood",
        title="HTTP flood",
        needs=(at_least(of_fast_sources, 0.3), at_least(samples, 30)),
        lead=(_REQUESTS, "{fast_share:percent} of the requests come from sources that send more than "
                         "{limit:.0f}/s each"),
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "repeated requests", http_requests, 2.2,
        kind="http_flood",
        title="HTTP flood",
        needs=(at_least(again_and_again, 0.5), at_least(samples, 30)),
        lead=(_REQUESTS, "{requests_sent_again_and_again:percent} repeat an earlier request of the same "
                         "source"),
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "WebSockets closed and reopened", http_requests, 0.0,
        kind="http_flood",
        title="HTTP flood",
        needs=(at_least(closed_again, 0.3), at_least(samples, 30)),
        lead=(
            _REQUESTS,
            "they ask for a WebSocket and close it again; clients upgrade a connection to keep it",
        ),
        evidence=(
            Says(closed_again, 0.4, -2.0, 0.8, 2.0),
            Says(rate, 30, -2.0, 200, 0.0),
            Says(per_source, 0.5, -2.0, 3.0, 1.5, "{per_source:.1f} a second each"),
        ),
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "requests for pages asked for once", http_requests, -3.25,
        kind="http_flood",
        title="HTTP flood",
        needs=(is_so(whole), at_least(different_paths, 0.7)),
        lead=(_REQUESTS, "{different_paths:percent} of the requested paths are requested once"),
        evidence=(
            above(changing_agents, 0.6, 1.0,
                  "{changing_agents:percent} of a source's requests name another User-Agent than the one "
                  "before"),
            if_so(even_sources, 1.0, "all sources send about as much"),
            above(requests_above_normal, 10, 1.0, "{rate:count} requests/s, normally up to {usual:count}"),
            if_so(random_paths, 2.25, "they look random"),
            Says(different_paths, 0.7, -2.0, 0.9, 0.0),
            Says(rate, 50, -1.5, 300, 0.0),
            Says(sources, 5, -1.5, 30, 0.0),
            Says(per_source, 0.3, 0.0, 2.0, 1.0, "each source sends {per_source:.1f} requests/s"),
        ),
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "requests with changing User-Agents", http_requests, -2.5,
        kind="http_flood",
        title="HTTP flood",
        needs=(is_so(whole), at_least(changing_agents, 0.6)),
        lead=(_REQUESTS, "{changing_agents:percent} of a source's requests name another User-Agent than the "
                         "one before"),
        evidence=(
            above(agents_named_once, 0.8, 2.0,
                  "{agents_named_once:percent} of the User-Agents are named only once"),
            if_so(even_pages, 2.5, "all pages are asked for about as often: people prefer some"),
            if_so(even_sources, 1.0, "all sources send about as much"),
            Says(requests_above_normal, 1, 0.0, 10, 1.5, "{rate:count} requests/s, normally up to "
                                                         "{usual:count}"),
            Says(rate, 20, -2.0, 200, 0.0),
            Says(forwarded, 0.05, 0.0, 0.5, -6.0),
        ),
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "identical requests of many sources", http_requests, 2.0,
        kind="http_flood",
        title="HTTP flood",
        needs=(is_so(whole), at_least(same_request, 0.9)),
        lead=(_REQUESTS, "{same_request:percent} of the requests are identical"),
        details=(requests_described,),
        match=to_port,
        rows=with_their_connections,
        stopped_by="a signature of the requests",
    ),
    *(
        Hypothesis(
            f"proxies with many users, {how}", http_requests, 6.0,
            needs=(at_least(part, 0.001), is_so(proxies)),
            evidence=(
                above(forwarded, 0.5, 10.0),
                above(agents_named_once, 0.8, -3.0),
                if_so(even_pages, -4.0),
                if_so(even_sources, -1.0),
                Says(requests_above_normal, 3, 0.0, 30, -3.0),
            ),
        )
        for how, part in (("fast", of_fast_sources), ("who reload", again_and_again))
    ),
    Hypothesis(
        "programs that poll", http_requests, 0.0,
        needs=(at_least(again_and_again, 0.001), at_most(rate, 200)),
        evidence=(Says(per_source, 5, 3.0, 15, -2.0), Says(rate, 50, 2.0, 200, -1.0)),
    ),
    Hypothesis(
        "connections that become WebSockets", http_requests, 5.0,  # apps that return after a restart
        needs=(at_least(upgraded, 0.8), at_most(each_connection, 1.2)),
        evidence=(
            Says(rate, 300, 0.0, 3_000, -6.0),
            Says(requests_above_normal, 50, 0.0, 500, -1.0),
            Says(closings, 0.3, 0.0, 0.7, -8.0),
        ),
    ),
    Hypothesis(
        "browsers that load a page", http_requests, CERTAIN,
        needs=(at_least(of_fast_sources, 0.001), is_so(page_load)),
    ),
    Hypothesis(
        "HTTP/2 request flood", http2_requests, 1.8,
        kind="http_flood",
        needs=(_ENOUGH, at_least(fast_frames, 0.5)),
        lead="{amount:segments with HTTP/2 requests} from {senders}: {requests}",
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
)  # fmt: skip

_TLS = (
    Hypothesis(
        "TLS handshakes outside of connections", client_hellos, 2.6,
        kind="tls_flood",
        title="TLS handshake flood",
        needs=(_ENOUGH, is_so(no_handshake)),
        lead=(_HELLOS, "they belong to no connection: there was no TCP handshake"),
        details=(hellos_described,),
        match=to_port,
        rows=with_their_sessions,
        stopped_by="dropping TCP packets outside of connections",
    ),
    Hypothesis(
        "TLS handshakes faster than browsers begin them", client_hellos, 2.4,
        kind="tls_flood",
        title="TLS handshake flood",
        needs=(at_least(fast_hellos, 0.3),),
        lead=(_HELLOS, "their sources open more than {limit:.0f} sessions/s each"),
        details=(hellos_described,),
        match=to_port,
        rows=with_their_sessions,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "TLS handshakes that are not finished", client_hellos, 2.2,
        kind="tls_flood",
        title="TLS handshake flood",
        needs=(at_least(stalled_hellos, 0.5),),
        lead=(_HELLOS, "{stalled_hellos:percent} of their connections send nothing after the hello"),
        details=(hellos_described,),
        match=to_port,
        rows=with_their_sessions,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "TLS handshakes and nothing else", client_hellos, 2.0,
        kind="tls_flood",
        title="TLS handshake flood",
        needs=(_ENOUGH, at_least(only_hellos, 0.55)),
        lead=(_HELLOS, "{only_hellos:percent} of the data segments of their senders are hellos, "
                       "and they close as often"),
        evidence=(Says(only_hellos, 0.55, -3.0, 0.8, 0.0),),
        details=(hellos_described,),
        match=to_port,
        rows=with_their_sessions,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "repeated TLS sessions", client_hellos, -1.2,
        kind="tls_flood",
        title="TLS handshake flood",
        needs=(_ENOUGH, at_least(busy_hellos, 0.3)),
        lead=(_HELLOS, "each source begins {per_source:.1f} sessions/s; a browser keeps the few that it "
                       "opens"),
        evidence=(
            if_so(even_sources, 1.5, "all sources begin about as many"),
            above(same_ja4, 0.95, 1.0),
            Says(hellos_above_normal, 1, 0.0, 5, 2.5, "{rate:count} sessions/s, normally up to "
                                                       "{usual:count}"),
        ),
        details=(hellos_described,),
        match=to_port,
        rows=with_their_sessions,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "TLS renegotiation flood", repeated_handshakes, 2.2,  # CVE-2011-1473, THC-SSL-DOS
        kind="tls_flood",
        needs=(at_least(renegotiating, 3), _ENOUGH),
        lead="{amount:handshake records} ({rate:count}/s) from {senders} on {renegotiating:count} "
        "connections, {each:.0f} each: a client needs 3",
        match=to_port,
        rows=with_their_connections,
        stopped_by="turning renegotiation off in the server",
    ),
    Hypothesis(
        "HTTP/2 request flood inside TLS", tiny_records, 1.1,
        kind="http_flood",
        title="HTTP/2 request flood",
        needs=(_ENOUGH, at_least(fast_records, 0.5)),
        lead=(
            "{amount:segments} ({rate:count}/s) from {senders} hold about {each:.0f} TLS records of "
            "{record_size:.0f} bytes each: dozens of requests per segment",
            "HTTP/2 clients that wait for answers don't do this (CVE-2023-44487: rapid reset)",
        ),
        match=to_port,
        rows=with_their_connections,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "requests inside TLS without end", requests_inside_tls, -0.5,
        kind="http_flood",
        title="Flood of requests inside TLS",
        needs=(_ENOUGH, at_least(records_each, 30)),
        lead=(
            "{amount:small TLS records} from {senders} on {flows:count} connections",
            "what they ask can't be read: requests, resets (CVE-2023-44487), or both",
        ),
        evidence=(
            Says(records_each, 80, -4.0, 300, 2.0, "{records_each:count} records/s on each connection"),
            Says(records_alike, 0.5, -2.5, 0.9, 2.5, "{records_alike:percent} have one of two sizes: the "
                                                     "same request again and again"),
            Says(records_above_normal, 0.5, 0.0, 1.5, 2.0, "many times as many as usual"),
            if_so(records_as_usual, -6.0),
        ),
        match=to_port,
        rows=with_their_connections,
        stopped_by="a limit of requests for each connection in the server; blocking the sources",
    ),
    Hypothesis(
        "services that call each other", requests_inside_tls, 0.0,  # gRPC, gateways, mirrors
        evidence=(
            Says(records_alike, 0.2, 3.0, 0.7, -2.0),
            Says(records_each, 200, 1.0, 3_000, -2.0),
            if_so(records_as_usual, 3.0),
        ),
    ),
)  # fmt: skip

WEB_ENTRIES = (*_HTTP, *_TLS)
