"""From a selected row and a key to a rule: what `b`, `l`, `s`, `x` and `n` mean on each kind of row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fwtop.model.protocols import NUMBERS, WITH_PORTS
from fwtop.model.rule import Kind, Match, PayloadMatch, RateLimit, Rule
from fwtop.model.snapshot import Payload, Port, Proposal, Source
from fwtop.model.wording import summarised
from fwtop.ui.items import Item, LedgerLine

TTL_SECONDS = 600

_PROPOSAL_KEYS = {
    kind: ("block", "proposal", key)
    for kind, key in (("hashlimit", "limit"), ("string", "string"), ("xdp", "xdp"), ("notrack", "notrack"))
}


class NoRule(ValueError):
    """This key means nothing on this row; the text says what to do instead."""


def draft(action: str, item: Item | None, now: float) -> Rule:
    """Return the rule that a key means on a row; raises NoRule with a line for people."""
    if isinstance(item, Proposal):
        if action not in _PROPOSAL_KEYS.get(item.kind, ("block", "proposal")):
            raise NoRule(f"proposal {item.number} is another kind of rule: {item.number} or b takes it")
        return of_proposal(item, now)
    if item is None:
        raise NoRule("nothing is selected: Tab goes to a panel, the arrows select a row")
    kind, match = _MAKERS[action](item)
    limit = RateLimit(1000, 1000, 24, 56) if kind is Kind.HASHLIMIT else None
    origin = _origin(item) if isinstance(item, Source) else None
    rule = summarised(Rule("", kind, match, "", TTL_SECONDS, now, "key", limit=limit, origin=origin))
    if isinstance(item, Source) and origin is not None and item.as_name:
        return replace(rule, summary=rule.summary.replace(item.key, f"{item.key} {item.as_name}", 1))
    return rule


def of_proposal(proposal: Proposal, now: float) -> Rule:
    """Return a proposal's rule; raises NoRule where nothing on this machine helps."""
    if proposal.rule is None:
        raise NoRule(f"proposal {proposal.number} is not something this machine can do: Enter shows it")
    return replace(proposal.rule, created=now, created_by=f"proposal {proposal.number}")


def _block(item: Item) -> tuple[Kind, Match]:
    kinds = {Source: Kind.IPSET, Payload: Kind.STRING}
    return kinds.get(type(item), Kind.XDP), _matched(item)


def _string(item: Item) -> tuple[Kind, Match]:
    if not isinstance(item, Payload):
        raise NoRule("s drops packets with the selected bytes: select a row of Payloads first")
    return _block(item)


def _xdp(item: Item) -> tuple[Kind, Match]:
    return Kind.XDP, _matched(item)


def _limited(item: Item) -> tuple[Kind, Match]:
    return Kind.HASHLIMIT, _matched(item)


def _untracked(item: Item) -> tuple[Kind, Match]:
    if isinstance(item, Payload):
        raise NoRule("n keeps a port or a source out of connection tracking: select one of those")
    return Kind.NOTRACK, _matched(item)


_MAKERS: dict[str, Callable[[Item], tuple[Kind, Match]]] = {
    "block": _block,
    "limit": _limited,
    "string": _string,
    "xdp": _xdp,
    "notrack": _untracked,
}


def _matched(item: Item) -> Match:
    if isinstance(item, Source):
        return Match(sources=(item.prefix,) if item.prefix is not None else ())
    if isinstance(item, Port):
        number_of = NUMBERS.get(item.protocol)
        if number_of not in WITH_PORTS:
            raise NoRule(f"fwtop has no rule for ports of {item.protocol}")
        match = Match(protocol=number_of)
        return replace(match, sport=item.port) if item.side == "src" else replace(match, dport=item.port)
    if isinstance(item, Payload):
        return Match(payload=(PayloadMatch(item.data, item.offset, None, item.dns_name),))
    if isinstance(item, LedgerLine):
        if item.row.mostly is None:
            raise NoRule("what ends there is a mixture: select a source, a port or a payload")
        return item.row.mostly
    raise NoRule("that row is a figure: select a source, a port or a payload, or press a proposal's number")


def _origin(item: Source) -> str | None:
    if item.prefix is not None:
        return None
    if item.key.startswith("AS") and item.key[2:].isdigit():
        return f"asn:{item.key[2:]}"
    if len(item.key) == 2 and item.key.isalpha():
        return f"country:{item.key}"
    raise NoRule(f"{item.key} is not known by number or code, so it can't be blocked as a whole")
