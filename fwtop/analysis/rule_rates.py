"""Counters of listed rules as rates: now, over the last minutes, and what is usual for each.

What is usual is the median of the last rates, and how far they scatter the median absolute deviation, which
a short attack doesn't move (Rousseeuw and Croux, 1993). A rule is abnormal once several rates in a row lie
outside, and usual again once several lie well inside. Abnormal rates aren't learned for a while, so that a
long attack doesn't become usual at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from fwtop.model.ruleset import ListedRule, Ruleset

HISTORY = 60  # rates that are kept of each rule
LEARN = 12  # rates until something is usual
IN_A_ROW = 3  # rates outside until a rule is abnormal, and inside until it is not any more
_SCATTER = 6 * 1.4826  # deviations; 1.4826 makes the MAD a standard deviation of normal noise
_LEAST_PPS = 50.0  # more than usual, or less: smaller changes don't matter
_MOST_GROWTH = 3.0  # times the usual rate are never abnormal below that
_GONE = 0.1  # of the usual rate
_UNLEARNED = 300  # rates that a rule may stay abnormal before these are learned


def median(values: Iterable[float]) -> float:
    """Return the median of one or more values; importing `statistics` for it takes half a MiB."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2


class RatedRule(Struct, frozen=True):
    """A rule with its rates; they are None until two readings have been compared."""

    rule: ListedRule
    pps: float | None = None
    bps: float | None = None  # bytes a second
    history: tuple[float, ...] = ()  # packets a second, the newest last
    usual: float | None = None  # packets a second; None: not known yet
    abnormal: str = ""  # "high", "low"


class _Track(Struct):
    """What is remembered of a rule."""

    rates: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))  # for the eye
    learned: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    abnormal: str = ""
    outside: int = 0  # rates in a row that speak for a change
    unlearned: int = 0

    def add(self, rate: float) -> None:
        """Take the next rate and judge it by those before."""
        self.rates.append(rate)
        side = self._side(rate)
        changes = side != self.abnormal
        self.outside = self.outside + 1 if changes else 0
        if self.outside >= IN_A_ROW:
            self.abnormal, self.outside, self.unlearned = side, 0, 0
        if side or self.abnormal:
            self.unlearned += 1
            if self.unlearned <= _UNLEARNED:
                return
            self.abnormal, self.outside, self.unlearned = "", 0, 0
            self.learned.clear()  # it has become another rule
        self.learned.append(rate)

    def usual(self) -> float | None:
        """Return the usual rate, None until enough was seen."""
        return median(self.learned) if len(self.learned) >= LEARN else None

    def _side(self, rate: float) -> str:
        """Say on which side of what is usual a rate lies; a rule that is abnormal must come back farther."""
        usual = self.usual()
        if usual is None:
            return ""
        scatter = _SCATTER * median(abs(value - usual) for value in self.learned)
        upper = max(usual + scatter, usual * _MOST_GROWTH, usual + _LEAST_PPS)
        lower = min(usual - scatter, usual * _GONE)
        if self.abnormal == "high":
            upper = (usual + upper) / 2
        if self.abnormal == "low":
            lower = (usual + max(lower, 0.0)) / 2
        if rate > upper:
            return "high"
        return "low" if rate < lower and usual >= _LEAST_PPS else ""


class RuleRates:
    """Compares each reading with the one before."""

    def __init__(self) -> None:
        self._before: dict[str, ListedRule] = {}
        self._taken = 0.0
        self._tracks: dict[str, _Track] = {}  # of rules that ever counted something here
        self._readings = 0  # compared so far

    def take(self, ruleset: Ruleset) -> tuple[RatedRule, ...]:
        """Return the rules with their rates, in the order of the reading."""
        seconds = ruleset.taken - self._taken
        before, compared = self._before, self._taken > 0 and seconds > 0
        self._before = {rule.key: rule for rule in ruleset.rules}
        self._taken = ruleset.taken
        self._tracks = {key: track for key, track in self._tracks.items() if key in self._before}
        self._readings += compared
        return tuple(
            self._rated(rule, before.get(rule.key) if compared else None, seconds) for rule in ruleset.rules
        )

    def _rated(self, rule: ListedRule, old: ListedRule | None, seconds: float) -> RatedRule:
        if rule.packets is None or old is None or old.packets is None or rule.packets < old.packets:
            track = self._tracks.get(rule.key)  # its counters were set to zero
            return RatedRule(rule, history=tuple(track.rates)) if track else RatedRule(rule)
        pps = (rule.packets - old.packets) / seconds
        bps = None
        if rule.bytes is not None and old.bytes is not None:
            bps = max(0, rule.bytes - old.bytes) / seconds
        track = self._tracks.get(rule.key)
        if track is None:
            if not pps:
                return RatedRule(rule, pps, bps)
            track = self._tracks[rule.key] = _Track()
            for _ in range(min(self._readings - 1, HISTORY)):  # of a rule that did nothing so far
                track.add(0.0)
        track.add(pps)
        return RatedRule(rule, pps, bps, tuple(track.rates), track.usual(), track.abnormal)
