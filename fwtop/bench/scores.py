"""The arithmetic of accuracy: what was found, covered, named and matched. No packets, no processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

TOP = 20
_SAMPLES = 10
_STEP = 2e-6  # shares are printed with six decimals


@dataclass(frozen=True, slots=True)
class Recall:
    """How many of the true greatest were shown among the first."""

    found: int
    wanted: int
    missed: tuple[str, ...] = ()


def top_recall(true: Mapping[str, int], shown: Sequence[str], one_in: float, top: int = TOP) -> Recall:
    """Compare the first `top` shown with the true `top`, as far as a sample of 1 in `one_in` can tell.

    Asked for are sources of which ten samples are to be expected. What is as great as the least of those
    counts as well as that one (ties), and so does what the sample can't tell from it: within two standard
    errors of the difference.
    """
    resolved = _SAMPLES * one_in if one_in > 1 else 0.0
    ranked = sorted(
        ((key, count) for key, count in true.items() if count >= resolved), key=lambda item: -item[1]
    )
    wanted = min(top, len(ranked))
    if not wanted:
        return Recall(0, 0)
    least = ranked[wanted - 1][1]
    blur = 2 * sqrt(2 * least * max(0.0, one_in - 1))
    first = set(shown[:top])
    good = sum(1 for key in first if true.get(key, 0) >= max(1.0, least - blur))
    missed = tuple(key for key, _ in ranked[:wanted] if key not in first)
    return Recall(min(good, wanted), wanted, missed[: wanted - min(good, wanted)])


def strict_recall(true: Mapping[str, int], shown: Sequence[str], top: int = TOP) -> Recall:
    """Compare the first `top` shown with the true `top`; equal counts are as good as each other."""
    return top_recall(true, shown, 1.0, top)


@dataclass(frozen=True, slots=True)
class Interval:
    """A shown share with its 95 % interval, beside the true one."""

    name: str
    low: float
    high: float
    true: float

    @property
    def is_exact(self) -> bool:
        """Whether fwtop claims certainty: no width but rounding."""
        return self.high - self.low <= 2 * _STEP

    def covers(self, slack: float = 0.0) -> bool:
        """Whether the truth lies within, give or take `slack` (a share)."""
        return self.low - _STEP - slack <= self.true <= self.high + _STEP + slack


def coverage(intervals: Sequence[Interval], slack: float = 0.0) -> float | None:
    """Return the share of intervals that cover their truth; None of none."""
    if not intervals:
        return None
    return sum(interval.covers(slack) for interval in intervals) / len(intervals)


def relative_difference(seen: float, true: float) -> float:
    """Return how far off a count is, as a share of the truth."""
    return abs(seen - true) / true if true else float(seen != 0)


def named_rightly(expected: Sequence[str], seen: Sequence[str]) -> float:
    """Return the share of kinds that are both there and named, of those that are either."""
    either = set(expected) | set(seen)
    return len(set(expected) & set(seen)) / len(either) if either else 1.0


@dataclass(frozen=True, slots=True)
class Signature:
    """Bytes at an offset of the transport payload (None: anywhere)."""

    data: bytes
    offset: int | None

    def is_in(self, payload: bytes) -> bool:
        """Whether a payload holds it."""
        if self.offset is None:
            return self.data in payload
        return payload[self.offset : self.offset + len(self.data)] == self.data


def matched(signatures: Sequence[Signature], payloads: Sequence[bytes]) -> float:
    """Return the share of payloads that any of the signatures is in."""
    if not payloads:
        return 0.0
    return sum(any(one.is_in(payload) for one in signatures) for payload in payloads) / len(payloads)
