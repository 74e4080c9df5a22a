"""Rules in words and as command lines."""

from __future__ import annotations

import argparse
import shlex

import pytest
from msgspec.structs import replace

from fwtop.cli.main import verb_module
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import ConnectionLimit, Kind, Match, PayloadMatch, Range, RateLimit, Rule, Setting
from fwtop.model.traffic.protocols import flags_option, read_flags
from fwtop.rules.kinds import command_line
from fwtop.rules.words import brief, describe, summarise

NET = Prefix.parse("203.0.113.0/24")


def rule(kind: Kind, match: Match, **more: object) -> Rule:
    return replace(Rule("", kind, match, "", 600), **more)


@pytest.mark.parametrize(
    ("match", "words"),
    [
        (Match(), "everything"),
        (Match(sources=(NET,)), "203.0.113.0/24"),
        (Match(protocol=17, sources=(NET, Prefix.parse("10.0.0.0/8"))), "UDP from 2 sources"),
        (Match(family=6, protocol=17, fragment=True), "IPv6 UDP fragments"),
        (Match(ip_length=Range(20, 80)), "packets of up to 80 bytes"),
        (
            Match(protocol=17, sport=53, ip_length=Range(1000, 65535)),
            "UDP from port 53 of 1000 bytes or more",
        ),
        (Match(protocol=1, icmp_type=8), "ICMP of type 8"),
        (Match(protocol=6, dport=80, tcp_flags=(63, 0)), "TCP to port 80 with no flags"),
        (Match(payload=(PayloadMatch(b"\x1b[2J"),)), "packets with “·[2J”"),
        (Match(payload=(PayloadMatch(b"\xff\xff\xff\xffgetstatus"),)), "packets with “····getstatus”"),
        (Match(payload=(PayloadMatch(b"\xff\xff\xff\xffpublic"),)), "packets with “····public”"),
        (Match(payload=(PayloadMatch(b"\xff\xff\xff\xffiMac-"),)), "packets with hex ffffffff694d61632d"),
        (Match(ip_id=Range(7, 9)), "packets with IP id 7 to 9"),
        (Match(protocol=6, tcp_window=Range(512, 512)), "TCP with window 512"),
        (Match(protocol=6, tcp_seq=Range(0, 0)), "TCP with sequence number 0"),
        (Match(protocol=6, tcp_header=Range(20, 20)), "TCP with no TCP options"),
        (Match(protocol=6, tcp_header=Range(24, 24)), "TCP with a TCP header of 24 bytes"),
        (Match(protocol=6, tcp_flags=(18, 2)), "TCP with SYN but no ACK"),
        (Match(protocol=6, tcp_flags=(22, 0)), "TCP with no SYN/RST/ACK"),
        (
            Match(
                protocol=6,
                dport=80,
                ip_length=Range(40, 40),
                ttl=Range(9, 9),
                tcp_window=Range(512, 512),
                tcp_header=Range(20, 20),
                tcp_flags=(18, 2),
                sources=(NET,),
            ),
            "TCP to port 80 of 40 bytes with TTL 9, window 512, no TCP options and SYN but no ACK"
            f" from {NET}",
        ),
    ],
)
def test_a_match_in_words(match: Match, words: str) -> None:
    assert describe(match) == words


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (rule(Kind.IPSET, Match(), origin="asn:64500"), "block AS64500"),
        (rule(Kind.IPSET, Match(protocol=17), origin="country:NL"), "block UDP from NL"),
        (rule(Kind.IPSET, Match(), origin="@/tmp/bad.txt"), "block @/tmp/bad.txt"),
        (rule(Kind.TC, Match(protocol=17)), "drop UDP at tc ingress"),
        (rule(Kind.XDP, Match(protocol=6, tcp_flags=(18, 2))), "drop TCP with SYN but no ACK, in the driver"),
        (
            rule(Kind.XDP, Match(protocol=17), limit=RateLimit(500, 500, 32, 64)),
            "limit UDP to 500/s per /32 (IPv6 /64) in the driver",
        ),
        (
            rule(Kind.SYNPROXY, Match(protocol=6, dport=443)),
            "answer handshakes of TCP to port 443 with SYN cookies",
        ),
        (
            rule(Kind.CONNLIMIT, Match(protocol=6, dport=80), connections=ConnectionLimit(20)),
            "limit TCP to port 80 to 20 connections per /32 (IPv6 /64)",
        ),
        (
            rule(Kind.SYSCTL, Match(), settings=(Setting("net.ipv4.tcp_syncookies", 2),)),
            "set net.ipv4.tcp_syncookies=2",
        ),
    ],
)
def test_a_rule_in_words(made: Rule, words: str) -> None:
    assert summarise(made) == words


