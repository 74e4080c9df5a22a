"""What the guard lets through, on values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fwtop.mitigate import guard
from fwtop.mitigate.allowlist import Allowed, AllowList
from fwtop.model.address import Prefix
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule

ALLOW = AllowList(
    (Allowed(Prefix.parse("198.51.100.7"), "operator"), Allowed(Prefix.parse("fe80::/64"), "link")),
    session_ports=frozenset({2222}),
)
LIMIT = RateLimit(10, 10)


def rule(kind: Kind = Kind.IPSET, *sources: str, **fields) -> Rule:
    match = Match(sources=tuple(Prefix.parse(text) for text in sources), **fields)
    return Rule("", kind, match, "x", 60, limit=LIMIT if kind is Kind.HASHLIMIT else None)


@pytest.mark.parametrize("source", ["198.51.100.7", "198.51.100.0/24", "192.0.0.0/3", "fe80::1", "fe00::/8"])
def test_sources_that_hold_an_allowed_address_are_refused(source: str) -> None:
    refused = guard.judge(rule(Kind.IPSET, source), ALLOW, 0).refused
    assert refused is not None
    assert source in refused
    assert "operator" in refused or "link" in refused


@pytest.mark.parametrize("source", ["198.51.100.6", "198.51.100.8/29", "203.0.113.0/24", "2001:db8::/32"])
def test_other_sources_are_not(source: str) -> None:
    assert guard.judge(rule(Kind.IPSET, source), ALLOW, 0) == guard.Verdict()


def test_everybody_is_refused() -> None:
    assert "everybody" in str(guard.judge(rule(Kind.IPSET, "0.0.0.0/0"), AllowList(()), 0).refused)


def test_compiled_lists_are_cut_around_the_allow_list() -> None:
    listed = replace(rule(Kind.IPSET, "198.51.100.0/24", "203.0.113.0/24"), origin="asn:64500")
    assert guard.judge(listed, ALLOW, 0).refused is None
    assert guard.exceptions(listed, ALLOW) == (Prefix.parse("198.51.100.7"),)


def test_number_of_rules_is_bounded() -> None:
    assert guard.judge(rule(Kind.IPSET, "192.0.2.1"), ALLOW, guard.MAX_RULES).refused is not None


@pytest.mark.parametrize(
    ("broad", "why"),
    [
        (rule(Kind.IPSET, "10.0.0.0/7"), "/8"),
        (rule(Kind.IPSET, "2000::/15"), "/16"),
        (rule(Kind.XDP, protocol=6), "all TCP"),
        (rule(Kind.XDP), "every packet"),
        (rule(Kind.NOTRACK), "NAT"),
        (rule(Kind.NOTRACK, family=4), "NAT"),
        (rule(Kind.XDP, protocol=6, dport=22), "log in"),
        (rule(Kind.XDP, protocol=6, dport=2222), "log in"),
    ],
)
def test_broad_rules_need_a_word(broad: Rule, why: str) -> None:
    verdict = guard.judge(broad, ALLOW, 0)
    assert (verdict.refused, why in str(verdict.broad)) == (None, True)


@pytest.mark.parametrize(
    "narrow",
    [
        rule(Kind.IPSET, "10.0.0.0/8"),
        rule(Kind.XDP, protocol=17),
        rule(Kind.XDP, protocol=6, dport=80),
        rule(Kind.XDP, ip_length=Range(100, 200)),
        rule(Kind.HASHLIMIT),
        rule(Kind.NOTRACK, protocol=6),
        rule(Kind.STRING, payload=(PayloadMatch(b"x"),)),
    ],
)
def test_narrow_rules_do_not(narrow: Rule) -> None:
    assert guard.judge(narrow, ALLOW, 0) == guard.Verdict()


prefixes = st.builds(
    lambda value, length: Prefix.of_columns(4, 0, value, length),
    st.integers(0, 2**32 - 1),
    st.integers(1, 32),
)


@given(st.lists(prefixes, min_size=1, max_size=8), st.lists(prefixes, max_size=8))
def test_no_rule_ever_overlaps_the_allow_list(sources: list[Prefix], allowed: list[Prefix]) -> None:
    allow = AllowList(tuple(Allowed(prefix, "x") for prefix in allowed))
    verdict = guard.judge(Rule("", Kind.IPSET, Match(sources=tuple(sources)), "x", 60), allow, 0)
    overlap = any(source.overlaps(prefix) for source in sources for prefix in allowed)
    assert (verdict.refused is not None) == overlap
