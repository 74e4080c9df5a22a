"""What a rule is in the kernel: sets with a clock, and lines of the FWTOP chain that ask them.

A driver is a function from a Rule to Artifacts, so that planning, installing, removing and counting are
written once, and every kind can be tested without a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fwtop.model.address import Prefix
from fwtop.model.rule import Rule, Setting

if TYPE_CHECKING:
    from fwtop.mitigate.nft_words import NftRule

PREROUTING = "PREROUTING"
OUTPUT = "OUTPUT"
HOOK_CHAINS = {PREROUTING: "FWTOP", OUTPUT: "FWTOP-OUT"}


@dataclass(frozen=True, slots=True)
class SetSpec:
    """An ipset hash:net of this rule; every element of a timed one gets the rule's timeout."""

    name: str
    family: int
    elements: Sequence[Prefix]
    exceptions: tuple[Prefix, ...] = ()  # `nomatch` elements: inside a listed prefix, but not meant
    timed: bool = True  # False: a long list, whose lines ask a switch set as well


@dataclass(frozen=True, slots=True)
class ChainLine:
    """One line of a chain: arguments of iptables without the comment that names the rule."""

    family: int
    match: tuple[str, ...]
    target: tuple[str, ...]
    hook: str = PREROUTING


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Everything that a rule puts into the kernel."""

    sets: tuple[SetSpec, ...]
    lines: tuple[ChainLine, ...]
    notes: tuple[str, ...] = ()  # what the preview should tell about cost or side effects
    compiled: Rule | None = None  # for the fast path, which has neither sets nor lines
    settings: tuple[Setting, ...] = ()  # sysctls
    needs: tuple[Setting, ...] = ()  # sysctls that must be so; changed only where they are not
    nft: NftRule | None = None  # in a table of our own, instead of sets and lines


def comment_of(rule_id: str) -> str:
    """Return the comment that marks a rule's chain lines."""
    return f"fwtop-{rule_id}"
