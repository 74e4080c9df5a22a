"""The stateless equivalent of nft's rules on connection states; stateless.py has those of iptables.

Behind each rule on states comes one that looks at the packet, in its own chain. Lists, sets and verdict maps
of `ct state` are converted; what needs an entry for more than its state is an obstacle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct

from fwtop.model.rule import Match
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import TCP, protocol_name
from fwtop.netfilter.iptables import Variant
from fwtop.netfilter.nft import Json
from fwtop.netfilter.nft_listed import (
    FAMILIES,
    Listed,
    NftLine,
    Place,
    holds,
    may_be_about,
    read_listed,
    rule_text,
    walk,
    words_of,
)
from fwtop.netfilter.saved import Packets
from fwtop.netfilter.tracking import (
    ERRORS_MATTER,
    PLAIN,
    STATEFUL,
    STATEFUL_TARGETS,
    TRANSLATES,
    is_foreign,
    packets_of,
    stands_for,
    why,
)

HOOKS = {True: ("prerouting", "input"), False: ("output", "postrouting")}  # by: packets that come in
_TRANSLATES = frozenset({"dnat", "snat", "masquerade", "redirect"})
_NEEDING = _TRANSLATES | {"ct", "ct count", "ct helper", "ct timeout", "ct expectation", "flow", "synproxy"}
_XTABLES = TRANSLATES | STATEFUL_TARGETS | {*STATEFUL, "CT"}  # of rules that nft can't read
_STATE = {"ct": {"key": "state"}}
_SYN_MASK = {"&": [{"payload": {"protocol": "tcp", "field": "flags"}}, ["fin", "syn", "rst", "ack"]]}
# As in stateless.py: the ICMP errors that a connection needs, and neighbour discovery from the link.
_ERRORS = {
    4: ("icmp", ["destination-unreachable", "time-exceeded", "parameter-problem"]),
    6: ("icmpv6", ["destination-unreachable", "packet-too-big", "time-exceeded", "parameter-problem"]),
}
_NEIGHBOURS = ["nd-router-solicit", "nd-router-advert", "nd-neighbor-solicit", "nd-neighbor-advert"]
WHY_ERRORS = "an error about an untracked packet is INVALID: fragmentation needed must pass"
WHY_NEIGHBOURS = "neighbour discovery must pass: it is never tracked, and without it IPv6 ends"
_ACCEPT = {"accept": None}


class NftInsert(Struct, frozen=True):
    """A rule to put into somebody's chain, before or behind one of theirs."""

    line: NftLine  # theirs
    before: bool
    conditions: tuple[Json, ...]  # what it is about
    rest: tuple[Json, ...]
    why: str  # in words

    @property
    def text(self) -> str:
        """It in nft's words, without the set that ends it; not sanitised."""
        return rule_text((*self.conditions, *self.rest))

    @property
    def command(self) -> str:
        """What puts it in, and why, for people."""
        place = safe_text(" ".join(self.line.place), limit=120)
        verb = f"nft {'insert' if self.before else 'add'} rule"
        return f"{verb} {place} handle {self.line.handle} {safe_text(self.text, limit=300)}  # {self.why}"


def read_native(variant: Variant) -> Listed:
    """Read nft's own tables, but for fwtop's and those that iptables wrote; raises FwtopError."""
    return read_listed(lambda table: is_foreign(table, variant))


def needs(line: NftLine) -> str:
    """Return in words what of a rule needs connection tracking: "" if nothing."""
    if any(_never_untracked(part) for part in line.expressions):
        return ""
    keys, keywords = set[str](), set[str]()
    for key, value in walk(line.expressions):
        if key in _NEEDING or _is_stateful(key, value):
            keys.add(key)
        if key == "ct" and isinstance(value, dict):
            keywords.add(str(value.get("key")))
    if keys & _TRANSLATES:
        return "NAT"
    if "ct helper" in keys or "helper" in keywords:
        return "a helper"
    if keywords == {"state"} and keys == {"ct"}:
        return "a rule on states"
    return "a rule that counts or marks connections" if keys else ""


