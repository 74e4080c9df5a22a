"""The kernel objects of a rule: sets with a timeout, and lines of the FWTOP chain that match them.

A backend is a function from a Rule to KernelObjects, so that planning, installing, removing and counting are
written once, and every kind of rule can be tested without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match, Rule, Setting

if TYPE_CHECKING:
    from fwtop.rules.nft_objects import NftRule

PREROUTING = "PREROUTING"
OUTPUT = "OUTPUT"
BESIDE = "st"  # role of the sets that lines in table filter ask
# A hook's chain first asks the lines that spare listed addresses by themselves, sends packets of listed
# addresses to the chain of roles, and all others on to the other rules.
HOOK_CHAINS = {PREROUTING: "FWTOP", OUTPUT: "FWTOP-OUT"}
SOURCE_CHAINS = {PREROUTING: "FWTOP-SOURCES"}  # of lines whose set matches no source of the allow-list
ROLE_CHAINS = {PREROUTING: "FWTOP-ROLES", OUTPUT: "FWTOP-OUT-ROLES"}
LISTED_CHAINS = {PREROUTING: "FWTOP-LISTED"}  # of the same rules: listed sources, out of role
RULE_CHAINS = {PREROUTING: "FWTOP-RULES", OUTPUT: "FWTOP-OUT-RULES"}
PORT_CHAINS = {PREROUTING: "FWTOP-PORTS"}  # of protected ports, in order of priority; there with the first
_KINDS = (HOOK_CHAINS, SOURCE_CHAINS, ROLE_CHAINS, LISTED_CHAINS, RULE_CHAINS, PORT_CHAINS)
OWN_CHAINS = {hook: tuple(kind[hook] for kind in _KINDS if hook in kind) for hook in HOOK_CHAINS}


class SetSpec(Struct, frozen=True):
    """An ipset hash:net of this rule; every element of a timed one gets the rule's timeout."""

    name: str
    family: int
    elements: Sequence[Prefix]
    exceptions: tuple[Prefix, ...] = ()  # `nomatch` elements: inside a listed prefix, but not meant
    timed: bool = True  # False: a long list, whose lines also match an enable set
    shared: bool = False  # a named list's, which stays when the rule ends and others use it
    counted: bool = False  # each element counts what it matched
    seeds: Callable[[], Sequence[str]] | None = None  # of a set of addresses and ports that packets fill


class ChainLine(Struct, frozen=True):
    """One line of a chain: arguments of iptables. One of its sets carries the rule's id in its name."""

    family: int
    match: tuple[str, ...]
    target: tuple[str, ...]
    hook: str = PREROUTING
    unlisted: bool = False  # only packets match whose source is not on the allow-list
    listed: bool = False  # only those match whose source is on it
    behind: frozenset[str] | None = None  # of a protected port: the rules whose lines come before it

    @property
    def chain(self) -> str:
        """The chain that it is in."""
        if self.behind is not None:
            return PORT_CHAINS[self.hook]
        if self.listed:
            return LISTED_CHAINS[self.hook]
        return (SOURCE_CHAINS if self.unlisted else RULE_CHAINS)[self.hook]


class KernelObjects(Struct, frozen=True):
    """Everything that a rule puts into the kernel."""

    sets: tuple[SetSpec, ...]
    lines: tuple[ChainLine, ...]
    notes: tuple[str, ...] = ()  # costs and side effects, for the preview
    compiled: Rule | None = None  # without sets and lines
    settings: tuple[Setting, ...] = ()  # sysctls
    needs: tuple[Setting, ...] = ()  # sysctls that must be so; changed only where they are not
    untracked: tuple[Match, ...] = ()  # services whose rules on states get stateless lines beside them
    nft: NftRule | None = None  # instead of sets and lines

    @property
    def in_raw(self) -> bool:
        """Whether packets meet all of it in table raw."""
        return self.compiled is None and self.nft is None
