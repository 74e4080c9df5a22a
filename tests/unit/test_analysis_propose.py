"""Proposals: what they stop and harm, in which order, with commands that can be typed."""

from __future__ import annotations

import ipaddress
from typing import Any

import numpy as np
import pytest
from analysis_commands import check_commands
from analysis_factory import SYN_OPTIONS, ethernet, ip, make_batch, make_frames, make_tables, make_window
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.proposals.matching import bars_newcomers, match_rows
from fwtop.analysis.proposals.preview import preview
from fwtop.analysis.window.tcp_view import ACK, RST, SYN
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.harm import Who
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from fwtop.model.traffic.counters import Counters, DropCount
from fwtop.model.traffic.packets import Window
from fwtop.model.traffic.snapshot import Judgement, Proposal
from fwtop.rehearsal.host import KnownPeers
from fwtop.rules.exports.xtables import shell_commands
from fwtop.rules.kinds import command_line

VISITORS = {"make": "connections", "src": "60", "count": 300}


def window_of(items: list[dict[str, Any]], seconds: float = 5.0, *, live: bool = False) -> Window:
    return make_window(make_batch(make_frames(items, seconds)), seconds, live=live)


def judged(items: list[dict[str, Any]], advisor: Advisor | None = None, *, live: bool = False) -> Judgement:
    window = window_of(items, live=live)
    return (advisor or Advisor()).judge(window, make_tables(window))


def learned() -> Advisor:
    """An advisor that has watched visitors for 20 quiet seconds."""
    advisor = Advisor()
    batch = make_batch(make_frames([{**VISITORS, "count": 800}], 20.0))
    first = int(batch.time_ns.min())
    for end in range(1, 21):
        inside = (batch.time_ns >= first + (end - 2) * 10**9) & (batch.time_ns < first + end * 10**9)
        window = make_window(batch.select(inside), 2.0, live=True, started=float(end - 2))
        advisor.judge(window, make_tables(window))
    assert advisor.baseline.ready
    return advisor


def rule(kind: Kind, match: Match, limit: RateLimit | None = None) -> Rule:
    return Rule("", kind, match, "a rule", 600, limit=limit)


def test_forged_sources_are_not_blocked_and_the_reason_is_given() -> None:
    judgement = judged([VISITORS, {"dport": 80, "payload": "zeros", "count": 3000}])
    assert judgement.attacks[0].spoofed
    assert not [proposal for proposal in judgement.proposals if proposal.kind == "ipset"]
    assert any("blocking sources is not offered" in sentence for sentence in judgement.attacks[0].evidence)


def test_what_a_bridge_passes_on_beside_netfilter_is_stopped_at_its_ports() -> None:
    floods: tuple[dict[str, Any], ...] = (
        {"src": "20", "dport": 27015, "payload": "random_any", "count": 6000},
        {"dport": 27015, "payload": "zeros", "count": 6000},
        {"protocol": "tcp", "dport": 80, "flags": "S", "count": 6000},
    )
    unseen = AdviseConfig(beside_netfilter=frozenset({4}))
    for flood in floods:
        window = window_of([VISITORS, flood], live=True)
        victim = Prefix.of_columns(4, 0, int(window.arrived.dst_lo[0]))
        kinds = {}
        for own in (victim, Prefix.parse("192.0.2.254")):
            here = replace(window, own=(own,))
            offered = Advisor(unseen).judge(here, make_tables(here)).proposals
            kinds[own] = {item.rule.kind for item in offered if item.rule is not None}
            assert max(item.attack_share for item in offered) >= 0.95
        assert kinds[victim] - {Kind.XDP}, "packets for the bridge itself meet netfilter"
        assert kinds[own] == {Kind.XDP}


def test_few_real_sources_are_blocked_one_by_one() -> None:
    flood = {"src": "20", "dport": 27015, "payload": "random_any", "count": 6000}
    judgement = judged([VISITORS, flood], learned(), live=True)
    block = next(proposal for proposal in judgement.proposals if proposal.kind == "ipset")
    assert block.attack_share >= 0.95
    assert block.collateral_share == 0
    assert not block.guess
    assert block.rule is not None
    assert len(block.rule.match.sources) <= 20
    assert block.fwtop.startswith("fwtop block ")
    assert block.stopped_pps == pytest.approx(0.97 * 1200, rel=0.06)


