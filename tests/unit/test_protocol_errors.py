"""What is no request: each error is one plain sentence that names the field, with the request's number."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.guardian.serving.requests import guarded
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.messages import ProtocolError, parse_request
from fwtop.model.protocol import (
    Apply,
    FleetConfirm,
    FleetDocument,
    Keep,
    ListChange,
    ListTest,
    Plan,
    PolicyChange,
    PolicyRead,
    Request,
    RuleChange,
    RuleMode,
    Undo,
)
from fwtop.model.rule import (
    ConnectionLimit,
    Kind,
    Level,
    Match,
    Mode,
    PayloadMatch,
    Protection,
    Range,
    RateLimit,
    Rule,
    Setting,
)

LEAKS = re.compile(
    r"Error\b|NoneType|__|argument|object is|object of|codec|literal|hashable|enum|not a valid|\b(int|str)\b"
)
VERBS = [cls.__name__.lower() for cls in get_args(Request)]
CLASSES = (Rule, Match, Range, RateLimit, ConnectionLimit, Protection, Setting, PayloadMatch)
NAMES = {item.name for cls in (*CLASSES, *get_args(Request)) for item in fields(cls)}
NAMES |= {"verb", "number", "seconds"}
SOURCES = Match(sources=(Prefix.parse("192.0.2.0/24"),))
PORT = Match(protocol=6, dport=80)
PAYLOAD = (PayloadMatch(b"abc", 3, b"\xff\0\xff"),)
XDP = replace(SOURCES, ttl=Range(1, 64), tcp_flags=(18, 2), payload=PAYLOAD)
SYSCTL = Rule("", Kind.SYSCTL, Match(), "x", 60, settings=(Setting("net.ipv4.tcp_syncookies", 1),))
RULES = (
    Rule("", Kind.XDP, XDP, "x", 60, limit=RateLimit(5, 6)),
    SYSCTL,
    Rule("", Kind.IPSET, SOURCES, "x", 60, close_open=True),
    Rule("", Kind.CONNLIMIT, PORT, "x", 60, connections=ConnectionLimit(5)),
    Rule("", Kind.PROTECT, PORT, "x", 60, protection=Protection(Level.PROTECTED, ("a",))),
    Rule("", Kind.HARDEN, Match(), "x", 60, playbook="conntrack", parts=(SYSCTL,)),
    Rule("", Kind.NOTRACK, PORT, "x", 60, forget=True, stateless=True),
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "192.0.2.1", "1", 1, 10**400, "00", "ipset", "\x1b[2J"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, value in inner for found in places(value, (*path, key)))]


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = changed(data[path[0]], path[1:], value)
    return copy


WIRE = [json.loads(json.dumps(rule.to_dict())) for rule in RULES]
RULE = WIRE[0]
XDP_RULE, SYSCTL_RULE, BLOCK, CONNECTIONS, PROTECTED, PLAYBOOK, UNTRACKED = WIRE
COOKIES = "net.ipv4.tcp_syncookies"
PLACES = [(rule, path) for rule in WIRE for path in places(rule)]


def check(sentence: str) -> None:
    assert not LEAKS.search(sentence), sentence
    assert "\n" not in sentence
    named = re.findall(r"[a-z_0-9]+", sentence)
    assert NAMES & set(named) or "JSON" in sentence, sentence


def read(data: object) -> None:
    """Read what came as the guardian does; an error is checked."""
    message = json.dumps(data).encode()
    try:
        request = parse_request(message).request
        if isinstance(request, Apply | Plan):
            rule_of_wire(request.rule)
    except ProtocolError as error:
        check(str(error))
    except FwtopError as error:
        check(str(error))
        check_path(error.field or "", unknown="is unknown" in str(error))


def check_path(field: str, *, unknown: bool) -> None:
    """Check that it is `rule`, then names of fields and places in lists; an unknown one may be last."""
    first, *rest = re.findall(r"[^.\[\]]+|\[[^]]*\]", field)
    assert first == "rule", field
    assert unknown or all(name.startswith("[") or name in NAMES for name in rest), field


@pytest.mark.parametrize("rule", WIRE, ids=[rule.kind.value for rule in RULES])
def test_the_rules_that_are_changed_are_right(rule: dict[str, Any]) -> None:
    rule_of_wire(rule)


@given(st.sampled_from(PLACES), values)
def test_any_value_at_any_place_of_a_rule_is_told_plainly(
    place: tuple[dict[str, Any], tuple[Any, ...]], value: object
) -> None:
    read({"verb": "apply", "rule": changed(*place, value)})


@given(st.sampled_from(VERBS), st.dictionaries(st.sampled_from(sorted(NAMES)), values, max_size=4))
def test_any_fields_of_any_verb_are_told_plainly(verb: str, given_fields: dict[str, object]) -> None:
    read({**given_fields, "verb": verb})


@given(st.dictionaries(st.text(max_size=8), values, max_size=3) | values)
def test_any_json_is_told_plainly(value: object) -> None:
    read(value)


WRONG = {
    "rule.surplus": ({"surplus": 1}, "not a rule: surplus is unknown; there are id, kind"),
    "sources as text": (
        {"match": {"sources": "192.0.2.1"}},
        "not a rule: match.sources must be a list",
    ),
    "no address": ({"match": {"sources": ["x"]}}, "not a rule: match.sources[0]: 'x' is not an address"),
    "a field of a part": ({"match": {"ttl": {"low": 1}}}, "not a rule: match.ttl.high is missing"),
    "kind": ({"kind": "x"}, "not a rule: kind must be one of ipset, hashlimit"),
    "hex": (
        {"match": {"payload": [{"data": "zz"}]}},
        "not a rule: match.payload[0].data must be bytes in hex",
    ),
    "parts of parts": ({"parts": [{"parts": [{}]}]}, "not a rule: parts[0].parts[0].kind is missing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_in_a_rule_is_named(case: str) -> None:
    change, sentence = WRONG[case]
    with pytest.raises(FwtopError) as caught:
        rule_of_wire({**RULE, "parts": [], **change})
    assert str(caught.value).startswith(sentence)


# A change of a rule that is refused: the field to blame, and how the line begins
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    (XDP_RULE, {"ttl_seconds": 0}, "ttl_seconds", "ttl_seconds must be a whole number from 1"),
    (XDP_RULE, {"origin": "x"}, "origin", "origin: 'list:NAME' of a named list"),
    (XDP_RULE, {"created": 1e15}, "created", "created: below 1e15"),
    (XDP_RULE, {"labels": {str(n): "" for n in range(17)}}, "labels", "labels: at most 16"),
    (XDP_RULE, {"labels": {"a": "b" * 65}}, "labels", "labels: at most 64 characters"),
    (XDP_RULE, {"key": "b" * 65}, "key", "key: at most 64 characters"),
    (XDP_RULE, {"group": "a b"}, "group", "'a b' is no name for a group"),
    (XDP_RULE, {"origin": "list:a b", "match": {}}, "origin", "'a b' is no name for a list"),
    (XDP_RULE, {"origin": "list:a"}, "match.sources", "match.sources: those of a rule on"),
    (XDP_RULE, {"parts": [SYSCTL_RULE]}, "parts", "parts: a playbook's, not of xdp"),
    (XDP_RULE, {"forget": True}, "forget", "forget: not of xdp"),
    (XDP_RULE, {"limit": {"per_second": 0, "burst": 1}}, "limit.per_second", "limit.per_second must be"),
    (XDP_RULE, {"limit": {"per_second": 1, "burst": 0}}, "limit.burst", "limit.burst must be"),
    (XDP_RULE, {"limit": {"per_second": 1}}, "limit.burst", "limit.burst is missing"),
    (XDP_RULE, {"limit": {"per_second": 1, "burst": 1, "prefix_v4": 33}},
     "limit.prefix_v4", "limit.prefix_v4 must be a whole number from 1 to 32"),
    (XDP_RULE, {"match": {"family": 5}}, "match.family", "match.family: 4, 6 or null"),
    (XDP_RULE, {"match": {"dport": 65536}}, "match.dport", "match.dport must be"),
    (XDP_RULE, {"match": {"ttl": {"low": 9, "high": 8}}}, "match.ttl.high", "match.ttl.high must be"),
    (XDP_RULE, {"match": {"family": 6, "ip_id": {"low": 1, "high": 1}}}, "match.ip_id", "match.ip_id: IPv6"),
    (XDP_RULE, {"match": {"payload": [{"data": ""}]}}, "match.payload", "match.payload: 1 to 128 bytes"),
    (XDP_RULE, {"match": {"payload": [{"data": "00", "offset": 65536}]}},
     "match.payload", "match.payload: offset must be"),
    (XDP_RULE, {"match": {"payload": [{"data": "00", "mask": "0000"}]}},
     "match.payload", "match.payload: mask: as long as data"),
    (XDP_RULE, {"match": {"protocol": "tpc"}}, "match.protocol", "match.protocol must be one of"),
    (BLOCK, {"match": {}, "close_open": False}, "match.sources", "match.sources: a block needs some"),
    (BLOCK, {"kind": "hashlimit", "close_open": False}, "limit", "limit: hashlimit needs one"),
    (BLOCK, {"kind": "string", "close_open": False}, "match.payload", "match.payload: a match needs one"),
    (BLOCK, {"kind": "string", "close_open": False, "origin": "list:a", "match": {}},
     "kind", "kind: a named list"),
    (BLOCK, {"match": {"payload": [{"data": "00"}]}}, "close_open", "close_open: of blocked sources"),
    (CONNECTIONS, {"connections": {"most": 0}}, "connections.most", "connections.most must be"),
    (CONNECTIONS, {"connections": {"most": 1, "prefix_v6": 0}},
     "connections.prefix_v6", "connections.prefix_v6"),
    (CONNECTIONS, {"connections": None}, "connections", "connections: is missing"),
    (SYSCTL_RULE, {"match": {"dport": 1}}, "match", "match: a sysctl rule has none"),
    (SYSCTL_RULE, {"settings": [{"name": "x", "value": 1}]}, "settings", "settings: 'x' is not a setting"),
    (SYSCTL_RULE, {"settings": [{"name": COOKIES, "value": 9}]}, "settings", "settings: "),
    (SYSCTL_RULE, {"settings": [{"name": COOKIES, "value": 1}] * 2}, "settings", "settings: one named twice"),
    (PROTECTED, {"match": {"protocol": 6}}, "match.dport", "match.dport must be"),
    (PROTECTED, {"protection": {"level": "open", "priority": 1001}},
     "protection.priority", "protection.priority"),
    (PROTECTED, {"protection": {"level": "protected"}},
     "protection.lists", "protection.lists: level protected"),
    (PROTECTED, {"protection": {"level": "open", "lists": ["a"] * 2}},
     "protection.lists", "protection.lists: one"),
    (PROTECTED, {"protection": {"level": "open", "lists": ["a b"]}}, "protection.lists", "'a b' is no name"),
    (PLAYBOOK, {"match": {"dport": 1}}, "match", "match: a playbook has none"),
    (PLAYBOOK, {"parts": [SYSCTL_RULE] * 2}, "parts", "parts: a setting is named twice"),
    (PLAYBOOK, {"parts": [PROTECTED]}, "parts[0]", "parts[0]: protect can't be one"),
    (PLAYBOOK, {"parts": [{**SYSCTL_RULE, "ttl_seconds": 0}]}, "parts[0].ttl_seconds", "ttl_seconds must be"),
    (UNTRACKED, {"match": {"protocol": 6}}, "forget", "forget: of a notrack rule on a port"),
    (UNTRACKED, {"match": {"dport": 1}}, "stateless", "stateless: of TCP or UDP"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "change", "field", "line"), REFUSED, ids=[f"{case[2]}-{case[3][-9:]}" for case in REFUSED]
)
def test_a_refused_rule_names_the_field_to_blame(
    rule: dict[str, Any], change: dict[str, Any], field: str, line: str
) -> None:
    with pytest.raises(FwtopError) as caught:
        rule_of_wire({**rule, **change})
    assert caught.value.field == f"rule.{field}"
    assert str(caught.value).removeprefix("not a rule: ").startswith(line)


# What found a fault names what it knows; the answer names the field of the request
BLAMED = [
    (Undo(("9",)), "id", "ids"),
    (Undo(), "ids", "ids"),
    (RuleMode((), Mode.COUNT), "ids", "ids"),
    (RuleMode(("9",), Mode.DROP), "rule", "ids"),
    (Keep("9"), "id", "id"),
    (ListTest("a", "x"), "entries", "entry"),
    (ListTest("a", "x"), "name", "name"),
    (ListChange("a", "add"), "entries", "entries"),
    (PolicyRead("check", "", {"a": ("x",)}), "entries", "lists"),
    (PolicyRead("check"), "rule.limit.burst", "text"),
    (PolicyRead("check"), "action", "action"),
    (PolicyChange("rollback"), "version", "version"),
    (Apply({"kind": "ipset"}), "name", "rule.origin"),
    (Apply({"protection": {"level": "open"}}), "name", "rule.protection.lists"),
    (Apply({}), "id", "rule.replaces"),
    (Apply({}), "rule.match.dport", "rule.match.dport"),
    (Apply({}), "confirm_seconds", "confirm_seconds"),
    (Plan({}), "entries", "rule.match.sources"),
    (Plan({}), "surplus", "rule"),
    (RuleChange("9", {}), "id", "id"),
    (RuleChange("9", {}), "name", "rule.origin"),
    (FleetDocument("", ()), "rules[0].id", "text.rules[0].id"),
    (FleetDocument("", ()), "calm", "text.calm"),
    (FleetDocument("", ()), "rule.limit.burst", "text"),
    (FleetConfirm("", ""), "action", "text.action"),
    (Undo(), None, None),
]


@pytest.mark.parametrize(
    ("request_", "field", "told"), BLAMED, ids=[f"{case[0].verb()}-{case[1]}" for case in BLAMED]
)
def test_a_refusal_names_a_field_of_its_request(
    request_: Request, field: str | None, told: str | None
) -> None:
    def refuse() -> dict[str, Any]:
        raise FwtopError("no", field=field)

    assert guarded(request_, refuse).field == told


def test_json_that_is_too_deep_is_called_that() -> None:
    deep = b'{"number": 7, "verb": "apply", "rule": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    with pytest.raises(ProtocolError, match="nested too deeply") as caught:
        parse_request(deep)
    assert caught.value.number == 7


NUMBERED = {
    b'{"verb": "keep", "number": 7}': "keep: id is missing",
    b'{"verb": "shell", "number": 7}': "there is no verb 'shell'; there are hello, watch",
    b'{"number": 7}': "verb is missing; there are hello",
    b'{"verb": "keep", "id": "1", "x": 1, "number": 7}': "keep: x is unknown; there are id, ttl_seconds",
    b'{"verb": "keep", "id": 1, "number": 7}': "keep: id must be text",
    b'{"verb": "undo", "ids": [1], "number": 7}': "undo: ids[0] must be text",
    b'{"verb": "keep", "seconds": -1, "number": 7}': "seconds must be above 0",
    b'{"verb": "keep", "number": 7, "rule": {"a": ': "the message is not JSON",
    b'{"verb": "\\ud800", "rule": {}, "number": 7}': "the message has half a character in JSON",
    b'{"number": 7, "verb": "\xff"}': "the message is not JSON in UTF-8",
}


@pytest.mark.parametrize("message", NUMBERED)
def test_what_is_not_understood_keeps_its_number(message: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_request(message)
    assert str(caught.value).startswith(NUMBERED[message])
    assert caught.value.number == 7


@pytest.mark.parametrize(
    "message", [b"", b"[]", b'{"number": -1}', b'{"rule": {"number": 7}, "verb"', b'{"number": "7"}']
)
def test_where_no_number_can_be_read_it_is_0(message: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_request(message)
    assert caught.value.number == 0
