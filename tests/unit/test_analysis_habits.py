"""What services usually get, and what is named beside it: windows as clients and attackers fill them."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from analysis_factory import STARTED, make_batch, make_tables, make_window
from analysis_flows import Frame, connection, hosts
from msgspec.structs import asdict, replace

from benches.corpus.cases import learn
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.habits import COLUMNS, Habits, Reading
from fwtop.analysis.memory import Baseline
from fwtop.incidents.advisor import Advisor
from fwtop.model.service import Service
from fwtop.model.traffic.packets import PacketBatch
from fwtop.stats.services import Doors

SECONDS = 3.0
AGENTS = [f"Mozilla/5.0 (X11; Linux x86_64; rv:{n}.0) Gecko/20100101 Firefox/{n}.0" for n in range(100, 130)]
SERVICES = tuple(Service("tcp", port, "", addresses=()) for port in (22, 80, 1883))
OFFICE = bytes([81, 20, 3, 9])  # many browsers behind one address


def page(path: str, agent: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: {agent}\r\n\r\n".encode()


def browser(rng: Random, client: bytes) -> list[Frame]:
    """Return a page with its pictures, which two connections fetch within a second."""
    agent, at = rng.choice(AGENTS), rng.uniform(-1, SECONDS)
    first = [page(f"/p{rng.randrange(30)}.html", agent), page("/style.css", agent), page("/app.js", agent)]
    pictures = [page(f"/i{rng.randrange(60)}.png", agent) for _ in range(rng.randrange(3, 9))]
    return [
        frame
        for loads in (first, pictures)
        for frame in connection(
            rng, client, 80, loads, at=at, gap=rng.uniform(0.02, 0.1), answered=9_000, end=""
        )
    ]


def again(rng: Random, clients: list[bytes], port: int, load: bytes, each: float) -> list[Frame]:
    """Return connections that each client opens again and again, with one message each."""
    times = [(k + rng.random()) / each for k in range(round(SECONDS * each))]
    return [
        frame
        for client in clients
        for at in times
        for frame in connection(rng, client, port, [load], at=at, gap=0.03, answered=40)
    ]


def asking(rng: Random, clients: list[bytes], each: float) -> list[Frame]:
    """Return requests that each client sends on one connection, without a pause."""
    return [
        frame
        for client in clients
        for frame in connection(
            rng, client, 80, [page(f"/p{rng.randrange(30)}.html", AGENTS[0]) for _ in range(round(each * 5))],
            at=-rng.random(), gap=1 / each, answered=5_000, end="",
        )
    ]  # fmt: skip


def usual(rng: Random) -> list[Frame]:
    frames = [frame for client in hosts(rng, 8) + 3 * [OFFICE] for frame in browser(rng, client)]
    frames += again(rng, hosts(rng, 60), 80, page("/news", AGENTS[1]), 1.0)  # a service that is busy
    return frames + again(rng, hosts(rng, 1), 22, b"SSH-2.0-OpenSSH_9.6\r\n", 0.4)


CONNECT = b"\x10\x17\0\4MQTT\4\2\0\x3c\0\x0bsensor-0000"
ATTACKS = {
    "400 MQTT connections a second of 30 addresses": (
        lambda rng: again(rng, hosts(rng, 30), 1883, CONNECT, 13.3), {"syn_flood": "attack"},
    ),
    "a bot behind an office's address": (
        lambda rng: asking(rng, 4 * [OFFICE], 75), {"http_flood": "attack"},
    ),
    "20 bots at 5 requests a second each": (
        lambda rng: asking(rng, hosts(rng, 20), 5), {"http_flood": "attack"},
    ),
    "SSH guessing at 25 a second": (
        lambda rng: again(rng, hosts(rng, 1), 22, b"SSH-2.0-Go\r\n", 25), {"password_guessing": "abuse"},
    ),
    "SSH guessing of five": (
        lambda rng: again(rng, hosts(rng, 5), 22, b"SSH-2.0-Go\r\n", 5), {"password_guessing": "abuse"},
    ),
    "a flash crowd of browsers": (
        lambda rng: [frame for client in hosts(rng, 120) for frame in browser(rng, client)], {},
    ),
    "600 requests of ab within half a second": (
        lambda rng: [
            frame
            for part in range(6)
            for frame in connection(rng, OFFICE[:3] + b"\x17", 80, 100 * [page("/", "ApacheBench/2.3")],
                                    at=1.0, gap=0.005, answered=8_000, end="FA")
        ], {"http_flood": "unusual"},
    ),
    "a dashboard that polls": (lambda rng: asking(rng, hosts(rng, 2), 5), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", ATTACKS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_far_above_a_services_habit_is_named_after_what_it_does(case: str, seed: int) -> None:
    attack, expected = ATTACKS[case]
    rng, baseline = Random(seed), Baseline(doors=Doors.to(SERVICES, [one.key.number for one in SERVICES]))
    for _ in range(4):
        learn(baseline, batch(usual(rng)), SECONDS)
    window = make_window(batch(usual(rng) + attack(rng)), SECONDS, live=True)
    judged = Advisor(baseline=baseline).judge(window, make_tables(window))
    assert {one.kind: one.severity.harm.value for one in judged.on} == expected


def batch(frames: list[Frame]) -> PacketBatch:
    return make_batch(sorted(frame for frame in frames if 0 <= frame[0] < SECONDS), start_ns=10**12)


# seconds of calm, connections a second  → usual ones that are learned, or least and most
TABLES = {
    "growth up to twice the usual is learned as it comes": ((400, 50, 50, 50), (600, 90, 80, 90)),
    "what is far above waits for 20 minutes, and teaches a factor of two": (
        (2_000, 50, 50, 50), (1_150, 3_000, 0, 50), (60, 3_000, 100, 100), (1_300, 3_000, 200, 200),
    ),
    "a young service's habit is learned in as much time as it is known": (
        (20, 50, 50, 50), (10, 300, 50, 50), (30, 300, 100, 100), (50, 300, 300, 300),
    ),
    "what pauses waits anew": (
        (2_000, 50, 50, 50), (1_100, 3_000, 0, 50), (3, 50, 50, 50), (1_100, 3_000, 0, 50),
    ),
    "a slow rise gets no faster than one by steps": (
        (1_300, 50, 50, 50), (300, 99, 80, 100), (800, 198, 50, 100),
    ),
}  # fmt: skip
NUMBER = np.array([80], np.uint32)


def reading(rate: float, numbers: np.ndarray = NUMBER) -> Reading:
    rates = np.zeros((len(numbers), len(COLUMNS)))
    rates[:, COLUMNS.index("connections")] = rate
    return Reading(numbers.astype(np.uint32), rates)


@pytest.mark.parametrize("name", TABLES)
def test_the_habit_that_is_learned(name: str) -> None:
    habits, now = Habits.of(), 0.0
    for seconds, rate, least, most in TABLES[name]:
        for _ in range(seconds):
            now += 1.0
            habits = habits.learned(reading(rate), 1.0, now, 1_200.0, 2.0)
        found = habits.usual("connections", NUMBER)
        assert found is not None
        assert least * 0.99 <= found <= most * 1.01, (seconds, rate)


def test_a_few_more_visitors_of_a_small_service_are_learned_as_they_come() -> None:
    """A page takes some ten packets: what few connections bring along isn't far above normal."""
    habits, packets = Habits.of(), COLUMNS.index("packets")
    for second in range(1_500):
        seen = reading(0.5 if second < 1_400 else 4)
        seen.rates[:, packets] = 3 if second < 1_400 else 40
        assert not len(habits.above(seen)[0]), second
        habits = habits.learned(seen, 1.0, float(second), 1_200.0, 2.0)
    seen.rates[:, packets] = 400
    assert len(habits.above(seen)[0])


