"""Rules as `fwtop` command lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from fwtop.model.rule import Kind, Match, PayloadMatch, Rule
from fwtop.model.text import dns_name_text
from fwtop.model.traffic.dns import split_wire, type_text, wire_name
from fwtop.model.traffic.protocols import protocol_name
from fwtop.rules.fields import DPORT, FIELDS, PROTOCOL, option_words

_BLOCKS = (Kind.IPSET, Kind.XDP, Kind.NFTABLES, Kind.TC)
_PLAIN_LABEL = re.compile(rb"(?!-)[^\x00-\x20.\\\x7f-\xff]+")  # printable, no dot or backslash, no leading -
_SCOPE = (PROTOCOL, DPORT)
_OF_DROP = tuple(field for field in FIELDS if field not in _SCOPE)
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_MAX_SOURCES = 32  # more would make the line unreadable


def command_line(rule: Rule, *, max_sources: int | None = _MAX_SOURCES) -> str | None:
    """Return the shell command that installs a rule; None if no command can, or it has too many sources.

    The line is always printable.
    """
    sources = rule.match.sources
    if max_sources is not None and rule.origin is None and len(sources) > max_sources:
        return None
    words = _words(rule)
    if words is None:
        return None
    line = shlex.join(["fwtop", *words, "--ttl", ttl_option(rule.ttl_seconds)])
    return line if line.isprintable() else None


def ttl_option(seconds: int) -> str:
    """Format a time to live as `--ttl` takes it, exactly: 90s, 10m, 2h, 1d."""
    size, unit = next((size, unit) for size, unit in _UNITS if seconds % size == 0)
    return f"{seconds // size}{unit}"


def _words(rule: Rule) -> list[str] | None:
    if rule.kind is Kind.HARDEN:
        return ["harden", rule.playbook, "--apply"]
    if rule.kind is Kind.SYSCTL:
        return ["sysctl", *(f"{item.name}={item.value}" for item in rule.settings)]
    match = rule.match
    if match.fragment is False or (match.destinations and rule.kind is not Kind.SYNPROXY):
        return None
    if rule.kind in _BLOCKS and (match.sources or rule.list_name is not None):
        alone = rule.limit is None and match == Match(sources=match.sources, family=match.family)
        sources = [rule.origin] if rule.origin else [str(prefix) for prefix in match.sources]
        if rule.list_name is not None:
            sources = ["--list", rule.list_name, *([f"-{match.family}"] if match.family is not None else [])]
        closing = ["--close-open"] * rule.close_open
        if alone:
            return ["block", *sources, "--via", rule.kind.value, *closing]
        by_fields = rule.kind is not Kind.IPSET and rule.origin is None and rule.limit is None
        return _drop(rule) if by_fields and not match.payload else None
    maker = _MAKERS.get(rule.kind)
    return maker(rule) if maker is not None and not match.sources else None


def _limit(rule: Rule) -> list[str] | None:
    match, limit = rule.match, rule.limit
    if limit is None or match.payload or _has_fields(match):
        return None
    length = limit.prefix_v6 if match.family == 6 else limit.prefix_v4
    words = ["limit", *_scope(match), "--per", str(length)]
    words += ["--per6", str(limit.prefix_v6)] if match.family is None else []
    words += ["--rate", f"{limit.per_second}{'B' if limit.in_bytes else ''}/s"]
    words += ["--burst", str(limit.burst)] if limit.burst != limit.per_second else []
    return words + ["--by-port"] * limit.by_dport


def _connections(rule: Rule) -> list[str] | None:
    match, limit = rule.match, rule.connections
    if limit is None or match != Match(family=match.family, protocol=6, dport=match.dport):
        return None
    length = limit.prefix_v6 if match.family == 6 else limit.prefix_v4
    words = ["limit", *_scope(match), "--per", str(length)]
    words += ["--per6", str(limit.prefix_v6)] if match.family is None else []
    return [*words, "--connections", str(limit.most), *(["--close-open"] * rule.close_open)]


def _match(rule: Rule) -> list[str] | None:
    match = rule.match
    if len(match.payload) != 1 or _has_fields(match):
        return None
    offset = match.payload[0].offset
    place = [] if offset is None else ["--offset", str(offset)]
    what = _bytes(match.payload[0])
    return ["match", *what, *place, *_scope(match)] if what is not None else None


def _drop(rule: Rule) -> list[str] | None:
    match = rule.match
    if rule.limit is not None or match.payload:
        other = _limit(rule) if rule.limit is not None else _match(rule)
        known = other is not None and rule.kind is not Kind.NFTABLES
        return [*(other or ()), "--via", rule.kind.value] if known else None
    words = ["drop", *_scope(match), *(word for prefix in match.sources for word in ("--from", str(prefix)))]
    return [*words, *option_words(_OF_DROP, match), "--via", rule.kind.value]


def _notrack(rule: Rule) -> list[str] | None:
    match = rule.match
    if match.payload or _has_fields(match):
        return None
    return ["notrack", *_scope(match)]


def _synproxy(rule: Rule) -> list[str] | None:
    match = rule.match
    plain = Match(destinations=match.destinations, family=match.family, protocol=6, dport=match.dport)
    if match != plain or match.dport is None:
        return None
    family = [f"-{match.family}"] if match.family is not None else []
    to = [word for prefix in match.destinations for word in ("--to", str(prefix))]
    return ["synproxy", *family, "--dport", str(match.dport), *to]


def _protect(rule: Rule) -> list[str] | None:
    match, protection = rule.match, rule.protection
    if protection is None or match.dport is None or match.protocol is None:
        return None
    words = ["protect", f"{match.dport}/{protocol_name(match.protocol)}"]
    words += [f"-{match.family}"] if match.family is not None else []
    words += ["--level", protection.level.value]
    words += ["--acl", *protection.lists] if protection.lists else []
    return [*words, "--priority", str(protection.priority), *(["--strict"] * protection.strict)]


_MAKERS: dict[Kind, Callable[[Rule], list[str] | None]] = {
    Kind.HASHLIMIT: _limit,
    Kind.STRING: _match,
    Kind.XDP: _drop,
    Kind.TC: _drop,
    Kind.NFTABLES: _drop,
    Kind.NOTRACK: _notrack,
    Kind.SYNPROXY: _synproxy,
    Kind.CONNLIMIT: _connections,
    Kind.PROTECT: _protect,
}


def _has_fields(match: Match) -> bool:
    return any(field.of(match) is not None for field in _OF_DROP)


def _bytes(payload: PayloadMatch) -> list[str] | None:
    """Return the options for bytes; None for a DNS name that no option can express exactly."""
    if payload.dns_name is None:
        return ["--hex", payload.data.hex(), *(["--mask", payload.mask.hex()] if payload.mask else [])]
    labels, rest = split_wire(payload.data)
    plain = all(_PLAIN_LABEL.fullmatch(label) for label in labels)
    same = wire_name(labels) + rest == payload.data and payload.dns_name == dns_name_text(labels)
    if not (plain and same and payload.mask is None and len(rest) in (0, 2)):
        return None
    return ["--dns", payload.dns_name, *(["--type", type_text(int.from_bytes(rest, "big"))] if rest else [])]


def _scope(match: Match) -> list[str]:
    words = [f"-{match.family}"] if match.family is not None else []
    return words + option_words(_SCOPE, match)
