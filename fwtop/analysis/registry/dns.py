"""DNS queries: floods of random and of repeated names, and the work of a name server."""

from fwtop.analysis.engine.hypothesis import Hypothesis, Says, at_least, at_most, is_not, is_so
from fwtop.analysis.groups.measures import rate, sources
from fwtop.analysis.groups.queries import (
    asked_repeatedly,
    below_zone,
    beyond_normal,
    dns_queries,
    dns_traffic,
    even_queries_per_source,
    floods_beside,
    match_queries,
    names_per_query,
    names_truncated,
    query_floods,
    query_types,
    random_domains,
    random_labels,
    subdomain_floods,
    unique_names,
    whole_window,
)

_LEAD = "{amount:DNS queries} from {senders}"
_FIRST = (at_most(floods_beside, 0), at_most(query_floods, 0))  # of its kind
_BELOW_ONE = (at_least(below_zone, 0.001), at_most(floods_beside, 0), at_most(subdomain_floods, 0))
_INVENTED = 0.25  # names a query: invented ones hardly come again, but for what resolvers repeat
_LIMIT = "a limit of queries for each source; a signature of the name"

DNS_ENTRIES = (
    Hypothesis("work of a name server", dns_traffic, settles=()),
    Hypothesis(
        "random-subdomain attack, names cut off", dns_queries, 3.2,
        kind="dns_random_subdomain",
        title="DNS random-subdomain attack",
        needs=(
            is_so(whole_window), is_so(names_truncated), at_most(floods_beside, 0),
            at_most(subdomain_floods, 0), at_least(unique_names, 0.7), is_so(random_labels),
        ),
        lead=(_LEAD, "{unique_names:percent} of the first labels are unique; the names are truncated"),
        details=(query_types,),
        match=match_queries,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "random-subdomain attack on one zone", dns_queries, 3.0,  # "water torture"
        kind="dns_random_subdomain",
        title="DNS random-subdomain attack on {zone}",
        needs=(*_BELOW_ONE, at_least(names_per_query, _INVENTED)),
        lead=(
            _LEAD,
            "{below_zone:percent} of the queries are for names below {zone}, {distinct:percent} of them "
            "unique",
        ),
        details=(query_types,),
        match=match_queries,
        stopped_by="dropping queries below that zone",
    ),
    Hypothesis(
        "list of names below one zone, again and again", dns_queries, 3.0,
        kind="dns_query_flood",
        title="DNS query flood on {zone}",
        needs=(*_BELOW_ONE, at_most(names_per_query, 0.99 * _INVENTED)),
        lead=(
            _LEAD,
            "{below_zone:percent} of the queries are for names below {zone}: a list, gone through again and "
            "again",
        ),
        details=(query_types,),
        match=match_queries,
        stopped_by="dropping queries below that zone; a limit for each source",
    ),
    Hypothesis(
        "flood of nonexistent names", dns_queries, 2.4,
        kind="dns_query_flood",
        title="DNS flood of nonexistent names",
        needs=(is_so(whole_window), is_not(names_truncated), *_FIRST, is_so(random_domains)),
        lead=(_LEAD, "{unique_names:percent} of the names are unique and random"),
        details=(query_types,),
        match=match_queries,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "queries that no resolver sends", dns_queries, 1.8,
        kind="dns_query_flood",
        title="DNS query flood",
        needs=(is_so(asked_repeatedly), *_FIRST),
        lead=(_LEAD, "{same_name:percent} ask for {name}; {why}"),
        details=(query_types,),
        match=match_queries,
        stopped_by=_LIMIT,
    ),
    Hypothesis(
        "queries far above normal", dns_queries, 1.5,
        kind="dns_query_flood",
        title="DNS query flood",
        needs=(is_so(whole_window), *_FIRST, at_least(beyond_normal, 10)),
        lead=(_LEAD, "{peak:count} queries/s, normally up to {usual:count}"),
        details=(query_types,),
        match=match_queries,
        stopped_by="a limit of queries for each source",
    ),
    Hypothesis(
        "sources that query equally often", dns_queries, 0.25,
        kind="dns_query_flood",
        title="DNS query flood",
        needs=(is_so(whole_window), *_FIRST, at_least(even_queries_per_source, 3)),
        lead=(_LEAD, "{senders} send {even_queries_per_source:.0f} queries/s each; of real clients, a few "
                     "send most"),
        evidence=(
            Says(even_queries_per_source, 4, -3.0, 14, 0.5),
            Says(unique_names, 0.1, 1.0, 0.6, -1.5,
                 "they ask for few names again and again: resolvers cache answers"),
            Says(sources, 8, -1.0, 20, 0.0),
            Says(rate, 300, -0.5, 3_000, 1.0, "{rate:count} queries/s"),
        ),
        details=(query_types,),
        match=match_queries,
        stopped_by="a limit of queries for each source",
    ),
)  # fmt: skip
