"""Plans of the conntrack playbook, from tables as they would be read."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from fwtop.harden import conntrack
from fwtop.harden import table as looks
from fwtop.harden.conntrack import reliefs
from fwtop.harden.playbook import Options
from fwtop.harden.table import SAMPLED, Table, affordable, occupants
from fwtop.kernel import netlink
from fwtop.model.rule import Kind, Match
from fwtop.netfilter.ctnetlink import ASSURED, SEEN_REPLY, Entry, entry_of


def NEEDED(match: Match) -> tuple[str, ...]:
    return ("a stateful rule",)


TIMEOUTS = {"tcp_timeout_established": 432_000, "tcp_timeout_syn_sent": 120, "udp_timeout": 30}
UDP = Entry(4, 17, bytes((198, 51, 100, 7)), bytes(4), 4000, 27015)
BOT = Entry(6, 6, bytes(16), bytes(16), 4000, 443, SEEN_REPLY | ASSURED, 431_000, tcp_state=3)


def table(*sampled: Entry, count: int = 200_000, growth: float = 0.0) -> Table:
    return Table(count, 262_144, 262_144, growth, sampled, TIMEOUTS)


def test_calm_table_needs_nothing() -> None:
    made = conntrack.plan_for(table(UDP, count=500), Options(), NEEDED)
    assert (made.rule, made.steps) == (None, ())
    assert "nothing to do" in made.here


def test_names_who_fills_and_shortens_only_what_holds_entries() -> None:
    made = conntrack.plan_for(table(*[UDP] * 99, BOT), Options(), NEEDED)
    text = "\n".join(made.findings)
    assert "udp/27015 99 %" in text
    assert "198.51.100.0/24 99 %" in text
    assert "holds about 198,000 entries;" in text
    assert made.rule is not None
    changed = {item.name: item.value for part in made.rule.parts for item in part.settings}
    assert changed["net.netfilter.nf_conntrack_udp_timeout"] == 10
    assert changed["net.netfilter.nf_conntrack_tcp_timeout_established"] == 7440
    assert "net.netfilter.nf_conntrack_tcp_timeout_syn_sent" not in changed
    assert made.data["filled_by"]["services"] == {"udp/27015": 0.99, "tcp/443": 0.01}


def test_says_how_exact_its_shares_are() -> None:
    """A sample of a large table is inexact; one of all entries is not; of none there are no shares."""
    large, whole, unseen = table(*[UDP] * SAMPLED), table(UDP, BOT, count=2), table()
    assert 0.021 < large.error < 0.022
    assert (whole.error, unseen.error) == (0.0, 0.0)
    told = "\n".join(conntrack.plan_for(large, Options(), NEEDED).findings)
    assert "2,048 entries drawn at random: within 2.2 points" in told
    assert "drawn at random" not in "\n".join(conntrack.plan_for(whole, Options(), NEEDED).findings)


def test_a_look_stays_affordable_beside_other_namespaces() -> None:
    """The kernel passes all namespaces' entries to find ours: few of ours among many are not looked for."""
    assert affordable(SAMPLED, 2_000_000, 2_000_000, 262_144) == SAMPLED
    assert affordable(SAMPLED, 500, 500, 262_144) == SAMPLED
    assert affordable(SAMPLED, 500, 2_000_000, 262_144) == 0
    assert affordable(SAMPLED, 500, 500, 1 << 23) == 0
    assert 256 < affordable(SAMPLED, 24_500, 2_000_000, 262_144) < SAMPLED
    crowded = replace(table(count=500), everywhere=2_000_000)
    told = "\n".join(conntrack.plan_for(crowded, Options(), NEEDED).findings)
    assert "1,999,500 entries of other network namespaces are in" in told
    assert "15.3 keys in each" in told


@pytest.mark.parametrize(("count", "waits"), [(262_144, 0), (100_000, 1)])
def test_a_full_table_is_not_watched_growing(monkeypatch: pytest.MonkeyPatch, count: int, waits: int) -> None:
    """New clients wait outside meanwhile."""
    slept = Mock()
    figures = {"nf_conntrack_count": count, "nf_conntrack_max": 262_144, "nf_conntrack_buckets": 262_144}
    monkeypatch.setattr(looks, "_number", figures.get)
    monkeypatch.setattr(looks, "sampled_entries", lambda _: [UDP])
    monkeypatch.setattr(looks.time, "sleep", slept)
    found = looks.read_table()
    assert (found.count, found.growth, slept.call_count) == (count, 0.0, waits)


