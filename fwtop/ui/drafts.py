"""From a selected row and a key to a rule: what `b`, `l`, `s`, `x` and `n` mean on each kind of row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fwtop.model.rule import Kind, Match, PayloadMatch, RateLimit, Rule
from fwtop.model.snapshot import Payload, Port, Proposal, Source
from fwtop.ui.format import cut
from fwtop.ui.items import Item
from fwtop.ui.traffic_panels import payload_name, port_name
from fwtop.ui.wording import rate_text

TTL_SECONDS = 600
_PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "dccp": 33, "sctp": 132, "udplite": 136}


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
    kind, match, summary = _MAKERS[action](item)
    limit = RateLimit(1000, 1000, 24, 56) if kind is Kind.HASHLIMIT else None
    if limit is not None:
        summary = f"{summary} to {rate_text(limit)}"
    origin = _origin(item) if isinstance(item, Source) else None
    return Rule("", kind, match, summary, TTL_SECONDS, now, "key", limit=limit, origin=origin)


def of_proposal(proposal: Proposal, now: float) -> Rule:
    """Return a proposal's rule; raises NoRule where nothing on this machine helps."""
    if proposal.rule is None:
        raise NoRule(f"proposal {proposal.number} is not something this machine can do: Enter shows it")
    return replace(proposal.rule, created=now, created_by=f"proposal {proposal.number}")


def _block(item: Item) -> tuple[Kind, Match, str]:
    match, what = _matched(item)
    if isinstance(item, Source):
        return Kind.IPSET, match, f"block {what}"
    if isinstance(item, Payload):
        return Kind.STRING, match, f"drop packets with {what}"
    return Kind.XDP, match, f"drop {what}"


def _string(item: Item) -> tuple[Kind, Match, str]:
    if not isinstance(item, Payload):
        raise NoRule("s drops packets with the selected bytes: select a row of Payloads first")
    return _block(item)


def _xdp(item: Item) -> tuple[Kind, Match, str]:
    match, what = _matched(item)
    return Kind.XDP, match, f"drop {what} in the driver"


def _limited(item: Item) -> tuple[Kind, Match, str]:
    match, what = _matched(item)
    return Kind.HASHLIMIT, match, f"limit {what}"


def _untracked(item: Item) -> tuple[Kind, Match, str]:
    if isinstance(item, Payload):
        raise NoRule("n keeps a port or a source out of connection tracking: select one of those")
    match, what = _matched(item)
    return Kind.NOTRACK, match, f"do not track {what}"


_MAKERS: dict[str, Callable[[Item], tuple[Kind, Match, str]]] = {
    "block": _block,
    "limit": _limited,
    "string": _string,
    "xdp": _xdp,
    "notrack": _untracked,
}


def _matched(item: Item) -> tuple[Match, str]:
    if isinstance(item, Source):
        return Match(sources=(item.prefix,) if item.prefix is not None else ()), _source_name(item)
    if isinstance(item, Port):
        number_of = _PROTOCOLS.get(item.protocol)
        if number_of is None:
            raise NoRule(f"fwtop has no rule for ports of {item.protocol}")
        match = Match(protocol=number_of)
        if item.side == "src":
            return replace(match, sport=item.port), port_name(item)
        return replace(match, dport=item.port), port_name(item)
    if isinstance(item, Payload):
        wanted = PayloadMatch(item.data, item.offset, None, item.dns_name)
        return Match(payload=(wanted,)), f"“{cut(payload_name(item), 40)}”"
    raise NoRule("that row is a figure: select a source, a port or a payload, or press a proposal's number")


def _source_name(item: Source) -> str:
    if item.prefix is None and item.asn is not None and item.as_name:
        return f"{item.key} {item.as_name}"
    return item.key


def _origin(item: Source) -> str | None:
    if item.prefix is not None:
        return None
    if item.key.startswith("AS") and item.key[2:].isdigit():
        return f"asn:{item.key[2:]}"
    if len(item.key) == 2 and item.key.isalpha():
        return f"country:{item.key}"
    raise NoRule(f"{item.key} is not known by number or code, so it can't be blocked as a whole")
