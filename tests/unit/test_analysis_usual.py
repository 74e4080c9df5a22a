"""What is usual, in numbers for people: the range of all packets, and each service with its clients."""

from __future__ import annotations

from random import Random

import pytest
from analysis_factory import STARTED, make_tables, make_window
from msgspec.structs import replace
from test_analysis_habits import SECONDS, SERVICES, batch, usual

from benches.corpus.cases import learn
from fwtop.analysis.memory import READY_SECONDS, Baseline, learning_words, normal_range
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.snapshot import Judgement
from fwtop.render.rows.service import SERVICE
from fwtop.stats.services import Doors


def learned(windows: int) -> Baseline:
    rng, baseline = Random(1), Baseline(doors=Doors.to(SERVICES, [one.key.number for one in SERVICES]))
    for _ in range(windows):
        learn(baseline, batch(usual(rng)), SECONDS)
    return baseline


def judged(baseline: Baseline, seconds: int = 45) -> Judgement:
    """Judge ordinary traffic in windows that follow each other."""
    rng, advisor = Random(2), Advisor(baseline=baseline)
    frames = usual(rng)
    for at in range(0, seconds, int(SECONDS)):
        packets = batch(frames)
        packets = replace(packets, time_ns=packets.time_ns + at * 10**9)
        window = make_window(packets, SECONDS, live=True, started=STARTED + at)
        window = replace(window, services=SERVICES)
        made = advisor.judge(window, make_tables(window))
    return made


def test_the_range_of_calm_holds_calm_and_no_flood() -> None:
    assert normal_range(Baseline()) is None
    found = normal_range(learned(4))
    assert found is not None
    low, high = found
    pps = len(batch(usual(Random(3)))) / SECONDS
    assert low < pps < high < 3 * pps


def test_each_service_has_what_it_gets_and_its_clients() -> None:
    made = judged(learned(4))
    web, ssh, mqtt = (
        next(one for one in made.services if one.service.port == port) for port in (80, 22, 1883)
    )
    assert made.services[0] is web, "the service with most clients is the first"
    requests, usually = web.rate("requests"), web.rate("requests", usual=True)
    assert requests is not None
    assert usually is not None
    assert requests == pytest.approx(usually, rel=0.5)
    assert web.clients == web.long_known > 60 > ssh.clients > 0 == mqtt.clients
    assert mqtt.rate("requests") == 0.0
    assert mqtt.rate("requests", usual=True) is None
    told = {field.name: field.of(web) for field in SERVICE.fields}
    assert set(told["usual"]) == set(told["now"]) >= {"packets", "requests", "one_address_requests"}


def test_what_is_far_above_says_for_how_long_it_waits() -> None:
    baseline = learned(4)
    habits = baseline.habits
    row = int(habits.number.tolist().index(SERVICES[1].key.number))
    habits.ceiling[row, :] = 0.1
    since = habits.since.copy()
    since[row] = habits.seconds[row] - 60.0
    baseline.habits = replace(habits, since=since)
    web = next(one for one in judged(baseline, 3).services if one.service.port == 80)
    assert web.waits == pytest.approx(60.0)
    assert "far more than usual for 1 min" in str(SERVICE.field("learned").of(web))


def test_learning_says_what_it_waits_for() -> None:
    assert "5 more quiet seconds needed" in learning_words(Baseline())
    assert "waiting for more traffic" in learning_words(Baseline(seconds=READY_SECONDS + 1))
