"""How well this machine is protected now: a pure function of a snapshot.

The ledger tells where all packets ended; the verdict goes by what became of the attacks' own packets. What
firewalls drop besides says nothing about an attack.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.traffic.session import FULL_TABLE, NOTICED, STOPPED, flow_of
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Incident, Snapshot


class Badge(StrEnum):
    """What the badge says."""

    UNPROTECTED = "UNPROTECTED"
    TRIAL = "TRIAL"
    PARTLY = "PARTLY"
    PROTECTED = "PROTECTED"
    ALREADY = "ALREADY STOPPED BY YOUR FIREWALL"
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
    rule: RuleStatus | None = None  # on trial; of several the one that ends first
    trials: tuple[str, ...] = ()  # ids of all rules on trial
    trial_pps: float = 0.0  # what they drop
    trial_share: float = 0.0  # of the packets of all attacks; of one window with `mine`
    seconds_left: float = 0.0
    left: float = 0.0  # of the trial's time, 0 to 1

    @property
    def stopped(self) -> float:
        """Share that firewalls drop."""
        return min(self.mine + self.other, 1.0)


def verdict_of(snapshot: Snapshot, now: float) -> Verdict:
    """Judge the snapshot; drops of rules that have ended don't protect any more."""
    attacks = attacks_of(snapshot)
    trials = _on_trial(snapshot)
    is_judged = not snapshot.judgement.not_judged
    if flow_of(snapshot) is None:
        return Verdict(_badge(attacks, Badge.RECORDED) if is_judged else Badge.NOT_JUDGED)
    whole = attack_pps(snapshot)
    mine, other, kernel = (_weighted(attacks, name) for name in ("mine_share", "other_share", "kernel_share"))
    mine *= _lasting(snapshot)
    if trials:
        left, part = _time_left(trials[0], now)
        ids = tuple(sorted((status.rule.id for status in trials), key=lambda name: (len(name), name)))
        pps = _dropped(snapshot, set(ids))
        active = _dropped(snapshot, active_rules(snapshot))
        share = mine * pps / active if active > 0 else 0.0
        return Verdict(Badge.TRIAL, whole, mine, other, kernel, trials[0], ids, pps, share, left, part)
    badge = _badge(attacks, _kind(mine, other)) if is_judged else Badge.NOT_JUDGED
    return Verdict(badge, whole, mine, other, kernel)


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


def _kind(mine: float, other: float) -> Badge:
    if mine + other >= STOPPED:
        return Badge.PROTECTED if mine >= NOTICED else Badge.ALREADY
    return Badge.PARTLY if mine + other >= NOTICED else Badge.UNPROTECTED


def attacks_of(snapshot: Snapshot) -> tuple[Incident, ...]:
    """Return those of the worst class that are on, with packets of their own: a full table is an effect."""
    every = snapshot.judgement.attacks
    own = tuple(attack for attack in every if attack.kind != FULL_TABLE) or every
    on = tuple(attack for attack in own if attack.is_on) or own
    worst = min((attack.severity.harm.rank for attack in on), default=0)
    return tuple(attack for attack in on if attack.severity.harm.rank == worst)


def attack_pps(snapshot: Snapshot) -> float:
    """Return the packets a second of all attacks, of the same window as the total and never above it."""
    return min(sum(attack.pps for attack in attacks_of(snapshot)), snapshot.tables.totals.pps)


def active_rules(snapshot: Snapshot) -> set[str]:
    """Return the ids of the rules in force."""
    return {status.rule.id for status in snapshot.mitigations if status.state in ACTIVE_STATES}


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
