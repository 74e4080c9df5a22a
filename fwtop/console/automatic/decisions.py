"""What to install, keep and take back, decided from snapshots and the policy alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import fmean

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.console.automatic import Policy
from fwtop.model.console_scope import maker
from fwtop.model.rule import ACTIVE_STATES, Rule, RuleStatus, State
from fwtop.model.traffic.session import NOTICED, STOPPED
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident, Proposal, Snapshot
from fwtop.render.numbers import percent

CREATED_BY = "automatic"
_SETTLE_SECONDS = 4.5  # until a window shows only what came after a rule: one more for the same attack then
_SEEN_SECONDS = 3.0  # until a change that the guardian made is in snapshots
_ANSWER_SECONDS = 60.0  # after which the guardian will not answer
_AGAIN_SECONDS = 600.0  # until a rule that was wrong or refused is tried again
_UNABLE_SECONDS = 10.0
_WATCHED_SECONDS = 60.0  # after that a loss of clients is no longer the rule's doing
_IDLE_SECONDS = 60.0  # a rule that drops nothing for so long is not renewed
_RENEWED = 0.2  # of its time to live that is left when a rule is renewed
_LARGE_PART, _SAME_PART = 0.55, 0.04  # of an attack
_LASTING = 0.3  # of an attack that header fields may stop less than a list: the next pulse has new sources


class Decision(Struct, frozen=True):
    """`verb`: install, keep or undo; `why` is the rest of a sentence that begins with the rule."""

    verb: str
    rule: Rule
    why: str
    attack: int = 0  # id of the incident that it is installed against
    part: float = 0.0  # of that attack's packets that it is predicted to drop; 0 for a list of sources
    left: float = 1.0  # of that attack's packets that firewalls still pass


class Decider:
    """Remembers rules and attacks between snapshots. Not for several threads."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._clients = Handshakes()
        self._watched: dict[str, Trial] = {}
        self._settling: dict[int, float] = {}  # attack → when another rule may follow
        self._asked: dict[tuple[object, ...], tuple[float, Decision]] = {}  # rule → until it is seen
        self._barred: dict[tuple[object, ...], float] = {}  # rule → until when
        self._told: dict[int, float] = {}  # attack → until when it is known that nothing is done
        self.unable: list[tuple[str, str]] = []  # kinds of attacks, and why nothing is done; for the reader

    def next(self, snapshot: Snapshot) -> list[Decision]:
        """Return the decisions due now."""
        now = snapshot.at
        self._clients.note(snapshot)
        active = [status for status in snapshot.mitigations if status.state in ACTIVE_STATES]
        own = [status for status in active if maker(status.rule) == CREATED_BY]
        ids = {status.rule.id for status in own}
        self._watched = {name: watch for name, watch in self._watched.items() if name in ids}
        self._settling = {key: until for key, until in self._settling.items() if until > now}
        self._barred = {key: until for key, until in self._barred.items() if until > now}
        self._asked = {key: asked for key, asked in self._asked.items() if asked[0] > now}
        for status in own:
            self._watch(status, now).note(status, snapshot, now)
        found = [decision for status in own for decision in self._review(status, now)]
        for decision in found:
            self._watched[decision.rule.id].asked_until = now + _ANSWER_SECONDS
        room = self._policy.most_rules - len(own) - len(self._settling)
        if room > 0 and not snapshot.judgement.not_judged:
            found += list(self._installs(snapshot, active, now))[:room]
        for decision in found:
            if decision.verb == "undo":
                self.bar(decision.rule, now)
        return found

    def bar(self, rule: Rule, now: float) -> None:
        """Block this rule for some time: it was refused, or wrong."""
        self._barred[_identity(rule)] = now + _AGAIN_SECONDS

    def answered(self, decision: Decision, now: float, *, is_refused: bool) -> None:
        """Take the guardian's answer: from now on, a window shows what a new rule does."""
        if decision.verb != "install":
            if decision.rule.id in self._watched:
                self._watched[decision.rule.id].asked_until = now + _SEEN_SECONDS
            return
        self._settling[decision.attack] = now + _SETTLE_SECONDS
        self._asked[_identity(decision.rule)] = (now + _SETTLE_SECONDS, decision)
        if is_refused:
            self.bar(decision.rule, now)

    def _watch(self, status: RuleStatus, now: float) -> Trial:
        """Return how a rule does; one that an earlier recording has kept needs no decision."""
        if status.rule.id not in self._watched:
            is_fresh = status.state is State.PROVISIONAL
            _, asked = self._asked.get(_identity(status.rule), (now, None))
            attack, part, left = (
                (asked.attack, asked.part, asked.left) if asked is not None else (0, 0.0, 1.0)
            )
            before = self._clients.recent() if is_fresh else None
            self._watched[status.rule.id] = Trial(now, before, attack, part, left, is_judged=not is_fresh)
        return self._watched[status.rule.id]

    def _review(self, status: RuleStatus, now: float) -> Iterator[Decision]:
        """Judge one of the rules: wrong, of use, or to be renewed."""
        rule, policy, trial = status.rule, self._policy, self._watched[status.rule.id]
        if now < trial.asked_until:
            return
        age = now - trial.began
        loss = self._clients.loss(trial.before) if _RECENT_SECONDS < age < _WATCHED_SECONDS else 0.0
        if loss > policy.lost_handshakes:
            yield Decision("undo", rule, f"is taken back: clients lost {percent(loss)} of their handshakes")
        elif not trial.is_judged:
            yield from self._verdict(status, trial, now)
        elif status.expires is not None and status.state is State.CONFIRMED:
            due = status.expires - now < _RENEWED * policy.ttl_seconds
            if due and now - trial.dropped_at < _IDLE_SECONDS:
                yield Decision("keep", rule, "is renewed: it still drops packets")

    def _verdict(self, status: RuleStatus, trial: Trial, now: float) -> Iterator[Decision]:
        """Decide at the end of a trial; one whose attack has paused goes on when that is back."""
        rule = status.rule
        is_kept = status.state is State.CONFIRMED
        outcome = trial.outcome(rule, self._policy.trial_seconds, now)
        trial.is_judged = outcome in ("works", "fails")
        if outcome == "fails":
            drops = f"it drops {trial.best_pps:,.0f} packets a second"
            predicted = f"predicted were {rule.predicted_pps or 0:,.0f}"
            yield Decision("undo", rule, f"is taken back without effect: {drops}, {predicted}")
        elif outcome and not is_kept:
            why = f"it drops up to {trial.best_pps:,.0f} packets a second"
            yield Decision(
                "keep",
                rule,
                f"is kept: {why if outcome == 'works' else 'its attack pauses, and may be back'}",
            )

    def _installs(self, snapshot: Snapshot, active: list[RuleStatus], now: float) -> Iterator[Decision]:
        """Choose a rule for each attack that is to be stopped; the most severe first."""
        present = {_identity(status.rule) for status in active} | self._asked.keys()
        for attack in snapshot.judgement.attacks:
            if not self._is_allowed(attack, now) or attack.id in self._settling:
                continue
            fitting = [
                proposal
                for proposal in snapshot.judgement.proposals
                if proposal.incident == attack.id
                and self._fits(proposal, present)
                and not self._is_stopped(attack, proposal)
            ]
            if not fitting:
                self._tell_unable(attack, snapshot, now)
                continue
            best = max(fitting, key=_worth)
            rule = self._rule(best, now)
            part = 0.0 if rule.match.sources else best.attack_share
            left = max(1.0 - attack.mine_share - attack.other_share, 0.0)
            decision = Decision("install", rule, f"is tried against {attack.title}", attack.id, part, left)
            self._settling[attack.id] = now + _ANSWER_SECONDS
            self._asked[_identity(rule)] = (now + _ANSWER_SECONDS, decision)
            yield decision

    def _tell_unable(self, attack: Incident, snapshot: Snapshot, now: float) -> None:
        """Say once in a while why an attack is left to the operator; not of one that rules are at work on."""
        if attack.mine_share > NOTICED or self._told.get(attack.id, 0.0) > now:
            return
        if attack.since > now - _UNABLE_SECONDS:
            return  # the proposals may get better
        self._told = {key: until for key, until in self._told.items() if until > now}
        self._told[attack.id] = now + _AGAIN_SECONDS
        offered = [one for one in snapshot.judgement.proposals if one.incident == attack.id and one.rule]
        why = "no rule is proposed"
        if offered and all(one.guess for one in offered):
            why = "nothing was learnt before it, so the harm of each rule is a guess"
        elif offered:
            why = "no proposed rule is within the policy"
        self.unable.append((attack.kind, f"{attack.title} is left to the operator: {why}"))

    def _is_allowed(self, attack: Incident, now: float) -> bool:
        """Return whether the policy covers an attack."""
        policy = self._policy
        stopped = attack.mine_share + attack.other_share
        return (
            attack.is_on
            and not attack.effect_of
            and attack.confidence >= policy.confidence
            and now - attack.since >= policy.after_seconds
            and (attack.kind in policy.attacks if policy.attacks else attack.severity.harm is Harm.ATTACK)
            and attack.severity.is_harmful
            and stopped < STOPPED
        )

    def _fits(self, proposal: Proposal, present: set[tuple[object, ...]]) -> bool:
        """Test a proposal against the policy. If its harm is a guess, it is left to the operator."""
        policy, rule = self._policy, proposal.rule
        return (
            rule is not None
            and rule.kind.value in policy.rules
            and not proposal.guess
            and not proposal.needs_force
            and proposal.collateral_share <= policy.harm
            and (proposal.clients is None or proposal.clients.worst_share <= policy.clients)
            and proposal.attack_share >= policy.stops
            and _identity(rule) not in present
            and _identity(rule) not in self._barred
        )

    def _is_stopped(self, attack: Incident, proposal: Proposal) -> bool:
        """Test whether one of the rules drops the same part of the attack, told from others by its size.

        Two parts of an attack that are both larger than half of it overlap.
        """
        part = proposal.attack_share
        if part < _LARGE_PART or proposal.rule is None or proposal.rule.match.sources:
            return False
        parts = [trial.part for trial in self._watched.values() if trial.attack == attack.id]
        return any(abs(part - other) < _SAME_PART for other in parts)

    def _rule(self, proposal: Proposal, now: float) -> Rule:
        rule = proposal.rule
        assert rule is not None  # noqa: S101 - as _fits has tested
        return replace(
            rule,
            summary=f"automatic: {rule.summary}",
            ttl_seconds=self._policy.ttl_seconds,
            created=now,
            created_by=CREATED_BY,
            predicted_pps=rule.predicted_pps or proposal.stopped_pps,
        )


