"""A snapshot in which every list has rows of every type, and the feed that goes with it."""

from __future__ import annotations

from msgspec.structs import replace
from screen_factory import conntrack_full, provisional
from screen_fakes import FakeFeed
from screen_packets import flood
from screen_parts import NOW
from traffic_scene import spoofed_syns

from fwtop.model.ruleset import IPSET, NFT, ListedRule, ListedSet, Ruleset
from fwtop.model.traffic.session import TREND_DAYS, TREND_HOURS, TrendGroup, TrendRow, Trends
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.lists.traffic import TREND_LISTS

_KEYS = {"traffic": "arrived", "country": "NL", "network": "AS64500", "port": "tcp/80"}


def machine(taken: float = NOW, packets: int = 100) -> Ruleset:
    """Rules and sets of the machine, one set nearly full."""
    rules = tuple(
        ListedRule(f"nft {n}", NFT, "inet", "web in", f"udp dport {n} drop", n == 2, packets * n, 60 * n)
        for n in range(4)
    )
    sets = tuple(
        ListedSet(f"ipset {name}", IPSET, "ip", name, "hash:net", False, entries, 100)
        for name, entries in (("bad", 95), ("good", 5))
    )
    return Ruleset(taken, rules, sets, (), len(rules))


def trends() -> Trends:
    """A row of each kind."""
    hours = tuple(float(n) for n in range(TREND_HOURS))
    days = tuple(float(n) if n % 5 else None for n in range(24 * TREND_DAYS))
    kinds = [kind for kind, *_ in TREND_LISTS]
    rows = {
        kind: TrendRow(_KEYS.get(kind, f"192.0.2.{n}"), kind, 80.0, hours, 90.0, days, 0.2)
        for n, kind in enumerate(kinds)
    }
    groups = tuple(TrendGroup(kind, (row,)) for kind, row in rows.items())
    return Trends(NOW, ("eth0",), None, "", 3600.0, 86_400.0, 86_400.0 * TREND_DAYS, groups)


def everything_listed() -> tuple[Snapshot, FakeFeed]:
    """Return a snapshot and a feed that fill every list."""
    base, full = spoofed_syns(), conntrack_full()
    shot = replace(
        base,
        mitigations=provisional().mitigations,
        conntrack=full.conntrack,
        judgement=replace(base.judgement, attacks=full.judgement.attacks),
    )
    feed = FakeFeed()
    feed.controls.recent = flood()
    feed.controls.machine = machine()
    feed.controls.history = trends()
    return shot, feed
