"""Rules from hostile clients: everything that is not exactly a rule is one error, never a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule

GOOD = Rule(
    "7",
    Kind.STRING,
    Match(
        sources=(Prefix.parse("192.0.2.0/24"),),
        protocol=6,
        ip_length=Range(40, 60),
        tcp_flags=(18, 2),
        payload=(PayloadMatch(b"abc", 3, b"\xff\x00\xff"),),
    ),
    "evil \x1b[2J summary",
    600,
    limit=RateLimit(5, 6),
    predicted_pps=1.5,
)


def wire(rule: Rule = GOOD) -> dict[str, Any]:
    return json.loads(json.dumps(rule.to_dict()))


def test_good_rule_comes_through_without_its_id_and_escapes() -> None:
    rule = rule_of_wire(wire())
    assert (rule.id, rule.match, rule.limit) == ("", GOOD.match, GOOD.limit)
    assert "\x1b" not in rule.summary


def test_every_text_of_a_rule_is_made_safe_to_show() -> None:
    evil = "\x1b]0;owned\x07"
    part = replace(GOOD, kind=Kind.IPSET, match=Match(sources=GOOD.match.sources), limit=None)
    texts = {"summary": evil, "created_by": evil, "origin": f"@{evil}"}
    payload = (PayloadMatch(b"abc", dns_name=evil),)
    for rule in (
        replace(part, **texts),
        Rule("", Kind.STRING, Match(payload=payload), "x", 60),
        Rule("", Kind.HARDEN, Match(), "x", 60, playbook=evil, parts=(replace(part, **texts),)),
    ):
        told = json.dumps(rule_of_wire(wire(rule)).to_dict(), ensure_ascii=False)
        assert "owned" in told
        assert "\\u00" not in told


BAD = [
    ("ttl_seconds", 0),
    ("ttl_seconds", -1),
    ("ttl_seconds", True),
    ("ttl_seconds", 1.5),
    ("ttl_seconds", 10**12),
    ("ttl_seconds", "60"),
    ("kind", "rm -rf"),
    ("kind", []),
    ("summary", None),
    ("summary", {}),
    ("origin", 3),
    ("created", "now"),
    ("predicted_pps", float("nan")),
    ("limit", {"per_second": 1}),
    ("limit", {"per_second": 0, "burst": 1}),
    ("limit", {"per_second": 1, "burst": 1, "prefix_v4": 99}),
    ("limit", []),
    ("match", None),
    ("match", {}),
    ("surplus", 1),
    ("match.sources", ["nonsense"]),
    ("match.sources", [1]),
    ("match.sources", "10.0.0.1"),
    ("match.sources", None),
    ("match.family", 5),
    ("match.protocol", 256),
    ("match.protocol", "tpc"),
    ("match.dport", -1),
    ("match.dport", 1.0),
    ("match.ip_length", {"low": 9, "high": 3}),
    ("match.ip_length", {"low": 0, "high": 70000}),
    ("match.ttl", {"low": 0}),
    ("match.ip_id", {"low": 0, "high": 65536}),
    ("match.tcp_window", {"low": -1, "high": 5}),
    ("match.tcp_header", {"low": 20, "high": 61}),
    ("match.tcp_seq", {"low": 0, "high": 1 << 32}),
    ("match.tcp_flags", [1]),
    ("match.tcp_flags", [1, 999]),
    ("match.fragment", "yes"),
    ("match.payload", [{"data": "zz", "offset": None, "mask": None, "dns_name": None}]),
    ("match.payload", [{"data": "", "offset": None, "mask": None, "dns_name": None}]),
    ("match.payload", [{"data": "00" * 129, "offset": None, "mask": None, "dns_name": None}]),
    ("match.payload", [{"data": "0011", "offset": 0, "mask": "ff", "dns_name": None}]),
    ("match.payload", [{"data": "00", "offset": -1, "mask": None, "dns_name": None}]),
    ("match.payload", [{"data": "00", "offset": None, "mask": None, "dns_name": None}] * 17),
    ("match.payload", [3]),
]


@pytest.mark.parametrize(("where", "value"), BAD)
def test_bad_field_is_refused(where: str, value: object) -> None:
    data = wire()
    target, name = (data["match"], where[6:]) if where.startswith("match.") else (data, where)
    target[name] = value
    with pytest.raises(FwtopError) as caught:
        rule_of_wire(data)
    assert caught.value.code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.HASHLIMIT, Kind.STRING])
def test_kind_without_what_it_needs_is_refused(kind: Kind) -> None:
    with pytest.raises(FwtopError):
        rule_of_wire(wire(Rule("", kind, Match(), "x", 60)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
names = sorted(GOOD.to_dict()) + [f"match.{name}" for name in sorted(GOOD.to_dict()["match"])]


@given(st.sampled_from(names), json_values)
def test_any_value_anywhere_is_a_rule_or_one_error(where: str, value: object) -> None:
    data = wire()
    target, name = (data["match"], where[6:]) if where.startswith("match.") else (data, where)
    target[name] = value
    try:
        rule = rule_of_wire(data)
    except FwtopError:
        return
    json.dumps(rule.to_dict())


@pytest.mark.parametrize("protocol", ["tcp", "TCP", 6])
def test_a_protocol_has_a_name_beside_its_number(protocol: str | int) -> None:
    told = {
        "kind": "ipset",
        "summary": "x",
        "ttl_seconds": 5,
        "match": {"sources": ["192.0.2.1"], "protocol": protocol},
    }
    rule = rule_of_wire(told)
    assert rule.match.protocol == 6
    again = rule.to_dict()
    assert (again["match"]["protocol"], again["match"]["protocol_name"]) == (6, "tcp")
    assert rule_of_wire(again) == rule
