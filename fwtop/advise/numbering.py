"""Numbers of proposals that do not change their meaning under the operator's finger.

A number that belonged to one rule is given to another only after it stood empty for a second, and what
is there moves up only when its new place was the better one for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

EMPTY_SECONDS = 1.0  # that a number stands empty between two rules
_BETTER_SECONDS = 2.5  # that another order must have been the better one
KEYS = 9  # numbers above have no key


@dataclass
class Numbering:
    """Remembers which rule had which number. One for each observation; not thread-safe."""

    _owners: dict[int, str] = field(default_factory=dict)  # number → rule
    _left: dict[int, tuple[str, float]] = field(default_factory=dict)  # number → its last rule, until when
    _disordered: float | None = None  # since when another order is better

    def assign(self, wanted: Sequence[str], now: float) -> list[int]:
        """Return a number for each rule, given best first; `now` in seconds of any clock."""
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
            else:  # for a moment: its place is still warm
                number, late = late, late + 1
            numbers[rule] = number
        return [numbers[rule] for rule in wanted]

    def _leave(self, number: int, now: float) -> None:
        self._left[number] = (self._owners.pop(number), now)

    def _free(self, place: int, rule: str, most: int, now: float) -> int:
        """Return the place or, where another rule stays in it, the first free number; 0 to wait for it."""
        if place not in self._owners:
            return place if self._is_open(place, rule, now) else 0
        free = (n for n in range(1, most + 1) if n not in self._owners and self._is_open(n, rule, now))
        return next(free, 0)

    def _is_open(self, number: int, rule: str, now: float) -> bool:
        before, since = self._left.get(number, (rule, now))
        return before == rule or now - since >= EMPTY_SECONDS

    def _must_reorder(self, wanted: Sequence[str], now: float) -> bool:
        """Tell whether the numbers should follow the order: it differs since long, or leaves gaps."""
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