_SYN = {"protocol": 6, "tcp_flags": (18, 2)}
_TIMEOUTS = tuple(Setting(f"net.netfilter.nf_conntrack_tcp_timeout_{name}", 10) for name in ("a", "b"))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            rule(Kind.XDP, Match(**_SYN, family=4, dport=80, ip_length=Range(40, 40))),
            "drop 40-byte SYNs to 80/tcp in the driver",
        ),
        (
            rule(Kind.XDP, Match(**_SYN, family=6, dport=80, ttl=Range(9, 9), tcp_window=Range(5, 5))),
            "drop IPv6 SYNs to 80/tcp with TTL 9, window 5",  # without its place, for which there is no room
        ),
        (rule(Kind.XDP, Match(protocol=6, tcp_flags=(63, 63))), "drop 6-flag TCP in the driver"),
        (
            rule(Kind.TC, Match(protocol=17, sport=53, fragment=True)),
            "drop UDP fragments from 53 at tc ingress",
        ),
        (rule(Kind.XDP, Match(protocol=17, ip_length=Range(400, 65535))), "drop ≥400-byte UDP in the driver"),
        (
            rule(Kind.STRING, Match(protocol=17, payload=(PayloadMatch(b"a rather long text", 0),))),
            "drop UDP with “a rather long …”",
        ),
        (rule(Kind.IPSET, Match(sources=(NET, Prefix.parse("10.0.0.0/8")))), "block 2 prefixes"),
        (
            rule(
                Kind.IPSET,
                Match(sources=tuple(map(Prefix.parse, ("192.0.2.1", "192.0.2.2")))),
                close_open=True,
            ),
            "block 2 addresses, close their connections",
        ),
        (rule(Kind.IPSET, Match(), origin="asn:64500"), "block AS64500"),
        (rule(Kind.XDP, Match(protocol=17), limit=RateLimit(500, 500, 32, 64)), "limit UDP to 500/s per /32"),
        (rule(Kind.SYNPROXY, Match(protocol=6, dport=443)), "answer SYNs to 443/tcp with cookies"),
        (rule(Kind.NOTRACK, Match(protocol=17, dport=53)), "don't track UDP to 53"),
        (
            rule(Kind.CONNLIMIT, Match(protocol=6, dport=80), connections=ConnectionLimit(20)),
            "limit TCP to 80 to 20 connections each",
        ),
        (
            rule(Kind.SYSCTL, Match(), settings=(Setting("net.netfilter.nf_conntrack_max", 1 << 20),)),
            "set conntrack max to 1,048,576",
        ),
        (rule(Kind.SYSCTL, Match(), settings=_TIMEOUTS), "shorten 2 timeouts to 10 s"),
    ],
)
def test_a_rule_in_a_line(made: Rule, words: str) -> None:
    assert brief(made, 46) == words


@pytest.mark.parametrize("mask", range(0, 256, 5))
def test_tcp_flags_round_trip_as_an_option(mask: int) -> None:
    for value in {0, mask, mask & 18}:
        assert read_flags(flags_option(mask, value)) == (mask, value)


@pytest.mark.parametrize(
    "made",
    [
        rule(Kind.HASHLIMIT, Match(protocol=17, dport=53), limit=RateLimit(1000, 2000, 24, 56)),
        rule(Kind.HASHLIMIT, Match(family=6), limit=RateLimit(9, 9, 32, 48, in_bytes=True, by_dport=True)),
        rule(Kind.STRING, Match(family=4, protocol=17, payload=(PayloadMatch(b"\x00'$(x)", 7),))),
        rule(Kind.XDP, Match(protocol=6, sport=1, dport=2, ip_length=Range(40, 90), tcp_flags=(18, 2))),
        rule(Kind.XDP, Match(protocol=132, ttl=Range(0, 255), fragment=True)),
        rule(
            Kind.TC,
            Match(
                protocol=6,
                ip_id=Range(0, 9),
                tcp_window=Range(1, 1),
                tcp_header=Range(20, 24),
                tcp_seq=Range(0, 1 << 31),
            ),
        ),
        rule(Kind.XDP, Match(protocol=17, payload=(PayloadMatch(b"evil"),))),
        rule(Kind.TC, Match(protocol=6, dport=80), limit=RateLimit(100, 100, 24, 64)),
        rule(Kind.NOTRACK, Match(protocol=47)),
        rule(Kind.CONNLIMIT, Match(protocol=6), connections=ConnectionLimit(9, 24, 56)),
        rule(
            Kind.CONNLIMIT,
            Match(family=6, protocol=6, dport=80),
            connections=ConnectionLimit(1, 32, 60),
            close_open=True,
        ),
    ],
)
def test_the_command_line_makes_the_same_rule(made: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    line = command_line(made)
    assert line is not None
    program, verb, *words = shlex.split(line)
    module = verb_module(verb)
    parser = argparse.ArgumentParser(exit_on_error=False)
    module.arguments(parser)
    args = parser.parse_args(words)
    read: list[Rule] = []
    if hasattr(module, "rule_of"):
        read.append(module.rule_of(args))
    else:
        monkeypatch.setattr(module, "carry_out", lambda _, rules: read.extend(rules) or 0)
        assert module.run(args) == 0
    assert program == "fwtop"
    assert read == [replace(made, summary=summarise(made), created_by="cli")]


def test_rules_without_a_command_line() -> None:
    payload = (PayloadMatch(b"evil"),)
    assert command_line(rule(Kind.STRING, Match(payload=payload, tcp_window=Range(1, 1)))) is None
    assert command_line(rule(Kind.XDP, Match(protocol=1, fragment=False))) is None
    assert command_line(rule(Kind.XDP, Match(sport=53), limit=RateLimit(1, 1))) is None
    many = tuple(Prefix(4, number << 8, 24) for number in range(40))
    assert command_line(rule(Kind.IPSET, Match(sources=many))) is None
    whole = command_line(rule(Kind.IPSET, Match(sources=many)), max_sources=None)
    assert whole is not None
    assert whole.count("/24") == 40
