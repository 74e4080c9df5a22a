"""How automatic rules do: what a rule drops, and whether its attack goes on."""

from __future__ import annotations

from msgspec import Struct

from fwtop.model.rule import Rule, RuleStatus
from fwtop.model.traffic.snapshot import Snapshot

CONFIRM_SLACK_SECONDS = 20.0  # that a trial may last longer, should the decision come late
_EFFECT = 0.2  # of the predicted packets that a rule must have dropped in its best second
_OVER_SECONDS = 1.5  # a rule's rate is of its last second
_RETRIES = 0.1  # of its best rate: an attack that goes on sends more
_ON = 0.5  # of the predicted packets that an attack must send to count as on: its window outlasts a pulse


class Trial(Struct):
    """One of the rules since it was first seen."""

    began: float
    attack: int = 0  # id of the incident that it was installed against; 0: not known, so always on
    part: float = 0.0  # of the attack's packets that it was predicted to drop; 0 for a list of sources
    left: float = 1.0  # of the attack's packets that firewalls still passed when it was installed
    proven: bool = False  # its sources have shown a return path: what they still send is no client's retry
    best_pps: float = 0.0
    over_since: float | None = None  # since when its attack sends nothing; None: it is on
    dropped_at: float = 0.0
    attacked_seconds: float = 0.0  # during which its attack was on
    seen_at: float | None = None
    is_judged: bool = False  # nothing more is to be decided of its effect
    asked_until: float = 0.0  # to be kept or taken back: the answer is on its way until then

    def note(self, status: RuleStatus, snapshot: Snapshot, now: float) -> None:
        """Remember an observation."""
        if status.pps > 0:
            self.dropped_at, self.best_pps = now, max(self.best_pps, status.pps)
        is_known = not snapshot.judgement.not_judged
        attacks = snapshot.judgement.harmful
        if is_known and any(one.is_on and self.attack in (0, one.id) for one in attacks):
            self.over_since = None
        elif is_known:
            self.over_since = self.over_since or now
        if self.seen_at is not None and is_known and self._is_on(status.rule, snapshot):
            self.attacked_seconds += max(now - self.seen_at, 0.0)
        self.seen_at = now

    def _is_effective(self, rule: Rule) -> bool:
        """Test whether it has dropped what may be expected."""
        return self.best_pps >= max(_EFFECT * self.left * (rule.predicted_pps or 0.0), 1.0)

    def has_only_retries(self, status: RuleStatus, now: float) -> bool:
        """Test whether its attack is over, and it meets no more than clients and their retries."""
        is_over = self.over_since is not None and now - self.over_since >= _OVER_SECONDS
        return is_over and not self.proven and 0.0 < status.pps <= _RETRIES * self.best_pps

    def outcome(self, rule: Rule, seconds: float, now: float) -> str:
        """Return "works", "fails", "waits" or "" (not yet), by so many seconds of its attack.

        It waits if the attack pauses and the trial can't last longer.
        """
        age = now - self.began
        if age < seconds:
            return ""
        if self._is_effective(rule):
            return "works"
        if self.attacked_seconds >= seconds:
            return "fails"
        return "waits" if age >= seconds + CONFIRM_SLACK_SECONDS / 2 else ""

    def _is_on(self, rule: Rule, snapshot: Snapshot) -> bool:
        if not self.attack:
            return True
        least = _ON * (rule.predicted_pps or 0.0)
        attacks = snapshot.judgement.attacks
        return any(one.id == self.attack and one.is_on and one.pps >= least for one in attacks)
