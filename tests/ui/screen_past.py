"""What a recorder would have seen before a scene: calm, an attack that begins, what its rules changed."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from screen_fakes import FakeFeed
from screen_run import Run, running

from fwtop.model.rule import ACTIVE_STATES
from fwtop.model.traffic.session import Flow, flow_of
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.verdict import attack_pps, verdict_of
from fwtop.ui.lists.history import STEP, Clients, Past, Point
from fwtop.ui.settings import Effective

PAST_SECONDS = 300
CALM_CLIENTS = 105.0  # handshakes a second
_GROWS_SECONDS = 6.0


def past(shot: Snapshot) -> tuple[Past, ...]:
    """Return the half-seconds up to a scene; what its rules drop now reached services before them."""
    return tuple(_moments(shot)) if flow_of(shot) is not None else ()


def _moments(shot: Snapshot) -> Iterator[Past]:
    dice, now, flow = random.Random(1), shot.at, flow_of(shot)
    assert flow is not None
    attacks = shot.judgement.on
    since = min((one.since for one in attacks), default=now)
    rules = [one.rule.created for one in shot.mitigations if one.state in ACTIVE_STATES and attacks]
    installed = max(min(rules), since + _GROWS_SECONDS) if rules else since
    flood, stopped = attack_pps(shot), verdict_of(shot, now).stopped >= 0.95
    served = shot.tcp.handshakes_per_s if shot.tcp is not None else None
    usual = CALM_CLIENTS if attacks else served
    for step in range(int(PAST_SECONDS / STEP), 0, -1):
        at = now - step * STEP
        noise = dice.gauss(1, 0.03)
        part = min(max(at - since, 0.0) / _GROWS_SECONDS, 1.0) * noise
        arrives = (flow.arrives - flood) * noise + flood * part
        mine, other, kernel = (value * part for value in (flow.mine, flow.other, flow.kernel))
        mine = mine if at >= installed else 0.0
        rest = arrives - mine - other - kernel
        bps = flow.bps * arrives / max(flow.arrives, 1)
        shape = Flow(arrives, mine, other, kernel, rest, 0.0, bps)
        hurt = served if not rules or at >= installed else 0.4 * CALM_CLIENTS
        rate = (
            None if usual is None or hurt is None else dice.gauss(1, 0.05) * (usual + (hurt - usual) * part)
        )
        clients = None if rate is None else Clients(rate, 80 * rate)
        yield Past(
            at, Point(shape, at >= since and bool(attacks), at >= installed and stopped, rate), clients
        )


@asynccontextmanager
async def remembering(
    shown: Snapshot,
    size: tuple[int, int],
    feed: FakeFeed | None = None,
    *,
    at: str = "",
    settings: Effective | None = None,
) -> AsyncIterator[Run]:
    """Open the screen on a scene as some minutes after its beginning."""
    feed = feed or FakeFeed()
    feed.before = past(shown)
    async with running(shown, size, at=at, feed=feed, settings=settings) as run:
        run.app.main.bars.message.line = []
        run.app.main.view.redraw_lines()
        yield run
