"""Seconds of what clients begin in, what they surely lost to a rule out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import pytest
from msgspec.structs import replace
from stored_samples import attack
from test_analysis_clients import DATA, DNS, HTTPS, SSH, SYN, after, answers, connected, packets

from fwtop.analysis.memory import Baseline
from fwtop.incidents.losses import LossWatch, surely_lost
from fwtop.model.harm import ClientLoss
from fwtop.model.rule import Kind, Match, Rule, RuleStatus, State
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import PacketBatch, Window
from fwtop.model.traffic.snapshot import Judgement

CLIENTS, BOTS, ADMINS = range(1, 101), range(5_001, 5_901), range(201, 301)
DROP_HTTPS = Match(protocol=6, dport=443)
START = 1_790_000_000.0
CALM = Judgement()


def learned() -> Baseline:
    """Return what is known of clients of HTTPS and SSH for two minutes, and of bots for a moment."""
    calm = PacketBatch.concat(
        [connected(CLIENTS), connected(ADMINS, SSH), packets(ADMINS, DNS, 0), answers(ADMINS, DNS)]
    )
    return Baseline(clients=after((0.0, True, calm), (120.0, True, calm), (121.0, True, connected(BOTS))))


class Run:
    """Passes seconds to a watch; a rule is in or not, and an attack on or not."""

    def __init__(self, match: Match = DROP_HTTPS, kind: Kind = Kind.XDP) -> None:
        self.watch, self.known = LossWatch(), learned()
        self.status = RuleStatus(Rule("38", kind, match, "", 600), State.PROVISIONAL)
        self.now, self.shaken = START, 0

    def pass_(
        self, seconds: int, handshakes: float | Sequence[float], *opened: PacketBatch,
        rule: bool = False, judgement: Judgement = CALM, cut: PacketBatch | None = None, late: float = 0.0,
    ) -> tuple[ClientLoss, ...]:  # fmt: skip
        """Let seconds pass, each with so many handshakes and packets that were accepted.

        The handshakes are read so `late` after the packets.
        """
        rates: Iterator[float] = iter(handshakes) if isinstance(handshakes, Sequence) else iter(())
        found: tuple[ClientLoss, ...] = ()
        for _ in range(seconds):
            self.now += 1.0
            self.shaken += int(next(rates, handshakes if isinstance(handshakes, float) else 0.0))
            accepted = PacketBatch.concat(list(opened)) if opened else PacketBatch.empty()
            accepted = replace(accepted, time_ns=np.full(len(accepted), int(self.now * 1e9), np.int64))
            none = PacketBatch.empty()
            counters = Counters(3.0, 0, 0)
            window = Window(
                self.now - 3.0,
                3.0,
                none,
                none if cut is None else cut,
                accepted,
                counters,
                handshakes=(self.now + late, self.shaken),
            )
            found = self.watch.take(window, self.known, judgement, (self.status,) if rule else ())
        return found


def flood(since: float = START, *, completes: bool = False) -> Judgement:
    return Judgement(attacks=(replace(attack(since=since), completes=completes),))


def syns(sources: range, service: tuple[int, int] = HTTPS) -> PacketBatch:
    return packets(sources, service, SYN)


def test_a_rule_that_cuts_off_every_client_is_told_within_two_seconds() -> None:
    run = Run()
    run.pass_(10, 105.0, judgement=flood())
    run.pass_(1, 60.0, rule=True, judgement=flood())  # the second in which it went in says nothing
    (loss,) = run.pass_(1, 0.0, rule=True, judgement=flood())
    assert loss.is_harm
    assert loss.words == "clients of 443/tcp 105/s → 0/s"
    assert 0.9 < loss.sure < 1.0


@pytest.mark.parametrize(
    ("before", "since", "harms"),
    [
        (100.0, 100.0, False), (100.0, 60.0, False), (100.0, 40.0, True), (3.0, 0.0, True),
        (50.0, 300.0, False),
        ([0.0] * 59 + [4.0], 0.0, False),  # a quiet night: nobody comes for a while
        ([0.0, 0.0, 0.0, 400.0] * 15, 60.0, False),  # bursts
    ],
)  # fmt: skip
def test_what_is_harm(before: float | list[float], since: float, harms: bool) -> None:
    run = Run()
    run.pass_(60, before)
    run.pass_(1, since, rule=True)
    assert any(loss.is_harm for loss in run.pass_(15, since, rule=True)) is harms


def test_bots_that_are_kept_out_are_no_loss() -> None:
    """Of an attack that completes handshakes only those count who were known long before it."""
    run, attacked = Run(), flood(completes=True)
    clients, bots = syns(CLIENTS), syns(BOTS)
    run.pass_(20, 997.0, clients, bots, judgement=attacked)
    run.pass_(1, 500.0, clients, rule=True, judgement=attacked)
    assert run.pass_(10, 97.0, clients, rule=True, judgement=attacked) == ()
    assert run.watch.lately(3.0) == (True, pytest.approx(100.0))
    (loss,) = run.pass_(10, 0.0, rule=True, judgement=attacked)
    assert (loss.service, loss.is_harm) == ("443/tcp", True)


def test_bots_behind_the_address_of_a_client_are_no_loss() -> None:
    run, clients = Run(), syns(CLIENTS)
    run.pass_(20, 100.0, clients)
    attacked = flood(run.now, completes=True)
    run.pass_(5, 900.0, *[clients] * 8, judgement=attacked)
    run.pass_(1, 500.0, clients, rule=True, judgement=attacked)
    assert run.pass_(10, 100.0, clients, rule=True, judgement=attacked) == ()
    assert run.pass_(10, 0.0, rule=True, judgement=attacked)[0].is_harm


def test_clients_that_became_long_known_only_after_the_calm_count_too() -> None:
    run, attacked = Run(), flood(START + 20.0, completes=True)
    run.pass_(20, 100.0)
    run.pass_(20, 997.0, syns(CLIENTS), syns(BOTS), judgement=attacked)
    run.pass_(1, 500.0, rule=True, judgement=attacked)
    (loss,) = run.pass_(5, 0.0, rule=True, judgement=attacked)
    assert loss.is_harm


def test_bots_of_an_attack_that_is_named_late_are_no_loss() -> None:
    """What is usual in calm is enough, too."""
    run = Run()
    run.pass_(30, 100.0)
    run.pass_(5, 900.0)  # its bots
    began = flood(run.now - 4.0)
    run.pass_(5, 900.0, judgement=began)
    run.pass_(1, 500.0, rule=True, judgement=began)
    assert run.pass_(10, 95.0, rule=True, judgement=began) == ()


def test_bots_of_an_attack_that_was_replaced_by_another_are_no_loss() -> None:
    run = Run()
    run.pass_(10, 900.0, judgement=flood(completes=True))
    other = flood(run.now)
    run.pass_(5, 300.0, judgement=other)
    run.pass_(1, 150.0, rule=True, judgement=other)
    assert run.pass_(10, 0.0, rule=True, judgement=other) == ()


def test_what_the_attack_took_from_clients_is_not_the_rules_doing() -> None:
    run = Run()
    run.pass_(50, 105.0)
    began = flood(run.now)
    run.pass_(10, 30.0, judgement=began)
    run.pass_(1, 30.0, rule=True, judgement=began)
    assert run.pass_(15, 30.0, rule=True, judgement=began) == ()


@pytest.mark.parametrize(
    ("match", "harms"),
    [
        (DROP_HTTPS, True), (Match(), True), (Match(protocol=6), True), (Match(protocol=6, dport=22), False),
        (Match(protocol=17, dport=53), False),
    ],
)  # fmt: skip
def test_a_loss_of_another_service_is_not_the_rules_doing(match: Match, harms: bool) -> None:
    run = Run(match)
    web, rest = syns(CLIENTS), (syns(ADMINS[:20], SSH), syns(ADMINS, DNS))
    run.pass_(20, 120.0, web, *rest)
    run.pass_(1, 60.0, *rest, rule=True)
    losses = run.pass_(5, 20.0, *rest, rule=True)
    assert any(loss.is_harm for loss in losses) is harms


def test_a_small_service_is_not_lost_among_many_handshakes() -> None:
    run = Run(Match(protocol=6, dport=22))
    web = syns(CLIENTS)
    run.pass_(20, 120.0, web, syns(ADMINS[:20], SSH))
    run.pass_(1, 110.0, web, rule=True)
    (loss,) = run.pass_(5, 100.0, web, rule=True)
    assert loss.words == "clients of 22/tcp 20/s → 0/s"


def test_clients_of_udp_are_counted_by_their_datagrams() -> None:
    run = Run(Match(protocol=17, dport=53))
    run.pass_(20, 0.0, syns(ADMINS, DNS))
    run.pass_(1, 0.0, rule=True)
    (loss,) = run.pass_(3, 0.0, rule=True)
    assert loss.words == "clients of 53/udp 100/s → 0/s"


def test_clients_of_udp_are_not_missed_where_another_attack_forges_datagrams() -> None:
    """Then nobody is known by them, before the rule or since it is in."""
    run = Run(Match())
    clients = syns(CLIENTS), packets(ADMINS, DNS, 0)
    run.pass_(20, 100.0, *clients)
    forged = Judgement(attacks=(replace(attack(since=run.now + 5), spoofed=True, match=Match(protocol=17)),))
    run.pass_(5, 100.0, *clients, rule=True)
    assert run.pass_(20, 100.0, *clients, rule=True, judgement=forged) == ()
    assert run.pass_(10, 0.0, rule=True, judgement=forged)[0].is_harm


def test_a_rule_that_passes_the_handshake_and_drops_requests_of_a_few_clients_is_told() -> None:
    run, attacked = Run(), flood(completes=True)
    opened, asked, others = syns(CLIENTS), connected(CLIENTS), connected(CLIENTS[10:])
    cut = connected(CLIENTS[:10])
    cut = replace(cut, rule=np.full(len(cut), 38, np.uint32))
    run.pass_(20, 997.0, opened, asked, syns(BOTS), judgement=attacked)
    run.pass_(1, 997.0, opened, others, rule=True, judgement=attacked, cut=cut)
    assert run.pass_(5, 997.0, opened, asked, rule=True, judgement=attacked, cut=cut) == ()
    run.pass_(14, 997.0, opened, others, rule=True, judgement=attacked, cut=cut)
    (loss,) = run.pass_(2, 997.0, opened, others, rule=True, judgement=attacked, cut=cut)
    assert (loss.service, loss.is_harm) == ("443/tcp", True)


@pytest.mark.parametrize("silenced", [3, 0])
def test_clients_that_fall_silent_are_seen_though_busy_ones_get_on(silenced: int) -> None:
    """Of eight clients all meet the rule, and some send nothing that it spares."""
    run, attacked = Run(), flood(START + 38, completes=True)
    busy, rare = packets(range(1, 6), HTTPS, DATA, each=4), packets(range(6, 9), HTTPS, DATA)
    cut = packets([*range(6 if silenced else 1, 9), 50], HTTPS, DATA)  # the last is new
    cut = replace(cut, rule=np.full(len(cut), 38, np.uint32))
    for _ in range(20):
        run.pass_(1, 5.0, busy)
        run.pass_(1, 5.0, busy, rare)
    run.pass_(1, 5.0, busy, rule=True, judgement=attacked, cut=cut)
    found: tuple[ClientLoss, ...] = ()
    for _ in range(8):
        run.pass_(1, 5.0, busy, rule=True, judgement=attacked, cut=cut)
        spared = (busy,) if silenced else (busy, rare)
        found = run.pass_(1, 5.0, *spared, rule=True, judgement=attacked, cut=cut)
    told = [(one.is_harm, one.words) for one in found]
    assert told == [(True, "3 of 9 clients of 443/tcp 1.5/s → 0/s")] * bool(silenced)


@pytest.mark.parametrize(
    ("in_their_name", "pass_on", "harms"), [(True, 0, True), (False, 0, False), (True, 1, False)]
)
def test_senders_of_calm_times_are_missed_although_an_attack_forges_their_addresses(
    *, in_their_name: bool, pass_on: int, harms: bool
) -> None:
    game = (17, 9_000)
    run, usual = Run(Match(protocol=17, dport=9_000)), packets(range(301, 321), game, 0)
    run.known = replace(run.known, rows=usual)
    forged = Judgement(attacks=(replace(attack(since=START + 20), spoofed=True, match=Match(protocol=17)),))
    run.pass_(20, 0.0, usual)
    run.pass_(5, 0.0, *[usual] * 50, judgement=forged)
    cut = usual if in_their_name else packets(range(901, 921), game, 0)
    cut = replace(cut, rule=np.full(len(cut), 38, np.uint32))
    losses = run.pass_(6, 0.0, *[usual] * pass_on, rule=True, judgement=forged, cut=cut)
    assert [loss.words for loss in losses] == (["clients of 9000/udp 20/s → 0/s"] if harms else [])


def test_a_syn_proxy_takes_syns_away_and_harms_nobody() -> None:
    run, web = Run(kind=Kind.SYNPROXY), syns(CLIENTS)
    run.pass_(20, 100.0, web)
    run.pass_(1, 100.0, rule=True)
    assert run.pass_(10, 100.0, rule=True) == ()


def test_a_loss_that_begins_after_a_minute_has_other_causes_and_one_that_ends_is_over() -> None:
    run = Run()
    run.pass_(30, 100.0)
    run.pass_(61, 100.0, rule=True)
    assert run.pass_(20, 0.0, rule=True) == ()
    run = Run()
    run.pass_(30, 100.0)
    run.pass_(10, 0.0, rule=True)
    assert run.pass_(120, 0.0, rule=True)[0].is_harm, "it lasts"
    assert run.pass_(16, 100.0, rule=True) == ()


def test_handshakes_that_a_waiting_console_counted_a_second_early_are_not_missed_in_the_next() -> None:
    run = Run()
    run.pass_(60, 100.0, syns(CLIENTS))
    run.pass_(1, 199.0, syns(CLIENTS), rule=True, judgement=flood(), late=0.99)
    assert run.pass_(1, 1.0, syns(CLIENTS), rule=True, judgement=flood()) == ()
    assert run.pass_(1, 1.0, syns(CLIENTS), rule=True, judgement=flood())[0].is_harm


def test_what_was_in_before_the_watch_began_is_compared_with_nothing() -> None:
    run = Run()
    run.pass_(5, 100.0, rule=True)
    assert run.pass_(30, 0.0, rule=True) == ()


def test_chance_alone_is_told_as_a_loss_next_to_never() -> None:
    """Steady clients at any rate, looked at thirty times a trial: no harm in 400 trials."""
    draw = np.random.default_rng(32)
    for rate, _ in zip(np.tile([0.2, 1.0, 5.0, 100.0], 100), count(), strict=False):
        counts = [(0.5, float(seen)) for seen in draw.poisson(rate * 0.5, 180)]
        losses = [surely_lost(counts[:120], counts[120 : 121 + looked]) for looked in range(60)]
        assert max(losses) < 1 / 3, rate
