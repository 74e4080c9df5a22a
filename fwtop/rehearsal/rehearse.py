"""A rule tried on all that matters, before it is proposed or accepted: who loses what, known clients too.

One mechanism for all who install rules: proposals, previews, automatic rules, policies, and the guard, which
decides with what root knows. What it finds is known from values alone; nothing is read that a rule isn't
about.

Only rules that drop all that comes from some sources, or goes to a service, can be counted so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from fwtop.model.addresses.address import listed, says_more
from fwtop.model.harm import ClientHarm, Loss, Weight, Who
from fwtop.model.rule import Rule
from fwtop.rehearsal.asked import of_asked
from fwtop.rehearsal.breadth import why_broad
from fwtop.rehearsal.host import Client, Host
from fwtop.rehearsal.operators import in_full, of_operators
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


_NOT_KNOWN = (
    "not known: the guardian sees no traffic, and counts only whom a rule cuts off by source or service, of "
    "those that a screen or recorder has long known; the screen, --preview and proposals in JSON count all "
    "clients, and predicted_clients of the rule passes their count on"
)


class Rehearsal(Struct, frozen=True):
    """What was found: refused with a reason, or allowed, perhaps only with force."""

    losses: tuple[Loss, ...] = ()

    @property
    def refused(self) -> str | None:
        """Why the rule can't be installed."""
        return next(self._said(Weight.REFUSED), None)

    @property
    def broad(self) -> str | None:
        """Why force is needed."""
        return next(self._said(Weight.NEEDS_FORCE), None)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What else is lost; clients are counted beside it."""
        return tuple(self._said(Weight.TOLD))

    def _said(self, weight: Weight) -> Iterator[str]:
        found = (loss for loss in self.losses if loss.weight is weight)
        return (loss.words for loss in found if loss.who is not Who.CLIENTS)


def rehearse(rule: Rule, host: Host) -> Rehearsal:
    """Try a rule on logins from anywhere and from where operators are, on what the host asks, on clients.

    Of these it has the count that whoever made it predicts (analysis/proposals/census.py), else that of the
    clients that the host is known to have.
    """
    return Rehearsal(tuple(_losses(rule, host)))


def clients_words(rule: Rule, host: Host) -> str:
    """Write what is known of the rule's harm to clients: no packet reaches root, which answers programs."""
    clients = harm_to_clients(rule, host)
    return _NOT_KNOWN if clients is None else clients.words


def _losses(rule: Rule, host: Host) -> Iterator[Loss]:
    if rule.counts_only or 0 in rule.match.families:  # no IP: of a window's packets, and nobody's here
        return
    is_empty = rule.list_name is not None and not rule.match.sources  # judged as it is filled
    if not is_empty and (broad := why_broad(rule, host)) is not None:
        yield broad
    yield from of_operators(rule, host)
    if not is_empty and (cut := of_asked(rule, host)) is not None:
        yield cut
    clients = harm_to_clients(rule, host)
    if clients is not None and (clients.most or clients.others_hit):
        yield Loss(Who.CLIENTS, clients.words)
