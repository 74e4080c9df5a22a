"""Groups of HTTP requests. Source: Jung et al., "Flash Crowds and DoS" (WWW 2002)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.group import Feature, Group, Least, Proof, cut, feature
from fwtop.analysis.groups.measures import threshold_ratio
from fwtop.analysis.parsers import http
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, distinct_texts, mix, payload
from fwtop.model.traffic.packets import Mask

PARSED = 384  # requests, evenly spaced
_ASKED = 100  # identical requests: fewer say nothing
_TOLD = 30  # requests before their paths or query strings say something
_POLLED_PPS = 200.0  # of one path by monitoring programs
_ONE_TOOL = 0.7  # of the requests have identical headers: no browser version has that share
_PAGE = 150  # requests for one page with all its resources
_PARAMETER = 16  # bytes of a parameter name; longer ones are values without a name
_KEPT = 0.2  # of connections are closed within the window, at most
_FLAT, _LETTERS = 0.95, 400  # of the greatest entropy that letters can have, and how many tell
_BROWSERS = (b"Mozilla", b"Opera", b"Dalvik")
_LINE = 40  # bytes of a request that are compared
_TIMES = 10
_REPEATS_A_SECOND = 3.0


@cut(Proof.REQUESTS)
def http_requests(context: AnalysisContext) -> Iterator[Group]:
    """HTTP/1 requests: all, and those of them that stand out.

    These are outside of connections, with unique query strings, of fast sources, or repeated by their source.
    """
    packets = context.traffic.packets
    data = context.traffic.rows(context.tcp.ack & context.unclaimed & (packets.payload_length > 0))
    if len(data) < context.config.min_samples:
        return
    rows = data[http.starts_request(packets, data)]
    every = _group(context, rows, "all")
    if every[threshold_ratio] < 1:
        return
    features = every.packets
    yield every
    if outside_connections(context, features):
        # Requests on real connections stay unclaimed: client impact is measured on unclaimed packets
        yield _group(context, rows[~context.tcp.real[rows]], "without any connection")
    if not context.sparse:
        stray = (context.unestablished & ~context.traffic.of_sources(context.tcp.syn))[rows]
        if stray.sum() > 50:
            yield _group(context, rows[stray], "of sources without a connection", share=float(stray.mean()))
    unique = _unique_queries(http.requests(context.traffic, features.spread(PARSED)))
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
    made = Group(context, features, least, usual)
    if features.n and not outside_connections(context, features):
        made.spoof_prior = -4.0
    return made


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
    return _pages(group.context, group.packets.rows)


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
    """Whether the last parts of paths have letters and digits about as often as each other."""
    return _look_drawn([request.path for request in parsed_requests(group)])


@feature("times the normal rate")
def requests_above_normal(group: Group) -> float:
    """Rate of requests against the baseline's, or against the least flood's; 0 where none is known."""
    usual = _usual_requests(group.context)
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
    words, m = Counter(_whole_words(parsed)).most_common(1)[0]
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


def requests_described(group: Group) -> list[str]:
    """Write the most common request line, host and agent."""
    return http.describe(parsed_requests(group))


def with_their_connections(group: Group) -> Rows:
    """Claim all TCP packets of the same clients to the same ports, if they have connections."""
    if outside_connections(group.context, group.packets):
        return group.packets.rows
    if "connections" not in group.notes:
        group.notes["connections"] = with_connections(group.context, group.packets)
    result: Rows = group.notes["connections"]
    return result


def parsed_requests(group: Group) -> list[http.Request]:
    """Parse the requests of a group, at most PARSED of them, evenly spaced."""
    if "parsed" not in group.notes:
        group.notes["parsed"] = http.requests(group.context.traffic, group.packets.spread(PARSED))
    result: list[http.Request] = group.notes["parsed"]
    return result


def _look_drawn(paths: list[bytes]) -> bool:
    """Check for paths whose last part has letters and digits about as often as each other; not numbers."""
    last = [path.rpartition(b"/")[2].partition(b".")[0].lower() for path in paths]
    if sum(map(bytes.isdigit, last)) > 0.5 * len(last):
        return False
    text = np.frombuffer(b"".join(last), np.uint8)
    counts = np.bincount(text, minlength=256)
    p = counts[counts > 0] / max(1, len(text))
    entropy = float(-(p * np.log2(p)).sum())
    return len(text) >= _LETTERS and entropy > _FLAT * np.log2(max(2, min(len(p), 36)))


def _usual_requests(context: AnalysisContext) -> float | None:
    """Return the requests per second in the baseline; None if unknown."""
    baseline = context.baseline
    if not (baseline.ready and context.traffic.live):
        return None
    return baseline.rate_of_payloads(http.starts_request)


def _pages(context: AnalysisContext, rows: Rows) -> bool:
    """Check for the burst of a browser that loads a page: each resource once."""
    features = context.features(rows)
    matrix, length = payload(features.traffic.packets, rows, _LINE)
    asked = mix(features.traffic.source_key[rows], distinct_texts(matrix))
    each = float(features.source_counts.max())
    return (
        each < _PAGE
        and len(distinct_values(asked)) > 0.8 * features.n
        and bool((length == _LINE).mean() > 0.8)
    )


def _again_and_again(features: Features) -> Mask:
    """Mark requests that a source repeats verbatim, faster than any page reloads."""
    matrix, length = payload(features.traffic.packets, features.rows, _LINE)
    asked = mix(features.traffic.source_key[features.rows], distinct_texts(matrix))
    _, inverse, counts = np.unique(asked, return_inverse=True, return_counts=True)
    rate = np.bincount(inverse, features.weight) / max(features.traffic.seconds, 1.0)
    return np.asarray(((counts >= _TIMES) & (rate > _REPEATS_A_SECOND))[inverse] & (length >= _LINE // 2))


def _unique_queries(parsed: list[http.Request]) -> tuple[http.Request, float] | None:
    """Find one path that a tool requests with a unique query string each time."""
    asked = [request for request in parsed if request.query]
    if len(asked) < _TOLD or len(asked) < 0.2 * len(parsed):
        return None
    (method, path), n = Counter((request.method, request.path) for request in asked).most_common(1)[0]
    mine = [request for request in asked if (request.method, request.path) == (method, path)]
    distinct = len({request.query for request in mine}) / n
    if n < 0.5 * len(asked) or distinct < 0.8:
        return None
    same_words = Counter(_whole_words(mine)).most_common(1)[0][1] >= _ONE_TOOL * n
    if not (same_words or _names_differ(mine) or _no_browser(mine)):
        return None
    return mine[0], distinct


def _names_differ(mine: list[http.Request]) -> bool:
    """Check for query strings whose parameter names vary; those of a real page don't."""
    names = [request.query.partition(b"=")[0] for request in mine if b"=" in request.query]
    short = {name for name in names if 0 < len(name) <= _PARAMETER}
    return len(names) > 0.8 * len(mine) and len(short) > 0.5 * len(names)