def test_what_active_rules_stop_is_proposed_to_nobody_and_the_rest_is_aimed_at() -> None:
    items = [
        VISITORS,
        {"src": "20", "dport": 27015, "payload": "zeros", "count": 6000},
        {"src": "20", "dport": 27015, "payload": "constant deadbeefcafe0042", "count": 2000},
    ]
    window = window_of(items, live=True)

    def offered(*active: Rule) -> tuple[Proposal, ...]:
        return Advisor().judge(window, make_tables(window), active).proposals

    free = offered()
    assert all(item.already_share == 0 for item in free)
    whole = next(item for item in free if item.attack_share > 0.99 and item.rule is not None)
    assert whole.rule is not None
    active = replace(whole.rule, id="1")
    assert [item.rule for item in offered(active) if item.rule is not None] == [
        replace(whole.rule, created_by=item.rule.created_by) for item in offered(active) if item.rule
    ], "only what is active stays in the list"
    assert offered(active)

    zeros = rule(Kind.STRING, Match(protocol=17, dport=27015, payload=(PayloadMatch(bytes(8), 0),)))
    best = offered(replace(zeros, id="1"))[0]
    assert best.attack_share - best.already_share == pytest.approx(0.25, abs=0.02), "of all packets"
    assert best.collateral_share == 0
    late = Counters(window.seconds, 8000, 8_000_000, drops=(DropCount("nic", "rx_missed", 50_000),))
    lossy = replace(window, counters=late)
    again = Advisor().judge(lossy, make_tables(lossy), [replace(zeros, id="1")]).proposals
    assert max(item.attack_share - item.already_share for item in again) > 0.9, "netfilter is too late"


def test_a_block_list_promises_what_it_stops_of_packets_that_did_not_choose_it() -> None:
    """Of a botnet that a window shows in part only, a list can't stop what the window didn't show."""
    bots = {"src": "3000", "dport": 53, "payload": "random_query victim.example.com", "count": 12_000}
    other = {"protocol": "tcp", "flags": "S", "dport": 80, "src": "random", "count": 20_000}
    batch = make_batch(make_frames([VISITORS, bots, other], 10.0))
    half = (batch.time_ns < int(batch.time_ns.min()) + 5 * 10**9).astype(bool)
    now, later = (make_window(batch.select(rows), 5.0, live=True) for rows in (half, ~half))
    proposals = Advisor().judge(now, make_tables(now)).proposals
    lists = [one for one in proposals if one.rule is not None and len(one.rule.match.sources) > 20]
    assert lists
    for block in lists:
        assert block.rule is not None
        assert "DNS" in block.attack
        came = later.arrived.dport == 53
        stopped = float(match_rows(block.rule.match, later.arrived)[came].mean())
        assert block.attack_share == pytest.approx(stopped, abs=0.05)
        shown = preview(block.rule, now)
        assert shown.attack == block.attack
        assert shown.attack_share == pytest.approx(block.attack_share, abs=1e-6)
        assert dict(shown.attacks)[block.attack] == shown.attack_share
        assert shown.total_pps == pytest.approx(block.stopped_pps)


def test_a_single_real_sender_is_blocked_rather_than_what_it_sends() -> None:
    flood = {"src": "45.146.165.208", "dport": 4444, "payload": "zeros", "count": 6000}
    best = judged([VISITORS, flood], learned(), live=True).proposals[0]
    assert best.fwtop == "fwtop block 45.146.165.208 --via ipset --ttl 10m"
    assert "1 source sends 100 % of the attack" in best.summary


def test_what_cuts_logins_needs_force_where_operators_log_in() -> None:
    syn = {"protocol": "tcp", "flags": "S", "dport": 80, "count": 4000, "options": SYN_OPTIONS}
    for ports, forced in (({22}, False), ({22, 80}, True)):
        advisor = learned()
        advisor.known = KnownPeers(listening=frozenset(ports))
        offered = judged([VISITORS, syn], advisor, live=True).proposals
        rules = [one for one in offered if one.rule is not None]
        assert {"port 80 is where operators log in" in one.needs_force for one in rules} == {forced}
        assert (offered[0].rule is None) is forced, "who does better than a rule that needs force"


