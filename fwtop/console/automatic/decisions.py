"""What to install, keep and take back, decided from snapshots and the policy alone.

A trial tells how a rule does: what it drops, and whether its attack goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from fwtop.console.automatic import Policy
from fwtop.model.console_scope import AUTOMATIC, maker
from fwtop.model.harm import ClientLoss
from fwtop.model.rule import ACTIVE_STATES, Kind, Match, Mode, Rule, RuleStatus, State
from fwtop.model.traffic.session import NOTICED, STOPPED
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident, Proposal, Snapshot
from fwtop.rules.kinds import alternatives, of, why_uncounted
from fwtop.rules.overlap import is_wider
from fwtop.rules.words import with_mode

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
    pps: float = 0.0  # of its last second
    best_pps: float = 0.0
    over_since: float | None = None  # since when its attack sends nothing; None: it is on
    dropped_at: float = 0.0
    attacked_seconds: float = 0.0  # during which its attack was on
    seen_at: float | None = None
    is_judged: bool = False  # nothing more is to be decided of its effect
    asked_until: float = 0.0  # to be kept or taken back: the answer is on its way until then

    def note(self, status: RuleStatus, snapshot: Snapshot, now: float) -> None:
        """Remember an observation."""
        self.pps = status.pps
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


_SETTLE_SECONDS = 4.5  # until a window shows only what came after a rule: one more for the same attack then
_SEEN_SECONDS = 3.0  # until a change that the guardian made is in snapshots
_ANSWER_SECONDS = 60.0  # after which the guardian will not answer
_AGAIN_SECONDS = 600.0  # until a rule that was wrong or refused is tried again
_UNABLE_SECONDS = 10.0
_IDLE_SECONDS = 60.0  # a rule that drops nothing for so long is not renewed
_RENEWED = 0.2  # of its time to live that is left when a rule is renewed
_WIDEST = {4: 24, 6: 48}  # prefixes that are blocked without anybody asked
_LARGE_PART, _SAME_PART = 0.55, 0.04  # of an attack
_LASTING = 0.3  # of an attack that header fields may stop less than a list: the next pulse has new sources


class Decision(Struct, frozen=True):
    """`verb`: plan, install, keep, undo (it was wrong), end (it has served its purpose), tell (it counts).

    `why` is the rest of a sentence that begins with the rule.
    """

    verb: str
    rule: Rule
    why: str
    attack: int = 0  # id of the incident that it is installed against
    part: float = 0.0  # of that attack's packets that it is predicted to drop; 0 for a list of sources
    left: float = 1.0  # of that attack's packets that firewalls still pass
    proven: bool = False  # whether its sources have shown a return path in that attack


class Decider:
    """Remembers rules and attacks between snapshots. Not for several threads."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._watched: dict[str, Trial] = {}
        self._settling: dict[int, float] = {}  # attack → when another rule may follow
        self._asked: dict[tuple[object, ...], tuple[float, Decision]] = {}  # rule → until it is seen
        self._barred: dict[tuple[object, ...], float] = {}  # rule → until when
        self._harmed: dict[Match, float] = {}  # it cost clients something → until when
        self._told: dict[int, float] = {}  # attack → until when it is known that nothing is done
        self._young: dict[int, tuple[object, ...] | None] = {}  # attack → rule that is compiled for it
        self.unable: list[tuple[str, str]] = []  # kinds of attacks, and why nothing is done; for the reader

    def next(self, snapshot: Snapshot) -> list[Decision]:
        """Return the decisions due now."""
        now = snapshot.at
        losses = {loss.rule: loss for loss in snapshot.losses}
        active = [status for status in snapshot.mitigations if status.state in ACTIVE_STATES]
        own = [status for status in active if maker(status.rule) == AUTOMATIC]
        ids = {status.rule.id for status in own}
        self._watched = {name: watch for name, watch in self._watched.items() if name in ids}
        self._settling = {key: until for key, until in self._settling.items() if until > now}
        self._barred = {key: until for key, until in self._barred.items() if until > now}
        self._harmed = {match: until for match, until in self._harmed.items() if until > now}
        self._asked = {key: asked for key, asked in self._asked.items() if asked[0] > now}
        for status in own:
            self._watch(status, now).note(status, snapshot, now)
        found = [
            decision for status in own for decision in self._review(status, losses.get(status.rule.id), now)
        ]
        for decision in found:
            self._watched[decision.rule.id].asked_until = now + _ANSWER_SECONDS
        room = self._policy.most_rules - len(own) - len(self._settling)
        if room > 0 and not snapshot.judgement.not_judged:
            found += list(self._installs(snapshot, active, now))[:room]
            found += self._plans(snapshot, active, now)
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
            is_fresh = status.state is State.PROVISIONAL or status.rule.counts_only
            _, asked = self._asked.get(_identity(status.rule), (now, None))
            if asked is None:  # of an earlier recording
                asked = Decision("", status.rule, "", proven=_is_block(status.rule))
            self._watched[status.rule.id] = Trial(
                now, asked.attack, asked.part, asked.left, asked.proven, is_judged=not is_fresh
            )
        return self._watched[status.rule.id]

    def _review(self, status: RuleStatus, loss: ClientLoss | None, now: float) -> Iterator[Decision]:
        """Judge one of the rules: wrong, of use, or to be renewed."""
        rule, policy, trial = status.rule, self._policy, self._watched[status.rule.id]
        if now < trial.asked_until:
            return
        if loss is not None and loss.sure > policy.lost_handshakes:
            self._harmed[_as_key(rule.match)] = now + _AGAIN_SECONDS
            yield Decision("undo", rule, f"is taken back: {loss.words}")
        elif trial.has_only_retries(status, now):
            what = "its attack is over, and what it still meets is no more than clients and their retries"
            yield Decision("end", rule, f"is taken back: {what}")
        elif not trial.is_judged:
            yield from self._verdict(status, trial, now)
        elif status.expires is not None and status.state is State.CONFIRMED:
            due = status.expires - now < _RENEWED * policy.ttl_seconds
            if due and now - trial.dropped_at < _IDLE_SECONDS:
                yield Decision("keep", rule, f"is renewed: {status.would_have or 'it still drops packets'}")

    def _verdict(self, status: RuleStatus, trial: Trial, now: float) -> Iterator[Decision]:
        """Decide at the end of a trial; one whose attack has paused goes on when that is back."""
        rule = status.rule
        is_kept = status.state is State.CONFIRMED
        outcome = trial.outcome(rule, self._policy.trial_seconds, now)
        trial.is_judged = outcome in ("works", "fails")
        if outcome == "fails":
            does = "would drop" if rule.counts_only else "drops"
            drops = f"it {does} {trial.best_pps:,.0f} packets a second"
            predicted = f"predicted were {rule.predicted_pps or 0:,.0f}"
            yield Decision("undo", rule, f"is taken back without effect: {drops}, {predicted}")
        elif outcome and rule.counts_only:
            yield Decision("tell", rule, status.would_have)
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
            best = self._best(attack, snapshot, present)
            if best is None:
                self._tell_unable(attack, snapshot, now)
                continue
            rule = self._rule(best, now)
            part = 0.0 if rule.match.sources else best.attack_share
            left = max(1.0 - attack.mine_share - attack.other_share, 0.0)
            why = f"is tried against {attack.title}"
            if rule.counts_only:
                why = f"counts what it would drop of {attack.title}"
            decision = Decision("install", rule, why, attack.id, part, left, best.return_path)
            self._settling[attack.id] = now + _ANSWER_SECONDS
            self._asked[_identity(rule)] = (now + _ANSWER_SECONDS, decision)
            yield decision

    def _plans(self, snapshot: Snapshot, active: list[RuleStatus], now: float) -> Iterator[Decision]:
        """Choose what is to be compiled for attacks that are too young to be stopped; note until when."""
        present = {_identity(status.rule) for status in active} | self._asked.keys()
        on = {attack.id: attack for attack in snapshot.judgement.attacks}
        self._young = {
            name: planned
            for name, planned in self._young.items()
            if name in on and now < on[name].since + self._policy.after_seconds
        }
        for attack in on.values():
            if now - attack.since >= self._policy.after_seconds or not self._is_covered(attack):
                continue
            best = self._best(attack, snapshot, present)
            rule = None if best is None else self._rule(best, now)
            planned = None if rule is None or not of(rule.kind).is_compiled else _identity(rule)
            if rule is not None and planned not in {None, self._young.get(attack.id)}:
                yield Decision("plan", rule, "", attack.id)
            self._young[attack.id] = planned

    def due(self, attacks: Iterable[Incident]) -> float | None:
        """Return when the oldest of the young attacks may be stopped, Unix seconds; None if there is none."""
        young = [attack.since for attack in attacks if attack.id in self._young]
        return min(young) + self._policy.after_seconds if young else None

    def _best(
        self, attack: Incident, snapshot: Snapshot, present: set[tuple[object, ...]]
    ) -> Proposal | None:
        fitting = [
            proposal
            for proposal in snapshot.judgement.proposals
            if proposal.incident == attack.id
            and self._fits(proposal, present)
            and not self._is_stopped(attack, proposal)
        ]
        return max(fitting, key=_worth, default=None)

    def _tell_unable(self, attack: Incident, snapshot: Snapshot, now: float) -> None:
        """Say once in a while why an attack is left to the operator; not of one that rules are at work on."""
        at_work = any(one.attack == attack.id and one.best_pps > 0 for one in self._watched.values())
        if at_work or attack.mine_share > NOTICED or self._told.get(attack.id, 0.0) > now:
            return
        if attack.since > now - _UNABLE_SECONDS:
            return  # the proposals may get better
        self._told = {key: until for key, until in self._told.items() if until > now}
        self._told[attack.id] = now + _AGAIN_SECONDS
        offered = [one for one in snapshot.judgement.proposals if one.incident == attack.id and one.rule]
        spared = next((one.bystanders for one in offered if one.bystanders), "")
        why = "no rule is proposed"
        if offered and all(one.guess for one in offered):
            why = "nothing was learnt before it, so the harm of each rule is a guess"
        elif offered:
            why = f"no proposed rule is within the policy{f' ({spared})' if spared else ''}"
        self.unable.append((attack.kind, f"{attack.title} is left to the operator: {why}"))

    def _is_allowed(self, attack: Incident, now: float) -> bool:
        """Return whether the policy covers an attack, and it is old and harmful enough."""
        harm = attack.severity.harm
        return (
            self._is_covered(attack)
            and now - attack.since >= self._policy.after_seconds
            and (harm is not Harm.UNUSUAL if self._policy.attacks else harm is Harm.ATTACK)
        )

    def _is_covered(self, attack: Incident) -> bool:
        policy = self._policy
        return (
            attack.is_on
            and not attack.effect_of
            and attack.confidence >= policy.confidence
            and (not policy.attacks or attack.kind in policy.attacks)
            and attack.mine_share + attack.other_share + self._counted_share(attack) < STOPPED
        )

    def _counted_share(self, attack: Incident) -> float:
        """Return the share of an attack that a rule in the shadow would drop: no other one would be tried."""
        rates = [trial.pps for trial in self._watched.values() if trial.attack == attack.id]
        return max(rates, default=0.0) / max(attack.pps, 1.0) if self._policy.shadow else 0.0

    def _fits(self, proposal: Proposal, present: set[tuple[object, ...]]) -> bool:
        """Test a proposal against the policy. If its harm is a guess, it is left to the operator."""
        policy, rule = self._policy, proposal.rule
        made = _counting(rule) if policy.shadow and rule is not None else rule
        return (
            rule is not None
            and made is not None
            and rule.kind.value in policy.rules
            and not proposal.guess
            and not proposal.needs_force
            and not proposal.bystanders
            and not any(one.length < _WIDEST[one.family] for one in rule.match.sources)
            and proposal.collateral_share <= policy.harm
            and (proposal.clients is None or proposal.clients.worst_share <= policy.clients)
            and proposal.attack_share >= policy.stops
            and _identity(made) not in present
            and _identity(made) not in self._barred
            and not any(_is_alike(made.match, match) for match in self._harmed)
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
        own = replace(
            rule,
            summary=f"automatic: {rule.summary}",
            ttl_seconds=self._policy.ttl_seconds,
            created=now,
            created_by=AUTOMATIC,
            predicted_pps=rule.predicted_pps or proposal.stopped_pps,
        )
        return (_counting(own) if self._policy.shadow else None) or own


def _counting(rule: Rule) -> Rule | None:
    """Return the rule as one that only counts, of another kind if its own can't; None if none can."""
    same = (replace(rule, kind=kind) for kind in (rule.kind, *alternatives(rule)))
    return next((with_mode(one, Mode.COUNT) for one in same if not why_uncounted(one)), None)


def _is_block(rule: Rule) -> bool:
    """Test whether a rule drops all that its sources send: automatic ones were proven to attack."""
    return bool(rule.match.sources) and rule.limit is None


def _worth(proposal: Proposal) -> tuple[float, float, bool]:
    """Rank a proposal: by what it stops and goes on to stop, then by the harm; what drops before a proxy."""
    is_list = proposal.rule is not None and bool(proposal.rule.match.sources)
    drops = proposal.kind != Kind.SYNPROXY
    return round(proposal.attack_share - _LASTING * is_list, 2), -proposal.collateral_share, drops


def _identity(rule: Rule) -> tuple[object, ...]:
    """Return what two rules have in common that do the same."""
    return rule.kind, _as_key(rule.match), rule.limit, rule.connections


def _as_key(match: Match) -> Match:
    return replace(match, sources=tuple(match.sources))


def _is_alike(one: Match, other: Match) -> bool:
    """Test whether one of two matches has all conditions of the other: it hits what that hits, or a part."""
    if one.sources or other.sources:
        return False  # lists grow and shrink: of whom they cut, each is measured by itself
    return is_wider(one, other) or is_wider(other, one)
