"""What the rehearsal says of each packet of a login, and what the kernel does with it, by kind of rule."""

from __future__ import annotations

import struct
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.rehearsal.logins import Segment, flat, login
from fwtop.rehearsal.segments import matches
from tests.kernel.guardian_bench import Bench, apply, rules_of
from tests.kernel.wire import checksummed, mac, meet, send_frames

pytestmark = pytest.mark.kernel
PORT, MTU, FILL = 2222, 1500, 0xA5
SYN = (0x12, 0x02)


def span(value: int) -> Range:
    return Range(value, value)


CONDITIONS = {
    "all": {},
    "SYN": {"tcp_flags": SYN},
    "SYN of length 60": {"tcp_flags": SYN, "ip_length": span(60)},
    "length": {"ip_length": Range(50, 90)},
    "TTL of Linux": {"ttl": span(64)},
    "TTL of Windows": {"ttl": Range(100, 120)},
    "window": {"tcp_window": span(64240)},
    "window later": {"tcp_window": Range(500, 505)},
    "header": {"tcp_header": span(40)},
    "header of Windows": {"tcp_header": span(32), "tcp_flags": SYN},
    "sequence": {"tcp_seq": Range(0, 1 << 31)},
    "IP id": {"family": 4, "ip_id": span(0)},
    "no fragment": {"fragment": False},
}
STRINGS = {
    "banner": b"SSH-2.0",
    "end of line": b"\r\n",
    "options": b"\x04\x02\x08\x0a",
    "IPv4": b"\x45\x00",
    "one client": b"OpenSSH_for_Windows",
    "keys": b"curve25519",
    "far in": b"umac-64",
}
ANCHORED = {"banner at 0": (b"SSH-", 0), "message": (b"\x14", 5), "version": (b"2.0-Open", 4)}
AT_INGRESS = (Kind.NFTABLES, Kind.XDP, Kind.TC)


def rule(kind: Kind, fields: dict, *payload: PayloadMatch) -> Rule:
    limit = RateLimit(1, 1) if kind is Kind.HASHLIMIT else None
    return Rule("", kind, Match(protocol=6, payload=payload, **fields), "x", 600, limit=limit)


def table() -> dict[str, Rule]:
    found = {}
    for kind in (*AT_INGRESS, Kind.IPSET, Kind.HASHLIMIT, Kind.NOTRACK):
        found |= {f"{kind.value} {name}": rule(kind, fields) for name, fields in CONDITIONS.items()}
    for kind in (Kind.STRING, Kind.IPSET, Kind.HASHLIMIT, Kind.XDP, Kind.TC):
        found |= {
            f"{kind.value} {name}": rule(kind, {}, PayloadMatch(data)) for name, data in STRINGS.items()
        }
    for kind in (Kind.STRING, Kind.IPSET, Kind.HASHLIMIT, *AT_INGRESS):
        found |= {f"{kind.value} {name}": rule(kind, {}, PayloadMatch(*at)) for name, at in ANCHORED.items()}
    # Bytes that a kind doesn't read are no condition for the kernel, so they mustn't be one here
    unread = PayloadMatch(b"never sent")
    return found | {f"{Kind.NOTRACK.value} unread": rule(Kind.NOTRACK, {}, unread)}


RULES = table()
ORDINARY = ["nftables length", "xdp one client", "tc window later", "ipset banner", "hashlimit TTL of Linux",
            "string options", "notrack SYN"]  # fmt: skip


def segments(family: int) -> list[Segment]:
    """Return one of each that fits on the wire, of each system; of the banners some."""
    found, banners = dict[Segment, None](), 0
    for client in login(PORT, family):
        for item in client:
            banners = banners + 1 if item.step == "banner" else 0
            if item.length <= MTU and banners <= 3:
                found[item] = None
    return [*found]


def packet_of(bench: Bench, segment: Segment, match: Match) -> bytes:
    """Return a segment as a packet; what is left open has values that the match takes, if it can."""

    def chosen(wanted: Range | None, possible: Range) -> int:
        return possible.high if wanted is None else max(possible.low, min(wanted.low, possible.high))

    data, known = flat(segment.packet)
    packet = bytearray(byte if sure else FILL for byte, sure in zip(data, known, strict=True))
    family, tcp = segment.family, 20 if segment.family == 4 else 40
    windows = [chosen(match.tcp_window, one) for one in segment.windows]
    good = [
        one
        for one in windows
        if match.tcp_window is None or match.tcp_window.low <= one <= match.tcp_window.high
    ]
    struct.pack_into("!H", packet, tcp + 14, (good or windows)[0])
    struct.pack_into("!I", packet, tcp + 4, chosen(match.tcp_seq, Range(0, 0x7FFF_FFFF)))
    packet[8 if family == 4 else 7] = chosen(match.ttl, segment.ttls)
    if family == 6:
        packet[1:4] = bytes(3)
    victim = bench.pair.victim.ipv4 if family == 4 else bench.pair.victim.ipv6
    source, target = (ip_address(text).packed for text in (bench.attacker(family), victim))
    packet[tcp - len(source) - len(target) : tcp] = source + target
    if family == 4:
        packet[:20] = checksummed(packet[:10] + bytes(2) + packet[12:20], 10)
    return bytes(packet)


def check(bench: Bench, made: Rule, poll_until: Callable[..., object]) -> None:
    if made.kind is Kind.IPSET:
        sources = tuple(Prefix.parse(bench.attacker(family)) for family in (4, 6))
        made = Rule("", made.kind, Match(**_fields(made.match) | {"sources": sources}), "x", 600)
    victim = bench.pair.victim
    for tool in ("iptables", "ip6tables"):  # no answers, which a notrack rule would count
        victim.run(tool, "-A", "INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "DROP")
    meet(bench.pair)
    hits, misses = [], []
    to = mac(victim) + bytes(6)
    for family in made.match.families:
        for item in segments(family):
            found = hits if matches(made.kind, made.match, item) else misses
            kind = b"\x08\x00" if family == 4 else b"\x86\xdd"
            found.append(to + kind + packet_of(bench, item, made.match))
    times = 3 if made.kind is Kind.HASHLIMIT else 1
    with bench.connect() as guardian:
        rule_id = apply(guardian, made, force=True)

        def counted() -> int:
            return rules_of(guardian)[rule_id]["packets"]

        send_frames(bench.pair.attacker, *misses)
        send_frames(bench.pair.attacker, *hits, times=times)
        sent = times * len(hits)
        least = sent - 8 if made.kind is Kind.HASHLIMIT else sent  # what it lets pass of each family
        poll_until(lambda: counted() >= least)
        assert counted() <= sent, "the kernel matched what the rehearsal does not"
        guardian.demand(Undo((rule_id,)))


def _fields(match: Match) -> dict:
    return {name: getattr(match, name) for name in Match.__struct_fields__}


@pytest.mark.parametrize("name", ORDINARY)
def test_the_kernel_does_what_was_rehearsed(bench: Bench, name: str, poll_until) -> None:
    check(bench, RULES[name], poll_until)


@pytest.mark.matrix
@pytest.mark.parametrize("name", list(RULES))
def test_the_kernel_does_what_was_rehearsed_of_every_rule(bench: Bench, name: str, poll_until) -> None:
    check(bench, RULES[name], poll_until)
