"""Artifacts into the kernel and out again: the four verbs that every kind of rule shares.

What is compiled goes to the fast path; everything else is sets and chain lines.

Sets first, then the chain lines that ask them, IPv4 then IPv6; whatever fails, what was done is taken
back. Each verb can be repeated: after a crash it finds what is there and does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fwtop.mitigate import sets
from fwtop.mitigate.allowlist import AllowList
from fwtop.mitigate.artifacts import Artifacts, ChainLine
from fwtop.mitigate.chain import ALLOW_SETS, Chains, TableState, add_text
from fwtop.mitigate.nft import NftTables
from fwtop.mitigate.nft_words import NftRule
from fwtop.mitigate.steps import Step, Steps
from fwtop.mitigate.sysctls import Remembers, Sysctls
from fwtop.mitigate.xdp import FastPath
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError

FAMILIES = (4, 6)
_SHOWN_ELEMENTS = 5
_CHAIN_STEPS = {4: Step.CHAIN_V4, 6: Step.CHAIN_V6}


@dataclass(frozen=True, slots=True)
class Count:
    """What a rule matched since it was installed."""

    packets: int
    bytes: int


class Memory(Remembers, Protocol):
    """Keeps what table raw held before the first rule, across restarts of the guardian."""

    def remember_before(self, family: int, chains: frozenset[str] | None) -> None: ...  # noqa: D102
    def before(self, family: int) -> frozenset[str] | None: ...  # noqa: D102
    def forget_before(self, family: int) -> None: ...  # noqa: D102


class Kernel:
    """One namespace's netfilter and XDP, as far as they are ours."""

    def __init__(
        self, chains: Chains, memory: Memory, steps: Steps, fast: FastPath, tables: NftTables
    ) -> None:
        self.chains = chains
        self.fast = fast
        self.tables = tables
        self._memory = memory
        self._steps = steps
        self._allowed: dict[int, list[Prefix]] = {}
        self.sysctls = Sysctls(memory, steps)

    def plan(self, rule_id: str, artifacts: Artifacts, timeout_seconds: int, allow: AllowList) -> list[str]:
        """Return what `install` would run, as text for people; long sets are cut."""
        if artifacts.compiled is not None:
            return self.fast.plan(artifacts.compiled, allow)
        text: list[str] = []
        if artifacts.nft is not None:
            text += self.tables.plan(rule_id, artifacts.nft, timeout_seconds, allow)
        for spec in artifacts.sets:
            text += sets.shown_text(spec, timeout_seconds, _SHOWN_ELEMENTS)
        for family, lines_of_family in _by_family(artifacts):
            state = self.chains.read(family)
            program = self.chains.variant.program(family)
            for line in add_text(state, family, rule_id, lines_of_family).splitlines():
                if line.startswith("-"):
                    text.append(f"{program} -t raw {line}")
                elif line.startswith(":"):
                    text.append(f"{program} -t raw -N {line[1:].split()[0]}")
        text += self.sysctls.plan(artifacts.settings + self.sysctls.missing(artifacts.needs))
        return text

    def install(self, rule_id: str, artifacts: Artifacts, allow: AllowList, timeout_seconds: int) -> str:
        """Put a rule into the kernel, both families or neither; returns what is to be known about where.

        Raises FwtopError.
        """
        if artifacts.compiled is not None:
            return self.fast.install(artifacts.compiled, allow, timeout_seconds)
        if artifacts.nft is not None:
            return self._install_tables(rule_id, artifacts, artifacts.nft, allow, timeout_seconds)
        try:
            self.fill_allow(allow, [family for family, _ in _by_family(artifacts)])
            self._steps.reached(Step.ALLOW)
            for spec in artifacts.sets:
                sets.fill(spec, timeout_seconds)
            self._steps.reached(Step.SETS)
            for family, lines in _by_family(artifacts):
                self._hook(family, rule_id, lines)
                self._steps.reached(_CHAIN_STEPS[family])
            self.sysctls.install(rule_id, artifacts.settings)
        except FwtopError:
            self.remove({rule_id})
            raise
        return ""

    def renew(self, rule_id: str, artifacts: Artifacts, timeout_seconds: int) -> None:
        """Give a rule that is installed another time to live; elements that expired come back."""
        if artifacts.compiled is not None:
            self.fast.renew(artifacts.compiled.id, timeout_seconds)
        if artifacts.nft is not None:
            self.tables.renew(rule_id, artifacts.nft, timeout_seconds)
        for spec in artifacts.sets:
            sets.renew(spec, timeout_seconds)

    def remove(self, rule_ids: set[str]) -> None:
        """Take rules out, and everything of ours with the last one; what is not there is no error.

        Tries XDP, our tables, sysctls and both families before it raises.
        """
        errors: list[FwtopError] = []
        for remove in (self.fast.remove, self.tables.remove, self.sysctls.restore):
            try:
                remove(rule_ids)
            except FwtopError as error:
                errors.append(error)
        for family in FAMILIES:
            try:
                if self.chains.remove(family, rule_ids, self._memory.before(family)):
                    self._memory.forget_before(family)
            except FwtopError as error:
                errors.append(error)
        self._steps.reached(Step.UNCHAINED)
        if errors:
            raise errors[0]
        self._destroy_sets(rule_ids)
        self._steps.reached(Step.UNSET)

    def present(self, rule_id: str, artifacts: Artifacts) -> bool:
        """Say whether the kernel has all of a rule (its elements may have expired)."""
        if artifacts.compiled is not None:
            return self.fast.present(artifacts.compiled)
        if artifacts.nft is not None and not self.tables.present(rule_id, artifacts.nft):
            return False
        if not {spec.name for spec in artifacts.sets} <= sets.names():
            return False
        if not self.sysctls.present(rule_id, artifacts.settings):
            return False
        found = sum(len(self.chains.read(family).lines_of(rule_id)) for family in FAMILIES)
        return found == len(artifacts.lines)

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules of which the kernel holds anything."""
        in_chains = {rule_id for family in FAMILIES for rule_id in self.chains.read(family).rule_ids()}
        in_chains |= self.sysctls.rule_ids()
        in_sets = {name.split("-")[1] for name in sets.names() if name.split("-")[1].isdigit()}
        return in_chains | in_sets | self.fast.rule_ids() | self.tables.rule_ids()

    def counts(self) -> dict[str, Count]:
        """Return what each rule matched since it was installed."""
        elsewhere = self.fast.counts() | self.tables.counts()
        found = {rule_id: Count(*pair) for rule_id, pair in elsewhere.items()}
        for family in FAMILIES:
            state: TableState = self.chains.read(family)
            for rule_id in state.rule_ids():
                lines = state.lines_of(rule_id)
                before = found.get(rule_id, Count(0, 0))
                found[rule_id] = Count(
                    before.packets + sum(line.packets for line in lines),
                    before.bytes + sum(line.bytes for line in lines),
                )
        return found

    def fill_allow(self, allow: AllowList, families: list[int]) -> None:
        """Bring the allow-list's sets up to date where they are not; one step for the kernel."""
        have = sets.names()
        for family in families:
            wanted = allow.of_family(family)
            if self._allowed.get(family) != wanted or ALLOW_SETS[family] not in have:
                sets.replace(ALLOW_SETS[family], family, wanted)
                self._allowed[family] = wanted

    def refresh_allow(self, allow: AllowList) -> None:
        """Follow the allow-list in the families that have rules, and in XDP."""
        have = sets.names()
        self.fill_allow(allow, [family for family in FAMILIES if ALLOW_SETS[family] in have])
        self.fast.refresh(allow)
        self.tables.refresh_allow(allow)

    def _install_tables(
        self, rule_id: str, artifacts: Artifacts, rule: NftRule, allow: AllowList, timeout_seconds: int
    ) -> str:
        try:
            self.sysctls.require(rule_id, artifacts.needs)
            return self.tables.install(rule_id, rule, allow, timeout_seconds)
        except FwtopError:
            self.remove({rule_id})
            raise

    def _hook(self, family: int, rule_id: str, lines: list[ChainLine]) -> None:
        if not self.chains.read(family).chains:
            self._memory.remember_before(family, self.chains.native_chains(family))
        self.chains.add(family, rule_id, lines)

    def _destroy_sets(self, rule_ids: set[str]) -> None:
        have = sets.names()
        for name in sorted(have):
            if name.split("-")[1] in rule_ids:
                sets.destroy(name)
        for family in FAMILIES:
            name = ALLOW_SETS[family]
            if name in have and not self.chains.read(family).chains:
                for doomed in (name, f"{name}-new"):
                    sets.destroy(doomed)
                self._allowed.pop(family, None)


def _by_family(artifacts: Artifacts) -> list[tuple[int, list[ChainLine]]]:
    grouped = [(family, [line for line in artifacts.lines if line.family == family]) for family in FAMILIES]
    return [(family, lines) for family, lines in grouped if lines]
