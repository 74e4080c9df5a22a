"""Known clients that a rule cuts off, counted where no traffic is seen: by what a console told of them.

Only rules that drop all that comes from some sources, or goes to a service, can be counted so.
"""

from __future__ import annotations

from collections.abc import Sequence

from fwtop.model.addresses.address import listed, says_more
from fwtop.model.harm import ClientHarm
from fwtop.model.rule import Rule
from fwtop.rehearsal.host import Client, Host
from fwtop.rehearsal.operators import in_full
from fwtop.rules.fields import DPORT, FIELDS, PROTOCOL
from fwtop.rules.kinds import heeds_limit, of


def harm_to_clients(rule: Rule, host: Host) -> ClientHarm | None:
    """Return whom a rule hits: as whoever made it predicts, else by the host's clients; None: not known."""
    if rule.predicted_clients is not None:
        return rule.predicted_clients
    if not host.clients or not _drops_all(rule):
        return None
    match, passing = rule.match, listed(in_full(host.allow))
    of_service = (match.protocol, match.dport)
    mine = [one for one in host.clients if match.dport is None or (one.protocol, one.port) == of_service]
    hit = sum(passing.overlapping(one.address) is None for one in _met(rule, mine))
    return ClientHarm(
        known=len(mine),
        hit=hit,
        hit_half=hit,
        others=len(host.clients) - len(mine),
        share=hit / max(len(mine), 1),
        protocol=match.protocol or 0,
        port=match.dport or 0,
    )


def _drops_all(rule: Rule) -> bool:
    """Return whether a rule drops every packet that sources, family, protocol and port choose."""
    match = rule.match
    more = any(field.of(match) is not None for field in FIELDS if field not in (PROTOCOL, DPORT))
    plain = of(rule.kind).is_filter and not heeds_limit(rule) and rule.connections is None and not rule.parts
    return plain and not (more or match.payload or match.destinations or says_more(match.sources))


def _met(rule: Rule, clients: Sequence[Client]) -> list[Client]:
    match = rule.match
    there = [
        one
        for one in clients
        if one.address.family in match.families and match.protocol in (None, one.protocol)
    ]
    if not match.sources:
        return there
    index = listed(match.sources)
    return [one for one in there if index.overlapping(one.address) is not None]
