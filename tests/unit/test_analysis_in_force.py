"""Every kind of rule in force over every scenario, at each share of the attack that it may stop.

A rule leaves findings with few packets or none, partly stopped sources, and samples at other hooks. Whatever
it leaves, the window is judged, and every number of the judgement is one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from analysis_factory import make_batch, make_frames, make_tables, make_window
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from test_analysis_propose import VISITORS, learned
from test_analysis_scenarios import SCENARIOS, load

from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import Baseline
from fwtop.analysis.proposals.effect import Remainder, Remaining, stopped_by
from fwtop.analysis.proposals.normal import normal_traffic
from fwtop.analysis.proposals.preview import preview
from fwtop.analysis.proposals.propose import offers
from fwtop.analysis.proposals.signatures import signatures
from fwtop.incidents.advisor import Advisor
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import (
    ConnectionLimit,
    Kind,
    Level,
    Match,
    PayloadMatch,
    Protection,
    Range,
    RateLimit,
    Rule,
    Setting,
)
from fwtop.model.traffic.packets import Hook, PacketBatch, Window
from fwtop.model.traffic.snapshot import Judgement

SHARES = (0.0, 0.01, 0.3, 0.5, 0.7, 0.94, 0.96, 0.99, 1.0)
CLASSES = ("syn_flood", "udp_botnet", "http_flood", "dns_amplification_v6", "mixed_three", "fragments_of_udp",
           "calm_web", "carpet_bombing")  # fmt: skip


def window_of(stem: str) -> Window:
    scenario = load(next(path for path in SCENARIOS if path.stem == stem))
    batch = make_batch(make_frames(scenario["traffic"], scenario["seconds"]), weight=40.0)
    return make_window(batch, scenario["seconds"], live=True)


def rules_in_force(packets: PacketBatch, seconds: float, share: float) -> Iterator[Rule]:
    """Yield a rule of each kind that stops about `share` of what is most common."""
    keys, counts = np.unique(
        np.stack([packets.family, packets.protocol, packets.dport]), axis=1, return_counts=True
    )
    family, protocol, dport = (int(number) for number in keys[:, counts.argmax()])
    mine = (packets.family == family) & (packets.protocol == protocol)
    service = Match(protocol=protocol, dport=dport if protocol in (6, 17) else None)

    def rule(kind: Kind, match: Match, **more: Any) -> Rule:
        return Rule("7", kind, match, "a rule", 600, **more)

    sources = _prefixes(packets, share)
    for kind in (Kind.IPSET, Kind.XDP, Kind.NFTABLES, Kind.TC):
        if sources:
            yield rule(kind, replace(service, sources=sources))
    rate = float(packets.weight[mine].sum()) / max(seconds, 1e-6)
    distinct = len(np.unique(packets.src_lo[mine]))
    for prefix, buckets in ((1, 1), (32, distinct)):
        allowed = max(1, round((1.0 - share) * rate / max(buckets, 1)))
        limit = RateLimit(allowed, allowed, prefix, prefix)
        yield rule(Kind.HASHLIMIT, service, limit=limit)
        yield rule(Kind.XDP, replace(service, family=family), limit=replace(limit, by_dport=True))
        size = max(1, round(allowed * float(packets.ip_length[mine].mean())))
        in_bytes = RateLimit(size, size, prefix, prefix, in_bytes=True)
        yield rule(Kind.TC, Match(protocol=protocol), limit=in_bytes)
    number = Range(0, round(share * 65535))
    yield rule(Kind.XDP, Match(protocol=protocol, ip_id=number))
    yield rule(Kind.XDP, Match(fragment=True))
    loaded = np.flatnonzero(mine & (packets.payload_length > 8))
    if len(loaded):
        first, start = int(loaded[0]), int(packets.payload_offset[loaded[0]])
        data = packets.data[first, start : start + 8].tobytes()
        yield rule(Kind.STRING, Match(protocol=protocol, payload=(PayloadMatch(data),)))
        yield rule(Kind.XDP, Match(protocol=protocol, payload=(PayloadMatch(data, 0),)))
    yield rule(Kind.SYNPROXY, Match(protocol=6, dport=dport))
    yield rule(Kind.CONNLIMIT, Match(protocol=6, dport=dport), connections=ConnectionLimit(4))
    yield rule(Kind.PROTECT, Match(protocol=6, dport=dport), protection=Protection(Level.CLOSED))
    untracked = rule(Kind.NOTRACK, service)
    setting = rule(Kind.SYSCTL, Match(), settings=(Setting("net.ipv4.tcp_syncookies", 2),))
    yield untracked
    yield setting
    whole = rule(Kind.XDP, service)
    yield rule(Kind.HARDEN, Match(), playbook="stateless", parts=(untracked, whole, setting))
    yield rule(Kind.HARDEN, Match(), playbook="conntrack", parts=(setting,))


def _prefixes(packets: PacketBatch, share: float) -> tuple[Prefix, ...]:
    """Return prefixes of the sources of about that share of the packets."""
    found: dict[tuple[int, int], int] = {}
    for row in range(0, len(packets), max(1, len(packets) // 400)):
        family, hi, lo = int(packets.family[row]), int(packets.src_hi[row]), int(packets.src_lo[row])
        if family:
            key = (family, hi << 64 if family == 6 else lo & 0xFFFFFF00)
            found[key] = found.get(key, 0) + 1
    ordered, total, sofar = sorted(found.items()), sum(found.values()), 0
    chosen = []
    for (family, value), count in ordered:
        if sofar + count / 2 > share * total:
            break
        sofar += count
        chosen.append(Prefix(family, value, 64 if family == 6 else 24))
    return tuple(chosen)


def at_other_hooks(window: Window, rule: Rule) -> Window:
    """Return the window as the kernel shows it where the rule drops, with samples at its hook."""
    context = make_context(window, AdviseConfig(max_rows=len(window.arrived)), Baseline(1000))
    struck = stopped_by(rule, context, context.traffic) > np.linspace(0.0, 0.999, len(context.traffic))
    arrived = window.arrived
    if rule.kind is Kind.XDP:
        return replace(window, arrived=replace(arrived, hook=np.where(struck, Hook.XDP, arrived.hook)))
    lost = arrived.select(struck)
    return replace(window, dropped=replace(lost, hook=np.full(len(lost), Hook.DROP, np.uint8)))


def check(value: object, path: str = "") -> None:
    """Every number is finite, every share is one."""
    if isinstance(value, float):
        assert math.isfinite(value), path
        if path.endswith(("share", "confidence")):
            assert -1e-9 <= value <= 1 + 1e-9, (path, value)
    elif isinstance(value, tuple | list):
        for item in value:
            check(item, path)
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            check(getattr(value, name), f"{path}.{name}")


def judge(advisor: Advisor, window: Window, *rules: Rule) -> Judgement:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of a mean of nothing
        judgement = advisor.judge(window, make_tables(window), rules)
    check(judgement)
    return judgement


def every_kind(stem: str, share: float) -> None:
    window, advisor = window_of(stem), Advisor()
    judge(advisor, window)
    for rule in rules_in_force(window.arrived, window.seconds, share):
        window = replace(window, started=window.started + 3.0)
        judge(advisor, window, rule)
        window = replace(window, started=window.started + 3.0)
        hooked = at_other_hooks(window, rule)
        judge(advisor, hooked, rule)
        check(preview(rule, hooked, advisor.baseline))


@pytest.mark.one_each("mixed_three", "calm_web")
@pytest.mark.parametrize("stem", CLASSES)
def test_whatever_a_rule_stops_the_rest_is_judged(stem: str) -> None:
    every_kind(stem, SHARES[2 + CLASSES.index(stem) % 6])


@pytest.mark.matrix
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("stem", [path.stem for path in SCENARIOS])
def test_each_kind_of_rule_over_each_scenario(stem: str, share: float) -> None:
    every_kind(stem, share)


def test_a_limit_that_leaves_a_part_of_each_source_leaves_a_part_of_the_attack() -> None:
    """Twenty sources, 1,000 packets/s each, of which a limit lets 300 pass: more is worth another rule."""
    bot = {"protocol": "tcp", "dport": 80, "flags": "S", "options": "020405b4", "count": 300}
    bots = [{**bot, "src": f"81.{number}.7.9"} for number in range(20)]
    batch = make_batch(make_frames([VISITORS, *bots], 3.0), weight=10.0)
    window, advisor = make_window(batch, 3.0, live=True), learned()
    limit = RateLimit(300, 300)
    active = Rule("1", Kind.HASHLIMIT, Match(protocol=6, dport=80), "", 600, limit=limit)
    found = judge(advisor, window, active)
    flood = next(attack for attack in found.attacks if attack.kind == "syn_flood")
    offered = [one for one in found.proposals if one.attack == flood.title and one.rule is not None]
    assert any(one.attack_share > 0.9 for one in offered)
    assert max(one.already_share for one in offered) > 0.5
    assert any(one.rule is not None and len(one.rule.match.sources) == 20 for one in offered)
    limits = [one.rule for one in offered if one.rule is not None and one.rule.limit is not None]
    assert all(rule.match.sources for rule in limits)  # that of every source is in force


@pytest.mark.one_each("http_flood", "dns_amplification_v6", "mixed_three", "calm_web")
@pytest.mark.parametrize("stem", CLASSES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(chance=st.integers(0, 2**32 - 1), kept=st.sampled_from((0, 1, 2, 0.01, 0.5)))
def test_offers_are_made_for_any_rest_of_an_attack(stem: str, chance: int, kept: float) -> None:
    window = window_of(stem)
    context = make_context(window, AdviseConfig(), Baseline(1000))
    context.findings[:] = find_attacks(context)
    rng = np.random.default_rng(chance)
    normal = normal_traffic(context)

    def rest(rows: np.ndarray[Any, np.dtype[np.intp]]) -> np.ndarray[Any, np.dtype[np.intp]]:
        count = round(kept * len(rows)) if isinstance(kept, float) else min(kept, len(rows))
        return np.sort(rng.choice(rows, count, replace=False)) if len(rows) else rows

    stopped = rng.choice([0.0, 0.3, 0.7, 1.0], len(context.traffic))
    left = [
        Remainder(one, replace(one, rows=rest(one.rows)), float(rng.choice([0.06, 0.5, 1.0])), stopped)
        for one in context.findings
    ]
    remaining = Remaining((), tuple(left))
    made = (
        offer
        for one in left
        for offer in offers(
            context, one, normal, signatures(context, one.finding, normal), before=(), remaining=remaining
        )
    )
    for offer in islice(made, 100):
        check(offer)


@pytest.mark.parametrize("level", [Level.OPEN, Level.PROTECTED])
def test_a_protected_port_is_no_filter_that_can_be_replayed(level: Level) -> None:
    window = window_of("syn_flood")
    port = int(np.bincount(window.arrived.dport).argmax())
    protection = Protection(level, ("office",))
    guarded = Rule("7", Kind.PROTECT, Match(protocol=6, dport=port), "", 600, protection=protection)
    context = make_context(window, AdviseConfig(), Baseline())
    context = replace(context, findings=tuple(find_attacks(context)))
    assert context.findings
    left = Remaining.of(context, [guarded]).attacks
    assert [item.share for item in left] == [1.0] * len(left), "whom it lets in, only its lists say"
