"""What readings of the machine's rules tell: rates, what is wrong with rules and sets, and what changed.

What is usual of a rule is the median of its last rates, and how far they scatter the median absolute
deviation, which a short attack doesn't move (Rousseeuw and Croux, 1993). A rule is abnormal once several
rates in a row lie outside, and usual again once several lie well inside. Abnormal rates aren't learned for a
while, so that a long attack doesn't become usual at once.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec import Struct, field

from fwtop.model.rule import ACTIVE_STATES, RuleStatus
from fwtop.model.ruleset import (
    COMPARED,
    IPSET,
    IPTABLES_LEGACY,
    IPTABLES_NFT,
    NFT,
    OTHERS,
    OURS,
    TC,
    XDP,
    ListedRule,
    ListedSet,
    RuleEvent,
    Ruleset,
)
from fwtop.model.text import PLACEHOLDER
from fwtop.render.observation import quantity, where

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
        track = self._tracks.get(rule.key)
        if rule.packets is None or old is None or old.packets is None or rule.packets < old.packets:
            return RatedRule(rule, history=tuple(track.rates) if track else ())  # it was set to zero
        pps = (rule.packets - old.packets) / seconds
        bps = None
        if rule.bytes is not None and old.bytes is not None:
            bps = max(0, rule.bytes - old.bytes) / seconds
        if track is None:
            if not pps:
                return RatedRule(rule, pps, bps)
            track = self._tracks[rule.key] = _Track()
            for _ in range(min(self._readings - 1, HISTORY)):  # of a rule that did nothing so far
                track.add(0.0)
        track.add(pps)
        return RatedRule(rule, pps, bps, tuple(track.rates), track.usual(), track.abnormal)


RATE_HIGH, RATE_LOW, SET_FULL, NOT_ACTING = "rate_high", "rate_low", "set_nearly_full", "not_in_effect"
_STILL_FULL = 0.85  # of its size: a set that was nearly full is so until it holds less
_TEXT = 80  # characters of a rule
_LEADING = re.compile(r"(?:^| )(?:-[jg] FWTOP|jump |goto )|^-i lo ")


class RuleAlarm(Struct, frozen=True):
    """Something that is wrong."""

    kind: str
    key: str  # what it is about
    text: str
    mend: str  # a command; "" where none can be told


class Change(Struct, frozen=True):
    """An alarm that began or ended."""

    began: bool
    alarm: RuleAlarm


class RuleAlarms:
    """Compares each reading with the alarms that are on."""

    def __init__(self) -> None:
        self.active: dict[tuple[str, str], RuleAlarm] = {}

    def take(
        self, rated: Iterable[RatedRule], sets: Sequence[ListedSet], statuses: Iterable[RuleStatus] = ()
    ) -> list[Change]:
        """Return what began and what ended; what is still on keeps its first words."""
        found = {(alarm.kind, alarm.key): alarm for alarm in self._found(rated, sets, statuses)}
        began = [Change(True, alarm) for name, alarm in found.items() if name not in self.active]
        ended = [Change(False, alarm) for name, alarm in self.active.items() if name not in found]
        self.active = {name: self.active.get(name, alarm) for name, alarm in found.items()}
        return [*began, *ended]

    def _found(
        self, rated: Iterable[RatedRule], sets: Iterable[ListedSet], statuses: Iterable[RuleStatus]
    ) -> Iterable[RuleAlarm]:
        for item in rated:
            # Lines of fwtop's that lead packets on count all traffic: with it, all count more at once
            leads = item.rule.ours and (item.rule.source in (XDP, TC) or _LEADING.search(item.rule.text))
            if item.abnormal and not leads:
                yield rate_alarm(item)
        for listed in sets:
            was_on = (SET_FULL, listed.key) in self.active
            if listed.nearly_full or (was_on and (listed.fill or 0.0) >= _STILL_FULL):
                yield set_alarm(listed)
        for status in statuses:
            if status.state in ACTIVE_STATES and not status.acting:
                rule_id = status.rule.id
                text = f"rule {rule_id} is not in effect: {status.not_acting}"
                yield RuleAlarm(NOT_ACTING, rule_id, text, f"fwtop repair {rule_id}")


def rate_alarm(item: RatedRule) -> RuleAlarm:
    """Describe a rule whose rate is not what it usually is."""
    rule = item.rule
    rates = f"{quantity(item.pps)} packets a second, usually {quantity(item.usual)}"
    text = f"{where(rule)}: {rule.text[:_TEXT]} counts {rates}"
    return RuleAlarm(RATE_HIGH if item.abnormal == "high" else RATE_LOW, rule.key, text, _look(rule))


def set_alarm(item: ListedSet) -> RuleAlarm:
    """Describe a set that will soon refuse entries."""
    fill = 100 * (item.fill or 0.0)
    text = f"{item.source} set {item.name} is {fill:.0f} % full: {item.entries:,} of {item.size:,} entries"
    return RuleAlarm(SET_FULL, item.key, text, _enlarge(item))


def _look(rule: ListedRule) -> str:
    """Return the command that lists what stands before a rule in its chain."""
    words = rule.place.split(" ")
    if len(words) != 2 or not _is_whole(rule.place):
        return ""
    table, chain = words
    if rule.source in (IPTABLES_LEGACY, IPTABLES_NFT):
        program = "iptables" if rule.family == "ip" else "ip6tables"
        variant = "legacy" if rule.source == IPTABLES_LEGACY else "nft"
        return f"{program}-{variant} -t {shlex.quote(table)} -nvL {shlex.quote(chain)}"
    if rule.source == NFT:
        return f"nft list chain {rule.family} {shlex.quote(table)} {shlex.quote(chain)}"
    return ""


def _enlarge(item: ListedSet) -> str:
    """Return the command that makes room: the kernel can't enlarge a set, but swaps in a larger one."""
    if item.source != IPSET or not item.size or not _is_whole(item.name):
        return ""
    copy = f"{item.name[:26]}-more"
    pattern = re.sub(r"([\\.*\[\]^$/&])", r"\\\1", item.name)
    target = re.sub(r"([\\/&])", r"\\\1", copy)
    renaming = shlex.quote(f"s/^\\(create\\|add\\) {pattern} /\\1 {target} /")
    name, larger = shlex.quote(item.name), shlex.quote(copy)
    return (
        f"ipset save {name} | sed -e 's/maxelem {item.size}/maxelem {2 * item.size}/' -e {renaming} "
        f"| ipset restore && ipset swap {larger} {name} && ipset destroy {larger}"
    )