def test_the_operators_word_is_learned_at_once_and_is_the_new_ceiling() -> None:
    habits = Habits.of()
    for second in range(1_500):
        habits = habits.learned(reading(50), 1.0, float(second), 1_200.0, 2.0)
    habits = habits.accepted(reading(900), 1_500.0, 2.0)
    assert habits.usual("connections", NUMBER) == 900
    habits = habits.learned(reading(1_700), 1.0, 1_501.0, 1_200.0, 2.0)
    assert habits.usual("connections", NUMBER) == 1_700


def test_a_table_is_bounded_stored_and_its_services_may_get_other_numbers() -> None:
    habits = Habits.of()
    for second in range(60):  # an own service beside ever new ones
        many = np.sort(np.append(np.arange(60) + 1_000 * second, 80)) if second else NUMBER
        habits = habits.learned(reading(9, np.unique(many)), 1.0, float(second), 1_200.0, 2.0)
    assert len(habits) == 256
    assert habits.usual("connections", NUMBER) == 9
    moved = habits.moved({80: 4_000_000_000})
    assert moved.usual("connections", np.array([4_000_000_000], np.uint32)) == 9
    assert moved.usual("connections", NUMBER) == 0
    baseline = Baseline.from_bytes(Baseline(habits=habits).to_bytes())
    assert all(
        np.array_equal(a, b)
        for a, b in zip(asdict(habits).values(), asdict(baseline.habits).values(), strict=True)
    )
    with pytest.raises(ValueError, match="not a stored table of habits"):
        Habits.of([*list(asdict(habits).values())[:-1], np.zeros(3)])