def _no_browser(mine: list[http.Request]) -> bool:
    """Check for requests to / with unique query strings by one program that is no browser."""
    products = Counter(request.agent.split(b"/")[0] for request in mine if request.agent)
    name, n = products.most_common(1)[0] if products else (b"Mozilla", 0)
    return mine[0].path == b"/" and name not in _BROWSERS and n > 0.5 * len(mine)


def _whole_words(parsed: list[http.Request]) -> list[bytes]:
    """Return what follows the request lines, cut to the length that nearly all samples hold."""
    held = sorted(len(request.template) for request in parsed)[len(parsed) // 20]
    return [request.template[:held] for request in parsed]


def outside_connections(context: AnalysisContext, features: Features) -> bool:
    """Check for packets without connections: one per flow, and hardly any SYN."""
    tcp, weight = context.tcp, context.traffic.weight
    real = float(tcp.real[features.rows].mean())
    openings = float(weight[tcp.syn].sum())
    if context.sparse:  # in a thin sample, bare ACKs of clients show connections
        bare = tcp.ack & (context.traffic.packets.payload_length == 0)
        openings += 0.2 * float(weight[bare].sum())
    return real < 0.1 and features.flow_singles > 0.8 and openings < 0.1 * features.packets


def with_connections(context: AnalysisContext, features: Features) -> Rows:
    """Return the flood's rows with all TCP packets of the same clients to the same ports."""
    traffic = context.traffic
    clients = traffic.of_sources(features.rows)
    ports = among(traffic.packets.dport, traffic.packets.dport[features.rows])
    return traffic.rows(context.tcp.tcp & context.unclaimed & clients & ports)


def fast_rows(features: Features, limit: float) -> Mask:
    """Mark the rows whose source sends more than `limit` packets per second, by its samples."""
    traffic = features.traffic
    inverse = traffic.source_id[features.rows]
    counts = np.maximum(np.bincount(inverse), 1)
    sums = np.bincount(inverse, features.weight)
    # Few samples say little about a rate: take the lower end of the 95 % interval
    lower_bound = 1 - 2 / np.sqrt(counts) if traffic.one_in > 1 else 1.0
    rate = np.where(counts >= 5, sums * lower_bound / max(traffic.seconds, 1.0), 0.0)
    fast = np.asarray((rate > limit)[inverse])
    # If fast sources are common, include those at a quarter of the limit
    return np.asarray((rate > limit / 4)[inverse]) if fast.mean() > 0.3 else fast
