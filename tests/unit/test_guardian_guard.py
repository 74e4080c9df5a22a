"""What the guard lets through, on values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import Session
from fwtop.guardian.rules import guard
from fwtop.model.addresses.address import Prefix, covered
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from fwtop.rehearsal.host import Host
from fwtop.rehearsal.operators import around_sessions, exceptions
from fwtop.rehearsal.rehearse import Rehearsal
from fwtop.rules.kinds import why_too_many

ALLOW = AllowList(
    (
        AllowedPeer(Prefix.parse("198.51.100.7"), reason="operator"),
        AllowedPeer(Prefix.parse("fe80::/64"), reason="link"),
        Session(Prefix.parse("233.252.0.9"), 40000, 2222).allowed("logged in"),
        AllowedPeer(Prefix.parse("233.252.0.53"), Role.DNS, reason="DNS resolver"),
        AllowedPeer(Prefix.parse("233.252.0.123"), Role.NTP, reason="NTP server"),
        AllowedPeer(Prefix.parse("233.252.0.1"), Role.GATEWAY, reason="default gateway"),
        AllowedPeer(Prefix.parse("233.252.0.2"), Role.OWN, reason="own address"),
    )
)
LIMIT = RateLimit(10, 10)


def rule(kind: Kind = Kind.IPSET, *sources: str, **fields) -> Rule:
    match = Match(sources=tuple(Prefix.parse(text) for text in sources), **fields)
    return Rule("", kind, match, "x", 60, limit=LIMIT if kind is Kind.HASHLIMIT else None)


@pytest.mark.parametrize("source", ["198.51.100.7", "198.51.100.0/24", "192.0.0.0/3", "fe80::1", "fe00::/8"])
def test_sources_that_hold_an_allowed_address_are_refused(source: str) -> None:
    refused = guard.judge(rule(Kind.IPSET, source), Host(ALLOW), 0).refused
    assert refused is not None
    assert source in refused
    assert "operator" in refused or "link" in refused


@pytest.mark.parametrize("source", ["198.51.100.6", "198.51.100.8/29", "203.0.113.0/24", "2001:db8::/40"])
def test_other_sources_are_not(source: str) -> None:
    assert guard.judge(rule(Kind.IPSET, source), Host(ALLOW), 0) == Rehearsal()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("233.252.0.53", "answers from its port 53"),
        ("233.252.0.123", "its port 123"),
        ("233.252.0.1", "neighbour discovery"),
        ("233.252.0.2", "loopback"),
        ("233.252.0.48/29", "answers from its port 53"),
    ],
)
def test_who_was_found_may_be_blocked_and_keeps_its_role(source: str, says: str) -> None:
    verdict = guard.judge(rule(Kind.XDP, source), Host(ALLOW), 0)
    assert verdict.refused is None
    assert says in " ".join(verdict.warnings)
    assert exceptions(replace(rule(Kind.IPSET, source), origin="@f"), ALLOW) == ()


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({}, True),
        ({"protocol": 6}, True),
        ({"protocol": 6, "dport": 2222}, True),
        ({"sport": 40000}, True),
        ({"protocol": 17}, False),
        ({"dport": 80}, False),
        ({"protocol": 6, "sport": 53}, False),
        ({"icmp_type": 8}, False),
    ],
)
def test_a_rule_that_would_hit_a_session_is_refused(fields: dict, refused: bool) -> None:
    verdict = guard.judge(rule(Kind.XDP, "233.252.0.9", **fields), Host(ALLOW), 0)
    assert (verdict.refused is not None) == refused
    assert refused or "logged in by ssh" in " ".join(verdict.warnings)


def test_everybody_is_refused() -> None:
    assert "everybody" in str(guard.judge(rule(Kind.IPSET, "0.0.0.0/0"), Host(AllowList(())), 0).refused)


def test_compiled_lists_are_cut_around_the_allow_list() -> None:
    listed = replace(rule(Kind.IPSET, "198.51.100.0/24", "203.0.113.0/24"), origin="asn:64500")
    assert guard.judge(listed, Host(ALLOW), 0).refused is None
    assert exceptions(listed, ALLOW) == (Prefix.parse("198.51.100.7"),)


def test_number_of_rules_is_bounded() -> None:
    assert guard.judge(rule(Kind.IPSET, "192.0.2.1"), Host(ALLOW), guard.MAX_RULES).refused is not None


def test_compiled_lists_are_cut_around_sessions() -> None:
    listed = replace(rule(Kind.XDP, "233.252.0.0/24", "203.0.113.0/24"), origin="country:NL")
    cut, warnings = around_sessions(listed, ALLOW)
    assert covered([cut.match.sources], 4) == 511
    assert guard.judge(cut, Host(ALLOW), 0).broad is None
    assert "233.252.0.9: logged in by ssh, so cut out of the list" in warnings[0]
    rows = replace(listed, match=replace(listed.match, sources=PrefixRows.of(listed.match.sources)))
    assert set(around_sessions(rows, ALLOW)[0].match.sources) == set(cut.match.sources)


@pytest.mark.parametrize("fields", [{"protocol": 17}, {"dport": 80}, {"sport": 53}, {"icmp_type": 8}])
def test_what_is_no_login_is_not_cut_out(fields: dict[str, int]) -> None:
    listed = replace(rule(Kind.XDP, "233.252.0.0/24", **fields), origin="country:NL")
    assert around_sessions(listed, ALLOW) == (listed, ())


def test_a_list_of_nothing_but_sessions_needs_force() -> None:
    listed = replace(rule(Kind.IPSET, "233.252.0.9"), origin="@list")
    assert around_sessions(listed, ALLOW) == (listed, ())
    assert "where operators are logged in" in str(guard.judge(listed, Host(ALLOW), 0).broad)


prefixes = st.builds(
    lambda value, length: Prefix.of_columns(4, 0, value, length),
    st.integers(0, 2**32 - 1),
    st.integers(1, 32),
)


@given(st.lists(prefixes, min_size=1, max_size=8), st.lists(prefixes, max_size=8))
def test_no_rule_ever_overlaps_the_allow_list(sources: list[Prefix], allowed: list[Prefix]) -> None:
    allow = AllowList(tuple(AllowedPeer(prefix, reason="x") for prefix in allowed))
    verdict = guard.judge(Rule("", Kind.IPSET, Match(sources=tuple(sources)), "x", 60), Host(allow), 0)
    overlap = any(one.contains(other) or other.contains(one) for one in sources for other in allowed)
    assert (verdict.refused is not None) == overlap


@pytest.mark.parametrize(
    ("kind", "count", "family", "reason"),
    [
        (Kind.IPSET, 5_000_000, 4, ""),
        (Kind.IPSET, 5_000_001, 4, "5,000,001 prefixes, but an ipset takes up to 5,000,000: --via xdp takes"),
        (Kind.XDP, 5_000_001, 4, ""),
        (Kind.TC, 5_000_001, 6, "5,000,001 IPv6 prefixes, but an XDP or tc rule takes up to 5,000,000"),
    ],
)
def test_how_many_prefixes_a_rule_takes(kind: Kind, count: int, family: int, reason: str) -> None:
    step = np.arange(count, dtype=np.uint64)
    lengths = np.full(count, 32 if family == 4 else 64, np.uint8)
    four, six = [(step.astype(np.uint32), lengths)], [(step, np.zeros_like(step), lengths)]
    found = why_too_many(kind, PrefixRows.of_columns(four) if family == 4 else PrefixRows.of_columns([], six))
    assert (found or "").startswith(reason)
    assert (found is None) == (reason == "")
