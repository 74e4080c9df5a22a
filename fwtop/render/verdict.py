"""How well this machine is protected now: a pure function of a snapshot.

The ledger tells where all packets ended; the verdict goes by what became of the attacks' own packets. What
firewalls drop besides says nothing about an attack. Where the kernel drops them all, because there is nothing
to deliver them to, no service is hit: then it is a matter of what that costs.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.harm import ClientLoss
from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.traffic.session import FULL_TABLE, NOTICED, STOPPED, flow_of
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident, Snapshot
from fwtop.render.numbers import percent


class Badge(StrEnum):
    """What the badge says."""

    HARM = "HARM"  # a rule costs clients what they got before: beats all others
    UNPROTECTED = "UNPROTECTED"
    TRIAL = "TRIAL"
    PARTLY = "PARTLY"
    PROTECTED = "PROTECTED"
    ALREADY = "ALREADY STOPPED BY YOUR FIREWALL"
    KERNEL = "YOUR KERNEL DROPS IT"  # there is nothing to deliver it to: no service is hit
    PAUSED = "ATTACK PAUSED"
    ENDED = "ATTACK ENDED"  # a moment ago, or its effects are still there
    CALM = "CALM"
    NOT_JUDGED = "NOT JUDGED"  # the judgement failed: what it says is older, if it says anything
    ABUSE = "ABUSE"  # the worst that there is exhausts nothing
    UNUSUAL = "UNUSUAL"  # nor is it harmful
    RECORDED = "ATTACK"  # in a capture, which doesn't tell what became of the packets


class Verdict(Struct, frozen=True):
    """The verdict; all shares are of the packets of all attacks of the worst class, 0 to 1."""

    badge: Badge
    attack_pps: float = 0.0
    mine: float = 0.0  # dropped by rules that are active
    other: float = 0.0
    kernel: float = 0.0
    lost: float = 0.0  # of `kernel`, because what should take them was full
    rule: RuleStatus | None = None  # on trial; of several the one that ends first
    trials: tuple[str, ...] = ()  # ids of all rules on trial
    trial_pps: float = 0.0  # what they drop
    trial_share: float = 0.0  # of the packets of all attacks; of one window with `mine`
    seconds_left: float = 0.0
    left: float = 0.0  # of the trial's time, 0 to 1
    cores: float | None = None  # that the attacks' packets keep busy in softirq; None: not known
    saved: float = 0.0  # of these, by the best rule: what is proposed first
    loss: ClientLoss | None = None  # of a rule that does harm; of several the worst

    @property
    def stopped(self) -> float:
        """Share that firewalls drop."""
        return min(self.mine + self.other, 1.0)

    @property
    def advice(self) -> str:
        """Say, where the kernel drops an attack already, what that costs and whether a rule is worth it."""
        if self.badge is not Badge.KERNEL:
            return ""
        if self.cores is None:
            return "cost unknown"
        saves = f"a rule would save up to {percent(self.saved)}" if self.spares else "no rule is worth it"
        return f"at {percent(self.cores)} of a core; {saves}"

    @property
    def spares(self) -> bool:
        """Whether a rule against what harms no service would spare so much that it is worth its risk."""
        return self.saved >= _WORTH


def verdict_of(snapshot: Snapshot, now: float) -> Verdict:
    """Judge the snapshot; drops of rules that have ended don't protect any more, nor do they harm."""
    verdict, worst = _of_attacks(snapshot, now), worst_loss(snapshot)
    return replace(verdict, badge=Badge.HARM, loss=worst) if worst is not None else verdict


def worst_loss(snapshot: Snapshot) -> ClientLoss | None:
    """Return what the rule in force that harms clients most costs them; None if none does."""
    active = active_rules(snapshot)
    losses = (loss for loss in snapshot.losses if loss.is_harm and loss.rule in active)
    return max(losses, key=lambda loss: loss.sure, default=None)


def _of_attacks(snapshot: Snapshot, now: float) -> Verdict:
    attacks = attacks_of(snapshot)
    trials = _on_trial(snapshot)
    is_judged = not snapshot.judgement.not_judged
    if flow_of(snapshot) is None:
        return Verdict(_badge(attacks, Badge.RECORDED) if is_judged else Badge.NOT_JUDGED)
    whole = attack_pps(snapshot)
    mine, other, kernel = (_weighted(attacks, name) for name in ("mine_share", "other_share", "kernel_share"))
    mine *= _lasting(snapshot)
    nobody = _weighted(attacks, "undeliverable_share")
    lost = max(kernel - nobody, 0.0)
    if trials:
        left, part = _time_left(trials[0], now)
        ids = tuple(sorted((status.rule.id for status in trials), key=lambda name: (len(name), name)))
        pps = _dropped(snapshot, set(ids))
        active = _dropped(snapshot, active_rules(snapshot))
        share = mine * pps / active if active > 0 else 0.0
        return Verdict(Badge.TRIAL, whole, mine, other, kernel, lost, trials[0], ids, pps, share, left, part)
    cores = _cores(snapshot, whole)
    if not is_judged:
        badge = Badge.NOT_JUDGED
    elif snapshot.judgement.attacks and not attacks:
        pauses = any(one.paused is not None for one in snapshot.judgement.attacks)
        held = Badge.PARTLY if left_open(snapshot) else Badge.PROTECTED
        badge = held if held_off(snapshot) else Badge.PAUSED if pauses else Badge.ENDED
    else:
        fills = any(one.kind == FULL_TABLE and one.is_on for one in snapshot.judgement.attacks)
        is_near = fills or any(one.severity.is_near for one in attacks)
        is_useless = mine + other + nobody >= STOPPED and not is_near
        badge = _badge(attacks, _kind(mine, other, is_useless=is_useless))
    saved = _saved(snapshot, whole, cores) if badge is Badge.KERNEL else 0.0
    return Verdict(badge, whole, mine, other, kernel, lost, cores=cores, saved=saved)


