"""The machine's rules and sets as the Rules tab lists them: rates, what is usual, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from fwtop.analysis.rule_alarms import Change, RuleAlarms
from fwtop.analysis.rule_rates import RatedRule, RuleRates
from fwtop.model.rule import RuleStatus
from fwtop.model.ruleset import ListedSet, Ruleset

Row = RatedRule | ListedSet


class MachineRules(Struct):
    """What was last read, compared with what was read before."""

    ruleset: Ruleset | None = None  # None: not read yet
    rated: tuple[RatedRule, ...] = ()
    alarms: RuleAlarms = field(default_factory=RuleAlarms)
    _rates: RuleRates = field(default_factory=RuleRates)

    def take(self, found: Ruleset, statuses: Sequence[RuleStatus]) -> list[Change]:
        """Take a reading and fwtop's own rules; return the alarms that began or ended."""
        if self.ruleset is None or found.taken != self.ruleset.taken:
            self.ruleset, self.rated = found, self._rates.take(found)
        return self.alarms.take(self.rated, found.sets, statuses)

    def rows(self) -> list[Row]:
        """Return rules, the busiest first, and sets, those that are nearly full before all."""
        sets = self.ruleset.sets if self.ruleset is not None else ()
        full = [item for item in sets if item.nearly_full]
        rules = sorted(self.rated, key=_busy, reverse=True)
        return [*full, *rules, *(item for item in sets if not item.nearly_full)]


def _busy(item: RatedRule) -> tuple[bool, float, int]:
    return bool(item.abnormal), item.pps or 0.0, item.rule.packets or 0
