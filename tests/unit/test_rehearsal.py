"""Rules tried on what logins send: which cut them, which don't, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import Session
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.named_list import entries_of
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.harm import ClientHarm, Weight, Who
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.rehearsal.breadth import why_broad
from fwtop.rehearsal.host import Asked, Client, Host, KnownPeers
from fwtop.rehearsal.logins import SYSTEMS, cut, flat, length_of, login
from fwtop.rehearsal.rehearse import clients_words, rehearse

PEER = Prefix.parse("233.252.0.9")
ALLOW = AllowList((Session(PEER, 40000, 2222).allowed("logged in"),), listening=frozenset({2022}))
SYN = (0x12, 0x02)
ANYWHERE = Kind.STRING


def rule(kind: Kind = Kind.XDP, **fields: Any) -> Rule:
    limit = fields.pop("limit", None)
    if "payload" in fields:
        fields["payload"] = (PayloadMatch(fields["payload"], fields.pop("offset", None)),)
    return Rule("", kind, Match(**fields), "x", 60, limit=limit)


def span(value: int) -> Range:
    return Range(value, value)


CUTTING = [
    (rule(protocol=6, ip_length=span(60), tcp_flags=SYN), "from Linux and BSD hosts|SYN, length 60)"),
    (rule(protocol=6, ip_length=span(80), family=6), "from Linux and BSD hosts|SYN, length 80)"),
    (rule(protocol=6, ip_length=span(52), tcp_flags=SYN), "from Windows hosts|SYN, length 52)"),
    (rule(protocol=6, ttl=span(64)), "from Linux, macOS and BSD hosts|SYN, TTL 64)"),
    (rule(protocol=6, ttl=span(113)), "from Windows hosts|SYN, TTL 113)"),
    (rule(protocol=6, tcp_window=span(64240)), "from Linux and Windows hosts|SYN, window 64240)"),
    (rule(protocol=6, tcp_window=span(502), tcp_flags=(0x10, 0x10)), "from Linux hosts|ACK, window"),
    (rule(protocol=6, tcp_header=span(40)), "from Linux and BSD hosts|SYN, TCP header of 40 bytes)"),
    (rule(protocol=6, ip_id=span(0)), "from macOS and BSD hosts would be dropped"),
    (rule(protocol=6, tcp_seq=Range(0, 1 << 30)), "new SSH logins would be dropped"),
    (rule(ANYWHERE, payload=b"SSH-2.0"), "new SSH logins|banner, with 'SSH-2.0')"),
    (rule(ANYWHERE, payload=b"\r\n"), "new SSH logins|banner, with 0d0a)"),
    (rule(Kind.XDP, payload=b"\r\n"), "new SSH logins|banner, with 0d0a)"),
    (rule(ANYWHERE, payload=b"OpenSSH_9.2p1 Deb"), "from Linux hosts|banner"),
    (rule(ANYWHERE, payload=b"curve25519"), "new SSH logins|key exchange"),
    (rule(ANYWHERE, payload=b"\x04\x02\x08\x0a"), "from Linux and BSD hosts|SYN"),  # options
    (rule(ANYWHERE, payload=b"\x45\x00"), "would be dropped (SYN"),  # how IPv4 begins
    (rule(Kind.NFTABLES, protocol=6, payload=b"SSH-", offset=0), "new SSH logins|banner"),
    (rule(protocol=6, dport=2022, ttl=span(52)), "port 2022 is where operators log in"),
    (replace(rule(Kind.HARDEN), parts=(rule(ANYWHERE, payload=b"SSH-2.0"),)), "new SSH logins|banner"),
    (rule(Kind.HASHLIMIT, protocol=6, payload=b"\x45\x00", limit=RateLimit(1, 1)), "log in"),
    (rule(Kind.HASHLIMIT, protocol=6, ip_length=Range(40, 120), limit=RateLimit(2, 2)), "nobody can log in"),
]  # fmt: skip
HARMLESS = [
    rule(protocol=6, dport=80, ip_length=span(60), tcp_flags=SYN),
    rule(ANYWHERE, protocol=6, dport=80, payload=b"SSH-2.0"),
    rule(protocol=17, ip_length=span(60)),
    rule(protocol=17, ttl=span(64)),
    rule(ANYWHERE, protocol=17, payload=b"\r\n"),
    rule(protocol=6, ip_length=span(40), tcp_flags=SYN),
    rule(protocol=6, tcp_window=span(1024), tcp_flags=SYN),
    rule(protocol=6, ttl=span(240)),
    rule(protocol=6, tcp_header=span(20), tcp_flags=SYN),
    rule(protocol=6, ip_id=span(54321)),
    rule(protocol=6, sport=40_000),
    rule(protocol=6, fragment=True, ttl=span(64)),
    rule(Kind.XDP, payload=b"\x04\x02\x08\x0a"),  # compiled rules don't search headers
    rule(ANYWHERE, payload=b"GET /wp-login.php"),
    rule(ANYWHERE, payload=b"SSH-2.0-Go"),
    rule(ANYWHERE, payload=b"SSH-2.0-libssh"),
    rule(
        Kind.HASHLIMIT, family=4, protocol=6, ip_length=span(60), limit=RateLimit(1, 1)
    ),  # a login has one such SYN
    rule(Kind.IPSET, sources=(Prefix.parse("198.51.100.0/24"),), protocol=6, ip_length=span(60)),
]


@pytest.mark.parametrize(("cutting", "says"), CUTTING, ids=str)
def test_what_cuts_a_login_needs_force_and_says_so(cutting: Rule, says: str) -> None:
    assert says.replace("|", " would be dropped (") in str(why_broad(cutting, Host(ALLOW)))


@pytest.mark.parametrize("harmless", HARMLESS, ids=str)
def test_what_touches_no_login_does_not(harmless: Rule) -> None:
    assert why_broad(harmless, Host(ALLOW)) is None


def test_a_million_sources_are_rehearsed_by_what_they_cover() -> None:
    few = PrefixRows.of(tuple(Prefix(4, 0x0B000000 + 16 * number, 32) for number in range(1_000_000)))
    listed = replace(rule(Kind.IPSET, protocol=6), match=Match(sources=few, protocol=6))
    assert why_broad(listed, Host(ALLOW)) is None
    many = tuple(Prefix(4, number << 24, 8) for number in range(1, 120))
    wide = replace(listed, match=replace(listed.match, sources=PrefixRows.of(many)))
    assert "all TCP from more than an eighth" in str(why_broad(wide, Host(ALLOW)))


@pytest.mark.parametrize("family", [4, 6])
def test_logins_are_whole_packets(family: int) -> None:
    """Each segment has the length that it states, options in whole words, and comes from a known system."""
    for client in login(22, family):
        assert client[0].system in SYSTEMS
        for segment in client:
            data, _ = flat(segment.packet)
            stated = int.from_bytes(data[2:4] if family == 4 else data[4:6], "big") + (
                0 if family == 4 else 40
            )
            assert segment.length == stated == length_of(segment.packet) <= 1700
            assert segment.header % 4 == 0
            start = (20 if family == 4 else 40) + 12
            assert data[start] >> 4 == segment.header // 4
            assert data[start + 1] == segment.flags
            assert (
                cut(segment.packet, segment.length - length_of(segment.payload), segment.length)
                == segment.payload
            )


MIRROR, NAMES = Prefix.parse("203.0.113.80"), tuple(Prefix.parse(f"203.0.113.{n}") for n in range(8))
ASKED = (Asked(MIRROR, 6, 443, 3), Asked(MIRROR, 17, 123, own_port=123), *(Asked(n, 17, 53) for n in NAMES))
CUT = [
    (rule(Kind.IPSET, sources=(MIRROR,)), "TCP port 443 (3 connections), 203.0.113.80 UDP port 123"),
    (rule(protocol=6, sport=443, tcp_flags=(0x17, 0x10)), "TCP port 443"),
    (rule(protocol=6, ip_length=span(60), tcp_flags=(0x12, 0x12)), "TCP port 443"),
    (rule(protocol=17, dport=123), "UDP port 123"),
    (rule(protocol=17, sources=(Prefix.parse("203.0.113.0/30"),)), "UDP port 53 and 1 other"),
]  # fmt: skip
SPARED = [
    rule(protocol=6, dport=443),
    rule(protocol=17, sport=53, ip_length=span(1400)),
    rule(protocol=6, tcp_header=span(20), tcp_flags=SYN),
    rule(sources=(Prefix.parse("198.51.100.0/24"),)),
    rule(protocol=17, fragment=True),
    rule(Kind.HASHLIMIT, protocol=17, sport=53, limit=RateLimit(10, 10)),
    rule(Kind.NOTRACK, protocol=17, sport=53),
    rule(protocol=17, sport=53, destinations=(Prefix.parse("192.0.2.1"),)),
]


@pytest.mark.parametrize(("cutting", "whose"), CUT)
def test_a_rule_that_cuts_answers_says_whose(cutting: Rule, whose: str) -> None:
    losses = [
        one for one in rehearse(cutting, Host(ALLOW, asked=lambda: ASKED)).losses if one.who is Who.ASKED
    ]
    assert any(whose in one.words for one in losses)


@pytest.mark.parametrize("sparing", SPARED)
def test_a_rule_that_spares_answers_says_nothing(sparing: Rule) -> None:
    assert rehearse(sparing, Host(ALLOW, asked=lambda: ASKED)).losses == ()


def test_who_cuts_most_answers_from_anywhere_needs_force_and_resolvers_pass() -> None:
    names = rule(protocol=17, sport=53)
    found = rehearse(names, Host(ALLOW, asked=lambda: ASKED))
    assert found.refused is None
    assert "203.0.113.2 UDP port 53 and 5 others" in str(found.broad)
    resolvers = KnownPeers(tuple(AllowedPeer(peer, Role.DNS) for peer in NAMES))
    assert rehearse(names, Host(resolvers, asked=lambda: ASKED)).losses == ()
    operators = KnownPeers((AllowedPeer(Prefix.parse("203.0.113.0/24"), Role.OPERATOR),))
    assert rehearse(names, Host(operators, asked=lambda: ASKED)).losses == ()


NEAR = (Prefix.parse("203.0.113.0/30"),)
CLIENTS = (
    *(Client(Prefix.parse(f"203.0.113.{number}"), 6, 443) for number in range(1, 9)),
    Client(Prefix.parse("2001:db8::5"), 6, 443),
    Client(Prefix.parse("203.0.113.1"), 17, 53),
)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        (rule(protocol=6, dport=443), "9 of 9 clients of 443 lose it"),
        (rule(protocol=6, dport=443, family=4), "8 of 9 clients of 443 lose it"),
        (rule(protocol=6, dport=443, sources=NEAR), "3 of 9 clients of 443 lose it"),
        (rule(sources=(Prefix.parse("203.0.113.1"),)), "2 of 10 clients lose it"),
        (rule(protocol=17, dport=53), "1 of 1 client of UDP 53 loses it"),
        (rule(protocol=6, dport=80), "no client of 80 is known"),
        (rule(protocol=6, dport=443, ttl=span(52)), "not known"),
        (rule(Kind.HASHLIMIT, protocol=6, dport=443, limit=RateLimit(9, 9)), "not known"),
        (rule(ANYWHERE, protocol=6, dport=443, payload=b"GET"), "not known"),
    ],
)  # fmt: skip
def test_root_counts_the_clients_that_a_console_told(blocks: Rule, words: str) -> None:
    host = Host(ALLOW, clients=CLIENTS)
    assert clients_words(blocks, host).startswith(words)
    assert clients_words(blocks, Host(ALLOW)).startswith("not known")
    told = [one.words for one in rehearse(blocks, host).losses if one.who is Who.CLIENTS]
    assert told == ([words] if " of " in words and words[0].isdigit() else [])


def test_clients_on_the_allow_list_lose_nothing() -> None:
    operators = KnownPeers((AllowedPeer(Prefix.parse("203.0.113.0/24"), Role.OPERATOR),))
    told = clients_words(rule(protocol=6, dport=443), Host(operators, clients=CLIENTS))
    assert told == "1 of 9 clients of 443 loses it"


def test_clients_are_told_beside_the_rest() -> None:
    hit = ClientHarm(4117, 2, 2, protocol=6, port=443)
    ours = replace(rule(protocol=6, dport=443), predicted_clients=hit)
    found = rehearse(ours, Host(ALLOW))
    (loss,) = found.losses
    assert (loss.who, loss.words, loss.weight) == (Who.CLIENTS, hit.words, Weight.TOLD)
    assert found.warnings == (), "counted beside them"
    spared = replace(ours, predicted_clients=replace(hit, hit=0, hit_half=0))
    assert rehearse(spared, Host(ALLOW)).losses == ()


def test_pairs_concern_an_ssh_session_only_if_they_lead_here() -> None:
    me, peer = Prefix.parse("198.51.100.1"), Prefix.parse("192.0.2.9")
    session = AllowedPeer(peer, Role.SSH, port=50_000, login_port=22)
    allow = AllowList((AllowedPeer(me, Role.OWN), session))
    for to, refused in (("198.51.100.0/24", True), ("203.0.113.0/24", False), ("0.0.0.0/0", True)):
        on_list = replace(rule(Kind.IPSET), origin="list:x")
        on_list = replace(on_list, match=Match(sources=entries_of((f"192.0.2.0/24,{to}",))))
        assert (rehearse(on_list, Host(allow)).refused is not None) == refused, to
