"""Floods of DNS queries, for random and for repeated names, and the work of a name server.

Sources: RFC 8482; "water torture" (Secure64 2014, Luo et al. 2018).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from fwtop.analysis.context import AnalysisContext, Trait
from fwtop.analysis.engine.entries import Group, Hypothesis, Least, Proof, cut, feature, matching, noted
from fwtop.analysis.measures.general import few_long_flows, rate, sources, spoofed
from fwtop.analysis.parsers import dns
from fwtop.analysis.parsers.dns import invented, looks_random, random_subdomains, top_name, wire_of
from fwtop.analysis.parsers.services import dns_query
from fwtop.analysis.severity import CORE, service
from fwtop.analysis.window.counting import among, distinct_values, part_marked
from fwtop.analysis.window.traffic import UDP, Rows, flow_key
from fwtop.model.text import dns_name_text, safe_text
from fwtop.model.traffic.packets import Mask
from fwtop.parse.dns_question import Question
from fwtop.render.numbers import percent

_TELL = 20  # questions before their names say something
_KINDS = ("dns_query_flood", "dns_random_subdomain")
_NAMES = 16  # that are asked for so often, at most
_AGAIN = 10  # times that a random name doesn't come up, nor the same question of one resolver
_FORGED = 0.9  # probability: sources of one name that only come the same way may be one network's
_AGAIN_PPS = 50.0  # identical queries per second and source: more than all caches of a large resolver
_TRIES = 3.0  # questions for one name by each of its sources: resolvers try twice
_WORDED = 0.01  # of the questions whose names begin with one word: people number their hosts
_LIVING = 0.3  # of the questions are for names that another source asks for, too
_ALL = 0.95  # of the questions for a name
_REST = 30  # questions for other names to compare with
_DRILLED, _ALIKE = 20, 8  # sources that insist on a few names, and that ask equally often
_EVEN = 0.3  # squared coefficient of variation of the sources' rates: that of real clients is above 1
_DATA_BYTES, _CARRIERS = 80, 0.25  # of a query that carries data, and how many of its source's do
_TUNNELS, _TUNNEL_PPS = 4, 2_000.0  # clients of a tunnel, and what each asks per second
_IDLE_PPS = 100.0  # of short names: a tunnel that waits always has a query on its way


@cut(Proof.CONTENT)
def dns_traffic(context: AnalysisContext) -> Iterator[Group]:
    """All DNS queries to this host: the work of a name server, whatever else is among them."""
    yield Group(context, context.features(_queries(context)), Least(normal="dns"))


@cut(Proof.CONTENT, again=True)
def dns_queries(context: AnalysisContext) -> Iterator[Group]:
    """DNS queries but those of tunnels: all, those for random names, and those that no resolver sends."""
    rows = _queries(context)
    rows = rows[~_tunnels(context, rows)]
    every = context.features(rows)
    if context.prominence(every, floor_pps=context.config.flood_pps, normal="dns") < 1:
        return
    parsed = dns.questions(context.traffic, rows)
    if len(parsed) < _TELL:
        return
    cut_off = sum(question.cut for question in parsed) > 0.5 * len(parsed)
    yield _group(context, rows, parsed, {"names_truncated": cut_off, "part": "all"})
    if not cut_off and (found := _random_names(context, rows, parsed)) is not None:
        yield _group(context, found[0], parsed, found[1])
    if every.pps_per_source > context.config.flood_pps:
        again, why = rows, "no source waits for an answer"
    else:
        again, why = _standing_out(context, rows)
    if len(again):
        mine = parsed if len(again) == len(rows) else dns.questions(context.traffic, again)
        if mine:
            yield _group(context, again, mine, _repeated_names(mine, why, cut_off=cut_off), every=parsed)


def _queries(context: AnalysisContext) -> Rows:
    """Find the queries; a flood to port 53 that isn't DNS is left to UDP floods."""
    packets = context.traffic.packets
    to_server = context.traffic.rows(context.udp & context.unclaimed & (packets.dport == 53))
    if len(to_server) < context.config.min_samples:
        return to_server[:0]
    asks = dns_query(*context.traffic.heads(to_server))
    return to_server[asks] if part_marked(asks) >= 0.1 else to_server[:0]


