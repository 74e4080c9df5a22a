"""Rules as they come from a client: every field's type and range is checked before anything uses it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import astuple, replace

from fwtop.model.addresses.address import Prefix, check_name
from fwtop.model.errors import FwtopError
from fwtop.model.rule import (
    SOURCES_LEFT,
    Level,
    Match,
    Rule,
)
from fwtop.model.text import safe_text
from fwtop.model.tunables import TUNABLES
from fwtop.rules.fields import FIELDS
from fwtop.rules.kinds import KINDS, of
from fwtop.rules.xtables import MAX_TIMEOUT_SECONDS

MAX_TTL_SECONDS = MAX_TIMEOUT_SECONDS - 3600
MAX_PAYLOAD_BYTES = 128  # xt_string.h: XT_STRING_MAX_PATTERN_SIZE
MAX_PAYLOADS = 16
MAX_PARTS = 64
MAX_OFFSET = 65535
MAX_RATE = 1_000_000_000
MAX_CONNECTIONS = 1_000_000
MAX_TEXT = 300
MAX_ORIGIN = 4096  # @ and a path
MAX_PRIORITY = 1000  # of a protected port
MAX_ACCESS_LISTS = 8  # of a protected port: each costs new connections a lookup
MAX_LABELS = 16
MAX_LABEL = 64  # characters of a key, and of a label's name and value
_ORIGIN = re.compile(r"asn:[0-9]{1,10}|country:[A-Za-z]{2}|@.{1,4095}|list:.{1,40}")


def rule_of_wire(data: dict[str, Any], sources: Sequence[Prefix] = ()) -> Rule:
    """Read a rule of a request; raises FwtopError (code 2) naming the first field that is wrong.

    `sources` are those that came beside the message, already checked, and take its own's place.
    """
    if not sources:
        _check_whole(data)
    try:
        rule = Rule.from_dict(data)
    except ValueError as error:
        field = getattr(error, "field", None)
        raise FwtopError(
            f"not a rule: {safe_text(error)}", 2, field=f"rule.{field}" if field else "rule"
        ) from None
    if sources:
        rule = replace(rule, match=replace(rule.match, sources=sources))
    _check_rule(rule)
    return replace(_sanitised(rule), id="")


def _check_whole(data: dict[str, Any]) -> None:
    """Raise FwtopError for a rule as `status` shows it, without all of its sources: less would be blocked."""
    match = data.get("match")
    left = match.get(SOURCES_LEFT, 0) if isinstance(match, dict) else 0
    if left != 0:
        raise FwtopError(
            f"not a rule: match.{SOURCES_LEFT}: {safe_text(left, limit=20)} sources are left out here; "
            "'ruleread' has all of them; nothing was changed",
            2,
            field=f"rule.match.{SOURCES_LEFT}",
        )


def _sanitised(rule: Rule) -> Rule:
    """Return the rule with texts that are safe on any terminal: other consoles show them, and root's."""
    payload = tuple(
        replace(item, dns_name=safe_text(item.dns_name, limit=MAX_TEXT)) if item.dns_name else item
        for item in rule.match.payload
    )
    return replace(
        rule,
        match=replace(rule.match, payload=payload),
        summary=safe_text(rule.summary, limit=MAX_TEXT),
        created_by=safe_text(rule.created_by),
        key=safe_text(rule.key),
        labels={safe_text(name): safe_text(value) for name, value in rule.labels.items()},
        origin=safe_text(rule.origin, limit=MAX_ORIGIN) if rule.origin is not None else None,
        playbook=safe_text(rule.playbook, limit=30),
        parts=tuple(map(_sanitised, rule.parts)),
    )


def _check_rule(rule: Rule) -> None:
    _whole("ttl_seconds", rule.ttl_seconds, 1, MAX_TTL_SECONDS)
    _require(
        rule.origin is None or _ORIGIN.fullmatch(rule.origin) is not None,
        "origin: 'list:NAME' of a named list",
    )
    for name in ("created", "predicted_pps", "predicted_attack_share", "predicted_collateral_share"):
        value = getattr(rule, name)
        _require(value is None or abs(value) < 1e15, f"{name}: below 1e15")
    clients = rule.predicted_clients
    _require(
        clients is None or all(0 <= one < 1e15 for one in astuple(clients)),
        "predicted_clients: from 0, below 1e15",
    )
    texts = (rule.key, *rule.labels, *rule.labels.values())
    _require(len(rule.labels) <= MAX_LABELS, f"labels: at most {MAX_LABELS}")
    for name, longest in (("key", len(rule.key)), ("labels", max(map(len, texts)))):
        _require(longest <= MAX_LABEL, f"{name}: at most {MAX_LABEL} characters")
    if rule.group:
        check_name(rule.group, "group", field="rule.group")
    _check_match(rule.match)
    _check_owners(rule)
    _check_limits(rule)
    _check_settings(rule)
    _check_connections(rule)
    _check_protection(rule)
    _check_parts(rule)
    _check_list(rule)
    missing = of(rule.kind).missing(rule)
    _require(not missing, missing)


