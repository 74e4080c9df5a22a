"""The kernel's counters become rows of the ledger; without a kernel."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fwtop.guardian import survey
from fwtop.guardian.survey import names_in
from fwtop.kernel.drop_reasons import FunctionNames, layer_of_reason
from fwtop.kernel.links import (
    Link,
    LinkStats,
    Received,
    choose_links,
    list_links,
    lowest_links,
    watched_indexes,
)
from fwtop.kernel.procfs import parse_conntrack_stats, parse_paired, parse_single, parse_ticks
from fwtop.live.drops import ForeignXdp, FragmentMeter, Sums, driver_drops, split_conntrack, split_locations
from fwtop.live.source import choose_one_in, fitting_samples, sampled_rates
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.counters import ConntrackSample, DropCount, seconds_to_full
from fwtop.model.traffic.packets import Hook

CONNTRACK_STATS = """\
entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error
0000001b 00000002 00000000 00000000 00000000 00000000 00000000 00000000 00000000 0000000a 00000010 00000001 0
0000001b 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000001 000000f0 00000000 0
"""


def test_conntrack_statistics_are_hexadecimal_and_per_cpu() -> None:
    stats = parse_conntrack_stats(CONNTRACK_STATS)
    assert (stats.insert_failed, stats.drop, stats.early_drop) == (11, 256 - 11, 1)  # what clashed is in both


def test_no_conntrack_is_no_drops() -> None:
    assert parse_conntrack_stats("").drop == 0


def test_softirq_share_counts_all_states() -> None:
    text = "cpu  10 1 20 300 4 5 60 7 8 9\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
    ticks = parse_ticks(text)[None]
    assert (ticks.softirq, ticks.total) == (60, 10 + 1 + 20 + 300 + 4 + 5 + 60 + 7)  # guest time is in user's
    assert parse_ticks("") == {}


@pytest.mark.parametrize(
    ("free", "growth", "expected"),
    [
        (1000, 100.0, 10.0),
        (1000, 0.0, None),
        (1000, -5.0, None),
        (0, 5.0, 0.0),
        (10**9, 1.0, None),
        (5_100, 1.0, None),
    ],
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
    assert layer_of_reason(reason, outbound=outbound) == expected


def test_conntracks_drops_are_separated_from_netfilters() -> None:
    drop = DropCount("netfilter", "NETFILTER_DROP", 100, 10_000)
    parts = split_conntrack([drop], ConntrackSample(10, 10, drop=60, insert_failed=10))
    assert [(part.layer, part.reason, part.packets, part.before_delivery) for part in parts] == [
        ("conntrack", "TABLE_FULL", 60, True),
        ("conntrack", "INSERT_FAILED", 10, False),
        ("netfilter", "NETFILTER_DROP", 30, True),
    ]
    assert sum(part.bytes for part in parts) == 10_000


def test_conntrack_never_explains_more_than_was_dropped() -> None:
    drop = DropCount("netfilter", "NETFILTER_DROP", 5, 500)
    parts = split_conntrack([drop], ConntrackSample(10, 10, drop=60, insert_failed=10))
    assert [(part.layer, part.packets) for part in parts] == [("conntrack", 5)]
    assert split_conntrack([drop], None) == [drop]


def test_what_clashed_while_it_was_queued_is_conntracks_and_the_queues_verdict_is_not() -> None:
    queued = DropCount("netfilter", "NOT_SPECIFIED (nfqnl_reinject)", 5, 500)
    rules, other = DropCount("netfilter", "NETFILTER_DROP", 10, 1000), DropCount("ip", "IP_CSUM", 9, 900)
    parts = split_conntrack([rules, other, queued], ConntrackSample(10, 10, drop=2, insert_failed=3))
    assert {(part.layer, part.reason): part.packets for part in parts} == {
        ("conntrack", "INSERT_FAILED"): 3,
        ("netfilter", "NOT_SPECIFIED (nfqnl_reinject)"): 2,
        ("conntrack", "TABLE_FULL"): 2,
        ("netfilter", "NETFILTER_DROP"): 8,
        ("ip", "IP_CSUM"): 9,
    }


def stats(**fields: int) -> LinkStats:
    return LinkStats(**{**dict.fromkeys(("packets", "errors", "dropped", "missed", "fifo"), 0), **fields})


def test_driver_drops_are_not_counted_twice() -> None:
    before = {2: stats(dropped=100, missed=7)}
    now = {2: stats(dropped=150, missed=27, fifo=20, errors=25), 9: stats(missed=1000)}
    stack = [DropCount("backlog", "CPU_BACKLOG", 30), DropCount("ip", "UNHANDLED_PROTO", 5)]
    found = {drop.reason: drop.packets for drop in driver_drops(now, before, stack)}
    assert found == {"RX_MISSED": 20, "RX_DROPPED": 15}


def test_xdp_drops_are_not_counted_as_driver_drops() -> None:
    before, now = {2: stats(dropped=10)}, {2: stats(dropped=110)}
    assert driver_drops(now, before, [], 60) == [DropCount("nic", "RX_DROPPED", 40)]
    assert driver_drops(now, before, [], 100) == []


def test_missing_packets_are_another_xdp_programs_drops() -> None:
    meter = ForeignXdp()
    found = [meter.sample(30_000, 20_000, 0.1) for _ in range(10)]
    assert sum(found) == pytest.approx(80_000, abs=2000), "told two readings later"
    found += [meter.sample(0, 0, 0.1) for _ in range(3)]
    assert sum(found) == 99_980, "those on their way are told in the end"


def test_lead_that_is_gone_in_the_next_reading_is_nobodys_drop() -> None:
    """This process was scheduled out between two counters, or a driver was changing its receive path."""
    meter = ForeignXdp()
    skew = [0, 2_000, 0, 4_000, 500, 0, 3_000, 0]  # read of the driver, and not yet of the programs
    found = [meter.sample(30_000 + now - before, 30_000, 0.1) for before, now in pairwise(skew)]
    assert sum(found) == 0


def test_packets_in_flight_are_not_missing() -> None:
    meter = ForeignXdp()
    late = [0, 600, 900, 700, 1100, 0]  # seen in the interval after that in which the driver counted them
    found = [meter.sample(30_000, 30_000 + before - now, 0.1) for before, now in pairwise(late)]
    assert sum(found) == 0
    meter.forget()
    assert meter.sample(10, 10, 0.1) == 0


def test_a_counter_that_was_reset_drops_nothing() -> None:
    assert driver_drops({2: stats(dropped=3)}, {2: stats(dropped=500)}, []) == []


def link(index: int, name: str, **fields: int | bool) -> Link:
    plain = {"ethernet": True, "up": True, "loopback": False, "lower": 0, "master": 0}
    return Link(index=index, name=name, stats=stats(), **{**plain, **fields})  # type: ignore[arg-type]


LINKS = [
    link(1, "lo", loopback=True),
    link(2, "eth0", master=4),
    link(3, "eth1", master=4),
    link(4, "bond0"),
    link(5, "bond0.7", lower=4),
    link(6, "other", up=False),
]


def test_interfaces_on_top_of_a_watched_one_are_watched() -> None:
    assert watched_indexes(LINKS, [LINKS[1]]) == [2, 4, 5]
    assert watched_indexes(LINKS, [LINKS[4]]) == [5]


def test_packets_are_counted_at_the_lowest_chosen_interface() -> None:
    assert [item.name for item in lowest_links(LINKS, [LINKS[3], LINKS[4]])] == ["bond0"]
    assert [item.name for item in lowest_links(LINKS, [LINKS[4]])] == ["bond0.7"]
    assert [item.name for item in lowest_links(LINKS, [LINKS[1], LINKS[2]])] == ["eth0", "eth1"]


def test_an_unknown_interface_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FwtopError, match=r"'eth9'.*lo, eth0, eth1, bond0") as raised:
        choose_links(LINKS, ["eth0", "eth9"])
    assert raised.value.code == 2


def test_an_interface_named_twice_is_watched_once() -> None:
    assert [item.name for item in choose_links(LINKS, ["eth0", "eth0"])] == ["eth0"]


def test_a_hostile_interface_name_is_sanitised() -> None:
    with pytest.raises(FwtopError) as raised:
        choose_links([link(1, "a\x1b[31mb")], ["x\x1b]0;y"])
    assert "\x1b" not in str(raised.value)


def test_on_a_quiet_machine_every_packet_is_sampled() -> None:
    assert set(choose_one_in({Hook.INGRESS: 900.0, Hook.DROP: 10.0, Hook.ACCEPTED: 890.0}).values()) == {1}


@pytest.mark.parametrize(
    "rates",
    [(1e7, 1e7, 0.0), (1e6, 5e5, 5e5), (1e6, 0.0, 1e6), (50_000.0, 30_000.0, 20_000.0), (3e5, 2.9e5, 1e4)],
)
def test_the_sampling_rate_keeps_to_the_budget(rates: tuple[float, float, float]) -> None:
    hooks = dict(zip((Hook.INGRESS, Hook.DROP, Hook.ACCEPTED), rates, strict=True))
    chosen = choose_one_in(hooks, 20_000)
    samples = sum(rate / chosen[hook] for hook, rate in hooks.items())
    assert 13_000 < samples <= 20_000  # N is a whole number, so a little of the budget is left
    assert all(n == 1 for hook, n in chosen.items() if hooks[hook] == 0)


def test_a_new_xdp_rule_is_sampled_all_the_time_also_while_observers_pause() -> None:
    arrived, share = 300_000.0, 0.05
    rates = sampled_rates(np.array([arrived, arrived, 0.0]), 0.0, share)
    chosen = choose_one_in(rates, 20_000)
    assert arrived / chosen[Hook.XDP] <= 20_000
    assert arrived * share / chosen[Hook.INGRESS] <= 20_000
    assert sampled_rates(np.array([arrived, 0.0, 0.0]), 1e6, share)[Hook.XDP] == 1e6


@pytest.mark.parametrize("early", [0.0, 150_000.0])
@pytest.mark.parametrize("seconds", [0.5, 1.0, 2.0])
def test_a_ring_is_not_much_more_than_half_full_at_the_next_poll(seconds: float, early: float) -> None:
    capacity = 16_384
    rates = sampled_rates(np.array([300_000.0, 200_000.0, 100_000.0]), early, 1.0)
    chosen = choose_one_in(rates, min(20_000, fitting_samples(capacity, seconds, early=early > 0)))
    real = {hook: rate for hook, rate in rates.items() if early or hook != Hook.XDP}
    samples = sum(rate / chosen[hook] for hook, rate in real.items()) * seconds
    assert 0.3 * capacity < samples <= 0.7 * capacity


def test_n_keeps_within_the_kernel_sides_limit() -> None:
    assert (
        max(choose_one_in(dict.fromkeys((Hook.INGRESS, Hook.DROP, Hook.ACCEPTED), 1e15)).values()) == 1 << 18
    )


def test_drops_without_a_reason_are_split_by_function() -> None:
    drop = DropCount("ip", "NOT_SPECIFIED", 100, 10_000)
    locations = {0x1000: 50, 0x2000: 20, 0x3000: 10, 0x4000: 5}
    names = {0x1000: "tcp_v4_rcv", 0x2000: "igmp_rcv", 0x3000: "", 0x4000: "packet_rcv"}
    parts = split_locations(drop, locations, names)
    assert [(part.layer, part.reason, part.packets, part.before_delivery) for part in parts] == [
        ("socket", "NOT_SPECIFIED (tcp_v4_rcv)", 50, False),
        ("ip", "NOT_SPECIFIED (igmp_rcv)", 20, False),
        ("ip", "NOT_SPECIFIED", 25, True),  # the nameless, and what found no place among the locations
    ]  # a packet socket's copies are no loss


NONE = Sums(0, 0)


def meter(monkeypatch: pytest.MonkeyPatch) -> tuple[FragmentMeter, list[tuple[Sums, Sums]]]:
    readings = [(NONE, NONE)]
    monkeypatch.setattr(FragmentMeter, "_read", lambda self: readings[-1])
    return FragmentMeter(), readings


def test_incomplete_fragments_are_reported_one_interval_later(monkeypatch: pytest.MonkeyPatch) -> None:
    fragments, readings = meter(monkeypatch)
    readings.append((Sums(60, 0), Sums(40, 0)))
    assert fragments.sample(0, 100, [], Sums(40, 0)) == []
    assert fragments.sample(0, 0, [], NONE) == [DropCount("ip", "FRAGMENTS_WAITING", 100)]
    assert fragments.sample(0, 0, [], NONE) == []


def test_fragments_completed_in_the_next_interval_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    fragments, readings = meter(monkeypatch)
    readings.append((Sums(2, 0), NONE))
    assert fragments.sample(0, 2, [], NONE) == []
    readings.append((Sums(3, 1), NONE))  # the third came, and one packet of three came out
    assert fragments.sample(2, -2, [], NONE) == []
    assert fragments.sample(0, 0, [], NONE) == []


def test_fragments_held_by_connection_tracking_are_attributed_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fragments, _ = meter(monkeypatch)
    # 30 arrived: 7 packets came out of 21 of them, and 9 wait, of which the kernel says nothing
    assert fragments.sample(14, 9, [], Sums(30, 7)) == []
    assert fragments.sample(0, 0, [], NONE) == [DropCount("conntrack", "FRAGMENTS_WAITING", 9)]


def test_waiting_fragments_explain_no_more_than_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    fragments, readings = meter(monkeypatch)
    readings.append((Sums(100, 0), NONE))  # most of them on an interface that isn't watched
    drops = [DropCount("ip", "DUP_FRAG", 5), DropCount("ip", "NOT_SPECIFIED (ip_defrag)", 5)]
    fragments.sample(0, 10, drops, NONE)
    assert [drop.packets for drop in fragments.sample(0, 0, [], NONE)] == [10]


def test_both_formats_of_proc_net_snmp_are_parsed() -> None:
    table = parse_paired("Ip: Forwarding ReasmReqds ReasmOKs\nIp: 1 30 10\nTcp: RtoMin\nTcp: 200\n")
    assert table == {"Ip": {"Forwarding": 1, "ReasmReqds": 30, "ReasmOKs": 10}, "Tcp": {"RtoMin": 200}}
    assert parse_single("Ip6ReasmReqds   \t7\nbroken\n") == {"Ip6ReasmReqds": 7}


KALLSYMS = b"""\
ffffffff81000000 T first
ffffffff81000100 t ip_defrag
ffffffff81000180 d data_in_between
ffffffff81000200 T tcp_v4_rcv
ffffffff8200fff0 T begins_below_a_round_address
ffffffffc0001000 t nf_drop\t[nf_tables]
short
"""


WANTED = {
    0: "",
    0xFFFFFFFF81000105: "ip_defrag",
    0xFFFFFFFF810001FF: "ip_defrag",
    0xFFFFFFFF81000200: "tcp_v4_rcv",
    0xFFFFFFFF82010010: "begins_below_a_round_address",
    0xFFFFFFFF8201FFEF: "begins_below_a_round_address",
    0xFFFFFFFF8201FFF0: "",  # too far behind it
    0xFFFFFFFFC0001050: "nf_drop",
    0xFFFFFFFFD0000000: "",
}


def test_root_resolves_addresses_to_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dict(zip(WANTED, names_in(io.BytesIO(KALLSYMS), list(WANTED)), strict=True)) == WANTED
    (tmp_path / "kallsyms").write_bytes(KALLSYMS)
    monkeypatch.setattr(survey, "KALLSYMS", str(tmp_path / "kallsyms"))
    known = survey.Functions()
    assert known.names(list(WANTED)) == list(WANTED.values())
    (tmp_path / "kallsyms").unlink()
    assert known.names(list(WANTED)) == list(WANTED.values()), "the file is read for new addresses only"
    assert known.names([0xFFFFFFFF81000001]) == [""], "and rarely"


def test_root_is_asked_only_for_new_locations_and_rarely() -> None:
    asked: list[None] = []

    def ask() -> list[str]:
        asked.append(None)
        return ["", "ip_defrag", "tcp_v4_rcv"]

    symbols = FunctionNames(ask)
    assert symbols.names([1, 2, 23]) == {1: "ip_defrag", 2: "tcp_v4_rcv", 23: ""}
    assert symbols.names([0, 1]) == {0: "", 1: "ip_defrag"}
    assert len(asked) == 1


def test_without_root_locations_have_no_names() -> None:
    assert FunctionNames(None).names([5]) == {5: ""}


def test_what_an_interface_received_is_told_the_short_way_too() -> None:
    def loopback() -> LinkStats:
        return next(link.stats for link in list_links() if link.loopback)

    received = Received()
    index = next(link.index for link in list_links() if link.loopback)
    before, (packets, size), after = loopback(), received.read([index]), loopback()
    assert before.packets <= packets <= after.packets
    assert before.bytes <= size <= after.bytes
    with pytest.raises(OSError, match="No such device"):
        received.read([index, 1 << 30])
    assert received.read([index, index])[0] >= 2 * packets
    received.close()
