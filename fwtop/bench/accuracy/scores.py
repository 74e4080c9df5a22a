"""Scores: recall, coverage of intervals, names, signature matches. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

from msgspec import Struct

TOP = 20
_SAMPLES = 10
_STEP = 2e-6  # shares are printed with six decimals


class Recall(Struct, frozen=True):
    """How many of the true top entries were shown first."""

    found: int
    wanted: int
    missed: tuple[str, ...] = ()


def top_recall(true: Mapping[str, int], shown: Sequence[str], one_in: float, top: int = TOP) -> Recall:
    """Compare the first `top` shown with the true `top`, within the resolution of 1-in-`one_in` sampling.

    Only sources with at least ten expected samples are required. A source as large as the smallest required
    one counts in its place (ties), and so does one within two standard errors of it.
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
    """Compare the first `top` shown with the true `top`; ties are interchangeable."""
    return top_recall(true, shown, 1.0, top)


class Interval(Struct, frozen=True):
    """The 95 % interval of a shown share, and the true share."""

    name: str
    low: float
    high: float
    true: float

    @property
    def is_exact(self) -> bool:
        """Whether the share is presented as exact: the interval is no wider than rounding."""
        return self.high - self.low <= 2 * _STEP

    def covers(self, slack: float = 0.0) -> bool:
        """Whether the true share is within the interval, plus or minus `slack`."""
        return self.low - _STEP - slack <= self.true <= self.high + _STEP + slack


def coverage(intervals: Sequence[Interval], slack: float = 0.0) -> float | None:
    """Return the share of intervals that cover the true value; None for an empty list."""
    if not intervals:
        return None
    return sum(interval.covers(slack) for interval in intervals) / len(intervals)


def relative_difference(seen: float, true: float) -> float:
    """Return |seen - true| / true; for a true 0, 1 if anything was seen."""
    return abs(seen - true) / true if true else float(seen != 0)


def named_rightly(expected: Sequence[str], seen: Sequence[str]) -> float:
    """Return the Jaccard index of expected and named kinds."""
    either = set(expected) | set(seen)
    return len(set(expected) & set(seen)) / len(either) if either else 1.0


class Signature(Struct, frozen=True):
    """Bytes at an offset of the transport payload (None: anywhere)."""

    data: bytes
    offset: int | None

    def is_in(self, payload: bytes) -> bool:
        """Whether a payload contains the bytes, at the offset if there is one."""
        if self.offset is None:
            return self.data in payload
        return payload[self.offset : self.offset + len(self.data)] == self.data


def matched(signatures: Sequence[Signature], payloads: Sequence[bytes]) -> float:
    """Return the share of payloads that contain any of the signatures."""
    if not payloads:
        return 0.0
    return sum(any(one.is_in(payload) for one in signatures) for payload in payloads) / len(payloads)
