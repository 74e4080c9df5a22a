"""A cache of proposals that lasts while the attacks don't change, and stable proposal numbers.

A number is reassigned to another rule only after it was unused for a second, and rules are
renumbered only after another order was better for a few seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.proposals.normal import Normal
from fwtop.analysis.proposals.propose import Offer
from fwtop.analysis.proposals.signatures import Signature
from fwtop.model.rule import Rule

_KEEP_SECONDS = 2.5  # at one judgement per second, two of three use the cache
_SHARE = 0.05  # of all packets: a larger change renews the proposals
_FACTOR = 1.25  # a larger change of the rate renews the proposals


class Fingerprint(Struct, frozen=True):
    """A coarse summary of what proposals depend on: attacks, their size, the baseline, and active rules."""

    attacks: Mapping[str, tuple[float, float, bool]]  # key → share, packets per second, spoofed
    guess: bool
    overloaded: bool  # packets are lost before any rule, or the link is full
    rules: frozenset[str] = frozenset()  # ids of the active ones

    @staticmethod
    def of(
        context: AnalysisContext, normal: Normal, rules: Iterable[Rule] = (), *, overloaded: bool
    ) -> Fingerprint:
        """Summarise a classified context and the rules that are active."""
        forged = context.config.spoof_threshold
        attacks = {
            finding.key: (
                context.traffic.share(finding.rows),
                context.traffic.pps(finding.rows),
                finding.spoof.probability > forged,
            )
            for finding in context.findings
        }
        return Fingerprint(attacks, normal.guess, overloaded, frozenset(rule.id for rule in rules))

    def resembles(self, other: Fingerprint) -> bool:
        """Check whether the same proposals apply."""
        if (self.guess, self.overloaded, self.rules) != (other.guess, other.overloaded, other.rules):
            return False
        if self.attacks.keys() != other.attacks.keys():
            return False
        return all(_alike(one, other.attacks[key]) for key, one in self.attacks.items())


def _alike(one: tuple[float, float, bool], other: tuple[float, float, bool]) -> bool:
    low, high = sorted((one[1], other[1]))
    return one[2] == other[2] and abs(one[0] - other[0]) <= _SHARE and high <= _FACTOR * low + 1.0


class Advice(Struct, frozen=True):
    """The proposals made for a fingerprint at a time (Unix seconds)."""

    fingerprint: Fingerprint
    made: float
    normal: Normal
    found: Mapping[str, Sequence[Signature]]
    offered: Sequence[Offer]

    def holds(self, fingerprint: Fingerprint, now: float) -> bool:
        """Check whether the proposals are still valid."""
        return 0 <= now - self.made < _KEEP_SECONDS and self.fingerprint.resembles(fingerprint)


EMPTY_SECONDS = 1.0  # that a number stays unused between two rules
_BETTER_SECONDS = 2.5  # for which another order must have been better
KEYS = 9  # numbers above have no key


class StableNumbers(Struct):
    """Assigns each rule a number that it keeps. One per observation; not thread-safe."""

    _owners: dict[int, str] = field(default_factory=dict)  # number → rule
    _left: dict[int, tuple[str, float]] = field(default_factory=dict)  # number → its last rule, until when
    _disordered: float | None = None  # since when another order is better

    def assign(self, wanted: Sequence[str], now: float) -> list[int]:
        """Return a number for each rule, best rule first; `now` in seconds of any clock."""
        for number, rule in list(self._owners.items()):
            if rule not in wanted:
                self._leave(number, now)
        if self._must_reorder(wanted, now):
            for number, rule in list(self._owners.items()):
                if wanted.index(rule) + 1 != number:
                    self._leave(number, now)
        numbers: dict[str, int] = {rule: number for number, rule in self._owners.items()}
        late = max([KEYS, len(wanted), *self._owners]) + 1
        for place, rule in enumerate(wanted, 1):
            if rule in numbers:
                continue
            number = self._free(place, rule, len(wanted), now)
            if number:
                self._owners[number] = rule
            else:  # its place was used too recently
                number, late = late, late + 1
            numbers[rule] = number
        return [numbers[rule] for rule in wanted]

    def _leave(self, number: int, now: float) -> None:
        self._left[number] = (self._owners.pop(number), now)

    def _free(self, place: int, rule: str, most: int, now: float) -> int:
        """Return the place or, if another rule has it, the first free number; 0: wait for it."""
        if place not in self._owners:
            return place if self._is_open(place, rule, now) else 0
        free = (n for n in range(1, most + 1) if n not in self._owners and self._is_open(n, rule, now))
        return next(free, 0)

    def _is_open(self, number: int, rule: str, now: float) -> bool:
        before, since = self._left.get(number, (rule, now))
        return before == rule or now - since >= EMPTY_SECONDS

    def _must_reorder(self, wanted: Sequence[str], now: float) -> bool:
        """Check whether to renumber: the order has differed long enough, or there are gaps."""
        has = [rule for _, rule in sorted(self._owners.items())]
        no_gap = max(self._owners, default=0) <= len(wanted)
        if no_gap and has == [rule for rule in wanted if rule in has]:
            self._disordered = None
            return False
        self._disordered = now if self._disordered is None else self._disordered
        if now - self._disordered < _BETTER_SECONDS:
            return False
        self._disordered = None
        return True
