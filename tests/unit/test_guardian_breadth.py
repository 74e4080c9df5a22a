"""Which rules need force, and which don't: judged by what their conditions leave over."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import Session
from fwtop.guardian.limits import Limits
from fwtop.guardian.rules.guard import check_share
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.errors import FwtopError
from fwtop.model.rule import ConnectionLimit, Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.rehearsal.breadth import why_broad
from fwtop.rehearsal.host import Host

PEER = Prefix.parse("233.252.0.9")
ALLOW = AllowList(
    (
        Session(PEER, 40000, 2222).allowed("logged in"),
        AllowedPeer(Prefix.parse("198.51.100.1"), Role.OWN, reason="own address"),
        AllowedPeer(Prefix.parse("fe80::1"), Role.OWN, reason="own address"),
    )
)
EIGHTS = tuple(f"{i}.0.0.0/8" for i in range(1, 224) if i != 127)
SYN, SYN_ACK, ACK = (0x17, 0x02), (0x12, 0x12), (0x17, 0x10)


def rule(kind: Kind, *sources: str, limit: RateLimit | None = None, **fields: Any) -> Rule:
    if "destinations" in fields:
        fields["destinations"] = tuple(map(Prefix.parse, fields["destinations"]))
    match = Match(sources=tuple(map(Prefix.parse, sources)), **fields)
    return Rule("", kind, match, "x", 60, limit=limit)


def named(*sources: str, **fields: Any) -> Rule:
    """A rule on a list whose origin says what it is: that may be broader."""
    return replace(rule(Kind.IPSET, *sources, **fields), origin="country:NL")


def limit(rate: int, v4: int = 32, v6: int = 64, **fields: Any) -> Rule:
    given = RateLimit(rate, rate, v4, v6, in_bytes=fields.pop("in_bytes", False))
    return rule(fields.pop("kind", Kind.HASHLIMIT), limit=given, **fields)


def connections(most: int, v4: int = 32, **fields: Any) -> Rule:
    made = rule(Kind.CONNLIMIT, protocol=6, **fields)
    return replace(made, connections=ConnectionLimit(most, v4))


BROAD = [
    (connections(50, 7, dport=80), "/7 would share one limit"),
    (connections(3), "few to log in with"),
    (connections(3, dport=22), "few to log in with"),
    (rule(Kind.IPSET, "10.0.0.0/7"), "/8"),
    (rule(Kind.IPSET, "2000::/15"), "/16"),
    (rule(Kind.IPSET, "10.0.0.0/16", "10.2.0.0/15"), "10.2.0.0/15 is broader than /16"),
    (rule(Kind.XDP, "2001:db8::/39", protocol=17), "/40"),
    (rule(Kind.NOTRACK), "NAT"),
    (rule(Kind.NOTRACK, family=4), "NAT"),
    (rule(Kind.NOTRACK, ttl=Range(0, 255)), "NAT"),
    # Everything, and all of a protocol
    (rule(Kind.XDP), "every packet"),
    (rule(Kind.NFTABLES, family=6), "every packet"),
    (rule(Kind.NFTABLES, fragment=False), "every packet"),
    (rule(Kind.XDP, protocol=6), "all TCP"),
    (rule(Kind.NFTABLES, protocol=17), "all UDP"),
    (rule(Kind.XDP, protocol=17, family=4), "all UDP"),
    (rule(Kind.XDP, protocol=6, tcp_flags=SYN), "all new TCP"),
    (rule(Kind.XDP, protocol=6, tcp_flags=(0x02, 0x02)), "all new TCP"),
    (rule(Kind.XDP, protocol=6, tcp_flags=SYN_ACK), "all answers"),
    (rule(Kind.XDP, protocol=6, tcp_flags=ACK), "all TCP"),
    (rule(Kind.XDP, protocol=6, tcp_flags=(0, 0)), "all TCP"),
    (rule(Kind.XDP, protocol=6, tcp_flags=(0x40, 0)), "all TCP"),
    # Conditions that all packets meet, or about all
    (rule(Kind.NFTABLES, protocol=6, ttl=Range(0, 255)), "all TCP"),
    (rule(Kind.NFTABLES, protocol=6, ttl=Range(2, 254)), "all TCP"),
    (rule(Kind.NFTABLES, protocol=6, ttl=Range(40, 64)), "new SSH logins"),
    (rule(Kind.XDP, protocol=17, ip_length=Range(0, 65535)), "all UDP"),
    (rule(Kind.XDP, protocol=17, ip_length=Range(20, 1500)), "all UDP"),
    (rule(Kind.XDP, protocol=6, ip_length=Range(40, 64)), "new SSH logins"),
    (rule(Kind.XDP, ip_id=Range(0, 65535)), "every packet"),
    (rule(Kind.XDP, ip_id=Range(1, 65535)), "new SSH logins"),
    (rule(Kind.XDP, protocol=6, tcp_seq=Range(0, 0xFFFFFFFF)), "all TCP"),
    (rule(Kind.XDP, protocol=6, tcp_window=Range(0, 65535)), "all TCP"),
    (rule(Kind.XDP, protocol=6, tcp_header=Range(20, 60)), "all TCP"),
    (rule(Kind.XDP, protocol=6, tcp_header=Range(32, 40), tcp_flags=SYN), "new SSH logins"),
    (rule(Kind.XDP, protocol=6, destinations=("0.0.0.0/1", "128.0.0.0/1")), "all TCP"),
    (rule(Kind.XDP, protocol=6, destinations=("198.51.100.1",)), "all TCP"),
    (rule(Kind.XDP, destinations=("198.51.100.0/24",)), "every packet"),
    (rule(Kind.XDP, protocol=6, payload=(PayloadMatch(b"x", 0, b"\0"),)), "new SSH logins"),
    (rule(Kind.XDP, protocol=17, payload=(PayloadMatch(b"\1", 0, b"\1"),)), "all UDP"),
    # What only some clients send, and any login holds
    (rule(Kind.XDP, ip_length=Range(100, 200)), "key exchange"),
    (rule(Kind.XDP, protocol=6, ttl=Range(50, 58), tcp_flags=SYN), "TTL 50 to 58"),
    (rule(Kind.STRING, payload=(PayloadMatch(b"x"),)), "new SSH logins would"),
    # Where operators log in
    (rule(Kind.XDP, protocol=6, dport=22), "log in"),
    (rule(Kind.XDP, dport=22), "log in"),
    (rule(Kind.XDP, protocol=6, dport=2222), "log in"),
    (rule(Kind.XDP, protocol=6, dport=22, tcp_flags=SYN), "log in"),
    (rule(Kind.XDP, protocol=6, dport=22, ttl=Range(1, 255)), "log in"),
    (rule(Kind.XDP, protocol=6, dport=22, destinations=("198.51.100.1",)), "log in"),
    (rule(Kind.STRING, protocol=6, dport=22, payload=(PayloadMatch(b"SSH-"),)), "log in"),
    (rule(Kind.IPSET, *EIGHTS, protocol=6, dport=22), "log in"),
    (rule(Kind.IPSET, "1.0.0.0/8", "2.0.0.0/8", protocol=6, dport=22), "log in"),
    # Sources are no condition when they are many, and a limit none that the kind doesn't heed
    (rule(Kind.IPSET, *EIGHTS), "every packet from more than an eighth"),
    (rule(Kind.IPSET, *EIGHTS, protocol=6), "all TCP from more than an eighth"),
    (rule(Kind.XDP, *EIGHTS[:40], protocol=6, ttl=Range(0, 255)), "all TCP from"),
    (rule(Kind.IPSET, *EIGHTS, limit=RateLimit(100, 100)), "every packet"),
    (rule(Kind.STRING, protocol=6, limit=RateLimit(100, 100)), "all TCP"),
    # Limits that everybody shares, or that nobody can log in with
    (limit(1, 1, 1), "share one limit"),
    (limit(1000, 7), "share one limit"),
    (limit(1000, 32, 15), "share one limit"),
    (limit(1000, 1, 1, protocol=6, dport=22), "share one limit"),
    (limit(1), "nobody can log in"),
    (limit(1, kind=Kind.XDP), "nobody can log in"),
    (limit(1, protocol=6), "nobody can log in"),
    (limit(100, protocol=6, in_bytes=True), "nobody can log in"),
    (limit(1, protocol=6, dport=22), "nobody can log in"),
]
NARROW = [
    connections(3, dport=80),
    connections(4),
    named("10.0.0.0/8"),
    named(*EIGHTS[:30]),
    named(*EIGHTS[:30], protocol=6),
    named(*EIGHTS, protocol=17, dport=53),
    named("10.0.0.0/8", protocol=6, dport=22),
    rule(Kind.XDP, "192.0.2.0/24", protocol=6),
    rule(Kind.XDP, protocol=6, dport=80),
    rule(Kind.XDP, protocol=17, dport=22),
    rule(Kind.XDP, protocol=17, sport=53),
    rule(Kind.XDP, protocol=1),
    rule(Kind.XDP, protocol=1, icmp_type=8),
    rule(Kind.XDP, protocol=47),
    rule(Kind.XDP, protocol=17, fragment=True),
    rule(Kind.XDP, protocol=17, ip_length=Range(1000, 1500)),
    rule(Kind.XDP, protocol=17, ttl=Range(52, 52)),
    rule(Kind.XDP, protocol=6, tcp_flags=(0x06, 0x04)),
    rule(Kind.XDP, protocol=6, tcp_flags=(0x07, 0x01)),
    rule(Kind.XDP, protocol=6, tcp_flags=(0x3F, 0x00)),
    rule(Kind.XDP, protocol=6, tcp_flags=SYN, dport=80),
    rule(Kind.XDP, protocol=6, tcp_flags=SYN_ACK, sport=443),
    rule(Kind.XDP, protocol=6, tcp_flags=SYN, tcp_window=Range(512, 512)),
    rule(Kind.XDP, protocol=6, tcp_flags=SYN, tcp_header=Range(20, 20), dport=22),
    rule(Kind.XDP, protocol=6, tcp_seq=Range(1, 1)),
    rule(Kind.XDP, ip_id=Range(54321, 54321)),
    rule(Kind.XDP, protocol=17, destinations=("203.0.113.5",)),
    rule(Kind.NOTRACK, protocol=6),
    rule(Kind.STRING, protocol=6, dport=22, payload=(PayloadMatch(b"SSH-2.0-Go"),)),
    limit(10),
    limit(10, 8, 16),
    limit(1, protocol=6, tcp_flags=SYN),
    limit(1, protocol=6, dport=80),
    limit(1, protocol=17),
    limit(10, protocol=6, dport=22),
    limit(50_000, protocol=6, in_bytes=True),
]


@pytest.mark.parametrize(("broad", "why"), BROAD, ids=str)
def test_broad_rules_need_force(broad: Rule, why: str) -> None:
    assert why in str(why_broad(broad, Host(ALLOW)))


@pytest.mark.parametrize("narrow", NARROW, ids=str)
def test_narrow_rules_do_not(narrow: Rule) -> None:
    assert why_broad(narrow, Host(ALLOW)) is None


@pytest.mark.parametrize("fields", [{}, {"protocol": 6}, {"protocol": 6, "dport": 22}, {"sport": 53}])
def test_most_of_the_address_space_is_refused_with_any_condition(fields: dict[str, int]) -> None:
    with pytest.raises(FwtopError, match="max_blocked_share"):
        check_share(rule(Kind.IPSET, *EIGHTS, **fields), [], Limits())
