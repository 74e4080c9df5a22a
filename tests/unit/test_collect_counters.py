"""From the kernel's counters to the ledger's rows, without a kernel."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from fwtop.collect.conntrack import seconds_to_full
from fwtop.collect.drops import driver_drops, split_conntrack, split_sites
from fwtop.collect.foreign_xdp import ForeignXdp
from fwtop.collect.fragments import FragmentMeter, Sums
from fwtop.collect.links import Link, LinkStats, choose_links, lowest_links, watched_indexes
from fwtop.collect.live import choose_one_in
from fwtop.collect.procfs import parse_conntrack_stats, parse_paired, parse_single, parse_softirq
from fwtop.collect.reasons import place
from fwtop.collect.symbols import Symbols
from fwtop.model.counters import ConntrackSample, DropCount
from fwtop.model.errors import FwtopError
from fwtop.model.packets import Hook

CONNTRACK_STATS = """\
entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error
0000001b 00000002 00000000 00000000 00000000 00000000 00000000 00000000 00000000 0000000a 00000010 00000001 0
0000001b 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000001 000000f0 00000000 0
"""


def test_conntrack_statistics_are_hexadecimal_and_per_cpu() -> None:
    stats = parse_conntrack_stats(CONNTRACK_STATS)
    assert (stats.insert_failed, stats.drop, stats.early_drop) == (11, 256, 1)


def test_no_conntrack_is_no_drops() -> None:
    assert parse_conntrack_stats("").drop == 0


def test_softirq_share_counts_all_states() -> None:
    text = "cpu  10 1 20 300 4 5 60 7 8 9\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
    assert parse_softirq(text) == (60, 10 + 1 + 20 + 300 + 4 + 5 + 60 + 7)  # guest time is in user's already
    assert parse_softirq("") == (0, 0)


@pytest.mark.parametrize(
    ("free", "growth", "expected"),
    [(1000, 100.0, 10.0), (1000, 0.0, None), (1000, -5.0, None), (0, 5.0, 0.0), (10**9, 1.0, None)],
)
def test_seconds_to_full(free: int, growth: float, expected: float | None) -> None:
    assert seconds_to_full(free, growth) == expected


@pytest.mark.parametrize(
    ("reason", "outbound", "expected"),
    [
        ("NETFILTER_DROP", False, ("netfilter", True)),
        ("NETFILTER_DROP", True, ("netfilter", False)),
        ("NO_SOCKET", False, ("socket", False)),
        ("SOCKET_RCVBUFF", False, ("socket", False)),
        ("TCP_INVALID_SEQUENCE", False, ("socket", False)),
        ("UDP_CSUM", False, ("socket", False)),
        ("IP_NOPROTO", False, ("ip", False)),
        ("IP_RPFILTER", False, ("ip", True)),
        ("CPU_BACKLOG", False, ("backlog", True)),
        ("XDP", False, ("xdp", True)),
        ("TC_INGRESS", False, ("tc", True)),
        ("A_REASON_OF_LINUX_9", False, ("ip", True)),
    ],
)
def test_every_reason_has_a_layer(reason: str, outbound: bool, expected: tuple[str, bool]) -> None:
    assert place(reason, outbound=outbound) == expected


def test_what_conntrack_refused_is_taken_out_of_netfilters_drops() -> None:
    drop = DropCount("netfilter", "NETFILTER_DROP", 100, 10_000)
    parts = split_conntrack(drop, ConntrackSample(10, 10, drop=60, insert_failed=10))
    assert [(part.layer, part.reason, part.packets, part.before_delivery) for part in parts] == [
        ("conntrack", "TABLE_FULL", 60, True),
        ("conntrack", "INSERT_FAILED", 10, False),
        ("netfilter", "NETFILTER_DROP", 30, True),
    ]
    assert sum(part.bytes for part in parts) == 10_000


def test_conntrack_never_explains_more_than_was_dropped() -> None:
    drop = DropCount("netfilter", "NETFILTER_DROP", 5, 500)
    parts = split_conntrack(drop, ConntrackSample(10, 10, drop=60, insert_failed=10))
    assert [(part.layer, part.packets) for part in parts] == [("conntrack", 5)]
    assert split_conntrack(drop, None) == [drop]


def stats(**fields: int) -> LinkStats:
    return LinkStats(**{**dict.fromkeys(("packets", "errors", "dropped", "missed", "fifo"), 0), **fields})


def test_drivers_drops_are_not_counted_twice() -> None:
    before = {2: stats(dropped=100, missed=7)}
    now = {2: stats(dropped=150, missed=27, fifo=20, errors=25), 9: stats(missed=1000)}
    stack = [DropCount("backlog", "CPU_BACKLOG", 30), DropCount("ip", "UNHANDLED_PROTO", 5)]
    found = {drop.reason: drop.packets for drop in driver_drops(now, before, stack)}
    assert found == {"RX_MISSED": 20, "RX_DROPPED": 15}


def test_what_xdp_dropped_is_not_the_drivers_as_well() -> None:
    before, now = {2: stats(dropped=10)}, {2: stats(dropped=110)}
    assert driver_drops(now, before, [], 60) == [DropCount("nic", "RX_DROPPED", 40)]
    assert driver_drops(now, before, [], 100) == []


def test_another_xdp_program_took_what_is_missing() -> None:
    meter = ForeignXdp()
    found = [meter.sample(30_000, 20_000, 0.1) for _ in range(10)]
    assert sum(found) == pytest.approx(100_000, abs=1500)
    assert sum(found) + meter.sample(0, 0, 0.1) == 99_980, "those on their way are told in the end"


def test_packets_on_their_way_from_the_driver_are_not_missing() -> None:
    meter = ForeignXdp()
    late = [0, 600, 900, 700, 1100, 0]  # seen in the interval after that in which the driver counted them
    found = [meter.sample(30_000, 30_000 + before - now, 0.1) for before, now in pairwise(late)]
    assert sum(found) == 0
    meter.forget()
    assert meter.sample(10, 10, 0.1) == 0


def test_a_counter_that_began_anew_drops_nothing() -> None:
    assert driver_drops({2: stats(dropped=3)}, {2: stats(dropped=500)}, []) == []


def link(index: int, name: str, **fields: int | bool) -> Link:
    plain = {"ethernet": True, "up": True, "loopback": False, "link": 0, "master": 0}
    return Link(index=index, name=name, stats=stats(), **{**plain, **fields})  # type: ignore[arg-type]


LINKS = [
    link(1, "lo", loopback=True),
    link(2, "eth0", master=4),
    link(3, "eth1", master=4),
    link(4, "bond0"),
    link(5, "bond0.7", link=4),
    link(6, "other", up=False),
]


def test_what_stands_on_a_watched_interface_is_watched() -> None:
    assert watched_indexes(LINKS, [LINKS[1]]) == [2, 4, 5]
    assert watched_indexes(LINKS, [LINKS[4]]) == [5]


def test_packets_are_counted_at_the_lowest_of_the_chosen() -> None:
    assert [item.name for item in lowest_links(LINKS, [LINKS[3], LINKS[4]])] == ["bond0"]
    assert [item.name for item in lowest_links(LINKS, [LINKS[4]])] == ["bond0.7"]
    assert [item.name for item in lowest_links(LINKS, [LINKS[1], LINKS[2]])] == ["eth0", "eth1"]


def test_an_unknown_interface_is_answered_with_the_known() -> None:
    with pytest.raises(FwtopError, match=r"'eth9'.*lo, eth0, eth1, bond0") as raised:
        choose_links(LINKS, ["eth0", "eth9"])
    assert raised.value.code == 2


def test_an_interface_named_twice_is_watched_once() -> None:
    assert [item.name for item in choose_links(LINKS, ["eth0", "eth0"])] == ["eth0"]


def test_a_hostile_interface_name_is_shown_harmless() -> None:
    with pytest.raises(FwtopError) as raised:
        choose_links([link(1, "a\x1b[31mb")], ["x\x1b]0;y"])
    assert "\x1b" not in str(raised.value)


def test_a_quiet_machine_is_seen_whole() -> None:
    assert set(choose_one_in({Hook.INGRESS: 900.0, Hook.DROP: 10.0, Hook.ACCEPTED: 890.0}).values()) == {1}


@pytest.mark.parametrize(
    "rates",
    [(1e7, 1e7, 0.0), (1e6, 5e5, 5e5), (1e6, 0.0, 1e6), (50_000.0, 30_000.0, 20_000.0), (3e5, 2.9e5, 1e4)],
)
def test_samples_a_second_keep_to_the_budget(rates: tuple[float, float, float]) -> None:
    hooks = dict(zip((Hook.INGRESS, Hook.DROP, Hook.ACCEPTED), rates, strict=True))
    chosen = choose_one_in(hooks, 20_000)
    samples = sum(rate / chosen[hook] for hook, rate in hooks.items())
    assert 13_000 < samples <= 20_000  # N is a whole number, so a little of the budget is left
    assert all(n == 1 for hook, n in chosen.items() if hooks[hook] == 0)


def test_an_absurd_rate_keeps_within_what_the_kernel_side_takes() -> None:
    assert (
        max(choose_one_in(dict.fromkeys((Hook.INGRESS, Hook.DROP, Hook.ACCEPTED), 1e15)).values()) == 1 << 18
    )


def test_drops_without_a_reason_are_split_by_function() -> None:
    drop = DropCount("ip", "NOT_SPECIFIED", 100, 10_000)
    sites = {0x1000: 50, 0x2000: 20, 0x3000: 10, 0x4000: 5}
    names = {0x1000: "tcp_v4_rcv", 0x2000: "igmp_rcv", 0x3000: "", 0x4000: "packet_rcv"}
    parts = split_sites(drop, sites, names)
    assert [(part.layer, part.reason, part.packets, part.before_delivery) for part in parts] == [
        ("socket", "NOT_SPECIFIED (tcp_v4_rcv)", 50, False),
        ("ip", "NOT_SPECIFIED (igmp_rcv)", 20, False),
        ("ip", "NOT_SPECIFIED", 25, True),  # the nameless, and what found no place among the sites
    ]  # a packet socket's copies are no loss


NONE = Sums(0, 0)


def meter(monkeypatch: pytest.MonkeyPatch) -> tuple[FragmentMeter, list[tuple[Sums, Sums]]]:
    readings = [(NONE, NONE)]
    monkeypatch.setattr(FragmentMeter, "_read", lambda self: readings[-1])
    return FragmentMeter(), readings


def test_fragments_that_never_complete_are_told_one_interval_later(monkeypatch: pytest.MonkeyPatch) -> None:
    fragments, readings = meter(monkeypatch)
    readings.append((Sums(60, 0), Sums(40, 0)))
    assert fragments.sample(0, 100, [], Sums(40, 0)) == []
    assert fragments.sample(0, 0, [], NONE) == [DropCount("ip", "FRAGMENTS_WAITING", 100)]
    assert fragments.sample(0, 0, [], NONE) == []


def test_fragments_that_complete_in_the_next_interval_never_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    fragments, readings = meter(monkeypatch)
    readings.append((Sums(2, 0), NONE))
    assert fragments.sample(0, 2, [], NONE) == []
    readings.append((Sums(3, 1), NONE))  # the third came, and one packet of three came out
    assert fragments.sample(2, -2, [], NONE) == []
    assert fragments.sample(0, 0, [], NONE) == []


def test_fragments_that_connection_tracking_holds_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fragments, _ = meter(monkeypatch)
    # 30 arrived: 7 packets came out of 21 of them, and 9 wait, of which the kernel says nothing
    assert fragments.sample(14, 9, [], Sums(30, 7)) == []
    assert fragments.sample(0, 0, [], NONE) == [DropCount("conntrack", "FRAGMENTS_WAITING", 9)]


def test_fragments_explain_no_more_than_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    fragments, readings = meter(monkeypatch)
    readings.append((Sums(100, 0), NONE))  # most of them on an interface that isn't watched
    drops = [DropCount("ip", "DUP_FRAG", 5), DropCount("ip", "NOT_SPECIFIED (ip_defrag)", 5)]
    fragments.sample(0, 10, drops, NONE)
    assert [drop.packets for drop in fragments.sample(0, 0, [], NONE)] == [10]


def test_snmp_tables() -> None:
    table = parse_paired("Ip: Forwarding ReasmReqds ReasmOKs\nIp: 1 30 10\nTcp: RtoMin\nTcp: 200\n")
    assert table == {"Ip": {"Forwarding": 1, "ReasmReqds": 30, "ReasmOKs": 10}, "Tcp": {"RtoMin": 200}}
    assert parse_single("Ip6ReasmReqds   \t7\nbroken\n") == {"Ip6ReasmReqds": 7}


KALLSYMS = b"""\
ffffffff81000000 T first
ffffffff81000100 t ip_defrag
ffffffff81000180 d data_in_between
ffffffff81000200 T tcp_v4_rcv
ffffffffc0001000 t nf_drop\t[nf_tables]
short
"""


def test_places_in_the_code_get_their_functions(tmp_path: Path) -> None:
    (tmp_path / "kallsyms").write_bytes(KALLSYMS)
    descriptor = os.open(tmp_path / "kallsyms", os.O_RDONLY)
    symbols = Symbols(descriptor)
    wanted = {
        0: "",
        0xFFFFFFFF81000105: "ip_defrag",
        0xFFFFFFFF810001FF: "ip_defrag",
        0xFFFFFFFF81000200: "tcp_v4_rcv",
        0xFFFFFFFFC0001050: "nf_drop",
        0xFFFFFFFFD0000000: "",
    }
    assert symbols.names(list(wanted)) == wanted
    os.close(descriptor)
    assert symbols.names([0xFFFFFFFF81000105, 0xFFFFFFFF81000001]) == {
        0xFFFFFFFF81000105: "ip_defrag",
        0xFFFFFFFF81000001: "",  # it was read a moment ago: not again so soon
    }


def test_without_a_descriptor_places_have_no_names() -> None:
    assert Symbols(None).names([5]) == {5: ""}