def test_dropping_every_syn_costs_every_connection() -> None:
    """A rule on SYNs that real clients send too must show their loss, though SYNs are few packets."""
    syn = {
        "protocol": "tcp",
        "flags": "S",
        "dport": 80,
        "count": 4000,
        "options": "020405b40402080a" + "0" * 24,
    }
    advisor = learned()
    window = window_of([VISITORS, syn], live=True)
    blunt = rule(Kind.XDP, Match(protocol=6, dport=80, tcp_flags=(18, 2)))
    shown = preview(blunt, window, advisor.baseline)
    assert shown.attack_share == pytest.approx(1.0)
    assert shown.collateral_share > 0.95
    assert any(loss.who is Who.CLIENTS for loss in shown.losses)
    best = advisor.judge(window, make_tables(window)).proposals[0]
    assert best.collateral_share < 0.05  # those visitors whose SYNs have the flood's TTL, too


def test_forged_syns_like_real_ones_are_answered_with_cookies() -> None:
    """What looks like every client's SYN can only be told by who finishes the handshake."""
    syn = {
        "protocol": "tcp",
        "flags": "S",
        "dport": 80,
        "ttl": "40-60",
        "count": 6000,
        "options": SYN_OPTIONS,
    }
    advisor = learned()
    window = window_of([VISITORS, syn], live=True)
    best = advisor.judge(window, make_tables(window)).proposals[0]
    assert best.kind == "synproxy"
    assert best.attack_share >= 0.95
    assert best.collateral_share == 0
    check_commands(best)
    assert best.fwtop == "fwtop synproxy -4 --dport 80 --ttl 10m"
    assert best.rule is not None
    shown = preview(best.rule, window, advisor.baseline)
    assert (shown.attack_share, shown.collateral_share) == (best.attack_share, best.collateral_share)
    victim = Prefix.of_columns(4, 0, int(window.arrived.dst_lo[0]))
    for own, to in ((victim, ""), (Prefix.parse("192.0.2.254"), f" --to {victim}")):
        # Of a service behind, the proxy must know the address: without, it answers for its machine only.
        other = replace(window, own=(own,))
        best = learned().judge(other, make_tables(other)).proposals[0]
        assert best.fwtop == f"fwtop synproxy -4 --dport 80{to} --ttl 10m"
        assert best.attack_share >= 0.95
        check_commands(best)
    closed = judged([VISITORS, {**syn, "dport": 81}], learned(), live=True)
    assert not [proposal for proposal in closed.proposals if proposal.kind == "synproxy"]


ODD = {"dport": "random", "ttl": "30-250", "payload": "random_any", "count": 6000}


@pytest.mark.parametrize("learnt", [True, False])
@pytest.mark.parametrize(
    ("item", "field", "value"),
    [
        ({**ODD, "protocol": "tcp", "flags": "S", "window": 0x1234}, "tcp_window", Range(0x1234, 0x1234)),
        ({**ODD, "protocol": "tcp", "flags": "A", "seq": 77}, "tcp_seq", Range(77, 77)),
        ({**ODD, "ip_id": 0xBEEF}, "ip_id", Range(0xBEEF, 0xBEEF)),
        ({**ODD, "sport": 4444}, "sport", 4444),
    ],
)
def test_one_odd_constant_is_enough_for_a_rule(
    item: dict[str, Any], field: str, value: object, learnt: bool
) -> None:
    found = judged([VISITORS, item], learned() if learnt else None, live=True).proposals
    best = next(one for one in found if one.rule is not None and getattr(one.rule.match, field) == value)
    assert best.number == 1
    assert best.attack_share >= 0.95
    assert best.collateral_share <= 0.005
    check_commands(best)


