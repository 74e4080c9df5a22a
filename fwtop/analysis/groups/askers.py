"""Features of HTTP requests that tell who asks: people, proxies with many users, or programs that pretend.

Sources: Jung et al., "Flash Crowds and DoS" (WWW 2002); Breslau et al., "Web Caching and Zipf-like
Distributions" (INFOCOM 1999); RFC 7239 and RFC 9110 7.6.3 (whom a proxy speaks for).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.engine.group import Group, feature
from fwtop.analysis.groups.requests import PARSED, parsed_requests
from fwtop.analysis.parsers import http
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows

_PEOPLE = 5  # user agents per source of a proxy
_SITE, _POPULAR = 10, 0.6  # pages that many users ask for, and the part of the most popular
_UNSHARED = 0.9  # of the paths are requested once: nobody shares them
_TURNS = 0.5  # of a source's requests name another agent than the one before: several users
_PAIRS = 80  # of requests in a row, compared
_EVEN = 0.3  # squared coefficient of variation of the sources' rates: that of real clients is above 1
_TOLD = 100  # requests before their agents or pages say something
_AGAIN = 3.0  # requests for a page, on average, before it shows which pages people prefer
_CHANCE = 2.0  # times the variance of counts that are alike but for chance (Poisson)


@feature("yes or no")
def proxies(group: Group) -> float:
    """Whether the sources represent many users each, as load balancers, CDNs and large NATs do."""
    return _proxies(group.context, group.packets.rows) or _many_users(group)


@feature("share")
def changing_agents(group: Group) -> float:
    """Part of a source's requests that name another User-Agent than the one before."""
    return _agents_change(group.context, group.packets)


@feature("yes or no")
def even_sources(group: Group) -> float:
    """Whether twenty or more sources send about as much; of real clients, a few send most."""
    features = group.packets
    return features.sources >= 20 and features.n >= 2 * features.sources and features.evenness < _EVEN


@feature("yes or no")
def even_pages(group: Group) -> float:
    """Whether pages are asked for about equally often, as programs draw from a list; people prefer a few.

    It tells if a page is asked for three times on average: requests for pages of their own are even anyway.
    """
    counts = np.array(list(Counter(request.path for request in parsed_requests(group)).values()), np.float64)
    if len(counts) < _SITE or counts.sum() < _TOLD or counts.mean() < _AGAIN:
        return False
    return bool(counts.var() < _CHANCE * counts.mean())


@feature("share")
def agents_named_once(group: Group) -> float:
    """Part of the requests whose User-Agent no other request names; 0 below 100.

    Most people have one of a few browsers in one of a few versions; tools draw numbers into the text.
    """
    agents = Counter(request.agent for request in parsed_requests(group) if request.agent)
    if agents.total() < _TOLD:
        return 0.0
    return sum(n == 1 for n in agents.values()) / agents.total()


@feature("share")
def forwarded(group: Group) -> float:
    """Part of the requests that tell for whom a proxy asks, in the header fields that were captured."""
    parsed = parsed_requests(group)
    return sum(request.forwarded for request in parsed) / max(1, len(parsed))


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


def _proxies(context: AnalysisContext, rows: Rows) -> bool:
    """Check for sources that represent many users: load balancers, CDNs, large NATs."""
    parsed = http.requests(context.traffic, context.features(rows).spread(PARSED))
    agents = Counter(request.agent for request in parsed if request.agent)
    paths = Counter(request.path for request in parsed)
    sources = context.features(rows).sources
    return len(agents) >= _PEOPLE * min(sources, 4) and max(paths.values()) < 0.3 * len(parsed)


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
    return site and _agents_change(context, every) >= _TURNS
