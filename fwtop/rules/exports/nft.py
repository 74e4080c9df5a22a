"""Rules for nft without fwtop: what they match and do, but without clock and allow-list."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.rule import Kind, Level, Protection, RateLimit, Rule
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.rules import kinds
from fwtop.rules.kinds.common import families_asked
from fwtop.rules.kinds.connlimit import mask_words
from fwtop.rules.kinds.nftables import conditions_of, sources_of
from fwtop.rules.nft_objects import TYPES, NftRule, NftSet, list_set_of, set_of

# Chains that a file makes: hooked at prerouting, before and behind connection tracking, and at output;
# that of protected ports is led to by the first.
RAW, OPEN, OUT, PORTS = "raw", "open", "out", "ports"
_IP = {4: "ip", 6: "ip6"}
_SYN = "tcp flags & (fin | syn | rst | ack) == syn"
_LIMITED = "size 262144; flags dynamic, timeout; timeout 10s"  # source prefixes, as with iptables
_TALKING = "size 65536; flags dynamic, timeout; timeout 180s"  # as nf_conntrack_udp_timeout_stream


class Plain(Struct, frozen=True):
    """A rule's sets, those of named lists among them, and its lines, each with its chain."""

    sets: tuple[NftSet, ...]
    lines: tuple[tuple[str, str], ...]


def plain(rule: Rule) -> Plain:
    """Return a rule without its clock; raises FwtopError (code 2) for what nft can't say."""
    if rule.connections is not None and isinstance(made := kinds.build(rule).instead, NftRule):
        return Plain(made.sets, tuple((OPEN, f"{one.conditions} {one.statement}") for one in made.lines))
    sets: list[NftSet] = []
    lines: list[tuple[str, str]] = []
    for family in families_asked(rule):
        words, own = conditions_of(rule, family)
        if words is None:
            continue
        of_family = " ".join([f"meta nfproto ipv{family}", *words])
        if rule.protection is not None:
            own += [_peers(family)] * _talks(rule, rule.protection)
            lines += _port_lines(rule, rule.protection, family, of_family)
        else:
            asked, listed = sources_of(rule, family)
            limit, held = _limit(rule, rule.limit, family) if rule.limit is not None else ("", [])
            own += [*(replace(one, counted=False) for one in listed), *held]
            verdict = "counter notrack" if rule.kind is Kind.NOTRACK else _counter(rule)
            lines.append((RAW, " ".join(filter(None, (of_family, asked, limit, verdict)))))
        sets += own
    return Plain(tuple(sets), tuple(lines))


def _counter(rule: Rule) -> str:
    return "counter" if rule.counts_only else "counter drop"


def _limit(rule: Rule, limit: RateLimit, family: int) -> tuple[str, list[NftSet]]:
    """Return the match on what is above the limit, and the set that remembers source prefixes."""
    bits = limit.prefix_v4 if family == 4 else limit.prefix_v6
    port, of_port = (" . th dport", " . inet_service") if limit.by_dport else ("", "")
    held = NftSet(f"limit{family}", f"{TYPES[family]}{of_port}", _LIMITED, ())
    rate = f"{limit.per_second} bytes/second" if limit.in_bytes else f"{limit.per_second}/second"
    burst = f"{limit.burst} {'bytes' if limit.in_bytes else 'packets'}"
    key = f"{_IP[family]} saddr{mask_words(family, bits)}{port}"
    return f"update @{held.name(rule.id)} {{ {key} limit rate over {rate} burst {burst} }}", [held]


def _talks(rule: Rule, protection: Protection) -> bool:
    """Say whether a rule notes conversations: of a port of UDP whose open ones go on."""
    return not protection.strict and rule.match.protocol == UDP


def _peers(family: int) -> NftSet:
    return NftSet(f"peers{family}", f"{TYPES[family]} . inet_service", _TALKING, ())


def _port_lines(rule: Rule, protection: Protection, family: int, service: str) -> Iterator[tuple[str, str]]:
    ip = _IP[family]
    new = f"{service} {_SYN}" if rule.match.protocol == TCP and not protection.strict else service
    spared = []  # by a rule that only counts: others decide about them
    passes = "" if rule.counts_only else " return"
    if _talks(rule, protection):
        peers, known = set_of(rule.id, f"peers{family}"), f"{ip} saddr . udp sport"
        spared.append(f"{known} != @{peers}")
        yield PORTS, f"{service} {known} @{peers} update @{peers} {{ {known} }}{passes}"
        answers = f"meta nfproto ipv{family} udp sport {rule.match.dport}"
        yield OUT, f"{answers} update @{peers} {{ {ip} daddr . udp dport }}"
    sets = [list_set_of(name, family) for name in protection.lists if protection.level is Level.PROTECTED]
    if rule.counts_only:
        spared += [f"{ip} saddr != @{name}" for name in sets]
        if protection.level is not Level.OPEN:
            yield PORTS, " ".join((new, *spared, _counter(rule)))
        return
    if protection.level is Level.OPEN:
        yield PORTS, f"{service} return"
        return
    for name in sets:
        yield PORTS, f"{new} {ip} saddr @{name} return"
    yield PORTS, f"{new} {_counter(rule)}"
