"""Rules at netdev ingress: what they drop, their whole life, and foreign tables beside them."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys

import pytest
from guardian_bench import PORT, SOON_SECONDS, Bench, answers, apply, kill, rules_of, tcp_connection

from fwtop.guardian.failpoints import Failpoint
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Keep, Plan, Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule
from tests.kernel.wire import mac, send_frames

pytestmark = pytest.mark.kernel
FAMILIES = (4, 6)
TCP, UDP = 6, 17
FOREIGN = """table netdev theirs {
    chain early {
        type filter hook ingress device "v0" priority -600;
        counter
    }
}
table inet fwtop-like {
    set fwtop {
        type ipv4_addr
        elements = { 192.0.2.1 }
    }
}
"""


def rule(seconds: int = 600, **fields) -> Rule:
    return Rule("", Kind.NFTABLES, Match(**fields), "drop", seconds)


def ruleset(bench: Bench) -> str:
    return re.sub(r"packets \d+ bytes \d+", "", bench.pair.victim.run("nft", "list", "ruleset").stdout)


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", FAMILIES)
def test_passes_is_dropped_and_passes_again_without_any_process(
    bench: Bench, family: int, poll_until
) -> None:
    bench.pair.victim.run("nft", FOREIGN)
    before = ruleset(bench)
    path = bench.path(family)
    assert path.passes(wait_s=30)
    with bench.connect() as guardian:
        source = (Prefix.parse(bench.attacker(family)),)
        rule_id = apply(guardian, rule(sources=source, protocol=UDP, dport=PORT))
        assert not path.passes()
        assert not path.passes()
        mine = rules_of(guardian)[rule_id]
        assert (mine["packets"], mine["entries"]) == (2, {bench.attacker(family): 2})
        assert mine["note"] == "netdev ingress of v0"
        guardian.demand(Keep(rule_id, SOON_SECONDS))
        pid = int(guardian.about["pid"])
    kill(pid)
    assert not path.passes()
    poll_until(path.passes)
    with bench.connect() as successor:
        assert rules_of(successor, finished=True)[rule_id]["state"] == "expired"
    assert ruleset(bench) == before


@pytest.mark.one_each("4")
@pytest.mark.parametrize("family", FAMILIES)
def test_fields_and_payload_are_matched(bench: Bench, family: int) -> None:
    path = bench.path(family)
    header = 28 if family == 4 else 48
    assert path.passes(b"first", wait_s=30)
    plain = b"x" * 50
    cases = [
        ({"sport": path.sender.getsockname()[1]}, plain, None),
        ({"dport": PORT + 1}, None, plain),
        ({"protocol": TCP, "tcp_flags": (2, 2)}, None, plain),
        ({"protocol": UDP, "ip_length": Range(header + 50, header + 60)}, plain, b"x" * 20),
        ({"protocol": UDP, "ttl": Range(60, 64)}, plain, None),
        ({"protocol": UDP, "ttl": Range(65, 255)}, None, plain),
        ({"payload": (PayloadMatch(b"0123456789abcdefghij", 3),)}, b"...0123456789abcdefghij", plain),
        ({"payload": (PayloadMatch(b"\x10\x20", 1, b"\xf0\x00"),)}, b"a\x1fz", b"a\x2fz"),
        ({"payload": (PayloadMatch(b"\x03Bad\0", 2, dns_name="Bad"),)}, b"..\x03bAD\0", b"..\x03bed\0"),
        ({"destinations": (Prefix.parse("10.77.0.0/24"), Prefix.parse("fd77::/64"))}, plain, None),
        ({"destinations": (Prefix.parse("10.78.0.0/24"), Prefix.parse("fd78::/64"))}, None, plain),
    ]  # fmt: skip
    with bench.connect() as guardian:
        for fields, hit, missed in cases:
            rule_id = apply(guardian, rule(family=family, **fields), force=True)
            assert hit is None or not path.passes(hit), fields
            assert missed is None or path.passes(missed, wait_s=30), fields
            guardian.demand(Undo((rule_id,)))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_fragment_is_dropped_and_nothing_whole(bench: Bench, family: int) -> None:
    path = bench.path(family)
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule(family=family, fragment=True), force=True)
        path.send(b"x" * 3000)
        assert path.passes(wait_s=30)
        assert rules_of(guardian)[rule_id]["packets"] == 3


@pytest.mark.parametrize(("family", "echo"), [(4, 8), (6, 128)])
def test_icmp_type_is_matched_and_neighbours_live(bench: Bench, family: int, echo: int) -> None:
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule(family=family, icmp_type=echo))
        assert not answers(bench, family, echo)
        assert rules_of(guardian)[rule_id]["packets"] == 1
        guardian.demand(Undo((rule_id,)))
        assert answers(bench, family, echo, wait_s=30)
        apply(guardian, rule(family=family, protocol=1 if family == 4 else 58), force=True)
        assert not answers(bench, family, echo)
        bench.pair.attacker.run("ip", "neighbour", "flush", "all")
        assert bench.path(family).passes(wait_s=30)


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", FAMILIES)
def test_payload_behind_tcp_options(bench: Bench, family: int, poll_until) -> None:
    with tcp_connection(bench, family) as (client, connection), bench.connect() as guardian:
        rule_id = apply(guardian, rule(payload=(PayloadMatch(b"GET /bad", 0),)))
        client.send(b"GET /good")
        assert connection.recv(100) == b"GET /good"
        client.send(b"GET /bad")
        poll_until(lambda: rules_of(guardian)[rule_id]["packets"] > 0)


def test_one_vlan_tag_is_looked_through(bench: Bench, poll_until) -> None:
    """The kernel takes the outer tag off before ingress (net/core/dev.c, skb_vlan_untag)."""
    udp = struct.pack("!4H", 999, PORT, 12, 0) + b"data"
    addresses = bytes([10, 77, 0, 2, 10, 77, 0, 1])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0) + addresses
    frame = mac(bench.pair.victim) + bytes(6) + struct.pack("!HHH", 0x8100, 7, 0x0800) + ip + udp
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule(protocol=UDP, dport=PORT))
        send_frames(bench.pair.attacker, frame)
        poll_until(lambda: rules_of(guardian)[rule_id]["packets"] == 1)


def test_allow_list_comes_first_and_is_followed(bench: Bench, poll_until) -> None:
    path = bench.path(4)
    listed = Rule("", Kind.NFTABLES, Match(sources=(Prefix.parse("10.77.0.0/24"),)), "x", 600, origin="@f")
    bench.allow = "192.0.2.1\n"
    with bench.connect() as guardian:
        apply(guardian, listed)
        assert not path.passes()
        (bench.directory / "allow").write_text("10.77.0.0/30\n")  # the first prefix: packets ask its set now
        poll_until(path.passes)


def test_undo_of_one_leaves_the_other_and_of_all_the_ruleset_as_before(bench: Bench) -> None:
    bench.pair.victim.run("nft", FOREIGN)
    before = ruleset(bench)
    with bench.connect() as guardian:
        first = apply(
            guardian, rule(sources=(Prefix.parse("10.77.0.2/31"), Prefix.parse("10.77.0.2")), dport=PORT)
        )
        second = apply(guardian, rule(family=6, protocol=UDP, dport=PORT))
        assert (bench.path(4).passes(), bench.path(6).passes()) == (False, False)
        guardian.demand(Undo((first,)))
        assert bench.path(4).passes(wait_s=30)
        assert not bench.path(6).passes()
        assert f"r{first}-" not in ruleset(bench)
        guardian.demand(Undo((second,)))
        assert ruleset(bench) == before


def test_somebody_elses_table_of_our_name_is_left_alone(bench: Bench) -> None:
    bench.pair.victim.run("nft", "table netdev fwtop { chain rules { counter; }; }")
    before = ruleset(bench)
    with bench.connect() as guardian:
        wanted = rule(protocol=UDP, dport=PORT).to_dict()
        assert "not fwtop's" in guardian.request(Apply(wanted, 0)).error
        guardian.demand(Undo(all=True))
        assert rules_of(guardian) == {}
    assert ruleset(bench) == before


def test_what_somebody_put_into_our_table_stays(bench: Bench) -> None:
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule(protocol=UDP, dport=PORT))
        bench.pair.victim.run("nft", "add chain netdev fwtop theirs { counter; }")
        guardian.demand(Undo((rule_id,)))
        assert "chain theirs" in ruleset(bench)
        assert f"fwtop-{rule_id}" not in ruleset(bench)
        assert bench.path(4).passes(wait_s=30)
        bench.pair.victim.run("nft", "delete chain netdev fwtop theirs")
        guardian.demand(Undo(all=True))
    assert bench.state()["nft"] == ""


@pytest.mark.one_each("nft")
@pytest.mark.parametrize("failpoint", [Failpoint.INTENT, Failpoint.NFT, Failpoint.INSTALLED])
def test_crash_while_installing(bench: Bench, failpoint: Failpoint) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian, pytest.raises(FwtopError, match="ended before it answered"):
        apply(guardian, rule(protocol=UDP, dport=PORT))
    with bench.connect() as successor:
        installed = failpoint is Failpoint.INSTALLED
        assert (list(rules_of(successor)) == ["1"]) == installed
        assert bench.path(4).passes(wait_s=0.15 if installed else 30) != installed
        successor.demand(Undo(all=True))
    assert bench.settled(before) == before


@pytest.mark.one_each("nft-removed")
@pytest.mark.parametrize("failpoint", [Failpoint.UNDO, Failpoint.NFT_REMOVED, Failpoint.UNDONE])
def test_crash_while_undoing(bench: Bench, failpoint: Failpoint) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian:
        apply(guardian, rule(protocol=UDP, dport=PORT))
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Undo(all=True))
    with bench.connect() as successor:
        assert rules_of(successor) == {}
    assert bench.settled(before) == before


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (rule(payload=(PayloadMatch(b"anywhere"),)), "at an offset only"),
        (rule(payload=(PayloadMatch(b"far", 300),)), "up to byte 255"),
        (rule(tcp_flags=(2, 2)), "--proto tcp"),
        (rule(family=6, ip_length=Range(20, 30)), "no packet could match"),
        (Rule("", Kind.NFTABLES, Match(), "x", 600, limit=RateLimit(1, 1)), "no rate limit"),
    ],
)
def test_what_it_cannot_say_is_one_line(bench: Bench, wanted: Rule, why: str) -> None:
    before = bench.state()
    with bench.connect() as guardian:
        assert why in guardian.demand(Plan(wanted.to_dict())).data["refused"]
        assert why in guardian.request(Apply(wanted.to_dict(), 0, force=True)).error
    assert bench.settled(before) == before


def test_command_line_previews_what_it_runs(bench: Bench) -> None:
    def fwtop(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "fwtop", *words, "--netns", bench.netns]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
        )

    words = ("block", bench.attacker(4), bench.attacker(6), "--via", "nftables")
    preview = fwtop(*words, "--preview", "--json")
    assert preview.returncode == 0, preview.stderr
    commands = json.loads(preview.stdout)["plan"]["commands"]
    assert "nft add element netdev fwtop rN-on { 0x0800 timeout 600s, 0x86dd timeout 600s }" in commands
    asked_last = "ip saddr @rN-src4 meta protocol @rN-on counter drop"
    assert any(asked_last in command for command in commands)
    assert bench.state()["nft"] == ""
    try:
        assert (
            fwtop("drop", "--proto", "udp", "--dport", str(PORT), "--via", "nftables", "--yes").returncode
            == 0
        )
        assert (bench.path(4).passes(), bench.path(6).passes()) == (False, False)
    finally:
        assert fwtop("undo", "--all").returncode == 0
    assert bench.state()["nft"] == ""