def test_early_drop_is_told_by_what_may_be_replaced() -> None:
    """Of a table of assured entries nothing may be; of one without, every new connection finds one."""
    assured, fresh = (
        next(
            line
            for line in conntrack.plan_for(table(*[item] * 9), Options(), NEEDED).findings
            if "early drop" in line
        )
        for item in (BOT, UDP)
    )
    assert "0 % of the entries" in assured
    assert "about 0 % of new" in assured
    assert "100 % of the entries" in fresh
    assert "about >99.9 % of new" in fresh


@pytest.mark.parametrize(
    ("entry", "needed", "kind", "kept"),
    [
        (UDP, (), Kind.NOTRACK, 0),
        (UDP, ("a NAT rule",), None, 1),
        (BOT, (), Kind.NOTRACK, 0),
        (BOT, ("a stateful rule", "another"), Kind.CONNLIMIT, 1),
        (BOT._replace(tcp_state=2), ("a stateful rule",), Kind.SYNPROXY, 1),
    ],
)
def test_service_is_untracked_only_where_no_rule_needs_it(
    entry: Entry, needed: tuple[str, ...], kind: Kind | None, kept: int
) -> None:
    found = reliefs(table(*[entry] * 50), lambda _: needed, 600)
    assert [item.part.kind for item in found if item.part is not None] == ([kind] if kind else [])
    assert sum(bool(item.kept) for item in found) == kept
    assert all(item.part.forget for item in found if item.part is not None and item.part.kind is Kind.NOTRACK)


def test_a_service_behind_is_named_and_proxied_where_it_is() -> None:
    """A proxy without destinations would answer for this machine's own addresses only."""
    half_open = BOT._replace(tcp_state=2)
    own, router = bytes(15) + b"\1", bytes(15) + b"\2"
    for addresses, told in ((frozenset({own}), ["::"]), (frozenset({bytes(16)}), []), (frozenset(), [])):
        looked = replace(table(*[half_open] * 50), own=addresses | {router} if addresses else addresses)
        (found,) = reliefs(looked, NEEDED, 600)
        assert found.part is not None
        assert [str(prefix) for prefix in found.part.match.destinations] == told
        behind = dict(occupants(looked))["destinations behind this machine"]
        assert behind == [(name, 1.0) for name in told]


def test_sources_with_few_connections_are_not_limited() -> None:
    many = [BOT._replace(source=bytes((number, *bytes(15)))) for number in range(50)]
    assert [item.part for item in reliefs(table(*many), NEEDED, 600)] == [None]


def test_forecast_needs_growth() -> None:
    assert table(growth=-5.0).seconds_to_full is None
    assert table(growth=62_144.0).seconds_to_full == 1.0
    assert replace(table(growth=1e-9), count=1).seconds_to_full is None


def test_decodes_entries_whatever_the_order_of_attributes() -> None:
    addresses = netlink.attribute(1, bytes((192, 0, 2, 1))), netlink.attribute(2, bytes((192, 0, 2, 2)))
    numbers = (
        netlink.attribute(1, b"\x06"),
        netlink.attribute(2, b"\x10\x00"),
        netlink.attribute(3, b"\x00\x50"),
    )
    state = netlink.nested(4, netlink.nested(1, netlink.attribute(1, b"\x02")))
    rest = (
        netlink.attribute(3, (ASSURED).to_bytes(4, "big"))
        + netlink.attribute(7, (9).to_bytes(4, "big"))
        + state
    )
    found = []
    for order in (slice(None), slice(None, None, -1)):
        inner = netlink.nested(1, *addresses[order]), netlink.nested(2, *numbers[order])
        original = netlink.nested(1, *inner[order])
        entry = entry_of(netlink.netfilter_header(2) + original + rest)
        assert entry is not None
        assert entry.name == original
        found.append(entry._replace(name=b""))
    expected = Entry(4, 6, bytes((192, 0, 2, 1)), bytes((192, 0, 2, 2)), 4096, 80, ASSURED, 9, 2)
    assert found == [expected, expected]
    assert entry_of(netlink.netfilter_header(7)) is None
    assert entry_of(b"") is None
