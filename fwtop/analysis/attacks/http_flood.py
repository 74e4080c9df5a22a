"""Floods of HTTP requests, and the browsers, crowds, proxies and programs that look like them.

A flash crowd has few requests per source, complete connections and shared pages; it is never called an
attack, whatever its rate. Sources: Jung et al., "Flash Crowds and DoS" (WWW 2002); Breslau et al., "Web
Caching and Zipf-like Distributions" (INFOCOM 1999); RFC 7239 and RFC 9110 7.6.3 (whom a proxy speaks for).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import CERTAIN, Feature, Group, Hypothesis, Least, Proof, cut, feature
from fwtop.analysis.measures.general import (
    FEW,
    pace,
    per_source,
    rate,
    samples,
    sources,
    threshold_ratio,
    to_port,
)
from fwtop.analysis.measures.tcp import (
    BY_FEW,
    LIMIT,
    PARSED,
    even_sources,
    fast_rows,
    forwarded,
    outside_connections,
    parsed_requests,
    requests_described,
    usual_payloads,
    with_their_connections,
)
from fwtop.analysis.parsers import http
from fwtop.analysis.severity import ACCEPT, service
from fwtop.analysis.window.counting import distinct_values
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, distinct_texts, mix, payload
from fwtop.model.traffic.packets import I64, U64, Mask

_ASKED = 100  # identical requests: fewer say nothing
_TOLD = 30  # requests before their paths or query strings say something
_POLLED_PPS = 200.0  # of one path by monitoring programs
_PAGE = 150  # requests for one page with all its resources
_KEPT = 0.2  # of connections are closed within the window, at most
_LINE = 40  # bytes of a request that are compared
_TIMES = 10
_REPEATS_A_SECOND = 3.0
_PEOPLE = 5  # user agents per source of a proxy
_SITE, _POPULAR = 10, 0.6  # pages that many users ask for, and the part of the most popular
_UNSHARED = 0.9  # of the paths are requested once: nobody shares them
_TURNS = 0.5  # of a source's requests name another agent than the one before: several users
_PAIRS = 80  # of requests in a row, compared
_AGENTS_TOLD = 100  # requests before their agents or pages say something
_AGAIN = 3.0  # requests for a page, on average, before it shows which pages people prefer
_CHANCE = 2.0  # times the variance of counts that are alike but for chance (Poisson)


@cut(Proof.REQUESTS)
def http_requests(context: AnalysisContext) -> Iterator[Group]:
    """HTTP/1 requests: all, and those of them that stand out.

    These are outside of connections, with unique query strings, of fast sources, or repeated by their source.
    """
    packets = context.traffic.packets
    data = context.data_rows
    rows = data[http.starts_request(packets, data)]
    every = _group(context, rows, "all")
    if every[threshold_ratio] < 1:
        return
    features = every.packets
    yield every
    if not every.spoof_prior:  # outside of connections
        # Requests on real connections stay unclaimed: client impact is measured on unclaimed packets
        yield _group(context, rows[~context.tcp.real[rows]], "without any connection")
    if not context.sparse:
        stray = (context.unestablished & ~context.traffic.of_sources(context.tcp.syn))[rows]
        if stray.sum() > 50:
            yield _group(context, rows[stray], "of sources without a connection", share=float(stray.mean()))
    unique = http.unique_queries(http.requests(context.traffic, features.spread(PARSED)))
    if unique is not None:
        request, distinct = unique
        same = http.path_mask(context.traffic, rows, request.method, request.path)
        yield _group(context, rows[same], "with unique query strings", share=distinct)
    fast = fast_rows(features, context.config.request_rate_per_source)
    if fast.any():
        part = float(features.weight[fast].sum()) / features.packets
        notes = {"limit": context.config.request_rate_per_source, "fast_share": part}
        yield _group(context, rows[fast], "of fast sources", share=float(fast.mean()), notes=notes)
    returning = _returning(every)
    if returning is not None:
        mine, closed = returning
        yield _group(context, mine, "for WebSockets that are closed again", share=closed)
    again = _again_and_again(features)
    if again.any():
        yield _group(context, rows[again], "sent again and again", share=float(again.mean()))


def _group(
    context: AnalysisContext,
    rows: Rows,
    part: str,
    *,
    share: float = 1.0,
    notes: dict[str, Any] | None = None,
) -> Group:
    features = context.features(rows)
    least = Least("reflection_pps", http.starts_request, shaped=True)
    usual = {"part": part, "part_share": share, **(notes or {})}
    real = features.n and not outside_connections(context, features)
    return Group(context, features, least, usual, spoof_prior=-4.0 if real else 0.0)


def part_of(name: str, meaning: str = "") -> Feature:
    """Make a feature of the groups of one part of the requests: the share of all requests that they are."""

    def measure(group: Group) -> float:
        return float(group.notes["part_share"]) if group.notes["part"] == name else 0.0

    measure.__name__ = "requests_" + name.replace(" ", "_")
    measure.__doc__ = meaning or f"Part of the requests that are {name}; 0 for other groups."
    return feature("share")(measure)


whole = part_of("all", "1 for the group of all requests, 0 for groups of those that stand out.")
unconnected = part_of("without any connection")
of_strangers = part_of("of sources without a connection")
cache_busting = part_of("with unique query strings")
of_fast_sources = part_of("of fast sources")
again_and_again = part_of("sent again and again")
closed_again = part_of("for WebSockets that are closed again")


@feature("yes or no")
def page_load(group: Group) -> float:
    """Whether it is the burst of a browser that loads a page: each resource once."""
    features = group.packets
    asked, length = _asked(features)
    few = features.source_counts.max() < _PAGE
    return bool(few and len(distinct_values(asked)) > 0.8 * features.n and (length == _LINE).mean() > 0.8)


@feature("share")
def different_paths(group: Group) -> float:
    """Part of the requested paths that is requested once; 0 below 30 requests.

    In a crowd, the same pages are wanted. Behind a CDN only pages that nobody else wants reach the host, by
    addresses with many users each: these differ in how much they send.
    """
    paths = [request.path for request in parsed_requests(group)]
    return 0.0 if len(paths) < _TOLD else len(set(paths)) / len(paths)


@feature("yes or no")
def random_paths(group: Group) -> float:
    """Whether the last parts of ten paths have letters and digits about as often as each other."""
    paths = [request.path for request in parsed_requests(group)]
    return len(set(paths)) >= _SITE and http.look_drawn(paths)


@feature("times the normal rate")
def requests_above_normal(group: Group) -> float:
    """Rate of requests against the baseline's, or against the least flood's; 0 where none is known."""
    usual = usual_payloads(group.context, http.starts_request)
    if usual is None:
        return 0.0
    group.notes["usual"] = usual
    return group.packets.peak_pps / max(usual, group.context.config.reflection_pps)


@feature("share")
def same_request(group: Group) -> float:
    """Part of the requests that is identical, path and headers: real browsers differ; 100 requests tell.

    0 where a few programs may poll: below 20 sources or 200 a second.
    """
    parsed, features = parsed_requests(group), group.packets
    polled = min(features.peak_pps, features.packets) < _POLLED_PPS
    if len(parsed) < _ASKED or features.sources < 20 or polled:
        return 0.0
    n = Counter(request.path for request in parsed).most_common(1)[0][1]
    words, m = Counter(http.whole_words(parsed)).most_common(1)[0]
    return 0.0 if len(words) < 40 else min(n, m) / len(parsed)


@feature("share")
def upgraded(group: Group) -> float:
    """Part of the requests that ask for another protocol (WebSocket), on connections that stay open.

    0 where most connections with such requests are closed again: clients upgrade a connection to keep it.
    """
    context, parsed = group.context, parsed_requests(group)
    if not parsed:
        return 0.0
    ended = context.traffic.of_flows(context.tcp.fin | context.tcp.rst)[group.packets.rows]
    asked = sum(request.upgrades for request in parsed) / len(parsed)
    return asked if float(ended.mean()) < _KEPT else 0.0


def _returning(every: Group) -> tuple[Rows, float] | None:
    """Return the requests for the WebSocket most asked for, and the connections closed for each; None if few.

    Whatever their sources close counts, so that it can be told of a thin sample, too.
    """
    context, features = every.context, every.packets
    asked = [request for request in parsed_requests(every) if request.upgrades]
    if len(asked) < _TOLD:
        return None
    (method, path), _ = Counter((request.method, request.path) for request in asked).most_common(1)[0]
    mine = features.rows[http.line_mask(context.traffic, features.rows, method + b" " + path + b" ")]
    return (mine, min(1.0, _closings(context, mine))) if len(mine) else None


def _closings(context: AnalysisContext, rows: Rows) -> float:
    """Return the FINs and RSTs of the sources of these requests, for each request."""
    traffic, tcp = context.traffic, context.tcp
    ends = (tcp.fin | tcp.rst) & traffic.of_sources(rows)
    return float(traffic.weight[ends].sum()) / max(1.0, float(traffic.weight[rows].sum()))


@feature("a request")
def closings(group: Group) -> float:
    """FINs and RSTs of the sources for each request, which a thin sample tells, too."""
    return _closings(group.context, group.packets.rows)


@feature("requests a connection")
def each_connection(group: Group) -> float:
    """Requests for each connection that they come on."""
    rows = group.packets.rows
    return len(rows) / max(1, len(distinct_values(group.context.traffic.flow_id[rows])))


@feature("share")
def on_kept_connections(group: Group) -> float:
    """Part of the requests that don't begin a connection of this window; unknown in a thin sample."""
    traffic, rows = group.context.traffic, group.packets.rows
    if group.context.sparse:
        return math.nan
    flow = traffic.flow_id[rows]
    began = flow[traffic.of_flows(group.context.tcp.syn)[rows]]
    return 1 - len(distinct_values(began)) / len(rows)


