"""Install, renew, repair and remove the kernel objects of any kind of rule.

Sysctls come first, as they give room at once; then nftables and sets, and the chain lines that match these,
IPv4 before IPv6. A failed installation is rolled back.
Each operation can be repeated: after a crash it finds what exists and does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.baseline import Baseline
from fwtop.guardian.mechanisms.chains import sets
from fwtop.guardian.mechanisms.chains.allow_sets import AllowSets, names_of
from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.chains.chain_text import add_text
from fwtop.guardian.mechanisms.chains.line_contents import LineContents
from fwtop.guardian.mechanisms.chains.raw_lines import FAMILIES, Count, Memory, RawLines, readable
from fwtop.guardian.mechanisms.chains.variants import Variants
from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
from fwtop.guardian.mechanisms.settings import Sysctls
from fwtop.guardian.mechanisms.tables.contents import NftContents
from fwtop.guardian.mechanisms.tables.tables import NftTables
from fwtop.guardian.ownership import single_threaded
from fwtop.kernel.deadline import unlimited
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match
from fwtop.netfilter import ipset
from fwtop.rules.objects import ChainLine, KernelObjects
from fwtop.rules.xtables import UNLISTED, fill_text

if TYPE_CHECKING:
    from fwtop.guardian.mechanisms.chains.list_sets import ListSets

_SHOWN_ELEMENTS = 5
_CHAIN_FAILPOINTS = {4: Failpoint.CHAIN_V4, 6: Failpoint.CHAIN_V6}
_REPAIR_FAILPOINTS = {4: Failpoint.REPAIR_CHAIN_V4, 6: Failpoint.REPAIR_CHAIN_V6}


@single_threaded
class Kernel:
    """fwtop's objects in netfilter, XDP and sysctls of one namespace."""

    def __init__(
        self,
        chains: Chains,
        memory: Memory,
        failpoints: Failpoints,
        compiled: CompiledRules,
        tables: NftTables,
        *,
        serve_urgent: Callable[[], None] = lambda: None,
    ) -> None:
        baseline = Baseline(memory.contents(), memory.keep_contents)
        self.lines = RawLines(Variants(chains), LineContents(baseline), memory)
        tables.contents = NftContents(baseline)
        self.compiled = compiled
        self.tables = tables
        self._serve_urgent = serve_urgent  # called between the batches of a long list
        self._failpoints = failpoints
        self._allow_sets = AllowSets()
        self._lists: ListSets | None = None
        self.sysctls = Sysctls(memory, failpoints)

    @property
    def variants(self) -> Variants:
        """Which variant of iptables each rule is in."""
        return self.lines.variants

    @property
    def lists(self) -> ListSets:
        """The sets of named lists."""
        if self._lists is None:
            # Imported here: a guardian without lists needn't carry numpy.
            from fwtop.guardian.mechanisms.chains.list_sets import ListSets

            self._lists = ListSets(self._serve_urgent)
        return self._lists

    def plan(
        self,
        rule_id: str,
        objects: KernelObjects,
        timeout_seconds: int,
        allow: AllowList,
        *,
        follows: bool = False,
    ) -> list[str]:
        """Return what `install` would run, as text for people; long sets are cut."""
        if objects.compiled is not None:
            return self.compiled.plan(objects.compiled, allow, follows=follows)
        text: list[str] = []
        if objects.nft is not None:
            text += self.tables.plan(rule_id, objects.nft, timeout_seconds, allow)
        for spec in objects.sets:
            text += sets.shown_text(spec, timeout_seconds, _SHOWN_ELEMENTS)
        chains = self.variants.in_use
        text += self.variants.beside(chains).plan(rule_id, objects.untracked)
        for family, lines_of_family in _by_family(objects):
            state = chains.writable(family)
            program = chains.variant.program(family)
            for line in add_text(state, family, lines_of_family).splitlines():
                if line.startswith("-"):
                    text.append(f"{program} -t raw {line}")
                elif line.startswith(":"):
                    text.append(f"{program} -t raw -N {line[1:].split()[0]}")
        text += self.sysctls.plan(objects.settings + self.sysctls.missing(objects.needs))
        return text

    def install(self, rule_id: str, objects: KernelObjects, allow: AllowList, timeout_seconds: int) -> str:
        """Install a rule, both families or neither; returns where it runs, "" for table raw.

        Raises FwtopError.
        """
        if objects.compiled is not None:
            return self.compiled.install(objects.compiled, allow, timeout_seconds)
        self.variants.assign(rule_id, self.variants.in_use.variant.name)
        try:
            self.sysctls.install(rule_id, objects.settings)
            place = ""
            if objects.nft is not None:
                self.sysctls.require(rule_id, objects.needs)
                place = self.tables.install(rule_id, objects.nft, allow, timeout_seconds)
            if objects.nft is not None and not objects.lines:
                return place
            short = ""
            for spec in objects.sets:
                if spec.seeds is not None:
                    short += sets.learning_text(spec)
                elif spec.timed:
                    short += fill_text(spec, timeout_seconds)
                elif spec.shared:
                    self.lists.ensure(spec)
                else:
                    sets.fill_long(spec, timeout_seconds, self._serve_urgent)
            self._failpoints.reached(Failpoint.SETS)
            untracked = objects.untracked
            for family, lines in _by_family(objects):
                self._serve_urgent()
                # Only now: the last other rule, if it ends meanwhile, takes the allow-list's sets along.
                self._allow_sets.fill_with(short, allow, family)
                short = ""
                self._failpoints.reached(Failpoint.ALLOW)
                if untracked:  # the sets are there now, and nothing is untracked yet
                    self._install_beside(rule_id, untracked, timeout_seconds)
                    self._failpoints.reached(Failpoint.BESIDE)
                    untracked = ()
                self.lines.add(family, rule_id, lines)
                self._failpoints.reached(_CHAIN_FAILPOINTS[family])
        except Exception:  # whatever it was: nothing half done stays
            self.remove({rule_id})
            raise
        return place

    def renew(self, rule_id: str, objects: KernelObjects, allow: AllowList, timeout_seconds: int) -> None:
        """Set a new timeout; expired elements are added again, those of the allow-list first.

        Raises FwtopError.
        """
        if objects.compiled is not None:
            self.compiled.renew(objects.compiled.id, timeout_seconds)
        if objects.nft is not None:
            self.tables.renew(rule_id, objects.nft, allow, timeout_seconds)
        if objects.lines:
            self._allow_sets.fill(allow, [family for family, _ in _by_family(objects)])
        for spec in objects.sets:
            if spec.shared:
                self.lists.ensure(spec)
            elif spec.seeds is None:
                sets.renew(spec, timeout_seconds)
        if objects.untracked:
            self.variants.beside_of(rule_id).renew(rule_id, timeout_seconds)

    def switch(self, objects: KernelObjects, timeout_seconds: int) -> None:
        """Fill and empty the enable sets of a protected port; raises FwtopError."""
        sets.switch((spec for spec in objects.sets if spec.timed and spec.seeds is None), timeout_seconds)

    def restore_missing(
        self, rule_id: str, objects: KernelObjects, allow: AllowList, timeout_seconds: int
    ) -> None:
        """Restore what the kernel lacks of an active rule; raises FwtopError."""
        if objects.compiled is not None:
            self.compiled.repair(objects.compiled, allow, timeout_seconds)
            self._failpoints.reached(Failpoint.REPAIR_COMPILED)
            return
        self.sysctls.renew(rule_id)
        if objects.nft is not None:
            self.sysctls.require_again(rule_id, objects.needs)
        self._failpoints.reached(Failpoint.REPAIR_SYSCTLS)
        if objects.nft is not None:
            self.tables.restore_missing(rule_id, objects.nft, allow, timeout_seconds)
        if objects.nft is not None and not objects.lines:
            return
        grouped = _by_family(objects)
        self._allow_sets.fill(allow, [family for family, _ in grouped])
        for spec in objects.sets:
            if spec.shared:
                self.lists.ensure(spec, by_contents=True)
            else:
                sets.restore_missing(spec, timeout_seconds)
        self._install_beside(rule_id, objects.untracked, timeout_seconds)
        self._failpoints.reached(Failpoint.REPAIR_SETS)
        for family, lines in grouped:
            self.lines.restore(family, rule_id, lines, heads_anew=True)
            self._failpoints.reached(_REPAIR_FAILPOINTS[family])

    @unlimited
    def remove(self, rule_ids: set[str], once_inert: Callable[[], None] = lambda: None) -> list[str]:
        """End rules: stop their effect, then delete their objects, and all of fwtop's with the last rule.

        `once_inert` is called in between: counters can still be read then. What is not there is no error.
        Each mechanism is tried whatever the others say. Returns what is left behind without effect, in
        words; raises FwtopError where a rule still acts.
        """
        stuck = self._disable(rule_ids)
        self._failpoints.reached(Failpoint.INACTIVE)
        once_inert()
        left: dict[str, FwtopError] = {}
        for name, tidy in (
            ("compiled", self.compiled.remove),
            ("tables", self.tables.remove),
            ("netfilter", self.lines.remove),
            ("beside", self._remove_beside),  # once everything is tracked again
        ):
            try:
                tidy(rule_ids)
                stuck.pop(name, None)
            except Exception as error:
                left[name] = FwtopError.of(error)
        self._failpoints.reached(Failpoint.CHAINS_REMOVED)
        try:
            self._destroy_sets(rule_ids)  # the kernel refuses those that lines still match
        except Exception as error:
            left.setdefault("netfilter", FwtopError.of(error))
        if stuck:
            raise next(iter(stuck.values()))
        self.lines.forget(rule_ids)
        self._failpoints.reached(Failpoint.SETS_DESTROYED)
        return [str(error) for error in left.values()]

    def _disable(self, rule_ids: set[str]) -> dict[str, FwtopError]:
        """Stop the effect of rules without reading foreign rules; returns errors by mechanism."""
        stuck: dict[str, FwtopError] = {}
        for name, disable in (
            ("compiled", self.compiled.disable),
            ("tables", self.tables.disable),
            ("netfilter", sets.flush_of),
            ("beside", self._disable_beside),
            ("sysctls", self.sysctls.restore),
        ):
            try:
                disable(rule_ids)
            except Exception as error:
                stuck[name] = FwtopError.of(error)
        return stuck

    def _install_beside(self, rule_id: str, services: tuple[Match, ...], timeout_seconds: int) -> None:
        if services:
            beside = self.variants.beside_of(rule_id)
            beside.install(rule_id, services, timeout_seconds)
            self.lines.contents.note_beside(rule_id, beside.contents(rule_id))

    def _remove_beside(self, rule_ids: set[str]) -> None:
        for chains in self.variants.there():
            self.variants.beside(chains).remove(rule_ids)

    def _disable_beside(self, rule_ids: set[str]) -> None:
        for chains in self.variants.there():
            self.variants.beside(chains).disable(rule_ids)

    def present(self, rule_id: str, objects: KernelObjects) -> bool:
        """Return whether the kernel has all of a rule (its elements may have expired)."""
        if objects.compiled is not None:
            return self.compiled.present(objects.compiled)
        if objects.nft is not None and not self.tables.present(rule_id, objects.nft):
            return False
        if not {spec.name for spec in objects.sets} <= sets.names():
            return False
        if not self.sysctls.present(rule_id, objects.settings):
            return False
        return self.lines.present(rule_id, objects.lines)

    def follow(self, rule_id: str, objects: KernelObjects, timeout_seconds: int) -> bool:
        """Adapt a rule to another allow-list; returns whether that changed anything. Raises FwtopError.

        Its enable sets spare the prefixes of this one, and its lines move to the chains they belong in, with
        their counters. Lines that are gone are not restored.
        """
        moved = False
        for spec in objects.sets:
            if spec.name.endswith(f"-{UNLISTED}{spec.family}"):
                moved |= sets.spare_others(spec, timeout_seconds)
        self._failpoints.reached(Failpoint.FOLLOWED)
        for family, lines in _by_family(objects):
            found = self.variants.of(rule_id).own_lines(family)
            there = found.chains_of(rule_id) - {line.chain for line in lines}
            if there and len(found.lines_of(rule_id)) == len(lines):
                self.lines.restore(family, rule_id, lines)
                moved = True
        return moved

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules with any readable object in the kernel."""
        nothing: set[str] = set()
        in_sets = {name.split("-")[1] for name in readable(sets.names, nothing)}
        found = {rule_id for rule_id in in_sets if rule_id.isdigit()}
        for read in (self.sysctls.rule_ids, self.compiled.rule_ids, self.tables.rule_ids):
            found |= readable(read, nothing)
        return found | self.lines.rule_ids()

    def counts(self) -> dict[str, Count]:
        """Return what each rule matched since it was installed, leaving out what can't be read."""
        nothing: dict[str, tuple[int, int]] = {}
        elsewhere = [readable(read, nothing) for read in (self.compiled.counts, self.tables.counts)]
        found = {rule_id: Count(*pair) for pairs in elsewhere for rule_id, pair in pairs.items()}
        for rule_id, count in self.lines.counts().items():
            found[rule_id] = found.get(rule_id, Count(0, 0)).plus(count)
        return found

    def allow_shortfall(self, family: int, sizes: dict[str, int]) -> str:
        """Name an ipset of the allow-list that was changed; "" if none. Raises FwtopError."""
        return self._allow_sets.shortfall(family, sizes)

    def refresh_allow(self, allow: AllowList) -> None:
        """Update the allow-list in all mechanisms that have rules; one that fails does not stop the others.

        Raises FwtopError.
        """
        errors: list[FwtopError] = []
        for refresh in (self._allow_sets.refresh, self.compiled.refresh, self.tables.refresh_allow):
            try:
                refresh(allow)
            except Exception as error:
                errors.append(FwtopError.of(error))
        if errors:
            raise FwtopError("; ".join(map(str, errors)))

    def _destroy_sets(self, rule_ids: set[str]) -> None:
        have = sets.names()
        for name in sorted(have):
            if name.split("-")[1] in rule_ids:
                ipset.destroy_set(name)
        for family in FAMILIES:
            mine = have & names_of(family)
            if mine and self.lines.is_empty(family):
                for name in sorted(mine):
                    for doomed in (name, f"{name}-new"):
                        ipset.destroy_set(doomed)
                self._allow_sets.forget(family)


def _by_family(objects: KernelObjects) -> list[tuple[int, list[ChainLine]]]:
    grouped = [(family, [line for line in objects.lines if line.family == family]) for family in FAMILIES]
    return [(family, lines) for family, lines in grouped if lines]
