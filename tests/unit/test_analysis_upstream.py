"""The call to the provider: a FlowSpec rule that routers understand and that means the attack."""

from __future__ import annotations

import pytest
from analysis_factory import make_batch, make_frames, make_tables, make_window

from fwtop.analysis.config import AdviseConfig
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, Range
from fwtop.model.traffic.snapshot import Proposal
from fwtop.rules.exports.flowspec import FlowSpec

VISITORS = {"make": "connections", "src": "60", "count": 300}


def decode(nlri: bytes, family: int) -> dict[int, list[tuple[int, int]]]:
    """Read an NLRI as RFC 8955, 4.1 and 4.2 say: type → operators (without the bits of sizes) and values."""
    length, body = nlri[0], nlri[1:]
    assert length == len(body) < 240
    assert body[0] == 1
    bits, at = body[1], 2 if family == 4 else 3
    assert family == 4 or body[2] == 0  # the offset of RFC 8956
    size = (bits + 7) // 8
    found = {1: [(bits, int.from_bytes(body[at : at + size], "big"))]}
    at += size
    before = 1
    while at < len(body):
        kind, at = body[at], at + 1
        assert kind > before, "components are in ascending order"
        before = kind
        found[kind] = []
        while True:
            operator = body[at]
            width = 1 << ((operator >> 4) & 3)
            value = int.from_bytes(body[at + 1 : at + 1 + width], "big")
            found[kind].append((operator & 0x4F, value))
            at += 1 + width
            if operator & 0x80:
                break
    return found


@pytest.mark.parametrize(
    ("match", "text", "wire"),
    [
        (
            Match(protocol=17, sport=123, ip_length=Range(468, 468)),
            "protocol =udp; source-port =123; packet-length =468;",
            {3: [(1, 17)], 6: [(1, 123)], 10: [(1, 468)]},
        ),
        (
            Match(protocol=6, dport=80, tcp_flags=(18, 2)),
            "protocol =tcp; destination-port =80; tcp-flags [ =syn&!ack ];",
            {3: [(1, 6)], 5: [(1, 80)], 9: [(1, 2), (0x42, 16)]},
        ),
        (
            Match(protocol=17, fragment=True, ip_length=Range(1251, 65535)),
            "protocol =udp; packet-length >=1251; fragment [ is-fragment first-fragment ];",
            {3: [(1, 17)], 10: [(3, 1251)], 12: [(0, 6)]},
        ),
        (
            Match(protocol=1, icmp_type=8, ip_length=Range(60, 90)),
            "protocol =icmp; icmp-type =8; packet-length >=60&<=90;",
            {3: [(1, 1)], 7: [(1, 8)], 10: [(3, 60), (0x45, 90)]},
        ),
    ],
)
def test_rules_on_the_wire(match: Match, text: str, wire: dict[int, list[tuple[int, int]]]) -> None:
    rule = FlowSpec(Prefix.parse("203.0.113.9"), match)
    inner = f"destination 203.0.113.9/32; {text}"
    assert rule.text == f"flow {{ route {{ match {{ {inner} }} then {{ rate-limit 0; }} }} }}"
    assert decode(rule.nlri, 4) == {1: [(32, 0xCB007109)], **wire}
    six = FlowSpec(Prefix.parse("2001:db8::/48"), Match(protocol=17))
    assert "next-header =udp;" in six.text
    assert decode(six.nlri, 6)[1] == [(48, 0x20010DB80000)]


def call(items: list[dict[str, object]]) -> Proposal:
    narrow = AdviseConfig(link_bits_per_second=100_000.0)
    batch = make_batch(make_frames(items, 5.0))
    window = make_window(batch, 5.0, live=True)
    proposals = Advisor(narrow).judge(window, make_tables(window)).proposals
    return next(proposal for proposal in proposals if proposal.kind == "upstream")


def test_the_text_has_what_a_providers_desk_asks_for() -> None:
    found = call([VISITORS, {"src": "300", "sport": 123, "payload": "ntp", "count": 3000}])
    text, rule, wire = found.commands
    assert text.startswith("NTP amplification against 10.10.10.10: 600 packets/s, ")
    assert "Mbit/s" in text.splitlines()[0]
    assert "2023-11-14 22:13:25 UTC" in text.splitlines()[0]
    assert "Top sources: " in text
    assert text.splitlines()[-1].startswith("Please drop UDP from port 123 of 468 bytes to 10.10.10.10")
    assert "destination 10.10.10.10/32; protocol =udp; source-port =123; packet-length =468;" in rule
    assert decode(bytes.fromhex(wire.rpartition(" ")[2]), 4)[6] == [(1, 123)]


def test_a_carpet_is_filtered_by_the_prefix_that_it_covers() -> None:
    found = call([VISITORS, {"dport": 80, "payload": "zeros", "count": 4000, "dst": "10.10.10.0/26"}])
    assert "destination 10.10.10.0/26;" in found.commands[1]
    spoofed = found.commands[0]
    assert "spoofed" in spoofed
    assert "Top sources" not in spoofed


def test_a_carpet_is_named_with_the_prefix_that_it_covers_and_strays_do_not_widen_it() -> None:
    carpet = {"dport": 80, "payload": "zeros", "count": 4000, "dst": "10.10.10.0/26"}
    stray = {"dport": 80, "payload": "zeros", "count": 1, "dst": "172.16.0.1"}
    answers = {"sport": 80, "dport": 4000, "payload": "zeros", "count": 30, "dst": "172.16.0.9", "src": "1"}
    carpet["src"] = answers["dst"]
    window = make_window(make_batch(make_frames([VISITORS, carpet, stray, answers], 5.0)), 5.0, live=True)
    attacks = Advisor().judge(window, make_tables(window)).attacks
    named = next(attack for attack in attacks if attack.kind == "carpet_bombing")
    assert "64 addresses in 10.10.10.0/26" in named.title