def _asked(features: Features) -> tuple[U64, I64]:
    """Return a key of each request's source and beginning, and how many bytes that has."""
    matrix, length = payload(features.traffic.packets, features.rows, _LINE)
    return mix(features.traffic.source_key[features.rows], distinct_texts(matrix)), length


def _again_and_again(features: Features) -> Mask:
    """Mark requests that a source repeats verbatim, faster than any page reloads."""
    asked, length = _asked(features)
    _, inverse, counts = np.unique(asked, return_inverse=True, return_counts=True)
    rate = np.bincount(inverse, features.weight) / max(features.traffic.seconds, 1.0)
    return np.asarray(((counts >= _TIMES) & (rate > _REPEATS_A_SECOND))[inverse] & (length >= _LINE // 2))


@feature("yes or no")
def proxies(group: Group) -> float:
    """Whether the sources represent many users each, as load balancers, CDNs and large NATs do."""
    parsed, few = parsed_requests(group), min(group.packets.sources, 4)
    agents = Counter(request.agent for request in parsed if request.agent)
    paths = Counter(request.path for request in parsed)
    several = len(agents) >= _PEOPLE * few and max(paths.values()) < 0.3 * len(parsed)
    return several or _many_users(group)


@feature("share")
def changing_agents(group: Group) -> float:
    """Part of a source's requests that name another User-Agent than the one before."""
    return _agents_change(group.packets)


@feature("share")
def favourite(group: Group) -> float:
    """Part of the requests that are for the path most asked for: of a site or a copy of it, each has few."""
    counts = Counter(request.path for request in parsed_requests(group))
    return max(counts.values(), default=0) / max(1, counts.total())


@feature("yes or no")
def even_pages(group: Group) -> float:
    """Whether pages are asked for about equally often, as programs draw from a list; people prefer a few.

    It tells if a page is asked for three times on average: requests for pages of their own are even anyway.
    """
    counts = np.array(list(Counter(request.path for request in parsed_requests(group)).values()), np.float64)
    if len(counts) < _SITE or counts.sum() < _AGENTS_TOLD or counts.mean() < _AGAIN:
        return False
    return bool(counts.var() < _CHANCE * counts.mean())


@feature("share")
def agents_named_once(group: Group) -> float:
    """Part of the requests whose User-Agent no other request names; 0 below 100.

    Most people have one of a few browsers in one of a few versions; tools draw numbers into the text.
    """
    agents = Counter(request.agent for request in parsed_requests(group) if request.agent)
    if agents.total() < _AGENTS_TOLD:
        return 0.0
    return sum(n == 1 for n in agents.values()) / agents.total()


def _agents_change(features: Features) -> float:
    """Return how often two requests in a row of one source name different agents; 0 if too few tell."""
    source = features.traffic.source_key[features.rows]
    order = np.argsort(source, kind="stable")
    pairs = order[np.flatnonzero(source[order][1:] == source[order][:-1])[:_PAIRS, None] + np.arange(2)]
    both = (http.requests(features.traffic, features.rows[pair]) for pair in pairs)
    agents = [[one.agent for one in said if one.agent] for said in both]
    changed = [named[0] != named[1] for named in agents if len(named) == 2]
    return sum(changed) / len(changed) if len(changed) >= _PAIRS // 4 else 0.0


def _many_users(group: Group) -> bool:
    """Check for sources whose requests come of several browsers, for pages that are popular to a degree.

    Bots that draw agents ask for one page, or for pages that nobody shares.
    """
    context = group.context
    data = context.traffic.rows(context.tcp.ack & context.traffic.of_sources(group.packets.rows))
    every = context.features(data[http.starts_request(context.traffic.packets, data)])
    paths = Counter(request.path for request in http.requests(context.traffic, every.spread(PARSED)))
    total = max(1, paths.total())
    site = len(paths) >= _SITE and max(paths.values()) < _POPULAR * total and len(paths) < _UNSHARED * total
    return site and _agents_change(every) >= _TURNS


_REQUESTS = "{amount:HTTP requests} ({rate:count}/s) from {senders}"
_TELLS = samples.at_least(30)
_NORMALLY = "{rate:count} requests/s, normally up to {usual:count}"
_EVEN = even_sources.if_so(1.0, "all sources send about as much")
_CHANGING = "{changing_agents:percent} of a source's requests name another User-Agent than the one before"

_flood = partial(
    Hypothesis,
    of=http_requests,
    kind="http_flood",
    exhausts=(service(200), ACCEPT),  # dynamic pages/s of one core
    traits=Trait.REQUESTS,
    title="HTTP flood",
    details=(requests_described,),
    match=to_port,
    rows=with_their_connections,
    stopped_by=LIMIT,
)
ENTRIES = (
    _flood(
        "requests outside of connections", prior=3.2,
        needs=(unconnected.at_least(0.001), _TELLS),
        lead=(_REQUESTS, "they belong to no connection: there was no handshake"),
        stopped_by="dropping TCP packets outside of connections",
    ),
    _flood(
        "requests of sources without a connection", prior=3.0,
        needs=(of_strangers.at_least(0.3), _TELLS),
        lead=(_REQUESTS, "they belong to no connection: their sources made no handshake"),
        stopped_by="dropping TCP packets outside of connections",
    ),
    _flood(
        "requests that bypass caches", prior=2.8,
        needs=(cache_busting.at_least(0.001), _TELLS),
        lead=(_REQUESTS, "{requests_with_unique_query_strings:percent} carry a unique query for one path, "
                         "to bypass caches"),
        evidence=(pace.says(5, -5.0, 50, 0.0),),  # a form that is tried by hand or by a scanner costs little
    ),
    _flood(
        "requests faster than browsers send them", prior=2.4,
        needs=(of_fast_sources.at_least(0.3), _TELLS),
        lead=(_REQUESTS, "{fast_share:percent} of the requests come from sources that send more than "
                         "{limit:.0f}/s each"),
    ),
    _flood(
        "repeated requests", prior=2.2,
        needs=(again_and_again.at_least(0.5), _TELLS),
        lead=(_REQUESTS, "{requests_sent_again_and_again:percent} repeat an earlier request of the same "
                         "source"),
    ),
    _flood(
        "WebSockets closed and reopened", prior=0.0,
        needs=(closed_again.at_least(0.3), _TELLS),
        lead=(
            _REQUESTS,
            "they ask for a WebSocket and close it again; clients upgrade a connection to keep it",
        ),
        evidence=(
            closed_again.says(0.4, -2.0, 0.8, 2.0),
            rate.says(30, -2.0, 200, 0.0),
            per_source.says(0.5, -2.0, 3.0, 1.5, "{per_source:.1f} a second each"),
        ),
    ),
    _flood(
        "requests for pages asked for once", prior=-3.25,
        needs=(whole.yes, different_paths.at_least(0.7)),
        lead=(_REQUESTS, "{different_paths:percent} of the requested paths are requested once"),
        evidence=(
            changing_agents.above(0.6, 1.0, _CHANGING),
            _EVEN,
            requests_above_normal.above(10, 1.0, _NORMALLY),
            random_paths.if_so(2.25, "they look random"),
            different_paths.says(0.7, -2.0, 0.9, 0.0),
            rate.says(50, -1.5, 300, 0.0),
            sources.says(5, -1.5, 30, 0.0),
            per_source.says(0.3, 0.0, 2.0, 1.0, "each source sends {per_source:.1f} requests/s"),
        ),
    ),
    _flood(
        "requests with changing User-Agents", prior=-2.5,
        needs=(whole.yes, changing_agents.at_least(0.6)),
        lead=(_REQUESTS, _CHANGING),
        evidence=(
            agents_named_once.above(0.8, 2.0,
                  "{agents_named_once:percent} of the User-Agents are named only once"),
            even_pages.if_so(2.5, "all pages are asked for about as often: people prefer some"),
            _EVEN,
            requests_above_normal.says(1, 0.0, 10, 1.5, _NORMALLY),
            rate.says(20, -2.0, 200, 0.0),
            forwarded.says(0.05, 0.0, 0.5, -6.0),
        ),
    ),
    _flood(
        "identical requests of many sources", prior=2.0,
        needs=(whole.yes, same_request.at_least(0.9)),
        lead=(_REQUESTS, "{same_request:percent} of the requests are identical"),
        stopped_by="a signature of the requests",
    ),
    *(
        Hypothesis(
            f"proxies with many users, {how}", http_requests, 6.0,
            needs=(part.at_least(0.001), proxies.yes),
            evidence=(
                forwarded.above(0.5, 10.0),
                agents_named_once.above(0.8, -3.0),
                even_pages.if_so(-4.0),
                even_sources.if_so(-1.0),
                requests_above_normal.says(3, 0.0, 30, -3.0),
            ),
        )
        for how, part in (("fast", of_fast_sources), ("who reload", again_and_again))
    ),
    *(
        Hypothesis(
            f"one program, or people behind one address, {how}", http_requests, 1.0,
            needs=(part.at_least(0.001), sources.at_most(FEW)),
            evidence=(
                *BY_FEW,
                favourite.says(0.1, 2.5, 0.4, 0.0),
                random_paths.if_so(-5.0),
                rate.says(500, 0.5, 20_000, -1.0),
                requests_above_normal.says(5, 0.0, 50, -3.0),
            ),
        )
        for how, part in (("fast", of_fast_sources), ("who reload", again_and_again))
    ),
    Hypothesis(
        "programs that poll", http_requests, 0.0,
        needs=(again_and_again.at_least(0.001), rate.at_most(200)),
        evidence=(per_source.says(5, 3.0, 15, -2.0), rate.says(50, 2.0, 200, -1.0)),
    ),
    Hypothesis(
        "programs of one kind that poll", http_requests, 1.0,  # agents, long polling
        needs=(same_request.at_least(0.9), whole.yes),
        evidence=(
            per_source.says(1, 2.0, 2.5, -5.0),
            on_kept_connections.says(0.3, -3.0, 0.9, 1.5),
            rate.says(300, 0.5, 2_000, -4.0),
            requests_above_normal.says(5, 0.0, 50, -4.0),
        ),
    ),
    Hypothesis(
        "connections that become WebSockets", http_requests, 5.0,  # apps that return after a restart
        needs=(upgraded.at_least(0.8), each_connection.at_most(1.2)),
        evidence=(
            rate.says(300, 0.0, 3_000, -6.0),
            requests_above_normal.says(50, 0.0, 500, -1.0),
            closings.says(0.3, 0.0, 0.7, -8.0),
        ),
    ),
    Hypothesis(
        "browsers that load a page", http_requests, CERTAIN,
        needs=(of_fast_sources.at_least(0.001), page_load.yes),
    ),
)  # fmt: skip