def _worth(proposal: Proposal) -> tuple[float, float]:
    """Rank a proposal: by what it stops and goes on to stop, then by the harm."""
    is_list = proposal.rule is not None and bool(proposal.rule.match.sources)
    return round(proposal.attack_share - _LASTING * is_list, 2), -proposal.collateral_share


def _identity(rule: Rule) -> tuple[object, ...]:
    """Return what two rules have in common that do the same."""
    match = replace(rule.match, sources=tuple(rule.match.sources))
    return rule.kind, match, rule.limit, rule.connections


_RECENT_SECONDS = 5.0
_CALM_SECONDS = 60.0
_LEAST = 2.0  # handshakes a second: fewer say nothing
_FEWEST = 3  # observations of a mean


class Handshakes(Struct):
    """Handshakes a second of the last minute in calm, and of the last seconds."""

    _recent: deque[tuple[float, float]] = field(default_factory=deque)
    _calm: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, snapshot: Snapshot) -> None:
        """Remember an observation."""
        if snapshot.tcp is None:
            return
        now = snapshot.at
        _keep(self._recent, now, snapshot.tcp.handshakes_per_s, _RECENT_SECONDS)
        if not (snapshot.judgement.harmful or snapshot.judgement.not_judged):
            _keep(self._calm, now, snapshot.tcp.handshakes_per_s, _CALM_SECONDS)

    def recent(self) -> float | None:
        """Return the mean of the last seconds, None if there are too few observations."""
        return _mean(self._recent)

    def loss(self, before: float | None) -> float:
        """Return which share of their handshakes clients have lost since `before`.

        0 if it isn't known, or if they get as much as in calm: bots that are kept out made handshakes, too.
        """
        recent, calm = self.recent(), _mean(self._calm)
        if recent is None or before is None or before < _LEAST:
            return 0.0
        usual = before if calm is None else min(before, calm)
        return max(1.0 - recent / usual, 0.0) if usual >= _LEAST else 0.0