def test_a_constant_that_real_hosts_have_is_none_without_a_baseline() -> None:
    """Most Linux systems open with a window of 64,240: who opens a connection next would be hit."""
    syn = {**ODD, "protocol": "tcp", "flags": "S", "dport": 80, "ttl": 52, "payload": "empty"}
    usual = judged([{**syn, "window": 64240, "options": SYN_OPTIONS}], live=True).proposals
    assert usual
    assert all(one.rule is None or one.rule.match.tcp_window is None for one in usual)


@pytest.mark.parametrize(
    ("fields", "barred"),
    [
        ({}, True),
        ({"ip_length": Range(60, 60)}, True),
        ({"ip_length": Range(80, 80), "tcp_window": Range(64800, 64800)}, True),
        ({"ip_length": Range(40, 40)}, False),
        ({"tcp_window": Range(4660, 4660)}, False),
        ({"ip_length": Range(60, 60), "ttl": Range(52, 52)}, False),
    ],
)
def test_a_rule_on_syns_as_systems_send_them_bars_whoever_comes_next(
    fields: dict[str, Range], barred: bool
) -> None:
    """Without calm before it no SYN is known to be a client's: such a rule had "0 of 3" clients hit."""
    match = Match(protocol=6, dport=80, tcp_flags=(SYN | ACK, SYN), **fields)
    assert bars_newcomers(match, None) is barred
    flood = {"protocol": "tcp", "flags": "S", "dport": 80, "ttl": "40-60", "options": SYN_OPTIONS}
    window = window_of([VISITORS, {**flood, "count": 6000}], live=True)
    assert (preview(rule(Kind.XDP, match), window).collateral_share == 1.0) is barred


def test_syns_as_systems_send_them_are_answered_with_cookies_before_anybody_is_known() -> None:
    syn = {"protocol": "tcp", "flags": "S", "dport": 80, "ttl": "40-60", "count": 6000}
    found = judged([{**syn, "options": SYN_OPTIONS}], live=True).proposals
    assert found[0].kind == "synproxy"
    assert all(one.rule is None or one.rule.match.ip_length is None for one in found)
    assert (
        judged([syn], live=True)
        .proposals[0]
        .fwtop.startswith("fwtop drop -4 --proto tcp --dport 80 --length 40:40")
    )


def test_mixed_impossible_flags_are_dropped_by_what_real_segments_always_have() -> None:
    odd = {"protocol": "tcp", "dport": "random", "count": 2000}
    judgement = judged([VISITORS, {**odd, "flags": "FPU"}, {**odd, "flags": ""}], learned(), live=True)
    best = judgement.proposals[0]
    assert best.rule is not None
    assert best.rule.match.tcp_flags == (22, 0)
    assert best.rule.match.ip_length is None
    assert best.attack_share == pytest.approx(1.0)
    assert best.collateral_share == 0
    check_commands(best)


def test_real_clients_headers_are_no_ground_for_a_drop_where_they_were_not_seen() -> None:
    flood = {"make": "connections", "src": "100", "dport": 443, "payload": "hello", "count": 1500, "acks": 1}
    judgement = judged([VISITORS, flood])
    assert "tls_flood" in {attack.kind for attack in judgement.attacks}
    assert judgement.proposals
    assert not [proposal for proposal in judgement.proposals if proposal.fwtop.startswith("fwtop drop")]


def test_harm_of_a_block_is_the_share_of_the_blocked_clients() -> None:
    advisor = learned()
    rows = advisor.baseline.rows
    keys, counts = np.unique(rows.src_lo, return_counts=True)
    busiest = int(keys[counts.argmax()])
    window = window_of([VISITORS, {"dport": 80, "payload": "zeros", "count": 3000}], live=True)
    block = rule(Kind.IPSET, Match(sources=(Prefix(4, busiest, 32),)))
    shown = preview(block, window, advisor.baseline)
    assert shown.collateral_share == pytest.approx(counts.max() / counts.sum(), abs=0.001)
    assert str(Prefix(4, busiest, 32)) in shown.examples[0]
    assert any("spoofed" in warning for warning in shown.warnings)


def test_signature_of_a_constant_part_separates() -> None:
    judgement = judged(
        [VISITORS, {"dport": 25565, "payload": "constant", "count": 3000}], learned(), live=True
    )
    string = next(proposal for proposal in judgement.proposals if proposal.kind == "string")
    assert string.attack_share >= 0.95
    assert string.collateral_share <= 0.005
    assert string.rule is not None
    assert string.rule.match.payload[0].data in b"\x13\x37flood-tool/2.1 hello there"


