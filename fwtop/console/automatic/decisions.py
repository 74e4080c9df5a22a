"""What to install, keep and take back, decided from snapshots and the policy alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fwtop.console.automatic.clients import RECENT_SECONDS, Clients
from fwtop.console.automatic.policy import Policy
from fwtop.model.rule import ACTIVE_STATES, Rule, RuleStatus, State
from fwtop.model.traffic.flow import NOTICED, STOPPED
from fwtop.model.traffic.snapshot import Attack, Proposal, Snapshot
from fwtop.render.numbers import percent

CREATED_BY = "automatic"
CONFIRM_SLACK_SECONDS = 20.0  # that a trial may last longer, should the decision come late
_SETTLE_SECONDS = 6.0  # until a window shows only what came after a rule: one more for the same attack then
_AGAIN_SECONDS = 600.0  # until a rule that was wrong or refused is tried again
_UNABLE_SECONDS = 10.0
_EFFECT = 0.2  # of the predicted packets that a rule must have dropped in its best second
_WATCHED_SECONDS = 60.0  # after that a loss of clients is no longer the rule's doing
_IDLE_SECONDS = 60.0  # a rule that drops nothing for so long is not renewed
_RENEWED = 0.2  # of its time to live that is left when a rule is renewed


@dataclass(frozen=True, slots=True)
class Decision:
    """`verb`: install, keep or undo; `why` is the rest of a sentence that begins with the rule."""

    verb: str
    rule: Rule
    why: str


@dataclass(slots=True)
class _Watch:
    """One of the rules since it was first seen."""

    began: float
    before: float | None  # handshakes a second
    best_pps: float = 0.0
    dropped_at: float = 0.0
    decided: bool = False


class Automat:
    """Remembers rules and attacks between snapshots. Not for several threads."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._clients = Clients()
        self._watched: dict[str, _Watch] = {}
        self._settling: dict[str, float] = {}  # attack → when another rule may follow
        self._barred: dict[tuple[object, ...], float] = {}  # rule → until when
        self._told: dict[str, float] = {}  # attack → until when it is known that nothing is done
        self.unable: list[tuple[str, str]] = []  # kinds of attacks, and why nothing is done; for the reader

    def next(self, snapshot: Snapshot) -> list[Decision]:
        """Return what is to be done now."""
        now = snapshot.started + snapshot.seconds
        self._clients.note(snapshot)
        active = [status for status in snapshot.mitigations if status.state in ACTIVE_STATES]
        own = [status for status in active if status.rule.created_by == CREATED_BY]
        ids = {status.rule.id for status in own}
        self._watched = {name: watch for name, watch in self._watched.items() if name in ids}
        self._settling = {key: until for key, until in self._settling.items() if until > now}
        self._barred = {key: until for key, until in self._barred.items() if until > now}
        found = [decision for status in own for decision in self._review(status, now)]
        room = self._policy.most_rules - len(own) - len(self._settling)
        if room > 0:
            found += list(self._installs(snapshot, active, now))[:room]
        for decision in found:
            if decision.verb == "undo":
                self.bar(decision.rule, now)
        return found

    def bar(self, rule: Rule, now: float) -> None:
        """Don't try this rule again soon: it was refused, or wrong."""
        self._barred[_identity(rule)] = now + _AGAIN_SECONDS

    def _review(self, status: RuleStatus, now: float) -> Iterator[Decision]:
        """Judge one of the rules: wrong, of use, or to be renewed."""
        rule, policy = status.rule, self._policy
        watch = self._watched.get(rule.id)
        if watch is None:
            fresh = status.state is State.PROVISIONAL
            watch = self._watched[rule.id] = _Watch(now, self._clients.recent() if fresh else None)
        if status.pps > 0:
            watch.dropped_at, watch.best_pps = now, max(watch.best_pps, status.pps)
        age = now - watch.began
        loss = self._clients.loss(watch.before) if RECENT_SECONDS < age < _WATCHED_SECONDS else 0.0
        if watch.decided and status.state is State.PROVISIONAL:
            return  # the answer is on its way
        if loss > policy.lost_handshakes:
            watch.decided = True
            yield Decision("undo", rule, f"is taken back: clients lost {percent(loss)} of their handshakes")
        elif status.state is State.PROVISIONAL and age >= policy.trial_seconds:
            watch.decided = True
            yield self._verdict(rule, watch)
        elif status.expires is not None and status.state is State.CONFIRMED:
            due = status.expires - now < _RENEWED * policy.ttl_seconds
            if due and now - watch.dropped_at < _IDLE_SECONDS:
                yield Decision("keep", rule, "is renewed: it still drops packets")

    @staticmethod
    def _verdict(rule: Rule, watch: _Watch) -> Decision:
        """Decide at the end of a trial."""
        predicted = rule.predicted_pps or 0.0
        if watch.best_pps < max(_EFFECT * predicted, 1.0):
            drops = f"it drops {watch.best_pps:,.0f} packets a second, predicted were {predicted:,.0f}"
            return Decision("undo", rule, f"is taken back without effect: {drops}")
        return Decision("keep", rule, f"is kept: it drops up to {watch.best_pps:,.0f} packets a second")

    def _installs(self, snapshot: Snapshot, active: list[RuleStatus], now: float) -> Iterator[Decision]:
        """Choose a rule for each attack that is to be stopped; the one that sends most first."""
        present = {_identity(status.rule) for status in active}
        for attack in sorted(snapshot.judgement.attacks, key=lambda attack: -attack.pps):
            if not self._is_allowed(attack, now) or attack.key in self._settling:
                continue
            fitting = [
                proposal
                for proposal in snapshot.judgement.proposals
                if proposal.attack == attack.title and self._fits(proposal, present)
            ]
            if not fitting:
                self._tell_unable(attack, snapshot, now)
                continue
            best = max(fitting, key=lambda one: (round(one.attack_share, 2), -one.collateral_share))
            self._settling[attack.key] = now + _SETTLE_SECONDS
            yield Decision("install", self._rule(best, now), f"is tried against {attack.title}")

    def _tell_unable(self, attack: Attack, snapshot: Snapshot, now: float) -> None:
        """Say once in a while why an attack is left to the operator; not of one that rules are at work on."""
        if attack.mine_share > NOTICED or self._told.get(attack.key, 0.0) > now:
            return
        if attack.since > now - _UNABLE_SECONDS:
            return  # the proposals may get better
        self._told = {key: until for key, until in self._told.items() if until > now}
        self._told[attack.key] = now + _AGAIN_SECONDS
        offered = [one for one in snapshot.judgement.proposals if one.attack == attack.title and one.rule]
        why = "no rule is proposed"
        if offered and all(one.guess for one in offered):
            why = "nothing was learnt before it, so the harm of each rule is a guess"
        elif offered:
            why = "no proposed rule is within the policy"
        self.unable.append((attack.kind, f"{attack.title} is left to the operator: {why}"))

    def _is_allowed(self, attack: Attack, now: float) -> bool:
        """Test whether something is to be done against an attack."""
        policy = self._policy
        stopped = attack.mine_share + attack.other_share
        return (
            attack.ended is None
            and not attack.effect_of
            and attack.confidence >= policy.confidence
            and now - attack.since >= policy.after_seconds
            and (not policy.attacks or attack.kind in policy.attacks)
            and stopped < STOPPED
        )

    def _fits(self, proposal: Proposal, present: set[tuple[object, ...]]) -> bool:
        """Test a proposal against the policy. If its harm is a guess, it is left to the operator."""
        policy, rule = self._policy, proposal.rule
        return (
            rule is not None
            and rule.kind.value in policy.rules
            and not proposal.guess
            and proposal.collateral_share <= policy.harm
            and proposal.attack_share >= policy.stops
            and _identity(rule) not in present
            and _identity(rule) not in self._barred
        )

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


def _identity(rule: Rule) -> tuple[object, ...]:
    """Return what two rules have in common that do the same."""
    match = replace(rule.match, sources=tuple(rule.match.sources))
    return rule.kind, match, rule.limit, rule.connections