def _is_whole(name: str) -> bool:
    """Say whether a name is as the kernel has it: nothing in it was replaced or cut."""
    return PLACEHOLDER not in name and "…" not in name and " -" not in name and not name.startswith("-")


_MOST = 1000  # events of a comparison
Listed = TypeVar("Listed", ListedRule, ListedSet)


def changes(before: Ruleset, after: Ruleset, notified: Collection[str]) -> list[RuleEvent]:
    """Return what was added, removed or changed in the sources that are not in `notified`.

    Counters don't count as a change. A rule set that was cut shows only what both readings hold.
    """
    found = []
    for old, new, item in _paired(before.rules, after.rules, notified):
        if old is None or new is None or old.text != new.text:
            event = "rule_added" if old is None else "rule_removed" if new is None else "rule_changed"
            found.append(_event(event, item, after.taken, {}))
    for was, now, listed in _paired(before.sets, after.sets, notified):
        if was is None or now is None:
            found.append(_event("set_added" if was is None else "set_removed", listed, after.taken, {}))
        elif (was.type, was.size) != (now.type, now.size):
            found.append(_event("set_replaced", now, after.taken, {}))
        elif was.entries != now.entries:
            found.append(_event("set_changed", now, after.taken, {"entries_before": was.entries}))
    if len(found) > _MOST:
        more = {"count": len(found) - _MOST}
        found[_MOST:] = [RuleEvent(after.taken, "more_changes", COMPARED, about=more)]
    return found


def _paired(
    before: Iterable[Listed], after: Iterable[Listed], notified: Collection[str]
) -> Iterator[tuple[Listed | None, Listed | None, Listed]]:
    """Yield what stands under each key now, with what stood there; then what is gone."""
    old = {item.key: item for item in before if item.source not in notified}
    new = {item.key: item for item in after if item.source not in notified}
    yield from ((old.get(key), item, item) for key, item in new.items())
    yield from ((item, None, item) for key, item in old.items() if key not in new)


def _event(event: str, item: ListedRule | ListedSet, at: float, more: dict[str, Any]) -> RuleEvent:
    about: dict[str, Any]
    if isinstance(item, ListedRule):
        about = {"family": item.family, "place": item.place, "rule": item.text}
    else:
        about = {"family": item.family, "name": item.name, "type": item.type, "entries": item.entries}
    about |= {"key": item.key, **more}
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
        for change in self._alarms.take(self._rates.take(found), found.sets, statuses):
            alarm = change.alarm
            about = {"id": f"{alarm.kind} {alarm.key}", "kind": alarm.kind, "text": alarm.text}
            about |= {"mend": alarm.mend} if change.began else {}
            event = "alarm" if change.began else "alarm_over"
            events.append(RuleEvent(found.taken, event, COMPARED, about=about))
        return events