def test_signature_at_a_moving_place_is_found_too() -> None:
    import analysis_payloads

    analysis_payloads._PLAIN["moving"] = lambda rng: (
        rng.randbytes(rng.randrange(4, 40)) + b"stresser.example/v7" + rng.randbytes(20)
    )
    judgement = judged([VISITORS, {"dport": 4444, "payload": "moving", "count": 3000}], learned(), live=True)
    string = next(proposal for proposal in judgement.proposals if proposal.kind == "string")
    assert string.attack_share >= 0.95
    assert string.rule is not None
    assert string.rule.match.payload[0].offset is None


def test_dns_names_are_matched_in_wire_form() -> None:
    judgement = judged(
        [{"src": "500", "dport": 53, "payload": "random_query victim.example.com", "count": 2000}]
    )
    string = next(proposal for proposal in judgement.proposals if proposal.kind == "string")
    assert string.rule is not None
    assert string.rule.match.payload[0].data == b"\x06victim\x07example\x03com\x00"
    assert "--dns victim.example.com" in string.fwtop
    assert string.attack_share == pytest.approx(1.0)


def test_every_proposal_can_be_typed_and_read_back() -> None:
    items = [
        VISITORS,
        {"protocol": "tcp", "flags": "S", "dport": 80, "count": 2000},
        {"src": "100", "sport": 123, "payload": "ntp", "count": 2000},
        {
            "protocol": "icmp6",
            "icmp_type": 128,
            "src": "50 6",
            "dst": "2001:db8::1",
            "payload": "blank",
            "count": 1500,
        },
    ]
    proposals = judged(items).proposals
    assert {"xdp", "ipset"} <= {proposal.kind for proposal in proposals}
    for number, proposal in enumerate(proposals, 1):
        assert proposal.number == number
        assert 0 <= proposal.attack_share <= 1
        assert 0 <= proposal.collateral_share <= 1
        if proposal.rule is None:
            assert proposal.kind == "upstream"
            continue
        assert Rule.from_dict(proposal.rule.to_dict()) == proposal.rule
        assert proposal.commands
        check_commands(proposal)


def test_commands_are_exact() -> None:
    match = Match(family=4, protocol=17, sport=53, ip_length=Range(1200, 1500), ttl=Range(60, 60))
    drop = rule(Kind.XDP, match)
    assert shell_commands(drop)[1] == (
        "# the same in netfilter: iptables -t raw -I PREROUTING -p 17 -m udp --sport 53 "
        "-m length --length 1200:1500 -m ttl --ttl-eq 60 -j DROP"
    )
    assert command_line(drop) == (
        "fwtop drop -4 --proto udp --sport 53 --length 1200:1500 --ttl-field 60:60 --via xdp --ttl 10m"
    )
    block = rule(Kind.IPSET, Match(sources=(Prefix.parse("203.0.113.0/24"), Prefix.parse("2001:db8::/48"))))
    assert command_line(block) == "fwtop block 203.0.113.0/24 2001:db8::/48 --via ipset --ttl 10m"
    assert "ipset add fwtop-N-6 2001:db8::/48 timeout 600" in shell_commands(block)
    limit = rule(Kind.HASHLIMIT, Match(family=4, protocol=17, dport=53), RateLimit(100, 100, prefix_v4=24))
    assert command_line(limit) == "fwtop limit -4 --proto udp --dport 53 --per 24 --rate 100/s --ttl 10m"
    text = rule(Kind.STRING, Match(protocol=17, dport=80, payload=(PayloadMatch(b"\xff\x00", 4),)))
    assert command_line(text) == "fwtop match --hex ff00 --offset 4 --proto udp --dport 80 --ttl 10m"
    many = rule(Kind.IPSET, Match(sources=tuple(Prefix(4, i << 8, 24) for i in range(1, 2000))))
    assert not command_line(many), "only 'fwtop apply' makes it"


