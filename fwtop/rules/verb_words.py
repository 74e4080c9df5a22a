"""What verbs of the command line say of a rule; None where a verb can't say it.

Each kind names the verbs that make its rules; a verb's options are those that it takes.
"""

from __future__ import annotations

import re

from fwtop.model.rule import ConnectionLimit, Match, PayloadMatch, RateLimit, Rule
from fwtop.model.text import dns_name_text
from fwtop.model.traffic.dns import split_wire, type_text, wire_name
from fwtop.rules.fields import DPORT, FIELDS, PROTOCOL, option_words

_PLAIN_LABEL = re.compile(rb"(?!-)[^\x00-\x20.\\\x7f-\xff]+")  # printable, no dot or backslash, no leading -
_SCOPE = (PROTOCOL, DPORT)
_OF_DROP = tuple(field for field in FIELDS if field not in _SCOPE)


def block_words(rule: Rule) -> list[str] | None:
    """Return `block` with a rule's sources or its list, and where it drops them."""
    match, sources = rule.match, [rule.origin] if rule.origin else [str(item) for item in rule.match.sources]
    if not (match.sources or rule.list_name is not None) or rule.limit is not None:
        return None
    if match != Match(sources=match.sources, family=match.family):
        return None
    if rule.list_name is not None:
        sources = ["--list", rule.list_name, *family_words(match)]
    return ["block", *sources, "--via", rule.kind.value, *(["--close-open"] * rule.close_open)]


def early_words(rule: Rule) -> list[str] | None:
    """Return the verb that makes a rule before netfilter's chains: block, limit, match or drop."""
    match, via = rule.match, ["--via", rule.kind.value]
    if match.sources or rule.list_name is not None:
        if (words := block_words(rule)) is not None:
            return words
        if rule.origin is not None or rule.limit is not None or match.payload or match.destinations:
            return None
    elif rule.limit is not None or match.payload:
        words = limit_words(rule) if rule.limit is not None else match_words(rule)
        return [*words, *via] if words is not None else None
    elif match.destinations:
        return None
    senders = [word for prefix in match.sources for word in ("--from", str(prefix))]
    return ["drop", *scope_words(match), *senders, *option_words(_OF_DROP, match), *via]


def limit_words(rule: Rule) -> list[str] | None:
    """Return `limit` with a rule's rate."""
    match, limit = rule.match, rule.limit
    if limit is None or match.payload or has_more(match):
        return None
    words = ["limit", *scope_words(match), *per_words(match, limit)]
    words += ["--rate", f"{limit.per_second}{'B' if limit.in_bytes else ''}/s"]
    words += ["--burst", str(limit.burst)] if limit.burst != limit.per_second else []
    return words + ["--by-port"] * limit.by_dport


def per_words(match: Match, limit: RateLimit | ConnectionLimit) -> list[str]:
    """Return the options for the source prefixes that a limit is kept for."""
    length = limit.prefix_v6 if match.family == 6 else limit.prefix_v4
    return ["--per", str(length), *(["--per6", str(limit.prefix_v6)] if match.family is None else [])]


def match_words(rule: Rule) -> list[str] | None:
    """Return `match` with a rule's bytes."""
    match = rule.match
    if len(match.payload) != 1 or has_more(match):
        return None
    offset = match.payload[0].offset
    place = [] if offset is None else ["--offset", str(offset)]
    what = _bytes(match.payload[0])
    return ["match", *what, *place, *scope_words(match)] if what is not None else None


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


def scope_words(match: Match) -> list[str]:
    """Return the options for family, protocol and port, which most verbs take."""
    return [*family_words(match), *option_words(_SCOPE, match)]


def family_words(match: Match) -> list[str]:
    """Return -4 or -6, or nothing for both."""
    return [f"-{match.family}"] if match.family is not None else []


def has_more(match: Match) -> bool:
    """Return whether there are conditions on addresses, or on header fields beside those of `scope_words`."""
    by_address = bool(match.sources or match.destinations)
    return by_address or any(field.of(match) is not None for field in _OF_DROP)
