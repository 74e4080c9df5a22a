"""The cases of the corpus: windows of traffic with the truth about what they hold, drawn from a seed.

A family is one scenario of the lab, one tool, one profile of ordinary traffic, or mixtures. Confidence is
fitted and scored by family, never by packet. The label of a packet (0 ordinary, then one for each attack)
travels in its interface number, which the judgement never reads.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from benches.corpus.arrivals import Arrivals, Frames
from benches.corpus.copies import mixed
from benches.corpus.profiles import ORDINARY, TOOLS, Method, Profile, methods, varied
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import Baseline, class_rates
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, PacketBatch, Window
from fwtop.parse.packets import parse_packets

SEED = 12
MIXTURES = ("mixture of attacks", "one kind on two targets")
_MIXED = 6  # times as many cases of a mixture, which stands for all pairs of attacks
_START_NS, _STARTED = 10**12, 1_700_000_000.0
_SECONDS = (1.0, 3.0, 5.0)  # of a window; the live one has 5
_SAMPLES, _LEAST_SAMPLES, _LEAST_PPS = 10_000, 300, 600.0
_TWINS = ("udp_flood", "syn_flood", "ack_flood", "icmp_flood")
_COMPARABLE = 4.0
_SURGE, _SURGE_PPS, _SURGE_TIMES = "unknown_flood", 10_000.0, 20.0
_QUIET = 1.3  # decimal logarithm of the packets a second of a quiet host
_MADE = 30_000  # packets that are made one by one for a window
_ONE_IN = 1_000.0
_THINNER, _LIVE, _BASELINE, _BARE, _ONSET = 0.4, 0.8, 0.7, 0.15, 0.3  # probabilities


class Attack(Struct, frozen=True):
    """The truth about one attack of a case; `label` marks its packets."""

    label: int
    kind: str
    also: tuple[str, ...]
    forged: bool


class LabelledWindow(Struct, frozen=True):
    """One case: a window, what was normal before it, and the attacks that it holds."""

    family: str
    name: str
    window: Window
    baseline: Baseline
    attacks: tuple[Attack, ...]


def families() -> list[str]:
    """Return the names of all families."""
    return [
        *(f"lab: {name}" for name in methods()),
        *(f"tool: {profile.name}" for profile in TOOLS),
        *(f"ordinary: {profile.name}" for profile in ORDINARY),
        *MIXTURES,
    ]


def cases(each: int, seed: int = SEED, only: tuple[str, ...] = ()) -> Iterator[LabelledWindow]:
    """Yield `each` cases of every family, or of those in `only`, and more of mixtures; repeatable."""
    for family in only or families():
        for number in range(each * (_MIXED if family in MIXTURES else 1)):
            yield draw(family, number, seed)


class _Draw(Struct, frozen=True):
    """How the packets of one case are drawn."""

    rng: random.Random
    numbers: np.random.Generator
    seconds: float
    one_in: float
    peers: str  # what the hosts are drawn from that stay the same


class _Part(Struct, frozen=True):
    """Packets of one origin: what makes them, how many a second, and when they begin and end."""

    origin: Method | Profile
    pps: float
    start: float = 0.0
    stop: float = 1.0


def draw(family: str, number: int, seed: int = SEED) -> LabelledWindow:
    """Draw one case of a family."""
    rng = random.Random(f"{seed}/{family}/{number}")  # noqa: S311
    numbers = np.random.default_rng(rng.getrandbits(64))
    seconds, live = rng.choice(_SECONDS), rng.random() < _LIVE
    beside = _beside(family, rng, seconds)
    usual = sum(part.pps for part in beside)
    attacks = _attacks(family, rng, usual, seconds, live=live)
    one_in = _one_in(rng, (usual + sum(part.pps for part in attacks)) * seconds) if live else 1.0
    how = _Draw(rng, numbers, seconds, one_in, f"{seed}/{family}/{number}")
    frames = [_frames(part, 0, how) for part in beside]
    for label, part in enumerate(attacks, 1):
        made = _frames(part, label, how)
        frames.append(_other_target(made) if family == MIXTURES[1] and label > 1 else made)
    sampled = [part for part in frames if len(part)]
    batch = batch_of(Frames.joined(sampled or frames[:1]), one_in)  # of few packets, none may be sampled
    baseline = Baseline()
    if live and beside and rng.random() < _BASELINE:
        _learn(baseline, beside, how)
    truth = tuple(
        Attack(label, part.origin.kind, part.origin.also, part.origin.forged)
        for label, part in enumerate(attacks, 1)
    )
    return LabelledWindow(family, f"{family} {number}", window_of(batch, seconds, live=live), baseline, truth)


def _beside(family: str, rng: random.Random, seconds: float) -> list[_Part]:
    """Draw ordinary traffic: that of the family, or what runs beside its attack."""
    own = [profile for profile in ORDINARY if family == f"ordinary: {profile.name}"]
    if not own and rng.random() < _BARE:
        return []
    chosen = [*own, *rng.sample(ORDINARY, rng.randrange(0 if own else 1, 3))]
    room = _MADE / seconds / len(chosen)
    return [
        _Part(
            one, min(room, 10 ** rng.uniform(min(_QUIET, math.log10(one.most_pps)), math.log10(one.most_pps)))
        )
        for one in chosen
    ]


def _attacks(family: str, rng: random.Random, usual: float, seconds: float, *, live: bool) -> list[_Part]:
    origins: list[Method | Profile] = []
    if family.startswith("lab: "):
        origins = [varied(methods()[family[5:]], rng)]
    elif family.startswith("tool: "):
        origins = [profile for profile in TOOLS if profile.name == family[6:]]
    elif family == MIXTURES[0]:
        kinds: dict[str, Method | Profile] = {}
        every: list[Method | Profile] = [*methods().values(), *TOOLS]
        for one in rng.sample(every, 12):
            kinds.setdefault(one.kind, varied(one, rng) if isinstance(one, Method) else one)
        single = [one for kind, one in kinds.items() if kind not in ("carpet_bombing", "unknown_flood")]
        origins = single[: rng.randrange(2, 4)]
    elif family == MIXTURES[1]:
        origins = [methods()[rng.choice(_TWINS)]] * 2
    parts: list[_Part] = []
    for origin in origins:
        most = min(origin.most_pps, _MADE / seconds) if isinstance(origin, Profile) else origin.most_pps
        most = most if live else min(most, _SAMPLES / seconds)
        least = max(_LEAST_PPS, usual)
        if origin.kind == _SURGE:  # what has no kind is an attack by its rate alone
            least = max(_SURGE_PPS, _SURGE_TIMES * usual)
        if parts:  # attacks at once are of comparable size
            least, most = max(least, parts[0].pps / _COMPARABLE), min(most, parts[0].pps * _COMPARABLE)
        pps = 10 ** rng.uniform(math.log10(min(least, most)), math.log10(most))
        start = rng.uniform(0, 0.6) if rng.random() < _ONSET else 0.0
        stop = rng.uniform(start + 0.3, 1.0) if rng.random() < _ONSET / 2 else 1.0
        parts.append(_Part(origin, pps, start, stop))
    return parts


def _one_in(rng: random.Random, packets: float) -> float:
    """Draw the sampling: at most so many samples, sometimes fewer; at least enough to see something."""
    least = max(1.0, packets / _SAMPLES)
    thin = least * 10 ** rng.uniform(0, 1.5) if rng.random() < _THINNER else least
    return float(max(1.0, min(_ONE_IN, max(least, min(thin, packets / _LEAST_SAMPLES)))))


def _frames(part: _Part, label: int, how: _Draw) -> Frames:
    """Make the sampled packets of one part."""
    span = part.stop - part.start
    count = max(1, round(part.pps * how.seconds * span))
    if isinstance(part.origin, Method):
        hosts = how.rng.getrandbits(32)  # vectors of one attack share them
        made = mixed(part.origin.vectors, count / how.one_in, how.one_in, how.numbers, hosts)
        made = replace(made, at=made.at * span * how.seconds)
    else:
        peers = random.Random(f"{how.peers}/{part.origin.name}")  # noqa: S311
        arrivals = Arrivals(random.Random(how.rng.getrandbits(64)), how.seconds * span, peers)  # noqa: S311
        part.origin.send(arrivals, count)
        made = Frames.of(arrivals, label)
        if how.one_in > 1:
            made = made.select(np.flatnonzero(how.numbers.random(len(made)) < 1 / how.one_in))
    return replace(made, at=made.at + part.start * how.seconds, vector=np.full(len(made), label, np.int16))


def _other_target(frames: Frames) -> Frames:
    """Send IPv4 frames to the next address of the host."""
    data = frames.data.copy()
    data[:, 33] += 1
    return replace(frames, data=data)


def batch_of(frames: Frames, one_in: float, start_ns: int = _START_NS) -> PacketBatch:
    """Return samples as packets."""
    return parse_packets(
        frames.data,
        frames.captured,
        link=1,
        length=frames.size,
        time_ns=start_ns + (frames.at * 1e9).astype(np.int64),
        weight=np.full(len(frames), one_in),
        hook=int(Hook.INGRESS),
        ifindex=frames.vector.astype(np.uint32),
    )


def window_of(batch: PacketBatch, seconds: float, *, live: bool) -> Window:
    """Return the window of packets that all arrived, with its counters."""
    nothing = PacketBatch.empty(batch.data.shape[1])
    weight = batch.weight
    counters = Counters(seconds, round(float(weight.sum())), round(float((weight * batch.length).sum())))
    return Window(_STARTED, seconds, batch, nothing, nothing, counters, live=live)


def learn(baseline: Baseline, packets: PacketBatch, seconds: float) -> None:
    """Let a baseline learn a calm window as it is, without delay."""
    baseline.keep_rates(class_rates(packets, seconds), seconds)
    baseline.keep_rows(packets)
    seen = make_context(window_of(packets, seconds, live=True), AdviseConfig(), baseline).services
    baseline.habits = baseline.habits.learned(seen, seconds, 0.0, math.inf, 2.0)


def _learn(baseline: Baseline, beside: list[_Part], how: _Draw) -> None:
    """Let a baseline learn other packets of the same ordinary traffic."""
    how = replace(how, one_in=min(how.one_in, 10.0))
    for _ in range(1 + round(5 / how.seconds)):
        parts = [_frames(part, 0, how) for part in beside]
        parts = [part for part in parts if len(part)]
        if parts:
            packets = batch_of(Frames.joined(parts), how.one_in)
            learn(baseline, packets, how.seconds)
