"""What the screen knows of rules beyond a snapshot: answers, silent expiry, effects, everybody's rules."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.rule_readings import Change, RatedRule, RuleAlarms, RuleRates
from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.ruleset import ListedSet, Ruleset
from fwtop.model.traffic.counters import TcpService
from fwtop.model.traffic.flow import Flow, flow_of
from fwtop.model.traffic.snapshot import Snapshot

_OVERLAY_SECONDS = 5.0  # how long an answer of the guardian replaces older snapshots' rules
_OVERDUE_SECONDS = 1.5  # this long after its confirmation time a rule is over, whatever a snapshot says


class OptimisticOverlay(Struct):
    """The guardian's latest answers, laid over snapshots until these have caught up."""

    answers: dict[str, tuple[RuleStatus, float]] = field(default_factory=dict)

    def note(self, status: RuleStatus, now: float) -> None:
        """Keep an answer."""
        self.answers[status.rule.id] = (status, now)

    def over(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with newer answers in place of its rules."""
        if not self.answers:
            return snapshot
        known = {status.rule.id: status for status in snapshot.mitigations}
        for rule_id, (answer, since) in list(self.answers.items()):
            seen = known.get(rule_id)
            agrees = seen is not None and seen.state is answer.state
            if agrees or now - since > _OVERLAY_SECONDS:
                del self.answers[rule_id]
            elif seen is not None or answer.state in ACTIVE_STATES:
                known[rule_id] = answer
        return replace(snapshot, mitigations=tuple(known.values()))


class ExpiryWatch(Struct):
    """Notices rules that ended because nobody confirmed them; `expired` stays until a key is pressed."""

    expired: RuleStatus | None = None
    at: float = 0.0  # Unix seconds
    _waiting: dict[str, RuleStatus] = field(default_factory=dict)
    _ended: set[str] = field(default_factory=set)  # by this screen, on purpose

    def forget(self, rule_id: str) -> None:
        """Expect a rule to end: the operator removed it."""
        self._ended.add(rule_id)
        self._waiting.pop(rule_id, None)

    def has_ended(self, rule_id: str) -> bool:
        """Whether the operator knows that a rule ended: removed here, or told by the alarm."""
        return rule_id in self._ended

    def update(self, mitigations: Sequence[RuleStatus], now: float) -> None:
        """Compare with the unconfirmed rules seen before."""
        present = {status.rule.id: status for status in mitigations}
        for rule_id, before in list(self._waiting.items()):
            after = present.get(rule_id)
            overdue = before.confirm_by is not None and now > before.confirm_by + _OVERDUE_SECONDS
            if after is not None and after.state in ACTIVE_STATES:
                if after.state is State.CONFIRMED:
                    del self._waiting[rule_id]
                    continue
                if not overdue:
                    continue
            del self._waiting[rule_id]
            self._ended.add(rule_id)
            undone = after is not None and after.note.startswith("undone")
            if not undone and before.confirm_by is not None and now >= before.confirm_by - _OVERDUE_SECONDS:
                self.expired, self.at = before, min(before.confirm_by, now)
        for rule_id, status in present.items():
            if status.state is State.PROVISIONAL and rule_id not in self._ended:
                self._waiting[rule_id] = status


class MachineFigures(Struct, frozen=True):
    """Load figures of one snapshot; shares are 0 to 1."""

    flow: Flow
    conntrack_fill: float | None
    softirq_share: float | None
    tcp: TcpService | None


def _figures(snapshot: Snapshot) -> MachineFigures:
    conntrack = snapshot.conntrack
    fill = conntrack.fill if conntrack is not None and conntrack.max else None
    return MachineFigures(flow_of(snapshot) or Flow(), fill, snapshot.softirq_share, snapshot.tcp)


class RuleEffects(Struct):
    """For each active rule, the load figures of the last snapshot without it."""

    before: dict[str, MachineFigures] = field(default_factory=dict)
    now: MachineFigures | None = None
    at: float = 0.0  # the end of the window that `now` is of
    _known: frozenset[str] = frozenset()

    def take(self, snapshot: Snapshot) -> None:
        """Record a snapshot's figures; rules active in the first snapshot have no "before".

        Nor have those that were installed long after the last one: a pause, or a jump in a recording.
        """
        rules = {item.rule.id: item.rule for item in snapshot.mitigations if item.state in ACTIVE_STATES}
        active = frozenset(rules)
        if self.now is not None:
            for rule_id in active - self._known:
                if rules[rule_id].created - self.at <= 10.0:  # else they are not those before it
                    self.before[rule_id] = self.now
        for rule_id in self.before.keys() - active:
            del self.before[rule_id]
        self._known = active
        self.now, self.at = _figures(snapshot), snapshot.at


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