def _group(
    context: AnalysisContext,
    rows: Rows,
    parsed: list[Question],
    notes: dict[str, Any],
    every: list[Question] | None = None,
) -> Group:
    """Make a group; all queries tell types and options."""
    usual = context.baseline.rate("dns")
    usually = {"parsed": parsed, "every": every or parsed, "usual": 0.0 if usual is None else usual}
    least = Least("reflection_pps", "dns", shaped=True)
    return Group(context, context.features(rows), least, {**usually, **notes})


@feature("share")
def unique_names(group: Group) -> float:
    """Part of the names that are different; of cut names, of the first labels."""
    parsed = group.notes["parsed"]
    if group.notes.get("names_truncated"):
        return len({question.labels[0] for question in parsed if question.labels}) / len(parsed)
    return len({question.labels for question in parsed}) / len(parsed)


@feature("names a query")
def names_per_query(group: Group) -> float:
    """Different names for each query: a resolver asks up to three times for each."""
    counts = dns.counts_of(dns.beginnings(group.context.traffic, group.packets.rows))
    return float((1 / counts).mean())


@feature("yes or no")
def whole_window(group: Group) -> float:
    """Whether the group holds all queries, and not a part that stands out."""
    return group.notes.get("part") == "all"


names_truncated = noted("names_truncated", "yes or no", "Whether names are longer than the captured bytes.")


@feature("yes or no")
def random_labels(group: Group) -> float:
    """Whether the first labels look random: real names share letters and words."""
    return looks_random([question.labels[0] for question in group.notes["parsed"] if question.labels])


@feature("yes or no")
def random_domains(group: Group) -> float:
    """Whether nearly all of 200 names are random in their domain and in their first label."""
    parsed = group.notes["parsed"]
    return invented(parsed, [question.labels[0] for question in parsed if question.labels])


below_zone = noted("below_zone", "share", "Part of the queries that ask for random names below one zone.")


@feature("yes or no")
def asked_repeatedly(group: Group) -> float:
    """Whether they are queries that no resolver sends: repeated, by sources that don't cache, or forged."""
    return "why" in group.notes


same_name = noted("same_name", "share", "Part of these that ask for the most common name.")


@feature("share")
def answered(group: Group) -> float:
    """Answers for each query, at most 1, of a host that copes; unknown unless a capture shows both ways."""
    traffic, rows = group.context.traffic, group.packets.rows
    if not len(traffic.outbound):
        return math.nan
    asked = flow_key(traffic.packets.select(rows))
    return min(float(among(flow_key(traffic.outbound, reverse=True), asked).sum()) / len(rows), 1.0)


@feature("times the normal rate")
def beyond_normal(group: Group) -> float:
    """Rate against the baseline of its class, or against the least flood; 0 where none is known."""
    return group.context.beyond_usual(group.packets, "dns")


@feature("queries a second")
def even_queries_per_source(group: Group) -> float:
    """Queries of each source, if eight or more send about as many: of resolvers, a few send most."""
    features = group.packets
    even = features.sources >= _ALIKE and features.evenness < _EVEN
    return features.peak_pps / features.likely_sources if even else 0.0


@feature("attacks")
def floods_beside(group: Group) -> float:
    """Floods of queries that were found already, if these queries are for no single name or zone."""
    if group.notes.get("dns_name") is not None:
        return 0.0
    return sum(finding.kind in _KINDS for finding in group.context.findings)


@feature("attacks")
def query_floods(group: Group) -> float:
    """DNS query floods that were found already."""
    return sum(finding.kind == _KINDS[0] for finding in group.context.findings)


