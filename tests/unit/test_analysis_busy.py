"""Floods at a busy server: compared with what is like them, not with all the traffic of its visitors."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from analysis_factory import STARTED, make_batch, make_window
from analysis_flows import HOST, Frame, connection, hosts, segment

from benches.corpus.cases import learn
from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import Baseline

SECONDS = 3.0
PAGE = b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n<html>blocked</html>"


def uploads(rng: Random) -> list[Frame]:
    """120 clients that send 60 segments each, all acknowledged: 5,000 packets a second."""
    return [
        frame
        for client in hosts(rng, 120)
        for frame in connection(
            rng, client, 443, [b"\x17\x03\x03\x01\x2c" + rng.randbytes(300)] * 60, gap=0.015
        )
    ]


def strays(rng: Random, sport: int, flags: str, data: bytes, count: int) -> list[Frame]:
    """Segments of 300 hosts to random ports or from random ports, of no connection."""
    boxes = hosts(rng, 300)
    frames = []
    for i in range(count):
        mine, other = rng.randrange(1024, 65536), sport
        here, there = (mine, other) if other == 80 else (443, mine)
        numbers = {"seq": rng.getrandbits(32), "ack": rng.getrandbits(32)}
        frames.append(
            (SECONDS * i / count, segment(rng.choice(boxes), HOST, there, here, flags, data=data, **numbers))
        )
    return frames


def hasty(rng: Random, count: int) -> list[Frame]:
    """20 bots over real connections, 50 requests a second each."""
    ask = b"GET /search HTTP/1.1\r\nHost: victim.example\r\nUser-Agent: bot\r\n\r\n"
    return [
        frame
        for bot in hosts(rng, 20)
        for frame in connection(rng, bot, 80, [ask] * (count // 20), gap=0.02, answered=0, at=0.1, end="")
    ]


@pytest.fixture(scope="module")
def busy() -> Baseline:
    """What is normal at a server with many uploads."""
    batch = make_batch(sorted(uploads(Random(1))))
    learned = Baseline()
    for _ in range(4):
        learn(learned, batch, SECONDS)
    assert learned.ready
    return learned


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: strays(Random(2), 80, "PA", PAGE, 6_000), "middlebox_amplification"),
        (lambda: strays(Random(3), 0, "A", b"", 6_000), "ack_flood"),
        (lambda: hasty(Random(4), 3_000), "http_flood"),
        (list, None),
    ],
    ids=["pages", "acks", "requests", "none"],
)
def test_a_flood_is_named_although_visitors_send_more(
    busy: Baseline, make: Callable[[], list[Frame]], kind: str | None
) -> None:
    attack, rate = make(), busy.rate("tcp.ack")
    assert rate is not None
    assert len(attack) / SECONDS < rate
    batch = make_batch(sorted([*uploads(Random(5)), *attack]))
    context = make_context(make_window(batch, SECONDS, live=True, started=STARTED), AdviseConfig(), busy)
    assert {found.kind for found in find_attacks(context)} == ({kind} if kind else set())


def test_connections_that_seldom_speak_are_no_flood_where_they_are_usual() -> None:
    rng = Random(6)
    batch = make_batch(sorted(strays(rng, 0, "A", b"", 6_000)))
    usual = Baseline()
    for _ in range(4):
        learn(usual, batch, SECONDS)
    context = make_context(make_window(batch, SECONDS, live=True, started=STARTED), AdviseConfig(), usual)
    assert find_attacks(context) == []