def tracking_rules(listed: Listed, match: Match) -> list[str]:
    """Name the rules that need connection tracking of what a match is about."""
    ways = [packets_of(match, incoming=way) for way in (True, False)]
    return [
        f"nftables rule in {safe_text(' '.join(line.place), limit=80)}, '{safe_text(line.text, limit=140)}'"
        for line in listed.lines
        if needs(line) and any(may_be_about(listed, line, packets) for packets in ways)
    ]


def may_drop(listed: Listed, match: Match) -> bool:
    """Whether a rule, or a chain's policy, may drop packets that a match is about, or answers to them."""
    for incoming, hooks in HOOKS.items():
        packets, reached = packets_of(match, incoming=incoming), listed.reached(*hooks)
        if any(listed.policies.get(place) == "drop" for place in reached):
            return True
        lines = (
            line for line in listed.lines if line.place in reached and may_be_about(listed, line, packets)
        )
        if any(key in ("drop", "reject") for line in lines for key, _ in walk(line.expressions)):
            return True
    return False


def drops_rest(listed: Listed, packets: Packets) -> bool:
    """Whether a chain on the way in drops all that none of its rules lets pass."""
    reached = listed.reached(*HOOKS[True])
    return any(listed.policies.get(place) == "drop" for place in reached) or any(
        {"drop", "reject"} & {*line.expressions[-1]}
        and all(holds(listed, line, part, packets) for part in line.expressions if "match" in part)
        for line in listed.lines
        if line.place in reached & {*listed.hooks} and line.expressions
    )


def lets_in(listed: Listed, packets: Packets) -> bool:
    """Whether a rule may accept such packets from elsewhere while they are not tracked."""
    reached = listed.reached(*HOOKS[True])
    return any(
        (not needs(line) or "untracked" in asked(line))
        and "accept" in {key for key, _ in walk(line.expressions)}
        and not any(_is_loopback(part) for part in line.expressions)
        for line in listed.lines
        if line.place in reached and may_be_about(listed, line, packets)
    )


def _is_loopback(part: Json) -> bool:
    match = part.get("match", {}) if isinstance(part, dict) else {}
    left = match.get("left")
    return match.get("right") == "lo" and left in ({"meta": {"key": "iif"}}, {"meta": {"key": "iifname"}})


def _is_stateful(key: str, value: Json) -> bool:
    return key == "xt" and (not isinstance(value, dict) or value.get("name") in _XTABLES)


def _never_untracked(part: Json) -> bool:
    """Whether a condition asks for translated connections only: the rule that translates is what matters."""
    match = part.get("match") if isinstance(part, dict) else None
    if match is None or match.get("left") != {"ct": {"key": "status"}} or match.get("op") == "!=":
        return False
    return words_of(match["right"]) <= {"dnat", "snat"}


def asked(line: NftLine) -> frozenset[str]:
    """Return the connection states that a rule tells apart, empty if it can't be converted."""
    found = _asking(line)
    return frozenset(found[1]) if found else frozenset()


def _asking(line: NftLine) -> tuple[int, dict[str, Json]] | None:
    """Return which expression asks for states, and what follows each (None: the rest of the rule).

    None if no expression or several do, if it is negated, or something else needs tracking, too.
    """
    if any(key == "meter" for key, _ in walk(line.expressions)):
        return None  # its name is taken
    about = [
        number
        for number, part in enumerate(line.expressions)
        if any(key in _NEEDING or _is_stateful(key, value) for key, value in walk(part))
    ]
    if len(about) != 1 or line.family not in FAMILIES:
        return None
    part = line.expressions[about[0]]
    match, vmap = part.get("match"), part.get("vmap")
    states: dict[str, Json] = {}
    if match is not None and match.get("left") == _STATE and match.get("op") in ("==", "in"):
        if match["op"] == "==" and isinstance(match["right"], list):
            return None  # all of these bits at once
        states = dict.fromkeys(words_of(match["right"]))
    elif vmap is not None and vmap.get("key") == _STATE and isinstance(vmap.get("data"), dict):
        states = {str(state): verdict for state, verdict in vmap["data"].get("set", ())}
    return (about[0], states) if states and states.keys() <= PLAIN else None


