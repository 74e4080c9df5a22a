"""Windows that cost the judgement most: many samples, of one forged flood or of many attacks at once."""

from __future__ import annotations

import numpy as np

from benches.corpus.arrivals import Frames
from benches.corpus.copies import copies
from benches.corpus.profiles import methods
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, PacketBatch
from fwtop.model.traffic.window import Window
from fwtop.parse.packets import parse_packets

SAMPLES, ONE_IN, SECONDS = 60_000, 500.0, 3.0
FLOODS = ("udp_flood_random", "syn_flood")


def window_of(names: tuple[str, ...], *, samples: int = SAMPLES, seed: int = 1) -> Window:
    """Return a live window of these scenarios' attacks, each with as many samples."""
    numbers = np.random.default_rng(seed)
    vectors = [vector for name in names for vector in methods()[name].vectors]
    made = [copies(vector, samples // len(vectors), ONE_IN, numbers, seed) for vector in vectors]
    frames = Frames.joined(made)
    batch = parse_packets(
        frames.data,
        frames.captured,
        link=1,
        length=frames.size,
        time_ns=(frames.at * SECONDS * 1e9).astype(np.int64),
        weight=np.full(len(frames), ONE_IN),
        hook=int(Hook.INGRESS),
    )
    nothing = PacketBatch.empty(batch.data.shape[1])
    packets = round(len(batch) * ONE_IN)
    counters = Counters(SECONDS, packets, round(float(batch.length.sum()) * ONE_IN), one_in=ONE_IN)
    return Window(1_700_000_000.0, SECONDS, batch, nothing, nothing, counters, live=True)


def at_once(attacks: int) -> tuple[str, ...]:
    """Return the names of so many scenarios, evenly spaced among all that hold one attack."""
    names = sorted(methods())
    return tuple(names[len(names) * number // attacks] for number in range(attacks))
