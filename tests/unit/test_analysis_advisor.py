"""The judge over time: what it learns, when attacks begin, change and end, and what it remembers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from analysis_commands import check_commands
from analysis_factory import STARTED, make_batch, make_frames, make_tables, make_window
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.learning import BACK, NORMAL
from fwtop.analysis.memory import CLASSES, Baseline, class_rates
from fwtop.analysis.proposals.propose import Offer
from fwtop.incidents.advisor import Advice, Advices, Advisor, Premises, of_window
from fwtop.incidents.tracker import Tracked
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.traffic.snapshot import Judgement
from fwtop.rules.kinds import drops_nothing

VISITORS = {"make": "connections", "src": "60", "count": 400}
NTP = {"src": "300", "sport": 123, "dport": "random", "payload": "ntp"}
SYN = {"protocol": "tcp", "flags": "S", "dport": 80}


class Live:
    """A stream of packets seen through windows of five seconds, twice a second."""

    def __init__(self, items: list[dict[str, Any]], seconds: float, advisor: Advisor | None = None) -> None:
        self.frames = make_frames(items, seconds)
        self.batch = make_batch(self.frames)
        self.advisor = advisor or Advisor()
        self.origin = int(self.batch.time_ns[0]) - int(self.frames[0][0] * 1e9)

    def tick(self, end: float, **more: Any) -> Judgement:
        low, high = self.origin + int((end - 5.0) * 1e9), self.origin + int(end * 1e9)
        inside = (self.batch.time_ns >= low) & (self.batch.time_ns < high)
        seconds = min(5.0, end)
        window = make_window(
            self.batch.select(inside), seconds, live=True, started=STARTED + end - seconds, **more
        )
        return self.advisor.judge(window, make_tables(window))

    def run(self, start: float, stop: float) -> list[tuple[float, Judgement]]:
        return [(end, self.tick(end)) for end in np.arange(start, stop + 0.01, 0.5).tolist()]


def kinds(judgement: Judgement) -> set[str]:
    return {attack.kind for attack in judgement.on}


def test_onset_is_that_of_the_first_packets_and_harm_is_counted_on_the_quiet_time() -> None:
    live = Live([VISITORS, {**NTP, "count": 8_000, "start": 15.3, "stop": 20.0}], 20.0)
    quiet = live.run(0.5, 15.0)
    assert all(not judgement.attacks for _, judgement in quiet)
    assert live.advisor.baseline.ready
    judgement = live.run(15.5, 19.5)[-1][1]
    assert kinds(judgement) == {"ntp_amplification"}
    assert judgement.attacks[0].since == pytest.approx(STARTED + 15.3, abs=0.3)
    assert "quiet seconds" in judgement.baseline
    best = judgement.proposals[0]
    assert not best.guess
    assert best.attack_share >= 0.95
    assert best.collateral_share <= 0.005


def test_an_attack_is_named_within_a_second_of_its_first_packet() -> None:
    live = Live([VISITORS, {**SYN, "count": 9_000, "start": 8.0, "stop": 14.0}], 14.0)
    live.run(0.5, 8.0)
    assert kinds(live.tick(8.9)) == {"syn_flood"}


def test_a_change_of_vector_is_told() -> None:
    waves = [
        {**SYN, "count": 6_000, "start": 8.0, "stop": 12.0},
        {**NTP, "count": 6_000, "start": 12.0, "stop": 16.0},
        {**SYN, "count": 6_000, "start": 26.0, "stop": 30.0},
    ]
    live = Live([VISITORS, *waves], 30.0)
    seen = live.run(0.5, 30.0)
    at = dict(seen)
    assert kinds(at[10.0]) == {"syn_flood"}
    assert kinds(at[13.0]) == {"syn_flood", "ntp_amplification"}
    (paused,) = (attack for attack in at[19.0].attacks if attack.ended is None)
    assert (paused.kind, paused.paused) == ("ntp_amplification", pytest.approx(STARTED + 16.0, abs=0.3))
    assert any(
        "replaced SYN flood" in sentence for attack in at[18.0].attacks for sentence in attack.evidence
    )
    assert kinds(at[23.5]) == set()
    again = at[29.0].attacks[0]
    assert again.since == pytest.approx(STARTED + 26.0, abs=0.5), "its pause was longer than its pulse"


def test_proposals_stay_while_the_attack_does_and_change_with_it() -> None:
    waves = [
        {**SYN, "count": 8_000, "start": 6.0, "stop": 20.0},
        {**NTP, "count": 8_000, "start": 14.0, "stop": 20.0},
    ]
    live = Live([VISITORS, *waves], 20.0)
    seen = live.run(0.5, 20.0)
    first = dict(seen)[10.0].proposals
    assert first
    assert dict(seen)[10.5].proposals == first
    assert any("port 123" in proposal.summary for proposal in dict(seen)[15.5].proposals)
    numbers = [[proposal.number for proposal in judgement.proposals] for _, judgement in seen]
    assert all(found == list(range(1, len(found) + 1)) for found in numbers), "without holes"


def test_what_nobody_should_take_comes_after_what_is_against_another_attack() -> None:
    """A block that cut the clients was number 1, before a clean one against the slow attack beside it."""
    live = Live([VISITORS, NTP | {"count": 20_000}], 5.0)
    clean = next(one for one in live.tick(5.0).proposals if one.rule is not None and not one.is_last_resort)
    cuts = replace(clean, needs_force="it would drop 14 % of normal traffic")
    advices, premises = Advices(), Premises(1.0, 1.0, False, False, False, frozenset())
    for number, offered in ((1, [cuts, clean]), (2, [clean])):
        made = [Offer(str(place), one) for place, one in enumerate(offered)]
        advices._held[number] = Advice(premises, 0.0, (), made)
    attacks = [Tracked(number, "AB"[number - 1], "x", "x", 0.0, 1.0) for number in (1, 2)]
    shown = advices.proposals(attacks)
    assert [(one.incident, bool(one.needs_force)) for one in shown] == [(2, False), (1, False), (1, True)]


def test_nothing_of_an_attack_is_learned() -> None:
    live = Live([VISITORS, {**NTP, "count": 4_000, "start": 10.0, "stop": 20.0}], 20.0)
    live.run(0.5, 20.0)
    assert not (live.advisor.baseline.rows.sport == 123).any()


def test_one_long_quiet_window_is_learned_but_for_its_end() -> None:
    """A snapshot judges once: the session after it has to find a baseline all the same."""
    advisor = Advisor()
    batch = make_batch(make_frames([VISITORS], 12.0))
    advisor.judge(window := make_window(batch, 12.0, live=True), make_tables(window))
    assert advisor.baseline.ready
    assert advisor.baseline.seconds == pytest.approx(9.0)
    times = advisor.baseline.rows.time_ns
    assert int(times.max()) < int(batch.time_ns.max()) - 3 * 10**9


def test_a_stored_baseline_serves_the_next_session_and_garbage_is_refused() -> None:
    live = Live([VISITORS], 15.0)
    live.run(0.5, 15.0)
    learned = live.advisor.baseline
    again = Baseline.from_bytes(learned.to_bytes())
    assert again.ready
    assert again.rate("tcp.ack") == learned.rate("tcp.ack")
    assert np.array_equal(again.rows.data, learned.rows.data)
    started_late = Live([VISITORS, {**SYN, "count": 9_000}], 5.0, Advisor(baseline=again))
    proposals = started_late.tick(4.0).proposals
    assert proposals
    assert not any(proposal.guess for proposal in proposals)
    for bad in (b"", b"PK\x03\x04", learned.to_bytes()[:-40], b"\x93NUMPY" + bytes(200)):
        with pytest.raises(ValueError, match="baseline"):
            Baseline.from_bytes(bad)


def test_frames_that_are_not_ip_do_not_raise_what_is_normal_of_ip_protocols() -> None:
    arp = b"\xff" * 6 + bytes(6) + b"\x08\x06" + bytes(46)
    rates = class_rates(make_batch([(k / 100, arp) for k in range(300)]), 3.0)
    assert dict(zip(CLASSES, rates.tolist(), strict=True)) == dict.fromkeys(CLASSES, 0.0) | {"not_ip": 100.0}


def test_the_reservoir_is_bounded_and_rolls() -> None:
    baseline = Baseline(capacity=1_000)
    batch = make_batch(make_frames([VISITORS], 5.0))
    for _ in range(20):
        baseline.keep_rows(batch)
    assert len(baseline.rows) == 1_000
    later = batch.select(slice(None))
    later.dport[:] = 8080
    for _ in range(20):
        baseline.keep_rows(later)
    assert (baseline.rows.dport == 8080).mean() > 0.99


def test_renewing_in_an_attack_keeps_each_part_of_normal_traffic() -> None:
    visitors = make_batch(make_frames([VISITORS, {"dport": 53, "count": 300}], 5.0))
    baseline = Baseline()
    baseline.keep_rows(visitors)
    tcp = baseline.rows.protocol == 6
    before = float(baseline.rows.weight[tcp].sum()), len(baseline.rows)
    seen = visitors.select(visitors.protocol == 6)
    seen.dport[:] = 8080
    seen.weight[:] = 50.0
    baseline.renew(seen, tcp)
    tcp = baseline.rows.protocol == 6
    assert (float(baseline.rows.weight[tcp].sum()), len(baseline.rows)) == (
        pytest.approx(before[0]),
        before[1],
    )
    assert (baseline.rows.dport[tcp] == 8080).any()
    baseline.renew(visitors, np.zeros(len(baseline.rows), np.bool_))
    assert len(baseline.rows) == before[1]


def test_a_surge_above_the_baseline_is_needed_where_the_class_is_usual() -> None:
    busy = {"src": "150", "dport": 53, "payload": "query example.com 1"}
    live = Live([{**busy, "count": 9_000}], 15.0, Advisor(AdviseConfig(flood_pps=1_000.0)))
    live.run(0.5, 15.0)
    grown = Live([{**busy, "count": 18_000}], 15.0, Advisor(baseline=live.advisor.baseline))
    assert kinds(grown.tick(10.0)) == set()  # twice as much as usual
    flooded = Live([{**busy, "count": 75_000}], 15.0, Advisor(baseline=live.advisor.baseline))
    assert kinds(flooded.tick(10.0)) == {"dns_query_flood"}


@pytest.mark.one_each("syn", "dns")
@pytest.mark.parametrize(
    "flood",
    [SYN, NTP, {"src": "150", "dport": 53, "payload": "query example.com 1"}, {"src": "300", "dport": 9_999}],
    ids=["syn", "ntp", "dns", "udp"],
)
def test_an_attack_that_is_said_to_be_normal_is_none_any_more_until_that_is_taken_back(
    flood: dict[str, Any],
) -> None:
    live = Live([VISITORS, {**flood, "count": 40_000, "start": 15.0, "stop": 40.0}], 40.0)
    live.run(0.5, 20.0)
    attack = live.tick(20.5).attacks[0]
    for said, until, named in ((NORMAL, 24.0, False), (BACK, 28.0, True)):
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(live.advisor.learner.hear, said, attack.id)
            while not answer.done():
                judgement = live.tick(until - 3.0)
        assert judgement.learning == answer.result()
        assert bool(live.run(until - 2.5, until)[-1][1].attacks) == named


def test_a_slow_scan_is_remembered_over_many_windows() -> None:
    live = Live([VISITORS, {"make": "scan", "src": "45.146.165.208", "count": 60}], 120.0)
    judgements = dict(live.run(0.5, 118.0))
    first = min(at for at, judgement in judgements.items() if judgement.attacks)
    assert 60 < first < 100
    last = judgements[118.0].attacks[0]
    assert last.kind == "port_scan"
    assert "45.146.165.208" in last.title
    assert not last.spoofed


def test_conntrack_exhaustion_comes_from_the_tables_own_figures() -> None:
    live = Live([{**SYN, "count": 9_000, "dport": 80}, VISITORS], 5.0)
    full = ConntrackSample(65_000, 65_536, new_per_s=2_000.0, insert_failed=40, drop=900, early_drop=12)
    judgement = live.tick(4.0, conntrack=full)
    assert kinds(judgement) == {"syn_flood", "conntrack_exhaustion"}
    assert "notrack" not in {proposal.kind for proposal in judgement.proposals}, "alone it would close 80/tcp"
    sooner, room = (proposal for proposal in judgement.proposals if proposal.kind == "sysctl")
    assert "nf_conntrack_tcp_timeout_syn_recv=10" in sooner.commands[0]
    assert "conntrack max from 65,536 to 262,144" in room.summary
    for proposal in (sooner, room):
        assert proposal.attack_share == proposal.stopped_pps == 0
        check_commands(proposal)
    together = next(proposal for proposal in judgement.proposals if proposal.kind == "harden")
    assert together.rule is not None
    assert drops_nothing(together.rule)
    assert [(part.kind.value, part.match.dport, part.forget) for part in together.rule.parts] == [
        ("sysctl", None, False),
        ("notrack", 80, True),
    ]
    assert together.fwtop == "fwtop harden conntrack --apply --ttl 10m"
    calm = Live([VISITORS], 5.0)
    assert not calm.tick(4.0, conntrack=ConntrackSample(9_000, 65_536, new_per_s=80.0)).attacks


@pytest.mark.parametrize(
    ("port", "new_per_s", "offered"), [(80, 1_600.0, True), (80, 400.0, False), (22, 1_600.0, False)]
)
def test_a_flood_that_the_firewall_tracks_gets_the_stateless_play_book(
    port: int, new_per_s: float, offered: bool
) -> None:
    live = Live([{**SYN, "count": 9_000, "dport": port}, VISITORS], 5.0)
    judgement = live.tick(4.0, conntrack=ConntrackSample(9_000, 262_144, new_per_s=new_per_s))
    assert kinds(judgement) == {"syn_flood"}
    books = [proposal for proposal in judgement.proposals if proposal.kind == "harden"]
    assert len(books) == offered
    for proposal in books:
        assert proposal.rule is not None
        assert drops_nothing(proposal.rule)
        (part,) = proposal.rule.parts
        assert (part.kind.value, part.match.dport, part.stateless, part.forget) == (
            "notrack",
            80,
            True,
            True,
        )
        assert proposal.fwtop == "fwtop harden stateless --apply --ttl 10m"
        check_commands(proposal)


def test_no_attack_is_faster_than_all_that_arrives() -> None:
    live = Live([{**SYN, "count": 9_000}, VISITORS], 5.0)
    full = ConntrackSample(65_000, 65_536, new_per_s=1e6, insert_failed=40, drop=900, early_drop=12)
    judgement = live.tick(4.0, conntrack=full)
    assert max(attack.pps for attack in judgement.attacks) < 5_000


def test_a_judgement_kept_for_a_later_window_has_the_rates_of_that_one() -> None:
    judgement = Live([{**SYN, "count": 9_000}, VISITORS], 5.0).tick(4.0)
    assert judgement.attacks
    for total in (400.0, 12_000.0):
        later = of_window(judgement, 4_000.0, total)
        for before, now in zip(judgement.attacks, later.attacks, strict=True):
            assert now.pps / total == pytest.approx(before.pps / 4_000.0)
            assert (now.bps, now.share) == (pytest.approx(before.bps * total / 4_000.0), before.share)


def test_an_empty_window_is_quiet() -> None:
    nothing = make_window(PacketBatch.empty(216), 1.0, live=True)
    judgement = Advisor().judge(nothing, make_tables(nothing))
    assert judgement.attacks == ()
    assert judgement.proposals == ()