def held_off(snapshot: Snapshot) -> tuple[Incident, ...]:
    """Return the attacks that send no more because of rules: whoever can only knock makes no requests."""
    return tuple(one for one in snapshot.judgement.attacks if one.held_pps is not None and not one.effect_of)


def left_open(snapshot: Snapshot) -> tuple[Incident, ...]:
    """Return what the senders of attacks still hold of a service: most of its connections."""
    on = (one for one in snapshot.judgement.attacks if one.is_on and one.effect_of)
    return tuple(one for one in on if one.holds > one.holds_of / 2)


_WORTH = 0.1  # cores


def _cores(snapshot: Snapshot, pps: float) -> float | None:
    """Return how many cores packets at this rate keep busy, as many each as the mean of all."""
    if snapshot.softirq_share is None or not snapshot.cores:
        return None
    return snapshot.softirq_share * snapshot.cores * min(pps / max(snapshot.tables.totals.pps, 1e-9), 1.0)


def _saved(snapshot: Snapshot, pps: float, cores: float | None) -> float:
    """Return how much of that the first proposal would save: to match its packets costs, too."""
    best = next((one for one in snapshot.judgement.proposals if one.cost_ns is not None), None)
    if best is None or best.cost_ns is None or not cores or not pps:
        return 0.0
    dropped = min(best.stopped_pps, pps)
    return max(cores * dropped / pps - dropped * best.cost_ns * 1e-9, 0.0)


def _badge(attacks: tuple[Incident, ...], of_attacks: Badge) -> Badge:
    """Return the badge of the class that all have; abuse that is stopped is shown as stopped."""
    if not attacks:
        return Badge.CALM
    stopped = of_attacks in (Badge.PROTECTED, Badge.ALREADY)
    harm = attacks[0].severity.harm
    if harm is Harm.ATTACK or (stopped and harm is Harm.ABUSE):
        return of_attacks
    return Badge.ABUSE if harm is Harm.ABUSE else Badge.UNUSUAL


def _weighted(attacks: tuple[Incident, ...], name: str) -> float:
    """Return a share of all attacks' packets."""
    whole = sum(attack.pps for attack in attacks)
    part = sum(attack.pps * getattr(attack, name) for attack in attacks)
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


def _lasting(snapshot: Snapshot) -> float:
    """Return the share of the drops by fwtop's rules that is of active rules."""
    mine = sum(row.pps for row in snapshot.tables.ledger if row.rule is not None)
    return _dropped(snapshot, active_rules(snapshot)) / mine if mine > 0 else 1.0


def _kind(mine: float, other: float, *, is_useless: bool) -> Badge:
    if mine + other >= STOPPED:
        return Badge.PROTECTED if mine >= NOTICED else Badge.ALREADY
    if is_useless:
        return Badge.KERNEL
    return Badge.PARTLY if mine + other >= NOTICED else Badge.UNPROTECTED


def attacks_of(snapshot: Snapshot) -> tuple[Incident, ...]:
    """Return those of the worst class that are on and no effect of another; of a capture also what was on."""
    every = tuple(attack for attack in snapshot.judgement.attacks if not attack.effect_of)
    every = tuple(attack for attack in every if attack.kind != FULL_TABLE) or every
    on = tuple(attack for attack in every if attack.is_on)
    if flow_of(snapshot) is None:
        on = on or every
    worst = min((attack.severity.harm.rank for attack in on), default=0)
    return tuple(attack for attack in on if attack.severity.harm.rank == worst)


def attack_pps(snapshot: Snapshot) -> float:
    """Return the packets a second of all attacks, of the same window as the total and never above it."""
    return min(sum(attack.pps for attack in attacks_of(snapshot)), snapshot.tables.totals.pps)


def active_rules(snapshot: Snapshot) -> set[str]:
    """Return the ids of the rules in force, without those that only count."""
    found = (status for status in snapshot.mitigations if status.state in ACTIVE_STATES)
    return {status.rule.id for status in found if not status.rule.counts_only}


def _on_trial(snapshot: Snapshot) -> list[RuleStatus]:
    """Return the unconfirmed rules in effect, first the one that ends first."""
    found = [rule for rule in snapshot.mitigations if rule.state is State.PROVISIONAL and rule.acting]
    return sorted(found, key=lambda rule: rule.confirm_by or 0.0)


def _time_left(rule: RuleStatus, now: float) -> tuple[float, float]:
    if rule.confirm_by is None:
        return 0.0, 0.0
    left = max(rule.confirm_by - now, 0.0)
    known = 0 < rule.rule.created < rule.confirm_by
    whole = rule.confirm_by - rule.rule.created if known else 30.0  # the usual length
    return left, min(left / whole, 1.0)


def _dropped(snapshot: Snapshot, rules: set[str]) -> float:
    return sum(row.pps for row in snapshot.tables.ledger if row.rule in rules)