@feature("attacks")
def subdomain_floods(group: Group) -> float:
    """Floods of random subdomains that were found already."""
    return sum(finding.kind == _KINDS[1] for finding in group.context.findings)


def query_types(group: Group) -> list[str]:
    """Write the most common query type, and what EDNS options reveal."""
    parsed = group.notes["every"]
    types = Counter(question.qtype for question in parsed)
    qtype, n = types.most_common(1)[0]
    name = dns.type_name(qtype)
    known = f"{percent(n / len(parsed))} ask for type {name}"
    asked = known if name != "?" else "query types are beyond the captured bytes"
    return [asked, *dns.edns_evidence(parsed)]


def _tunnels(context: AnalysisContext, rows: Rows) -> Mask:
    """Mark queries of the few sources that carry data in names or answers: tunnels (iodine, dnscat2).

    Names that carry data are as long as they can be. A tunnel that has nothing to send asks short ones, for
    answers that hold data. Floods of random names invent short ones for addresses, or come faster than a
    tunnel, which waits for answers.
    """
    traffic = context.traffic
    place, size = traffic.source_id[rows], traffic.packets.payload_length[rows]
    each = np.bincount(place, traffic.weight[rows]) / max(traffic.seconds, 1.0)
    asked = np.bincount(place)
    long = np.bincount(place, size >= _DATA_BYTES) > _CARRIERS * asked
    slow = (each < _IDLE_PPS) & (asked >= _AGAIN)
    data = np.zeros(len(rows), np.bool_)
    if slow.any():
        data[slow[place]] = dns.asks_for_data(traffic, rows[slow[place]])
    waits = slow & (np.bincount(place, data, len(asked)) > 0.5 * asked)
    tunnel = ((long & (each < _TUNNEL_PPS)) | waits) & (asked >= _AGAIN)
    return np.asarray((tunnel & (tunnel.sum() <= _TUNNELS))[place], np.bool_)


def _repeated_names(parsed: list[Question], why: str, *, cut_off: bool) -> dict[str, Any]:
    name, share = top_name(parsed)
    return {
        "why": why,
        "name": safe_text(dns_name_text(list(name)), limit=80),
        "same_name": share,
        "dns_name": wire_of(name) if share >= 0.5 and not cut_off else None,
    }


def _standing_out(context: AnalysisContext, rows: Rows) -> tuple[Rows, str]:
    """Find queries that no resolver sends, and say why they aren't a resolver's.

    Resolvers cache answers (RFC 2181 5.2), so a name server receives each of their queries once per
    time to live; floods repeat queries or spoof their sources.
    """
    again, pace = dns.asked_again(context.traffic, rows)
    stubborn = rows[(again >= _AGAIN) & (pace > _AGAIN_PPS)]
    names = dns.kinds(context.traffic, rows)
    often = dns.counts_of(names)
    flooding: list[Rows] = []
    why = "resolvers cache the answer, these sources keep asking"
    if _weighs(context, stubborn):
        flooding.append(stubborn)
    least = context.config.capture_share * context.traffic.total / max(1.0, context.traffic.one_in)
    for name in distinct_values(names[often >= max(context.config.min_samples, least)]).tolist()[:_NAMES]:
        mine = rows[names == np.uint64(name)]
        if _unlike_resolvers(context, mine, rows[names != np.uint64(name)]):
            flooding.append(mine)
    popular = rows[often >= max(context.config.min_samples, least)]
    asked, few = context.features(popular), len(distinct_values(names[among(rows, popular)]))
    # Many sources each of which asks for the same few names several times a second
    drilled = len(popular) >= 0.5 * len(rows) and few <= _NAMES and asked.sources >= _DRILLED
    if drilled and asked.pps > _TRIES * few * asked.likely_sources and _weighs(context, popular):
        flooding.append(popular)
    if not flooding and context.spoof(rows).probability > context.config.spoof_threshold:
        flooding.append(rows)
    found = distinct_values(np.concatenate(flooding)) if flooding else rows[:0]
    if context.spoof(found).probability > context.config.spoof_threshold:
        why = "their sources are spoofed"
    return found, why


