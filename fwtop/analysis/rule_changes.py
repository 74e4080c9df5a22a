"""What changed between two readings of the rule set, for whatever the kernel doesn't notify of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from fwtop.analysis.rule_alarms import Change, RuleAlarms
from fwtop.analysis.rule_rates import RuleRates
from fwtop.model.rule import RuleStatus
from fwtop.model.ruleset import COMPARED, OTHERS, OURS, ListedRule, ListedSet, RuleEvent, Ruleset

_MOST = 1000  # events of a comparison


def changes(before: Ruleset, after: Ruleset, notified: Collection[str]) -> list[RuleEvent]:
    """Return what was added, removed or changed in the sources that are not in `notified`.

    Counters don't count as a change. A rule set that was cut shows only what both readings hold.
    """
    found: list[RuleEvent] = []
    more = 0
    for event in _all(before, after, notified):
        if len(found) < _MOST:
            found.append(event)
        else:
            more += 1
    if more:
        found.append(RuleEvent(after.taken, "more_changes", COMPARED, about={"count": more}))
    return found


def _all(before: Ruleset, after: Ruleset, notified: Collection[str]) -> Iterator[RuleEvent]:
    old = {rule.key: rule for rule in before.rules if rule.source not in notified}
    new = {rule.key: rule for rule in after.rules if rule.source not in notified}
    for key, rule in new.items():
        if key not in old:
            yield _rule_event("rule_added", rule, after.taken)
        elif rule.text != old[key].text:
            yield _rule_event("rule_changed", rule, after.taken)
    for key, rule in old.items():
        if key not in new:
            yield _rule_event("rule_removed", rule, after.taken)
    yield from _sets(before, after, notified)


def _sets(before: Ruleset, after: Ruleset, notified: Collection[str]) -> Iterator[RuleEvent]:
    old = {item.key: item for item in before.sets if item.source not in notified}
    new = {item.key: item for item in after.sets if item.source not in notified}
    for key, item in new.items():
        if key not in old:
            yield _set_event("set_added", item, after.taken)
        elif (item.type, item.size) != (old[key].type, old[key].size):
            yield _set_event("set_replaced", item, after.taken)
        elif item.entries != old[key].entries:
            yield _set_event("set_changed", item, after.taken, entries_before=old[key].entries)
    for key, item in old.items():
        if key not in new:
            yield _set_event("set_removed", item, after.taken)


def _rule_event(event: str, rule: ListedRule, at: float) -> RuleEvent:
    about = {"family": rule.family, "place": rule.place, "rule": rule.text}
    return RuleEvent(at, event, COMPARED, OURS if rule.ours else OTHERS, rule.source, about)


def _set_event(event: str, item: ListedSet, at: float, **more: Any) -> RuleEvent:  # noqa: ANN401 - JSON values
    about = {"family": item.family, "name": item.name, "type": item.type, "entries": item.entries, **more}
    return RuleEvent(at, event, COMPARED, OURS if item.ours else OTHERS, item.source, about)


class RuleChanges:
    """Compares each reading with the one before: what changed, and what is wrong."""

    def __init__(self, notified: Collection[str]) -> None:
        """Leave out changes in sources of which the kernel notifies."""
        self._notified = notified
        self._before: Ruleset | None = None
        self._rates = RuleRates()
        self._alarms = RuleAlarms()

    def take(self, found: Ruleset, statuses: Iterable[RuleStatus]) -> list[RuleEvent]:
        """Return the events of a reading and of fwtop's own rules; a first reading has alarms only."""
        events = changes(self._before, found, self._notified) if self._before is not None else []
        self._before = found
        alarms = self._alarms.take(self._rates.take(found), found.sets, statuses)
        return [*events, *(_alarm_event(change, found.taken) for change in alarms)]


def _alarm_event(change: Change, at: float) -> RuleEvent:
    alarm = change.alarm
    about = {"kind": alarm.kind, "text": alarm.text}
    if change.began:
        about["mend"] = alarm.mend
    return RuleEvent(at, "alarm" if change.began else "alarm_over", COMPARED, about=about)
