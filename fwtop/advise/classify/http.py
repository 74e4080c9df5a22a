"""Floods of HTTP requests, as against a crowd. Sources: Jung et al., "Flash Crowds and DoS" (WWW 2002)."""

from __future__ import annotations

from collections import Counter

import numpy as np

from fwtop.advise import http
from fwtop.advise.facts import Facts
from fwtop.advise.scene import Finding, Scene, count, sure
from fwtop.advise.traffic import TCP, Rows, distinct_texts, mix, payload
from fwtop.model.packets import Mask
from fwtop.model.percent import percent
from fwtop.model.rule import Match

_ASKED = 100  # requests with queries before their differences say something
_PEOPLE = 5  # browsers behind one source
_POLLED_PPS = 200.0  # of one thing by programs that watch it
_ONE_TOOL = 0.7  # of the requests in the same words: no version of a browser has so many users
_PAGE = 150  # requests of one page with all that it shows
_PARAMETER = 16  # bytes of a name; what is longer is a value without one
_BROWSERS = (b"Mozilla", b"Opera", b"Dalvik")
_LINE = 40  # bytes of a request that are compared
_TIMES = 10
_REPEATS_A_SECOND = 3.0


def requests(scene: Scene) -> list[Finding]:
    """Requests faster than people's browsers, outside of any connection, or with made-up queries.

    A crowd of real clients has few requests a source, whole connections and shared addresses (URLs);
    that alone is never called an attack, however many come.
    """
    packets = scene.traffic.packets
    data = scene.traffic.rows(scene.tcp.ack & scene.free & (packets.payload_length > 0))
    if len(data) < scene.config.min_samples:
        return []
    rows = data[http.request_mask(scene.traffic, data)]
    facts = scene.facts(rows)
    if not scene.significant(facts, floor_pps=scene.config.reflection_pps, normal="tcp.ack", shaped=True):
        return []
    parsed = http.requests(scene.traffic, facts.spread(384))
    rows, reasons = _flood_rows(scene, facts, parsed)
    facts = scene.facts(rows)
    if not reasons or facts.n < scene.config.min_samples:
        return []
    evidence = (
        f"{count(facts.packets)} HTTP requests ({count(facts.pps)}/s) of {facts.senders}",
        *reasons,
        *http.describe(http.requests(scene.traffic, facts.spread(384))),
    )
    stray = outside_connections(scene, facts)
    spoof = scene.spoof(rows, prior=0.0 if stray else -4.0)
    dport = facts.top("dport")
    match = Match(protocol=TCP, dport=dport.value if dport.share > 0.98 else None)
    if not stray:
        rows = with_connections(scene, facts)
    return [Finding("http_flood", "HTTP flood", rows, sure(0.9, facts.n), evidence, spoof, match)]


def _flood_rows(scene: Scene, facts: Facts, parsed: list[http.Request]) -> tuple[Rows, list[str]]:
    """Find the requests that aren't people's, and say why."""
    if outside_connections(scene, facts):
        # The few that are people's must stay: harm is counted on what no attack explains
        others = ~scene.tcp.real[facts.rows]
        return facts.rows[others], ["they belong to no connection: nobody did a handshake before"]
    if not scene.thin:
        stray = (scene.strangers & ~scene.traffic.of_sources(scene.tcp.syn))[facts.rows]
        if stray.mean() > 0.3 and stray.sum() > 50:
            return facts.rows[stray], ["they belong to no connection: their sources did no handshake"]
    busting = _cache_busting(parsed)
    if busting is not None:
        request, sentence = busting
        return facts.rows[http.path_mask(scene.traffic, facts.rows, request.method, request.path)], [sentence]
    limit = scene.config.request_rate_per_source
    fast = fast_rows(facts, limit)
    if fast.mean() > 0.3 and not (_proxies(scene, facts.rows[fast]) or _pages(scene, facts.rows[fast])):
        share = float(facts.weight[fast].sum()) / facts.packets
        reason = f"{percent(share)} of all requests are of sources that send over {limit:.0f} a second each"
        return facts.rows[fast], [reason]
    again = _again_and_again(facts)
    if again.mean() > 0.5:
        reason = f"{percent(again.mean())} ask for the same thing as their source did before, over and over"
        return facts.rows[again], [reason]
    same = _one_tool(facts, parsed)
    return facts.rows, [same] if same else []


def _proxies(scene: Scene, rows: Rows) -> bool:
    """Tell sources that speak for many people: load balancers, content networks, large NATs."""
    parsed = http.requests(scene.traffic, scene.facts(rows).spread(384))
    agents = Counter(request.agent for request in parsed if request.agent)
    paths = Counter(request.path for request in parsed)
    sources = scene.facts(rows).sources
    return len(agents) >= _PEOPLE * min(sources, 4) and max(paths.values()) < 0.3 * len(parsed)