def _weighs(context: AnalysisContext, rows: Rows) -> bool:
    """Check whether queries that no resolver sends are enough for a flood."""
    features, floor = context.features(rows), context.config.reflection_pps
    return context.prominence(features, floor_pps=floor, normal="dns", shaped=True) >= 1


def _unlike_resolvers(context: AnalysisContext, rows: Rows, others: Rows) -> bool:
    """Check for queries for one name that are spoofed, sent by a tool, or the uniform majority.

    Resolvers query an authoritative server without recursion desired (RFC 1035 4.1.1, RD), and for
    addresses of both families; they don't repeat a query.
    """
    features = context.features(rows)
    if not _weighs(context, rows):
        return False
    if context.spoof(rows).probability > _FORGED:
        return True
    asks = part_marked(dns.wants_recursion(context.traffic, rows)) > _ALL
    if asks and len(others) >= _REST and part_marked(dns.wants_recursion(context.traffic, others)) < 1 - _ALL:
        return True
    if features.n < len(others):
        return False
    again = features.n >= _TRIES * features.sources and features.pps_per_source > _TRIES
    busy = features.pps_per_source > context.config.flood_pps / 10
    if busy or features.sources < 20:
        return busy
    types = Counter(question.qtype for question in dns.questions(context.traffic, rows))
    return again or max(types.values(), default=0) > _ALL * types.total()


def _random_names(
    context: AnalysisContext, rows: Rows, parsed: list[Question]
) -> tuple[Rows, dict[str, Any]] | None:
    """Find queries for random names below one zone, dominant or among other queries."""
    traffic = context.traffic
    # Names that are queried repeatedly are real ones, not the attack
    counts = dns.counts_of(dns.beginnings(traffic, rows))
    once = rows[counts < max(_AGAIN, 5 * len(rows) / float((1 / counts).sum()))]
    rare = once[~dns.worded(traffic, once, max(_AGAIN, _WORDED * len(once)))]
    found, pool = None, rare
    few = len(rare) < 0.5 * len(rows)
    if _weighs(context, rare) and not (
        few and context.features(rare).peak_pps < context.config.reflection_pps
    ):
        found = random_subdomains(dns.questions(traffic, rare), flat=few)
    if found is None:  # the random part may consist of words
        found, pool = random_subdomains(parsed), once
    if found is None:
        return None
    parent, share, distinct = found
    zone = wire_of(parent)
    if zone is not None and share < 1:
        pool = pool[dns.below(traffic, pool, zone)]
    if not len(pool) or dns.asked_by_others(traffic, pool).mean() > _LIVING:
        return None  # random-looking names that are in use, as those of a CDN
    shown = safe_text(dns_name_text(list(parent)), limit=80)
    notes = {"zone": shown, "below_zone": len(pool) / len(rows), "distinct": distinct, "dns_name": zone}
    return pool, notes


_LEAD = "{amount:DNS queries} from {senders}"
_LIMIT = "a limit of queries for each source; a signature of the name"
_INVENTED = 0.25  # names a query: invented ones hardly come again, but for what resolvers repeat
_BELOW_ONE = (below_zone.at_least(0.001), floods_beside.at_most(0), subdomain_floods.at_most(0))
_FIRST = (floods_beside.at_most(0), query_floods.at_most(0))  # of its kind