def obstacles(listed: Listed, match: Match) -> list[str]:
    """Name the rules that a service's packets or answers may meet and that have no stateless equivalent."""
    found: list[str] = []
    for incoming, hooks in HOOKS.items():
        reached = listed.reached(*hooks)
        for line in listed.lines:
            what = needs(line)
            if not what or (line.family in FAMILIES and line.place not in reached):
                continue
            if not may_be_about(listed, line, packets_of(match, incoming=incoming)):
                continue
            if asked(line):
                if not _takes_untracked(line, incoming):
                    continue
                what = "a rule on untracked packets that would be about its own, too"
            where = safe_text(f"{line.family} {line.table} {line.chain}", limit=80)
            found.append(f"{what}, '{safe_text(line.text, limit=140)}' in nftables' {where}")
    return list(dict.fromkeys(found))


def _takes_untracked(line: NftLine, incoming: bool) -> bool:
    """Whether a rule on `untracked` does with new connections, or answers, what it doesn't while tracked."""
    found = _asking(line)
    if found is None or "untracked" not in found[1]:
        return False
    states, state = found[1], "new" if incoming else "established"
    return state not in states or states[state] != states["untracked"]


def already_untracked(listed: Listed, match: Match) -> str:
    """Return the rule that takes all of a service's packets out of tracking as they come, "" without one."""
    packets = packets_of(match, incoming=True)
    for line in listed.lines:
        conditions = [part for part in line.expressions if {*part} & {"match", "vmap"}]
        if (
            {"notrack": None} in line.expressions
            and listed.hooks.get(line.place, ("", ""))[1] == "prerouting"
            and {*match.families} <= {*FAMILIES.get(line.family, ())}
            and all(holds(listed, line, part, packets) for part in conditions)
        ):
            place = safe_text(" ".join(line.place), limit=80)
            return f"'{safe_text(line.text, limit=140)}' in nftables' {place}"
    return ""


def names(listed: Listed, match: Match) -> bool:
    """Whether a rule that lets packets in names a service's port."""
    reached, packets = listed.reached(*HOOKS[True]), packets_of(match, incoming=True)
    anywhere = Packets(match.protocol, families=match.families)
    for line in listed.lines:
        if line.place not in reached or not may_be_about(listed, line, packets):
            continue
        if {"drop", "reject"} & {key for part in line.expressions for key in part}:
            continue
        if any(
            holds(listed, line, part, packets) and holds(listed, line, part, anywhere) is None
            for part in line.expressions
        ) or _in_map(listed, line, match.dport):
            return True
    return False


def _in_map(listed: Listed, line: NftLine, port: int | None) -> bool:
    """Whether a verdict map on ports has one that isn't dropped."""
    for part in line.expressions:
        vmap = part.get("vmap", {}) if isinstance(part, dict) else {}
        payload = vmap.get("key", {}).get("payload", {}) if isinstance(vmap.get("key"), dict) else {}
        if payload.get("field") == "dport":
            pairs = listed.mapped(line, vmap.get("data"))
            if any(key == port and "drop" not in verdict for key, verdict in pairs):
                return True
    return False


def inserts(listed: Listed, services: Sequence[Match]) -> list[NftInsert]:
    """Return the rules that go beside those on states, in their order."""
    found: list[NftInsert] = []
    for incoming, hooks in HOOKS.items():
        reached, opened = listed.reached(*hooks), set[tuple[str, str, str]]()
        for line in listed.lines if services else ():
            states = asked(line)
            in_nat = listed.hooks.get(line.place, ("", ""))[0] == "nat"
            if not states or line.place not in reached or in_nat:
                continue
            if incoming and line.place not in opened and states & ERRORS_MATTER:
                opened.add(line.place)
                first = next(item for item in listed.lines if item.place == line.place and asked(item))
                found += _errors(first)
            for match in services:
                found += _equivalents(listed, line, match, incoming)
    unique = {(item.line.handle, item.line.place, json.dumps(item.text)): item for item in found}
    return [*unique.values()]


