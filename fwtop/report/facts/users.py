"""What users felt: handshakes and acknowledged segments of the host's own TCP, against calm time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from msgspec import Struct

from fwtop.model.traffic.session import Tick
from fwtop.report.facts.periods import TimedTick
from fwtop.report.facts.spans import AttackSpan

_MARGIN_SECONDS = 5.0  # around an attack: windows that hold both
_LEAST_SECONDS = 3.0  # of calm time that tell what is normal
_WORST_SECONDS = 10.0
# Their own connections finish handshakes too, and look like users'
CONNECTING = frozenset(
    {"http_flood", "tls_flood", "slow_headers", "slow_body", "slow_read", "idle_connections"}
)


class UserFigure(Struct, frozen=True):
    """One figure of users, a second; None where there was no such time in the record."""

    name: str
    normal: float | None  # median of the calm time before the first attack, else of any
    attacked: float | None  # mean
    worst: float | None  # lowest mean of 10 s under attack
    worst_at: float | None
    at_end: float | None  # mean of the last 10 s

    def of_normal(self, value: float | None) -> float | None:
        """Return a value as a share of what is normal; None if either isn't known."""
        return value / self.normal if value is not None and self.normal else None


FIGURES: tuple[tuple[str, Callable[[Tick], float | None]], ...] = (
    ("TCP handshakes", lambda tick: tick.tcp_handshakes_per_s),
    ("acknowledged segments", lambda tick: tick.tcp_acknowledged_per_s),
)


def measure_users(ticks: Sequence[TimedTick], spans: Sequence[AttackSpan]) -> tuple[UserFigure, ...]:
    """Measure both figures; empty if the session has neither."""
    found = (_user_figure(name, take, ticks, spans) for name, take in FIGURES)
    return tuple(item for item in found if item is not None)


def mean_of(ticks: Iterable[TimedTick], take: Callable[[Tick], float | None]) -> float | None:
    """Return the mean of one figure over time, None if it is not known."""
    return _mean((tick.at, seconds, value) for tick, seconds in ticks if (value := take(tick)) is not None)


def _user_figure(
    name: str, take: Callable[[Tick], float | None], ticks: Sequence[TimedTick], spans: Sequence[AttackSpan]
) -> UserFigure | None:
    known = [(tick.at, seconds, value) for tick, seconds in ticks if (value := take(tick)) is not None]
    if not known:
        return None
    attacked = [row for row in known if any(span.began < row[0] <= span.until for span in spans)]
    worst, worst_at = _worst(attacked)
    end = known[-1][0]
    return UserFigure(
        name,
        _normal(known, spans),
        _mean(attacked),
        worst,
        worst_at,
        _mean([row for row in known if row[0] > end - _WORST_SECONDS]),
    )


_Rows = list[tuple[float, float, float]]  # time, seconds, value


def _normal(rows: _Rows, spans: Sequence[AttackSpan]) -> float | None:
    calm = [
        row
        for row in rows
        if not any(span.began - _MARGIN_SECONDS < row[0] <= span.until + _MARGIN_SECONDS for span in spans)
    ]
    first = min((span.began for span in spans), default=float("inf"))
    before = [row for row in calm if row[0] < first]
    for chosen in (before, calm):
        if sum(row[1] for row in chosen) >= _LEAST_SECONDS:
            return median(row[2] for row in chosen)
    return None


def _mean(rows: Iterable[tuple[float, float, float]]) -> float | None:
    whole = total = 0.0
    for _, seconds, value in rows:
        whole, total = whole + seconds, total + seconds * value
    return total / whole if whole > 0 else None


def _worst(rows: _Rows) -> tuple[float | None, float | None]:
    """Return the lowest mean over ten seconds, and when it ended."""
    groups: dict[int, _Rows] = {}
    for row in rows:
        groups.setdefault(int(row[0] // _WORST_SECONDS), []).append(row)
    whole = [group for group in groups.values() if sum(row[1] for row in group) >= _WORST_SECONDS / 2]
    means = [(mean, group[-1][0]) for group in whole or [rows] if (mean := _mean(group)) is not None]
    return min(means) if means else (None, None)