_flood = partial(
    Hypothesis,
    of=dns_queries,
    kind="dns_query_flood",
    exhausts=(service(20_000), CORE),  # queries/s that a name server on one core answers
    bearable=few_long_flows,
    title="DNS query flood",
    details=(query_types,),
    match=matching(protocol=UDP, dport=53),
    stopped_by=_LIMIT,
    traits=Trait.QUESTIONS,
)
ENTRIES = (
    Hypothesis("work of a name server", dns_traffic, settles=()),
    _flood(
        "random-subdomain attack, names cut off", prior=3.2,
        kind="dns_random_subdomain",
        exhausts=(service(1_000),),  # nothing is cached: each asks other servers
        traits=Trait.QUESTIONS | Trait.RANDOM_NAMES,
        title="DNS random-subdomain attack",
        needs=(
            whole_window.yes, names_truncated.yes, floods_beside.at_most(0),
            subdomain_floods.at_most(0), unique_names.at_least(0.7), random_labels.yes,
        ),
        lead=(_LEAD, "{unique_names:percent} of the first labels are unique; the names are truncated"),
    ),
    _flood(
        "random-subdomain attack on one zone", prior=3.0,  # "water torture"
        kind="dns_random_subdomain",
        exhausts=(service(1_000),),  # nothing is cached: each asks other servers
        traits=Trait.QUESTIONS | Trait.RANDOM_NAMES,
        title="DNS random-subdomain attack on {zone}",
        needs=(*_BELOW_ONE, names_per_query.at_least(_INVENTED)),
        lead=(
            _LEAD,
            "{below_zone:percent} of the queries are for names below {zone}, {distinct:percent} of them "
            "unique",
        ),
        stopped_by="dropping queries below that zone",
    ),
    _flood(
        "list of names below one zone, again and again", prior=3.0,
        title="DNS query flood on {zone}",
        needs=(*_BELOW_ONE, names_per_query.at_most(0.99 * _INVENTED)),
        lead=(
            _LEAD,
            "{below_zone:percent} of the queries are for names below {zone}: a list, gone through again and "
            "again",
        ),
        stopped_by="dropping queries below that zone; a limit for each source",
    ),
    _flood(
        "flood of nonexistent names", prior=2.4,
        title="DNS flood of nonexistent names",
        needs=(whole_window.yes, names_truncated.no, *_FIRST, random_domains.yes),
        lead=(_LEAD, "{unique_names:percent} of the names are unique and random"),
    ),
    _flood(
        "queries that no resolver sends", prior=1.8,
        needs=(asked_repeatedly.yes, *_FIRST),
        lead=(_LEAD, "{same_name:percent} ask for {name}; {why}"),
    ),
    *(
        Hypothesis(
            f"one resolver or program that asks {what}", dns_queries, 1.0,
            needs=(*those, sources.at_most(5)),
            evidence=(
                sources.says(1, 2.0, 5, 0.0),
                same_name.says(0.1, 0.0, 0.5, -6.0),
                rate.says(1_000, 1.5, 10_000, -3.0),
                answered.says(0.5, -3.0, 0.95, 5.0),
                beyond_normal.says(5, 0.0, 50, -3.0),
                spoofed.above(0.5, -6.0),
            ),
        )
        for what, those in (
            ("a lot", (asked_repeatedly.yes,)),
            ("for a zone", (below_zone.at_least(0.001), names_per_query.at_most(0.99 * _INVENTED))),
        )
    ),
    _flood(
        "queries far above normal", prior=1.5,
        needs=(whole_window.yes, *_FIRST, beyond_normal.at_least(10)),
        lead=(_LEAD, "{peak:count} queries/s, normally up to {usual:count}"),
        stopped_by="a limit of queries for each source",
    ),
    _flood(
        "sources that query equally often", prior=0.25,
        needs=(whole_window.yes, *_FIRST, even_queries_per_source.at_least(3)),
        lead=(_LEAD, "{senders} send {even_queries_per_source:.0f} queries/s each; of real clients, a few "
                     "send most"),
        evidence=(
            even_queries_per_source.says(4, -3.0, 14, 0.5),
            unique_names.says(0.1, 1.0, 0.6, -1.5,
                 "they ask for few names again and again: resolvers cache answers"),
            sources.says(8, -1.0, 20, 0.0),
            rate.says(300, -0.5, 3_000, 1.0, "{rate:count} queries/s"),
        ),
        stopped_by="a limit of queries for each source",
    ),
)  # fmt: skip
