"""HTTP floods, as opposed to flash crowds. Source: Jung et al., "Flash Crowds and DoS" (WWW 2002)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fwtop.analysis.context import AnalysisContext, Finding, confidence_of, count
from fwtop.analysis.parsers import http
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import TCP, Rows, distinct_texts, mix, payload
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import Mask
from fwtop.render.numbers import percent

_ASKED = 100  # requests with a query string: fewer say nothing
_PEOPLE = 5  # user agents per source of a proxy
_POLLED_PPS = 200.0  # of one path by monitoring programs
_ONE_TOOL = 0.7  # of the requests have identical headers: no browser version has that share
_PAGE = 150  # requests for one page with all its resources
_PARAMETER = 16  # bytes of a parameter name; longer ones are values without a name
_UNSHARED = 0.9  # of the paths: in a crowd, the same pages are wanted
_CHANGING, _PAIRS = 0.6, 80  # of a source's requests have another agent than the one before; pairs compared
_EVEN = 0.3  # squared coefficient of variation of the sources' rates: that of real clients is above 1
_PERSISTENT_PPS = 1.0  # requests for pages, per source
_SURGE = 10.0  # times normal
_DRAWN_ODDS = 3.5
_FLAT, _LETTERS = 0.95, 400  # of the greatest entropy that letters can have, and how many tell
_BROWSERS = (b"Mozilla", b"Opera", b"Dalvik")
_LINE = 40  # bytes of a request that are compared
_TIMES = 10
_REPEATS_A_SECOND = 3.0


def requests(context: AnalysisContext) -> list[Finding]:
    """Find requests faster than browsers send them, outside of connections, or with random query strings.

    A flash crowd has few requests per source, complete connections and shared URLs; it is never called an
    attack, whatever its rate.
    """
    packets = context.traffic.packets
    data = context.traffic.rows(context.tcp.ack & context.unclaimed & (packets.payload_length > 0))
    if len(data) < context.config.min_samples:
        return []
    rows = data[http.request_mask(context.traffic, data)]
    features = context.features(rows)
    if not context.significant(
        features, floor_pps=context.config.reflection_pps, normal="tcp.ack", shaped=True
    ):
        return []
    parsed = http.requests(context.traffic, features.spread(384))
    rows, reasons = _flood_rows(context, features, parsed)
    features = context.features(rows)
    if not reasons or features.n < context.config.min_samples:
        return []
    evidence = (
        f"{features.amount('HTTP requests')} ({count(features.pps)}/s) from {features.senders}",
        *reasons,
        *http.describe(http.requests(context.traffic, features.spread(384))),
    )
    stray = outside_connections(context, features)
    spoof = context.spoof(rows, prior=0.0 if stray else -4.0)
    dport = features.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    if not stray:
        rows = with_connections(context, features)
    return [Finding("http_flood", "HTTP flood", rows, confidence_of(0.9, features.n), evidence, spoof, match)]


def _flood_rows(
    context: AnalysisContext, features: Features, parsed: list[http.Request]
) -> tuple[Rows, list[str]]:
    """Find the requests that don't come from browsers, and say why."""
    if outside_connections(context, features):
        # Requests on real connections stay unclaimed: client impact is measured on unclaimed packets
        others = ~context.tcp.real[features.rows]
        return features.rows[others], ["they belong to no connection: there was no handshake"]
    if not context.sparse:
        stray = (context.unestablished & ~context.traffic.of_sources(context.tcp.syn))[features.rows]
        if stray.mean() > 0.3 and stray.sum() > 50:
            return features.rows[stray], ["they belong to no connection: their sources made no handshake"]
    busting = _cache_busting(parsed)
    if busting is not None:
        request, sentence = busting
        return features.rows[http.path_mask(context.traffic, features.rows, request.method, request.path)], [
            sentence
        ]
    limit = context.config.request_rate_per_source
    fast = fast_rows(features, limit)
    if fast.mean() > 0.3 and not (
        _proxies(context, features.rows[fast]) or _pages(context, features.rows[fast])
    ):
        share = float(features.weight[fast].sum()) / features.packets
        reason = f"{percent(share)} of the requests come from sources that send more than {limit:.0f}/s each"
        return features.rows[fast], [reason]
    again = _again_and_again(features)
    if again.mean() > 0.5:
        reason = f"{percent(again.mean())} repeat an earlier request of the same source"
        return features.rows[again], [reason]
    return features.rows, _drawn(context, features, parsed) or _one_tool(features, parsed)


def _drawn(context: AnalysisContext, features: Features, parsed: list[http.Request]) -> list[str]:
    """Say why requests for pages that nobody shares come from tools; empty if visitors may send them.

    A crowd wants the same pages. Behind a CDN only pages that nobody else wants reach the host, by addresses
    with many users each: these differ in how much they send.
    """
    paths = [request.path for request in parsed]
    distinct = len(set(paths)) / max(1, len(paths))
    if len(paths) < _ASKED or distinct < _UNSHARED or features.peak_pps < context.config.flood_pps:
        return []
    signs = [f"{percent(distinct)} of the requested paths are requested once"]
    odds = 1.0
    if _look_drawn(paths):
        odds, signs = odds + 0.5, [*signs, "they look random"]
    changing = _agents_change(context, features)
    if changing > _CHANGING:
        odds += 1.0
        signs.append(
            f"{percent(changing)} of a source's requests name another User-Agent than the one before"
        )
    if features.sources >= 20 and features.n >= 2 * features.sources and features.evenness < _EVEN:
        odds += 1.0
        signs.append("all sources send about as much")
    each = features.pps / features.sources
    if each >= _PERSISTENT_PPS:
        odds += 0.5
        signs.append(f"each source sends {each:.1f} requests/s")
    usual = _usual_requests(context)
    if usual is not None and features.peak_pps > _SURGE * max(usual, context.config.reflection_pps):
        odds += 1.0
        signs.append(f"{count(features.peak_pps)} requests/s, normally up to {count(usual)}")
    return signs if odds >= _DRAWN_ODDS else []


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


