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
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.messages import ProtocolError, parse_request
from fwtop.model.protocol import Apply, Plan, Request
from fwtop.model.rule import (
    ConnectionLimit,
    Kind,
    Level,
    Match,
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
    except (ProtocolError, FwtopError) as error:
        check(str(error))


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
