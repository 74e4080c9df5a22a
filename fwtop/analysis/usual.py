"""What is usual here, for people: the range of all packets, and what each service gets now and in calm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fwtop.analysis.habits import Reading
from fwtop.analysis.memory import READY_ROWS, READY_SECONDS, Baseline
from fwtop.model.service import Service
from fwtop.model.traffic.snapshot import ServiceUse
from fwtop.render.numbers import plural

_NOW_SECONDS = 60.0  # who was seen within them is a client of now


def normal_range(baseline: Baseline) -> tuple[float, float] | None:
    """Return the packets a second of nearly all calm moments, least and most; None if that isn't known.

    Two deviations beside the mean, as of classes that rise and fall together: that is wider than the truth.
    """
    if not baseline.ready:
        return None
    mean = sum(baseline.mean.values())
    deviation = sum(
        math.sqrt(max(0.0, square - baseline.mean[name] ** 2)) for name, square in baseline.square.items()
    )
    return max(mean - 2 * deviation, 0.0), mean + 2 * deviation


def learning_words(baseline: Baseline) -> str:
    """Say what learning waits for: time without an attack, or packets."""
    left = READY_SECONDS - baseline.seconds
    if left > 0:
        return f"learning what is normal: {plural(math.ceil(left), 'more quiet second')} needed"
    few = f"{len(baseline.rows):,} of {READY_ROWS} packets"
    return f"learning what is normal: {few}, waiting for more traffic"


def services_used(
    services: Sequence[Service], seen: Reading, baseline: Baseline, now: float
) -> tuple[ServiceUse, ...]:
    """Return what each service gets, those with most clients first."""
    found = [_used(service, seen, baseline, now) for service in services]
    return tuple(sorted(found, key=lambda one: (-one.clients, -one.long_known, -one.service.pps)))


def _used(service: Service, seen: Reading, baseline: Baseline, now: float) -> ServiceUse:
    number, habits, clients = baseline.doors.number_of(service), baseline.habits, baseline.clients
    mine = clients.service == number
    [row] = np.flatnonzero(habits.number == number)[:1].tolist() or [None]
    known = row is not None and habits.seconds[row] >= READY_SECONDS
    waits = habits.seconds[row] - habits.since[row] if row is not None else -math.inf
    return ServiceUse(
        service,
        tuple(seen.rates[seen.number == number].ravel().tolist()),
        tuple(habits.rates[row].tolist()) if known else (),
        float(habits.seconds[row]) if row is not None else 0.0,
        float(waits) if math.isfinite(waits) else None,
        clients=int((clients.last[mine] >= now - _NOW_SECONDS).sum()),
        long_known=int(clients.long_known[mine].sum()),
    )
