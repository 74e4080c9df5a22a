"""From a selected row and a key to a rule: what `b`, `l`, `s`, `x` and `n` mean on each kind of row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fwtop.model.rule import Kind, Match, PayloadMatch, RateLimit, Rule
from fwtop.model.snapshot import Payload, Port, Proposal, Source
from fwtop.ui.format import cut, number, span
from fwtop.ui.items import Item
from fwtop.ui.traffic_panels import payload_name, port_name

TTL_SECONDS = 600
TTL_CHOICES = (30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400)
RATE_CHOICES = (1, 5, 10, 50, 100, 500, 1000, 5000, 10_000, 50_000, 100_000)
PREFIX_CHOICES = ((32, 64), (24, 56), (16, 48), (8, 32))
_PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "dccp": 33, "sctp": 132, "udplite": 136}


class NoRule(ValueError):
    """This key means nothing on this row; the text says what to do instead."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Something the operator can change before a rule goes in."""

    name: str
    values: tuple[Any, ...]
    show: Callable[[Any], str]
    read: Callable[[Rule], Any]
    write: Callable[[Rule, Any], Rule]

    def step(self, rule: Rule, delta: int) -> Rule:
        """Return the rule with the next or previous value; a value not listed goes to its neighbour."""
        present = self.read(rule)
        if present in self.values:
            index = self.values.index(present) + delta
        else:
            index = sum(value < present for value in self.values) - (1 if delta < 0 else 0)
        return self.write(rule, self.values[max(min(index, len(self.values) - 1), 0)])


def choices_of(rule: Rule) -> tuple[Choice, ...]:
    """Return what can be changed about a rule."""
    found = [_TTL]
    if rule.limit is not None:
        found += [_RATE, _PER]
    return tuple(found)


def _limit(rule: Rule) -> RateLimit:
    if rule.limit is None:
        raise ValueError("a rule without a rate has no rate to change")
    return rule.limit


def _with_limit(rule: Rule, limit: RateLimit) -> Rule:
    head = rule.summary.partition(" to ")[0]
    return replace(rule, limit=limit, summary=f"{head} to {_rate_text(limit)}")


def _rate_text(limit: RateLimit) -> str:
    return f"{number(limit.per_second)}/s per /{limit.prefix_v4} (IPv6 /{limit.prefix_v6})"


_TTL = Choice(
    "for",
    TTL_CHOICES,
    span,
    lambda rule: rule.ttl_seconds,
    lambda rule, value: replace(rule, ttl_seconds=value),
)
_RATE = Choice(
    "rate",
    RATE_CHOICES,
    lambda value: f"{number(value)} packets a second",
    lambda rule: _limit(rule).per_second,
    lambda rule, value: _with_limit(rule, replace(_limit(rule), per_second=value, burst=value)),
)
_PER = Choice(
    "per",
    PREFIX_CHOICES,
    lambda value: f"/{value[0]} (IPv6 /{value[1]})",
    lambda rule: (_limit(rule).prefix_v4, _limit(rule).prefix_v6),
    lambda rule, value: _with_limit(rule, replace(_limit(rule), prefix_v4=value[0], prefix_v6=value[1])),
)


def draft(action: str, item: Item | None, now: float) -> Rule:
    """Return the rule that a key means on a row; raises NoRule with a line for people."""
    if isinstance(item, Proposal):
        return of_proposal(item, now)
    if item is None:
        raise NoRule("nothing is selected: Tab goes to a panel, the arrows select a row")
    kind, match, summary = _MAKERS[action](item)
    limit = RateLimit(1000, 1000, 24, 56) if kind is Kind.HASHLIMIT else None
    if limit is not None:
        summary = f"{summary} to {_rate_text(limit)}"
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
