"""The lab's scenarios as `snapshot --json` shows them: their packets drawn from a seed, on a fixed clock."""

from __future__ import annotations

from random import Random

import numpy as np
from msgspec.structs import replace

from benches.corpus import tools, visits
from benches.corpus.arrivals import Arrivals, Frames
from benches.corpus.copies import copies
from fwtop.incidents.advisor import Advisor
from fwtop.lab import scenario
from fwtop.lab.scenario import Scenario
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, NoOrigin
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.parse.packets import parse_packets
from fwtop.render.observation import observation_json
from fwtop.stats.engine import Engine
from tests.golden.kept import compact
from tests.unit.held_tables import table

STARTED = 1_795_230_764.0  # 2026-11-21T03:12:44Z
SECONDS, SAMPLES, VISITORS = 3.0, 2_000, 300
TOP = 2
CROWDS = {"http": tools.random_pages, "tls": tools.tls_handshakes}
HELD = {  # by the crowd's protocol: how its connections look to the server
    "idle": "silent",
    "slow_headers": "crumbs",
    "slow_body": "crumbs",
    "slow_read": "stalled",
}


def snapshots() -> dict[str, str]:
    """Return the observation of each scenario by the name of its file."""
    return {
        f"{name}.json": compact(observation_json(observed(scenario.load(name)), top=TOP))
        for name in scenario.names()
    }


def observed(made: Scenario) -> Snapshot:
    """Judge a window of a scenario's packets, and of some visitors'."""
    total = made.pps * SECONDS
    one_in = max(1.0, total / SAMPLES) if made.vectors else 1.0
    frames = [_arrivals(visits.browsing, VISITORS), *_flood(made, one_in)]
    frames += [
        _arrivals(_crowd(made, crowd.protocol), SAMPLES) for crowd in made.crowds if crowd.protocol in CROWDS
    ]
    joined = Frames.joined(frames)
    batch = parse_packets(
        joined.data,
        joined.captured,
        link=1,
        length=joined.size,
        time_ns=10**12 + (joined.at * 1e9).astype(np.int64),
        weight=np.full(len(joined), one_in),
        hook=int(Hook.INGRESS),
        ifindex=2,
    )
    packets = len(joined) * one_in
    counters = Counters(SECONDS, round(packets), round(float((batch.length * one_in).sum())), one_in=one_in)
    engine = Engine(NoOrigin(), window_seconds=None, top=TOP, live=True)
    engine.feed(batch, counters, STARTED + SECONDS)
    advisor = Advisor()
    window, tables = engine.window(), engine.tables()
    held = [HELD[crowd.protocol] for crowd in made.crowds if crowd.protocol in HELD]
    if held:
        window = replace(window, sockets=table(*((sort, 400, 50) for sort in held), ("kept alive", 60, 30)))
    judgement = advisor.judge(window, tables)
    return Snapshot(
        host="victim",
        origin=Origin("live", ("eth0",)),
        started=window.started,
        seconds=window.seconds,
        tables=replace(tables, sources=advisor.standing.mark(tables.sources)),
        judgement=judgement,
    )


def _flood(made: Scenario, one_in: float) -> list[Frames]:
    whole = sum(vector.weight for vector in made.vectors)
    chance = np.random.default_rng(made.seed)
    return [
        replace(part, at=part.at * SECONDS)
        for vector in made.vectors
        for part in [
            copies(vector, max(1, round(SAMPLES * vector.weight / whole)), one_in, chance, made.seed)
        ]
    ]


def _crowd(made: Scenario, protocol: str):
    return CROWDS[protocol] if made.kinds else visits.flash_crowd


def _arrivals(send, count: int) -> Frames:
    arrivals = Arrivals(Random(7), SECONDS, Random(8))
    send(arrivals, count)
    return Frames.of(arrivals, 0)