def _agents_change(context: AnalysisContext, features: Features) -> float:
    """Return how often two requests in a row of one source name different agents; 0 if too few tell."""
    source = context.traffic.source_key[features.rows]
    order = np.argsort(source, kind="stable")
    pairs = order[np.flatnonzero(source[order][1:] == source[order][:-1])[:_PAIRS, None] + np.arange(2)]
    changed, known = 0, 0
    for one, two in pairs.tolist():
        said = http.requests(context.traffic, features.rows[[one, two]])
        if len(said) == 2 and said[0].agent and said[1].agent:
            known += 1
            changed += said[0].agent != said[1].agent
    return changed / known if known >= _PAIRS // 4 else 0.0


def _usual_requests(context: AnalysisContext) -> float | None:
    """Return the requests per second in the baseline; None if unknown."""
    baseline = context.baseline
    if not (baseline.ready and context.traffic.live):
        return None
    rows = np.flatnonzero((baseline.rows.protocol == TCP) & (baseline.rows.payload_length > 0))
    asks = http.starts_request(baseline.rows, rows)
    weight = baseline.rows.weight
    return float(weight[rows[asks]].sum()) / float(weight.sum()) * sum(baseline.mean.values())


def _proxies(context: AnalysisContext, rows: Rows) -> bool:
    """Check for sources that represent many users: load balancers, CDNs, large NATs."""
    parsed = http.requests(context.traffic, context.features(rows).spread(384))
    agents = Counter(request.agent for request in parsed if request.agent)
    paths = Counter(request.path for request in parsed)
    sources = context.features(rows).sources
    return len(agents) >= _PEOPLE * min(sources, 4) and max(paths.values()) < 0.3 * len(parsed)


def _pages(context: AnalysisContext, rows: Rows) -> bool:
    """Check for the burst of a browser that loads a page: each resource once."""
    features = context.features(rows)
    matrix, length = payload(features.traffic.packets, rows, _LINE)
    asked = mix(features.traffic.source_key[rows], distinct_texts(matrix))
    each = float(features.source_counts.max())
    return each < _PAGE and len(np.unique(asked)) > 0.8 * features.n and bool((length == _LINE).mean() > 0.8)


def _again_and_again(features: Features) -> Mask:
    """Mark requests that a source repeats verbatim, faster than any page reloads."""
    matrix, length = payload(features.traffic.packets, features.rows, _LINE)
    asked = mix(features.traffic.source_key[features.rows], distinct_texts(matrix))
    _, inverse, counts = np.unique(asked, return_inverse=True, return_counts=True)
    rate = np.bincount(inverse, features.weight) / max(features.traffic.seconds, 1.0)
    return np.asarray(((counts >= _TIMES) & (rate > _REPEATS_A_SECOND))[inverse] & (length >= _LINE // 2))


def _cache_busting(parsed: list[http.Request]) -> tuple[http.Request, str] | None:
    """Find one path that a tool requests with a unique query string each time."""
    asked = [request for request in parsed if request.query]
    if len(asked) < _ASKED or len(asked) < 0.2 * len(parsed):
        return None
    (method, path), n = Counter((request.method, request.path) for request in asked).most_common(1)[0]
    mine = [request for request in asked if (request.method, request.path) == (method, path)]
    distinct = len({request.query for request in mine}) / n
    if n < 0.5 * len(asked) or distinct < 0.8:
        return None
    same_words = Counter(_whole_words(mine)).most_common(1)[0][1] >= _ONE_TOOL * n
    if not (same_words or _names_differ(mine) or _no_browser(mine)):
        return None
    sentence = f"{percent(distinct)} carry a unique query for one path, to bypass caches"
    return mine[0], sentence


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
    ports = np.isin(traffic.packets.dport, np.unique(traffic.packets.dport[features.rows]))
    return traffic.rows(context.tcp.tcp & context.unclaimed & clients & ports)


def _one_tool(features: Features, parsed: list[http.Request]) -> list[str]:
    """Write a sentence if all requests are identical: real browsers differ."""
    if len(parsed) < 100 or features.sources < 20 or min(features.peak_pps, features.packets) < _POLLED_PPS:
        return []
    n = Counter(request.path for request in parsed).most_common(1)[0][1]
    words, m = Counter(_whole_words(parsed)).most_common(1)[0]
    if min(n, m) < 0.9 * len(parsed) or len(words) < 40:
        return []
    return [f"{percent(m / len(parsed))} of the requests from {features.sources:,} sources are identical"]


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