def _keep(points: deque[tuple[float, float]], now: float, value: float, seconds: float) -> None:
    points.append((now, value))
    while points[0][0] <= now - seconds:
        points.popleft()


def _mean(points: deque[tuple[float, float]]) -> float | None:
    return fmean(value for _, value in points) if len(points) >= _FEWEST else None


CONFIRM_SLACK_SECONDS = 20.0  # that a trial may last longer, should the decision come late
_EFFECT = 0.2  # of the predicted packets that a rule must have dropped in its best second
_ON = 0.5  # of the predicted packets that an attack must send to count as on: its window outlasts a pulse


class Trial(Struct):
    """One of the rules since it was first seen."""

    began: float
    before: float | None  # handshakes a second
    attack: int = 0  # id of the incident that it was installed against; 0: not known, so always on
    part: float = 0.0  # of the attack's packets that it was predicted to drop; 0 for a list of sources
    left: float = 1.0  # of the attack's packets that firewalls still passed when it was installed
    best_pps: float = 0.0
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
        if self.seen_at is not None and is_known and self._is_on(status.rule, snapshot):
            self.attacked_seconds += max(now - self.seen_at, 0.0)
        self.seen_at = now

    def _is_effective(self, rule: Rule) -> bool:
        """Test whether it has dropped what may be expected."""
        return self.best_pps >= max(_EFFECT * self.left * (rule.predicted_pps or 0.0), 1.0)

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