def _pages(scene: Scene, rows: Rows) -> bool:
    """Tell what browsers ask for at once to show a page: everything once."""
    facts = scene.facts(rows)
    matrix, length = payload(facts.traffic.packets, rows, _LINE)
    asked = mix(facts.traffic.source_key[rows], distinct_texts(matrix))
    each = float(facts.source_counts.max())
    return each < _PAGE and len(np.unique(asked)) > 0.8 * facts.n and bool((length == _LINE).mean() > 0.8)


def _again_and_again(facts: Facts) -> Mask:
    """Tell requests that their source repeats to the letter, faster than a page reloads itself."""
    matrix, length = payload(facts.traffic.packets, facts.rows, _LINE)
    asked = mix(facts.traffic.source_key[facts.rows], distinct_texts(matrix))
    _, inverse, counts = np.unique(asked, return_inverse=True, return_counts=True)
    rate = np.bincount(inverse, facts.weight) / max(facts.traffic.seconds, 1.0)
    return np.asarray(((counts >= _TIMES) & (rate > _REPEATS_A_SECOND))[inverse] & (length >= _LINE // 2))


def _cache_busting(parsed: list[http.Request]) -> tuple[http.Request, str] | None:
    """Find one path that is asked for with another query each time, by one tool."""
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
    sentence = f"{percent(distinct)} have a query of their own for one path, to get around caches"
    return mine[0], sentence


def _names_differ(mine: list[http.Request]) -> bool:
    """Tell queries whose parameters have another name each time: a page's own keep theirs."""
    names = [request.query.partition(b"=")[0] for request in mine if b"=" in request.query]
    short = {name for name in names if 0 < len(name) <= _PARAMETER}
    return len(names) > 0.8 * len(mine) and len(short) > 0.5 * len(names)


def _no_browser(mine: list[http.Request]) -> bool:
    """Tell the front page asked for with ever new queries by programs that call themselves one thing."""
    products = Counter(request.agent.split(b"/")[0] for request in mine if request.agent)
    name, n = products.most_common(1)[0] if products else (b"Mozilla", 0)
    return mine[0].path == b"/" and name not in _BROWSERS and n > 0.5 * len(mine)


def _whole_words(parsed: list[http.Request]) -> list[bytes]:
    """Return what stands behind the request lines, as much of it as nearly all samples hold."""
    held = sorted(len(request.template) for request in parsed)[len(parsed) // 20]
    return [request.template[:held] for request in parsed]


def outside_connections(scene: Scene, facts: Facts) -> bool:
    """Tell packets that claim to be of connections, but one of each only, and hardly any was opened."""
    tcp, weight = scene.tcp, scene.traffic.weight
    real = float(tcp.real[facts.rows].mean())
    openings = float(weight[tcp.syn].sum())
    if scene.thin:  # clients acknowledge what they get; at a thin sample that is what shows connections
        bare = tcp.ack & (scene.traffic.packets.payload_length == 0)
        openings += 0.2 * float(weight[bare].sum())
    return real < 0.1 and facts.flow_singles > 0.8 and openings < 0.1 * facts.packets


def with_connections(scene: Scene, facts: Facts) -> Rows:
    """Count the handshakes and acknowledgements of the same clients on the same ports to the flood."""
    traffic = scene.traffic
    clients = traffic.of_sources(facts.rows)
    ports = np.isin(traffic.packets.dport, np.unique(traffic.packets.dport[facts.rows]))
    return traffic.rows(scene.tcp.tcp & scene.free & clients & ports)


def _one_tool(facts: Facts, parsed: list[http.Request]) -> str:
    """Say so when all ask for one and the same thing in the same words: people's browsers differ."""
    if len(parsed) < 100 or facts.sources < 20 or min(facts.peak_pps, facts.packets) < _POLLED_PPS:
        return ""
    n = Counter(request.path for request in parsed).most_common(1)[0][1]
    words, m = Counter(_whole_words(parsed)).most_common(1)[0]
    if min(n, m) < 0.9 * len(parsed) or len(words) < 40:
        return ""
    return f"{percent(m / len(parsed))} of {facts.sources:,} sources' requests are alike, for one path"


def fast_rows(facts: Facts, limit: float) -> Mask:
    """Tell which rows' source sends more than `limit` a second (by its samples)."""
    traffic = facts.traffic
    inverse = traffic.source_id[facts.rows]
    counts = np.maximum(np.bincount(inverse), 1)
    sums = np.bincount(inverse, facts.weight)
    # A few samples of a thinly sampled source say little about its rate: lower end of the 95 % interval
    sure_of = 1 - 2 / np.sqrt(counts) if traffic.one_in > 1 else 1.0
    rate = np.where(counts >= 5, sums * sure_of / max(traffic.seconds, 1.0), 0.0)
    fast = np.asarray((rate > limit)[inverse])
    # Where fast sources are a good part, those at a quarter of their pace belong to them
    return np.asarray((rate > limit / 4)[inverse]) if fast.mean() > 0.3 else fast
