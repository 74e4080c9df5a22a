"""Every rule and set of a namespace, made by every program that can, as fwtop lists it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest

from fwtop.analysis.rule_readings import RuleRates
from fwtop.kernel import netlink
from fwtop.kernel.netlink import NETLINK_NETFILTER
from fwtop.model.ruleset import (
    IPSET,
    IPTABLES_LEGACY,
    IPTABLES_NFT,
    NFT,
    ROUTE,
    TC,
    XDP,
    ListedRule,
    ListedSet,
    Ruleset,
)
from fwtop.netfilter import ipset
from fwtop.netfilter.listing.reader import RulesetReader
from tests.kernel.conftest import Host, NetnsPair
from tests.kernel.wire import attach_foreign_xdp, inside, send_datagrams

pytestmark = pytest.mark.kernel

_NEWTABLE = 10 << 8  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWTABLE
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11  # NFNL_MSG_BATCH_*
HOSTILE = "\x1b]0;owned\x07 \u202etxet # handle 1"


def read(host: Host, reader: RulesetReader | None = None) -> Ruleset:
    with inside(host.netns):
        return (reader or RulesetReader()).read()


def rules_of(found: Ruleset, source: str, word: str = "") -> list[ListedRule]:
    return [rule for rule in found.rules if rule.source == source and word in rule.text]


def nft(host: Host, text: str) -> None:
    subprocess.run(
        ["ip", "netns", "exec", host.netns, "nft", "-f", "-"], input=text, text=True, timeout=60, check=True
    )


def set_of(found: Ruleset, source: str, name: str) -> ListedSet:
    return next(item for item in found.sets if (item.source, item.name) == (source, name))


NFT_RULES = """
table inet web {
 set bad { type ipv4_addr; flags interval; elements = { 10.77.0.2, 192.0.2.0/24 }; }
 set small { type inet_service; size 4; elements = { 1, 2, 3, 4 }; }
 counter seen { }
 chain in { type filter hook input priority 0; policy accept;
  ip saddr @bad udp dport 4001 counter drop comment "bad ones"
  tcp dport { 80, 443 } ct state new limit rate 5/second accept
  udp dport 4002 counter name "seen"
 }
}
table netdev wire {
 chain early { type filter hook ingress device v0 priority 0; policy accept;
  udp dport 4003 counter drop
 }
}
"""


@pytest.mark.parametrize("program", ["iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"])
def test_both_variants_and_families_are_listed_with_counters(
    program: str, netns_pair: NetnsPair, poll_until
) -> None:
    victim, attacker = netns_pair.victim, netns_pair.attacker
    victim.run(program, "-A", "INPUT", "-p", "udp", "--dport", "4000", "-j", "DROP")
    victim.run(program, "-t", "raw", "-N", "MINE")
    address = victim.ipv6 if program.startswith("ip6") else victim.ipv4
    send_datagrams(attacker, address, 4000, 7, "x" * 32)
    source = IPTABLES_LEGACY if "legacy" in program else IPTABLES_NFT
    family = "ip6" if program.startswith("ip6") else "ip"

    def counted() -> ListedRule | None:
        (found,) = rules_of(read(victim), source, "--dport 4000")
        return found if found.packets == 7 else None

    rule = poll_until(counted)
    assert (rule.family, rule.place) == (family, "filter INPUT")
    assert rule.text == "-p udp -m udp --dport 4000 -j DROP"
    assert rule.bytes is not None
    assert rule.bytes > 7 * 32
    assert not rule.ours


def test_a_flood_makes_the_rate_of_the_right_rule_rise(netns_pair: NetnsPair, poll_until) -> None:
    victim, attacker = netns_pair.victim, netns_pair.attacker
    for port in (4000, 4009):
        for program in ("iptables-legacy", "iptables-nft"):
            victim.run(program, "-A", "INPUT", "-p", "udp", "--dport", str(port))
    nft(victim, NFT_RULES)
    reader, rates = RulesetReader(), RuleRates()
    rates.take(read(victim, reader))
    send_datagrams(attacker, victim.ipv4, 4000, 300, "x")
    send_datagrams(attacker, victim.ipv4, 4001, 200, "x")
    send_datagrams(attacker, victim.ipv4, 4002, 100, "x")
    send_datagrams(attacker, victim.ipv4, 4003, 50, "x")
    last = "udp dport 4003 counter drop"
    poll_until(lambda: [rule.packets for rule in rules_of(read(victim), NFT, last)] == [50])
    second = rates.take(read(victim, reader))
    gained = {(item.rule.source, item.rule.text): item.history and item.pps for item in second if item.pps}
    expected = {
        (IPTABLES_LEGACY, "-p udp -m udp --dport 4000"),
        (IPTABLES_NFT, "-p udp -m udp --dport 4000"),
        (NFT, 'ip saddr @bad udp dport 4001 counter drop comment "bad ones"'),
        (NFT, 'counter "seen"'),
        (NFT, "udp dport 4003 counter drop"),
    }
    ports = {key for key in gained if not key[1].startswith("policy")}
    assert ports == expected
    first = gained[IPTABLES_NFT, "-p udp -m udp --dport 4000"]
    later = gained[NFT, 'ip saddr @bad udp dport 4001 counter drop comment "bad ones"']
    assert first == pytest.approx(1.5 * later)


def test_nft_rules_are_written_in_its_words_with_sets_and_hooks(netns_pair: NetnsPair) -> None:
    nft(netns_pair.victim, NFT_RULES)
    found = read(netns_pair.victim)
    texts = {(rule.family, rule.place, rule.text) for rule in rules_of(found, NFT)}
    assert ("inet", "web in", "tcp dport { 80, 443 } ct state new limit rate 5/second accept") in texts
    assert ("inet", "web in", "policy accept at input") in texts
    assert ("netdev", "wire early", "udp dport 4003 counter drop") in texts
    bad, small = set_of(found, NFT, "web bad"), set_of(found, NFT, "web small")
    assert (bad.type, bad.entries, bad.size) == ("ipv4_addr", 2, None)
    assert (small.entries, small.size, small.nearly_full) == (4, 4, True)
    assert found.notes == ()


def test_a_rule_keeps_its_key_and_is_not_asked_for_again(netns_pair: NetnsPair) -> None:
    nft(netns_pair.victim, NFT_RULES)
    reader = RulesetReader()
    before = {rule.key: rule.text for rule in read(netns_pair.victim, reader).rules}
    nft(netns_pair.victim, "insert rule inet web in udp dport 9 drop")
    after = {rule.key: rule.text for rule in read(netns_pair.victim, reader).rules}
    assert [after[key] for key in after.keys() - before.keys()] == ["udp dport 9 drop"]
    assert {key: after[key] for key in before} == before


def test_sets_of_ipset_are_listed_with_their_fill(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    victim.run("ipset", "create", "few", "hash:net", "maxelem", "10")
    victim.run("ipset", "create", "six", "hash:ip", "family", "inet6")
    victim.run("ipset", "create", "ports", "bitmap:port", "range", "0-1023")
    for number in range(9):
        victim.run("ipset", "add", "few", f"192.0.{number}.0/24")
    found = read(victim)
    few, six = set_of(found, IPSET, "few"), set_of(found, IPSET, "six")
    assert (few.type, few.family, few.entries, few.size, few.nearly_full) == ("hash:net", "ip", 9, 10, True)
    assert (six.type, six.family, six.entries, six.nearly_full) == ("hash:ip", "ip6", 0, False)
    assert set_of(found, IPSET, "ports").size is None


def test_routes_that_discard_are_listed_among_others(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    victim.run("ip", "route", "add", "192.0.2.0/24", "via", netns_pair.attacker.ipv4)
    victim.run("ip", "route", "add", "blackhole", "198.51.100.0/24")
    victim.run("ip", "route", "add", "prohibit", "203.0.113.0/24", "table", "77")
    victim.run("ip", "-6", "route", "add", "unreachable", "2001:db8::/32")
    found = {(rule.family, rule.place, rule.text) for rule in rules_of(read(victim), ROUTE)}
    assert found == {
        ("ip", "main", "blackhole 198.51.100.0/24"),
        ("ip", "table 77", "prohibit 203.0.113.0/24"),
        ("ip6", "main", "unreachable 2001:db8::/32 metric 1024"),
    }


def test_xdp_programs_and_tc_filters_are_listed(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    number = attach_foreign_xdp(victim, 2)
    victim.run("tc", "qdisc", "add", "dev", "v0", "clsact")
    match = ("u32", "match", "ip", "src", "192.0.2.1/32", "flowid", "1:1")
    victim.run("tc", "filter", "add", "dev", "v0", "egress", "protocol", "ip", "pref", "7", *match)
    found = read(victim)
    (program,) = rules_of(found, XDP)
    assert program.place.startswith("v0 ")
    assert program.text == f"program {number} somebody_else"
    (filtered,) = rules_of(found, TC, "u32")
    assert (filtered.place, filtered.text) == ("v0 egress", "u32 protocol ip pref 7 handle 800::800")


def test_hostile_comments_neither_reach_the_terminal_nor_make_up_rules(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    comment = ("-m", "comment", "--comment", HOSTILE, "-j", "DROP")
    for program in ("iptables-legacy", "iptables-nft"):
        victim.run(program, "-A", "INPUT", "-p", "udp", *comment)
    nft(victim, f'table ip other {{\n chain c {{\n  counter drop comment "{HOSTILE}"\n }}\n}}\n')
    found = read(victim)
    shown = [rule for rule in found.rules if "owned" in rule.text]
    assert {rule.source for rule in shown} == {IPTABLES_LEGACY, IPTABLES_NFT, NFT}
    assert all(rule.text.isprintable() and "\u202e" not in rule.text for rule in found.rules)
    assert len(rules_of(found, NFT, "drop")) == 1


def test_a_table_whose_name_is_a_command_is_listed_and_not_obeyed(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    nft(victim, NFT_RULES)
    name = b"x; flush ruleset; list table ip x"
    with inside(victim.netns):
        with netlink.open_socket(NETLINK_NETFILTER) as channel:
            header = netlink.netfilter_header(0, 10)
            table = netlink.netfilter_header(2) + netlink.attribute(1, name + b"\0")
            chain = table + netlink.attribute(3, b"c\0")
            rule = table + netlink.attribute(2, b"c\0") + netlink.nested(4)
            flags = netlink.NLM_F_CREATE | 1
            channel.send(
                b"".join(
                    (
                        netlink.message(_BATCH_BEGIN, 1, header),
                        netlink.message(_NEWTABLE, flags, table),
                        netlink.message(_NEWTABLE + 3, flags, chain),
                        netlink.message(_NEWTABLE + 6, flags | 0x800, rule),
                        netlink.message(_BATCH_END, 1, header),
                    )
                )
            )
        found = RulesetReader().read()
    assert any(rule.place.startswith("x; flush") for rule in found.rules)
    assert "table inet web" in victim.run("nft", "list", "tables").stdout


def test_fwtops_own_rules_are_told_from_others(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    victim.run("iptables-legacy", "-t", "raw", "-N", "FWTOP")
    victim.run("iptables-legacy", "-t", "raw", "-A", "PREROUTING", "-j", "FWTOP")
    victim.run("iptables-legacy", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "-j", "DROP")
    victim.run("ipset", "create", "fwtop-7", "hash:ip")
    found = read(victim)
    assert [rule.ours for rule in rules_of(found, IPTABLES_LEGACY, "-j")] == [True, False]
    assert set_of(found, IPSET, "fwtop-7").ours


def test_many_rules_are_cut_and_it_is_said(netns_pair: NetnsPair) -> None:
    lines = [f"-A INPUT -s 10.{n >> 8}.{n & 255}.1/32 -j DROP" for n in range(3000)]
    for program in ("iptables-legacy-restore", "iptables-nft-restore"):
        subprocess.run(
            ["ip", "netns", "exec", netns_pair.victim.netns, program, "-w"],  # all namespaces have one lock
            input="\n".join(["*filter", *lines, "COMMIT", ""]),
            text=True,
            timeout=60,
            check=True,
        )
    found = read(netns_pair.victim, RulesetReader(most=1000))
    assert found.rules_total >= 6000
    assert len(found.rules) < 2200
    assert any("of 6,0" in note for note in found.notes)


def test_the_command_prints_one_document_or_a_line_a_reading(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    victim.run("ip", "route", "add", "blackhole", "198.51.100.0/24")
    base = [sys.executable, "-m", "fwtop", "rules", "--netns", victim.netns]
    once = subprocess.run([*base, "--json"], capture_output=True, text=True, timeout=60, check=True)
    (rule,) = json.loads(once.stdout)["rules"]
    assert (rule["source"], rule["rule"], rule["pps"]) == ("route", "blackhole 198.51.100.0/24", None)
    watch = [*base, "--json", "--watch", "--every", "1", "--readings", "2"]
    twice = subprocess.run(watch, capture_output=True, text=True, timeout=60, check=True)
    assert [len(json.loads(line)["rules"]) for line in twice.stdout.splitlines()] == [1, 1]
    text = subprocess.run(base, capture_output=True, text=True, timeout=60, check=True)
    assert "route ip main" in text.stdout


SETS = """create nets hash:net family inet counters timeout 600
add nets 192.0.2.0/24 packets 7 bytes 420 timeout 60
add nets 198.51.100.9 nomatch
create ports hash:net,port family inet6 counters
add ports 2001:db8::/32,tcp:443 packets 3 bytes 180
add ports 2001:db8::1,udp:53
create plain hash:ip family inet
"""


def test_sets_are_read_as_ipset_lists_them(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    restore = ["ip", "netns", "exec", victim.netns, "ipset", "restore"]
    subprocess.run(restore, input=SETS, text=True, timeout=60, check=True)
    with inside(victim.netns):
        for name in ("nets", "ports", "plain"):
            argv = ["ipset", "list", name]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
            lines = done.stdout.splitlines()
            members = [line.split() for line in lines[lines.index("Members:") + 1 :]]
            found = {entry.text: entry for entry in ipset.entries(name)}
            assert set(found) == {words[0] for words in members}
            for text, *words in members:
                entry = found[text]
                told = dict(itertools.pairwise(words))
                counted = int(told.get("packets", 0)), int(told.get("bytes", 0))
                assert (entry.packets, entry.bytes) == counted
                assert bool(entry.element.flags) == ("nomatch" in words)
                assert (entry.seconds > 0) == ("timeout" in words)
            header = ipset.header(name)
            assert header is not None
            assert f"Size in memory: {header.memory}" in lines
            assert (header.counted, header.entries) == (name != "plain", len(members))
        assert ipset.header("none") is None
        assert ipset.names() == {"nets", "ports", "plain"}