def _check_owners(rule: Rule) -> None:
    """Check that a rule has what its kind alone has, and nothing of other kinds."""
    mine = of(rule.kind)
    for known in KINDS.values():
        for name, whose in known.own.items():
            said = "is missing" if known is mine else f"{whose}, not of {rule.kind.value}"
            _require((known is mine) == bool(getattr(rule, name)), f"{name}: {said}")
        for name in known.optional:
            _require(name in mine.optional or not getattr(rule, name), f"{name}: not of {rule.kind.value}")


def _check_list(rule: Rule) -> None:
    if rule.list_name is None:
        return
    check_name(rule.list_name, field="rule.origin")
    _require(of(rule.kind).takes_lists, "kind: a named list goes with ipset, xdp, tc and nftables")
    if rule.match.sources:
        raise _wrong("match.sources: those of a rule on a list are the list's: leave them out")


def _check_parts(rule: Rule) -> None:
    if not rule.parts:
        return
    _require(rule.match == Match(), "match: a playbook has none")
    _require(len(rule.parts) <= MAX_PARTS, f"parts: at most {MAX_PARTS}")
    for number, part in enumerate(rule.parts):
        good = of(part.kind).is_part and part.list_name is None
        _require(good, f"parts[{number}]: {part.kind.value} can't be one")
        try:
            _check_rule(part)
        except FwtopError as error:
            error.field = f"rule.parts[{number}]{(error.field or 'rule').removeprefix('rule')}"
            raise
    settings = [item.name for part in rule.parts for item in part.settings]
    _require(len(set(settings)) == len(settings), "parts: a setting is named twice")


def _check_connections(rule: Rule) -> None:
    plain = Match(family=rule.match.family, protocol=rule.match.protocol, dport=rule.match.dport)
    can_forget = rule.match == plain and plain.dport is not None
    for name in ("forget", "stateless"):
        _require(can_forget or not getattr(rule, name), f"{name}: of a notrack rule on a port")
    _require(not rule.stateless or plain.protocol in (6, 17), "stateless: of TCP or UDP")
    can_close = bool(rule.connections or rule.match.sources) and not rule.match.payload
    _require(not rule.close_open or can_close, "close_open: of blocked sources or a limit of connections")


def _check_protection(rule: Rule) -> None:
    protection = rule.protection
    if protection is None:
        return
    _whole("match.dport", rule.match.dport, 1, 65535)
    _whole("protection.priority", protection.priority, 0, MAX_PRIORITY)
    _require(len(protection.lists) <= MAX_ACCESS_LISTS, f"protection.lists: at most {MAX_ACCESS_LISTS}")
    _require(len(set(protection.lists)) == len(protection.lists), "protection.lists: one named twice")
    for name in protection.lists:
        check_name(name, field="rule.protection.lists")
    needs = protection.level is Level.PROTECTED
    _require(bool(protection.lists) or not needs, "protection.lists: level protected needs an access list")


def _check_settings(rule: Rule) -> None:
    _require(not rule.settings or rule.match == Match(), "match: a sysctl rule has none")
    names = [item.name for item in rule.settings]
    _require(len(set(names)) == len(names), "settings: one named twice")
    for item in rule.settings:
        tunable = TUNABLES.get(item.name)
        if tunable is None:
            raise _wrong(f"settings: {safe_text(item.name, limit=60)!r} is not a setting to change")
        _whole(f"settings: {tunable.short}", item.value, tunable.low, tunable.high)


def _check_match(match: Match) -> None:
    _require(match.family in (None, 4, 6), "match.family: 4, 6 or null")
    for field in FIELDS:
        wanted = field.of(match)
        for end, number, least in field.numbers(wanted) if wanted is not None else ():
            _whole(f"match.{field.name}{end}", number, least, field.most)
        if wanted is not None:
            _require(match.family in (None, *field.families), f"match.{field.name}: IPv6 packets have none")
    _require(len(match.payload) <= MAX_PAYLOADS, f"match.payload: at most {MAX_PAYLOADS} strings")
    for item in match.payload:
        _require(1 <= len(item.data) <= MAX_PAYLOAD_BYTES, f"match.payload: 1 to {MAX_PAYLOAD_BYTES} bytes")
        if item.offset is not None:
            _whole("match.payload: offset", item.offset, 0, MAX_OFFSET)
        _require(
            item.mask is None or len(item.mask) == len(item.data), "match.payload: mask: as long as data"
        )


def _check_limits(rule: Rule) -> None:
    if rule.limit is not None:
        _whole("limit.per_second", rule.limit.per_second, 1, MAX_RATE)
        _whole("limit.burst", rule.limit.burst, 1, MAX_RATE)
    if rule.connections is not None:
        _whole("connections.most", rule.connections.most, 1, MAX_CONNECTIONS)
    for name, limit in (("limit", rule.limit), ("connections", rule.connections)):
        if limit is not None:
            _whole(f"{name}.prefix_v4", limit.prefix_v4, 1, 32)
            _whole(f"{name}.prefix_v6", limit.prefix_v6, 1, 128)


def _whole(path: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise _wrong(f"{path} must be a whole number from {low} to {high}")


def _require(good: bool, said: str) -> None:
    if not good:
        raise _wrong(said)


def _wrong(said: str) -> FwtopError:
    """Return an error whose message begins with the field's path in the rule."""
    return FwtopError(f"not a rule: {said}", 2, field=f"rule.{re.split('[: ]', said)[0]}")
