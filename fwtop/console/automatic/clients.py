"""Completed handshakes of clients, before and after a change; forged packets can't complete any."""

from __future__ import annotations

from collections import deque
from statistics import fmean

from msgspec import Struct, field

from fwtop.model.traffic.snapshot import Snapshot

RECENT_SECONDS = 5.0
_CALM_SECONDS = 60.0
_LEAST = 2.0  # handshakes a second: fewer say nothing
_FEWEST = 3  # observations of a mean


class Clients(Struct):
    """Handshakes a second of the last minute in calm, and of the last seconds."""

    _recent: deque[tuple[float, float]] = field(default_factory=deque)
    _calm: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, snapshot: Snapshot) -> None:
        """Remember an observation."""
        if snapshot.tcp is None:
            return
        now = snapshot.at
        _keep(self._recent, now, snapshot.tcp.handshakes_per_s, RECENT_SECONDS)
        if not (snapshot.judgement.attacks or snapshot.judgement.not_judged):
            _keep(self._calm, now, snapshot.tcp.handshakes_per_s, _CALM_SECONDS)

    def recent(self) -> float | None:
        """Return the mean of the last seconds, None if there are too few observations."""
        return _mean(self._recent)

    def loss(self, before: float | None) -> float:
        """Return which share of their handshakes clients have lost since `before`.

        0 if it isn't known, or if they get as much as in calm: bots that are kept out made handshakes, too.
        """
        recent, calm = self.recent(), _mean(self._calm)
        if recent is None or before is None or before < _LEAST:
            return 0.0
        usual = before if calm is None else min(before, calm)
        return max(1.0 - recent / usual, 0.0) if usual >= _LEAST else 0.0


def _keep(points: deque[tuple[float, float]], now: float, value: float, seconds: float) -> None:
    points.append((now, value))
    while points[0][0] <= now - seconds:
        points.popleft()


def _mean(points: deque[tuple[float, float]]) -> float | None:
    return fmean(value for _, value in points) if len(points) >= _FEWEST else None