def test_failures_are_handshakes_that_clients_leave_resets_and_short_sessions_at_logins() -> None:
    rng = Random(7)
    client = hosts(rng, 1)
    opened = [frame for at in (0.1, 0.2, 0.3) for frame in connection(rng, client[0], 80, [], at=at)[:1]]
    reset = connection(rng, client[0], 80, [page("/", "x")], at=0.5, end="R")
    login = again(rng, client, 22, b"SSH-2.0-Go\r\n", 2)
    window = make_window(batch(opened + reset + login + usual(rng)[:0]), SECONDS, live=True)
    seen = make_context(replace(window, seconds=1.0), AdviseConfig(), Baseline()).services
    failures = dict(zip(seen.number.tolist(), seen.rates[:, COLUMNS.index("failures")].tolist(), strict=True))
    assert failures == {6 << 16 | 80: 4, 6 << 16 | 22: 6}
    assert not math.isnan(seen.rates.sum())


def test_a_service_in_quarantine_keeps_no_other_from_being_learned() -> None:
    """iperf3 begins beside a web server: its packets and clients wait, and the web server's don't."""
    rng, advisor = Random(9), Advisor()
    measured = Service("tcp", 5201, "iperf3")

    def second(at: int, pace: float, visitors: list[bytes]) -> None:
        frames = [
            frame for client in visitors for frame in again(rng, [client], 80, page("/", AGENTS[0]), 1.0)
        ]
        loads = [rng.randbytes(40) for _ in range(round(pace * SECONDS))]
        frames += connection(rng, OFFICE, 5201, loads, at=0.0, gap=1 / pace, answered=0, end="")
        packets = make_batch(
            sorted(frame for frame in frames if frame[0] < SECONDS), start_ns=10**12 + at * 10**9
        )
        window = make_window(packets, SECONDS, live=True, started=STARTED + at)
        window = replace(window, services=(*SERVICES, measured))
        advisor.judge(window, make_tables(window))

    regulars = hosts(rng, 6)
    for at in range(0, 120, 3):
        second(at, 8, regulars)
    before = advisor.baseline.rate("tcp.ack")
    newcomers = hosts(rng, 6)
    for at in range(120, 180, 3):
        second(at, 90, newcomers)
    learned = advisor.baseline
    ports = learned.rows.dport[learned.rows.time_ns > 10**12 + 125 * 10**9]
    assert set(ports.tolist()) == {80}
    assert learned.rate("tcp.ack") == pytest.approx(before, rel=0.3)
    assert int(learned.clients.long_known.sum()) == 13  # the newcomers, too
    assert "tcp/5201 for 1 of 20 min" in advisor.learner.sentence("")