def commands(items: Sequence[NftInsert], asks: Sequence[Json] = (), comment: str = "") -> list[Json]:
    """Return what puts lines in, for `nft -j`; each asks further conditions behind its own.

    Behind all pure conditions: nft 1.1 (Debian 13) refuses an address behind a set of families. From the last
    place to the first, so that none moves another's. A place is an index, which nft looks up in the chain as
    it is by then: `nft -j` (1.0.6) overlooks the handle of a rule to add, and appends it.
    """
    made: list[Json] = []
    for _, item in sorted(enumerate(items), key=_from_below):
        rule: dict[str, Json] = dict(zip(("family", "table", "chain"), item.line.place, strict=True))
        more = [*takewhile(lambda part: "match" in part, item.rest)]
        expressions = [*item.conditions, *more, *asks, *item.rest[len(more) :]]
        rule |= {"index": item.line.index, "expr": expressions}
        rule |= {"comment": comment} if comment else {}
        made.append({"insert" if item.before else "add": {"rule": rule}})
    return made


def _from_below(numbered: tuple[int, NftInsert]) -> tuple[Place, int, bool, int]:
    """Order by place, from the last; what is behind a line before what is ahead of it."""
    number, item = numbered
    return item.line.place, -item.line.index, item.before, -number


def _equivalents(listed: Listed, line: NftLine, match: Match, incoming: bool) -> Iterator[NftInsert]:
    """Yield what stands for a rule where one service is untracked; see `stateless._equivalent`."""
    found = _asking(line)
    packets = packets_of(match, incoming=incoming)
    if found is None or "untracked" in found[1] or not may_be_about(listed, line, packets):
        return
    number, states = found
    wanted = sorted(stands_for(match, incoming=incoming) & states.keys(), reverse=True)  # new first
    # One rule where both states lead to the same, else one each.
    whole = len(wanted) == 2 and states["new"] == states["established"]
    for state in wanted[:1] if whole else wanted:
        flags = [] if whole or match.protocol != TCP or not incoming else [_syn(state == "new")]
        parts = [*line.expressions]
        parts[number : number + 1] = [states[state]] if states[state] is not None else []
        kept = [part for part in parts if not holds(listed, line, part, packets)]
        if flags and state == "new" and _syn(False) in kept:
            continue  # a connection that begins without a SYN is what tracking alone can tell
        if flags and flags[0] in kept:
            flags = []
        conditions = (_port(match, incoming), *flags)
        yield NftInsert(line, False, conditions, tuple(map(_from_zero, kept)), why(states, match))


def _syn(bare: bool) -> Json:
    return {"match": {"op": "==" if bare else "!=", "left": _SYN_MASK, "right": "syn"}}


def _port(match: Match, incoming: bool) -> Json:
    payload = {"protocol": protocol_name(match.protocol or 0), "field": "dport" if incoming else "sport"}
    return {"match": {"op": "==", "left": {"payload": payload}, "right": match.dport}}


def _from_zero(part: Json) -> Json:
    """Return an expression without what its counter has counted."""
    counted: Any = part.get("counter") if isinstance(part, dict) else None
    return {"counter": {"packets": 0, "bytes": 0}} if isinstance(counted, dict) else part


def _errors(line: NftLine) -> Iterator[NftInsert]:
    for family in FAMILIES[line.family]:
        protocol, types = _ERRORS[family]
        yield NftInsert(line, True, (_types(protocol, types),), (_ACCEPT,), WHY_ERRORS)
    if 6 in FAMILIES[line.family]:
        hops = {"payload": {"protocol": "ip6", "field": "hoplimit"}}
        near = {"match": {"op": "==", "left": hops, "right": 255}}
        yield NftInsert(line, True, (_types("icmpv6", _NEIGHBOURS), near), (_ACCEPT,), WHY_NEIGHBOURS)


def _types(protocol: str, types: list[str]) -> Json:
    left = {"payload": {"protocol": protocol, "field": "type"}}
    return {"match": {"op": "==", "left": left, "right": {"set": types}}}