def test_commands_are_about_the_rule_s_destinations_only() -> None:
    match = Match(sources=(Prefix.parse("203.0.113.0/24"),), destinations=(Prefix.parse("192.0.2.1"),))
    [line] = [line for line in shell_commands(rule(Kind.IPSET, match)) if "DROP" in line]
    assert line == "iptables -t raw -A FWTOP -m set --match-set fwtop-N-4 src -d 192.0.2.1 -j DROP"


ODD_RULES = [
    (Kind.STRING, Match(protocol=17, payload=(PayloadMatch(b"\x10\x00\x20", 3, b"\xf0\x00\xff"),))),
    (Kind.STRING, Match(protocol=6, payload=(PayloadMatch(b"\x03abc\x00\x00\xff", 12, None, "abc"),))),
    (Kind.STRING, Match(protocol=17, payload=(PayloadMatch(b"\x03a\x01c\x00", None, None, "a\\001c"),))),
    (Kind.STRING, Match(payload=(PayloadMatch(b"moving"),))),
    (Kind.XDP, Match(family=6, protocol=58, icmp_type=128)),
    (Kind.XDP, Match(protocol=6, tcp_flags=(0xFF, 0xC2), fragment=None)),
    (Kind.XDP, Match(protocol=17, fragment=True, ttl=Range(0, 9))),
    (Kind.NOTRACK, Match(family=4, protocol=17, dport=53)),
    (Kind.IPSET, Match(sources=tuple(Prefix(4, i << 8, 24) for i in range(1, 2000)))),
    (Kind.XDP, Match(sources=tuple(Prefix(4, i << 8, 24) for i in range(1, 40)))),
]


@pytest.mark.parametrize(("kind", "match"), ODD_RULES)
def test_commands_say_the_rule_and_nothing_else(kind: Kind, match: Match) -> None:
    made = rule(kind, match)
    line, commands = command_line(made) or "fwtop apply 3", shell_commands(made)
    check_commands(Proposal(3, kind.value, "", 1.0, 0.0, commands=commands, fwtop=line, rule=made))


def test_untracked_packets_are_counted_though_nothing_is_dropped() -> None:
    window = window_of([VISITORS, {"dport": 53, "payload": "zeros", "count": 3000}], live=True)
    shown = preview(rule(Kind.NOTRACK, Match(protocol=17, dport=53)), window)
    assert shown.total_pps == pytest.approx(600, rel=0.02)
    assert shown.attack_share == shown.collateral_share == 0


def test_a_syn_flood_on_several_ports_has_a_rule_for_each() -> None:
    flood = {"protocol": "tcp", "flags": "S", "ttl": "40-60", "options": SYN_OPTIONS}
    items = [VISITORS, *({**flood, "dport": port, "count": 3000} for port in (80, 25, 8080))]
    offered = judged(items, learned(), live=True).proposals
    rules = {item.rule.match.dport: item for item in offered if item.rule and item.rule.match.dport}
    kinds = {port: item.kind for port, item in rules.items()}
    assert kinds == {80: "synproxy", 25: "xdp", 8080: "xdp"}, "visitors use port 80"
    assert all(item.collateral_share == 0 for item in rules.values())
    assert sum(item.attack_share for item in rules.values()) == pytest.approx(1.0, abs=0.02)
    assert not [item for item in offered if item.kind == "upstream"]


def test_a_full_link_calls_for_the_provider() -> None:
    items = [VISITORS, {"src": "300", "sport": 123, "payload": "ntp", "count": 3000}]
    window = window_of(items, live=True)
    lost = (DropCount("nic", "rx_missed", 50_000),)
    full = Counters(
        window.seconds, window.counters.arrived_packets, window.counters.arrived_bytes, drops=lost
    )
    window = Window(window.started, window.seconds, window.arrived, window.dropped, window.accepted, full)
    proposals = Advisor().judge(window, make_tables(window)).proposals
    call = next(proposal for proposal in proposals if proposal.kind == "upstream")
    assert call.rule is None
    assert "the NIC lost" in call.summary
    assert "Top sources:" in call.commands[0]
    assert "destination 10.10.10.10/32; protocol =udp; source-port =123;" in call.commands[1]
    narrow = AdviseConfig(link_bits_per_second=1_000_000.0)
    window = window_of(items, live=True)
    calls = [p for p in Advisor(narrow).judge(window, make_tables(window)).proposals if p.kind == "upstream"]
    assert "link is full" in calls[0].summary


