"""How soon an attack is named that begins beside ordinary traffic, by how far the rate rises above normal.

The live window holds three seconds: at first hardly a packet of it is the attack's. What counts here is how
much of the attack must have arrived; the console judges twice a second at most. IP protocols that the
ordinary traffic doesn't use are dropped, as a kernel drops what nothing handles.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benches.corpus.arrivals import Arrivals, Frames
from benches.corpus.cases import batch_of, learn
from benches.corpus.copies import mixed
from benches.corpus.profiles import ORDINARY, Method, methods
from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import Baseline
from fwtop.model.traffic.counters import Counters, DropCount
from fwtop.model.traffic.packets import PacketBatch, Window

PATIENCE = 6.0  # seconds; an attack that isn't named by then isn't named
_WINDOW, _STEP = 3.0, 0.1  # seconds
_USUAL_PPS, _ONE_IN = 1_500.0, 4.0
_LEARNED = 4  # windows of ordinary traffic
_HANDLED = (1, 2, 6, 17, 58)  # ICMP, IGMP, TCP, UDP and ICMPv6: every kernel has them
_DROPPED = DropCount(
    "ip", "IP_NOPROTO", 0, code=1
)  # any number will do for the reason: the samples have it, too


class Onset(Struct, frozen=True):
    """An attack, how many times the normal rate arrived with it, and the seconds until it was named."""

    name: str
    times: int
    seconds: float


def onsets(names: Iterable[str], seed: int, rates: Iterable[int]) -> Iterator[Onset]:
    """Let attacks of the lab begin beside drawn ordinary traffic, at some times the normal rate of it.

    The same seed gives the same packets.
    """
    for name in names:
        for times in rates:
            rng = random.Random(f"{seed}/{name}")  # noqa: S311
            yield Onset(name, times, _seconds_to_name(methods()[name], times, rng))


def _seconds_to_name(method: Method, times: int, rng: random.Random) -> float:
    profile = rng.choice([one for one in ORDINARY if one.most_pps >= _USUAL_PPS])
    numbers = np.random.default_rng(rng.getrandbits(64))
    peers = rng.getrandbits(64)

    def ordinary(seconds: float) -> Frames:
        arrivals = Arrivals(random.Random(rng.getrandbits(64)), seconds, random.Random(peers))  # noqa: S311
        profile.send(arrivals, round(_USUAL_PPS * seconds))
        made = Frames.of(arrivals, 0)
        return made.select(np.flatnonzero(numbers.random(len(made)) < 1 / _ONE_IN))

    baseline = Baseline()
    for _ in range(_LEARNED):
        packets = _batch(ordinary(_WINDOW))
        learn(baseline, packets, _WINDOW)
    every = _batch(Frames.joined([ordinary(_WINDOW + PATIENCE), _attack(method, times, rng, numbers)]))
    for step in range(1, round(PATIENCE / _STEP) + 1):
        if _is_named(method, _window(every, step * _STEP, baseline), baseline):
            return step * _STEP
    return PATIENCE


def _attack(method: Method, times: int, rng: random.Random, numbers: np.random.Generator) -> Frames:
    """Make the samples of an attack that begins when the first window of ordinary traffic has passed."""
    samples = _USUAL_PPS * (times - 1) * PATIENCE / _ONE_IN
    made = mixed(method.vectors, samples, _ONE_IN, numbers, rng.getrandbits(32))
    return replace(made, at=_WINDOW + made.at * PATIENCE, vector=np.ones(len(made), np.int16))


def _batch(frames: Frames) -> PacketBatch:
    return batch_of(frames, _ONE_IN, start_ns=0)


def _window(every: PacketBatch, since: float, baseline: Baseline) -> Window:
    """Return the live window that ends so many seconds after the attack's beginning."""
    first, last = np.searchsorted(every.time_ns, [since * 1e9, (since + _WINDOW) * 1e9])
    packets = every.select(slice(first, last))
    handled = np.isin(packets.protocol, (*_HANDLED, *np.unique(baseline.rows.protocol)))
    dropped = packets.select(~handled & (packets.family != 0))
    dropped = replace(dropped, reason=np.full(len(dropped), _DROPPED.code, np.uint16))
    weight = packets.weight
    counters = Counters(
        _WINDOW,
        round(float(weight.sum())),
        round(float(weight @ packets.length)),
        drops=(replace(_DROPPED, packets=round(float(dropped.weight.sum()))),),
        one_in=_ONE_IN,
    )
    return Window(since, _WINDOW, packets, dropped, PacketBatch.empty(), counters, live=True)


def _is_named(method: Method, window: Window, baseline: Baseline) -> bool:
    """Check whether a finding of the attack's kind is mostly about its packets."""
    context = make_context(window, AdviseConfig(), baseline)
    labels = context.traffic.packets.ifindex
    return any(
        finding.kind in (method.kind, *method.also)
        and (not len(finding.rows) or labels[finding.rows].mean() > 0.5)
        for finding in find_attacks(context)
    )
