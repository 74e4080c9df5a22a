"""What a rule would do, before it does it: the replay on samples and the guardian's plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preview:
    """A rule replayed on the samples of the present window and on the baseline.

    Shares are 0 to 1: `attack_share` of all attacks' packets, `collateral_share` of normal traffic.
    `examples` name normal flows that would be hit, sanitised; `attacks` what is stopped of each attack.
    """

    attack_share: float
    attack_pps: float
    collateral_share: float
    collateral_pps: float
    total_pps: float  # everything the rule would match now
    examples: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    guess: bool = False  # True: no baseline from before the attack, collateral is estimated
    attacks: tuple[tuple[str, float], ...] = ()  # title and share stopped, the most stopped first


@dataclass(frozen=True, slots=True)
class PlanView:
    """The guardian's plan for a rule, as people read it; nothing has been done yet."""

    commands: tuple[str, ...] = ()  # exactly what would be run
    warnings: tuple[str, ...] = ()
    refused: str = ""  # why the guard won't install it; empty: it would
    needs_force: str = ""  # why the operator must type a confirmation first; empty: no need