def test_what_netfilter_would_need_a_core_for_is_done_in_the_driver() -> None:
    flood = {"src": "20", "dport": 27015, "payload": "random_any", "count": 6000}
    frames = make_frames([VISITORS, flood], 5.0)
    kinds = {}
    for weight in (40.0, 4000.0):
        window = make_window(make_batch(frames, weight=weight), 5.0, live=True)
        proposals = Advisor().judge(window, make_tables(window)).proposals
        block = next(proposal for proposal in proposals if proposal.rule and proposal.rule.match.sources)
        check_commands(block)
        assert "evaded by: other sources" in block.summary
        kinds[weight] = block.kind
    assert kinds == {40.0: "ipset", 4000.0: "xdp"}
    cheap = AdviseConfig(cost_ns={"xdp": 900.0, "ipset": 500.0})
    window = make_window(make_batch(frames, weight=4000.0), 5.0, live=True)
    assert any(p.kind == "ipset" for p in Advisor(cheap).judge(window, make_tables(window)).proposals)


def test_preview_of_a_quiet_window_says_so() -> None:
    window = window_of([VISITORS], live=True)
    shown = preview(rule(Kind.IPSET, Match(sources=(Prefix.parse("1.2.3.4"),))), window)
    assert shown.total_pps == 0
    assert shown.guess
    assert any("no attack is in progress" in warning for warning in shown.warnings)
    assert any("no packet of this window" in warning for warning in shown.warnings)


def test_a_short_constant_beginning_is_a_signature_too() -> None:
    import analysis_payloads

    analysis_payloads._PLAIN["short"] = lambda rng: b"flood:" + rng.randbytes(32)
    judgement = judged([VISITORS, {"src": "20", "dport": 27015, "payload": "short", "count": 3000}])
    string = next(proposal for proposal in judgement.proposals if proposal.kind == "string")
    assert string.rule is not None
    assert string.rule.match.payload[0] == PayloadMatch(b"flood:", 0)
    assert string.attack_share == pytest.approx(1.0)


def test_resets_beside_a_syn_ack_reflection_have_a_rule_of_their_own() -> None:
    both = {"src": "700", "protocol": "tcp", "sport": 443, "dport": "random"}
    syn_acks = {**both, "flags": "SA", "count": 13_600, "options": "020405b4"}
    found = judged([syn_acks, {**both, "flags": "RA", "count": 2_400}]).proposals
    by_flags = {p.rule.match.tcp_flags: p for p in reversed(found) if p.rule is not None}
    assert found[0].attack_share > 0.94  # the servers are few enough to block them all
    assert by_flags[(SYN | ACK, SYN | ACK)].attack_share == pytest.approx(0.85, abs=0.02)
    assert by_flags[(RST, RST)].attack_share == pytest.approx(0.15, abs=0.02)
    alone = judged([syn_acks]).proposals
    assert all(p.rule is None or p.rule.match.tcp_flags != (RST, RST) for p in alone)


@pytest.mark.parametrize("network", ["fe80::", "2001:db8:10::"], ids=["link-local", "of this host"])
def test_on_its_link_one_ipv6_host_is_blocked_and_not_the_64_of_all_neighbours(network: str) -> None:
    host, neighbour = (ipaddress.ip_address(text).packed for text in ("2001:db8:10::10", network))
    neighbour = neighbour[:8] + bytes(4) + b"\xba\xd0\0\1"
    flood = [(k / 500, ethernet(ip(neighbour, host, 58, b"\x89" + bytes(39), ttl=255))) for k in range(2_000)]
    window = make_window(make_batch(flood), 4.0, live=True)
    judgement = Advisor().judge(window, make_tables(window))
    named = {one.rule.match.sources for one in judgement.proposals if one.rule and one.rule.match.sources}
    assert named == {(Prefix(6, int.from_bytes(neighbour), 128),)}
