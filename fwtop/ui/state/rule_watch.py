"""What the screen knows of rules beyond a snapshot: fresh answers and silent expiry."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
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
