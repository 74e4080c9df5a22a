"""Rules in table raw: ipsets, and the lines of fwtop's chains that ask them, IPv4 before IPv6."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.chains import sets
from fwtop.guardian.mechanisms.chains.allow_sets import AllowSets, names_of
from fwtop.guardian.mechanisms.chains.chain import Chains, Variants
from fwtop.guardian.mechanisms.chains.compare import ChainComparison
from fwtop.guardian.mechanisms.chains.raw_lines import FAMILIES, RawLines
from fwtop.guardian.mechanisms.chains.table_raw import add_text
from fwtop.guardian.mechanisms.mechanism import (
    Baseline,
    Changed,
    Count,
    Expected,
    Mechanism,
    Remains,
    Shortfall,
    Wanted,
    each,
    readable,
)
from fwtop.guardian.records.former import FormerState
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Mode, Rule, families_of
from fwtop.netfilter import ipset
from fwtop.rules.kind import BESIDE, ChainLine, KernelObjects, Layer
from fwtop.rules.kinds.protect import SHUT
from fwtop.rules.xtables import COUNTED_ELEMENTS, UNLISTED, fill_text, list_set_name, set_name

if TYPE_CHECKING:
    from fwtop.guardian.mechanisms.chains.list_sets import ListSets

_SHOWN_ELEMENTS = 5
_SET = re.compile(r"fwtop-(\d+)-(on|un|dst|shut|pass|)([46])")
_BESIDE_SET = re.compile(rf"fwtop-(\d+)-{BESIDE}[46]")
_CHAIN_FAILPOINTS = {4: Failpoint.CHAIN_V4, 6: Failpoint.CHAIN_V6}
_REPAIR_FAILPOINTS = {4: Failpoint.REPAIR_CHAIN_V4, 6: Failpoint.REPAIR_CHAIN_V6}


class ChainRules(Mechanism):
    """The rules of one namespace that have ipsets and lines in table raw."""

    layers = (Layer.RAW, Layer.TRACKED)

    def __init__(
        self,
        chains: Chains,
        memory: FormerState,
        baseline: Baseline,
        failpoints: Failpoints,
        serve_urgent: Callable[[], None],
    ) -> None:
        self.lines = RawLines(Variants(chains), baseline, memory)
        self.variants = self.lines.variants
        self._allow_sets = AllowSets()
        self._comparison = ChainComparison(self.lines, self._allow_sets)
        self._failpoints = failpoints
        self._serve_urgent = serve_urgent
        self._lists: ListSets | None = None

    @property
    def lists(self) -> ListSets:
        """The sets of named lists."""
        if self._lists is None:
            # Imported here: a guardian without lists needn't carry numpy.
            from fwtop.guardian.mechanisms.chains.list_sets import ListSets

            self._lists = ListSets(self._serve_urgent)
        return self._lists

    def is_used(self, objects: KernelObjects) -> bool:  # noqa: D102
        return bool(objects.sets or objects.lines)

    def plan(self, wanted: Wanted, *, follows: bool) -> list[str]:  # noqa: ARG002, D102
        objects, text = wanted.objects, []
        for spec in objects.sets:
            text += sets.shown_text(spec, wanted.seconds, _SHOWN_ELEMENTS)
        chains = self.variants.in_use
        if objects.untracked:
            text += chains.beside.plan(wanted.rule.id, objects.untracked)
        for family, lines_of_family in _by_family(objects):
            state = chains.writable(family)
            program = chains.variant.program(family)
            for line in add_text(state, family, lines_of_family).splitlines():
                if line.startswith("-"):
                    text.append(f"{program} -t raw {line}")
                elif line.startswith(":"):
                    text.append(f"{program} -t raw -N {line[1:].split()[0]}")
        return text

    def install(self, wanted: Wanted) -> str:
        """Put in long sets, then for each family short ones and the allow-list's, and the lines."""
        rule_id, objects = wanted.rule.id, wanted.objects
        self.variants.assign(rule_id, self.variants.in_use.variant.name)
        short = ""
        for spec in objects.sets:
            if spec.seeds is not None:
                short += sets.learning_text(spec)
            elif spec.timed:
                short += fill_text(spec, wanted.seconds)
            elif spec.shared:
                self.lists.ensure(spec)
            else:
                sets.fill_long(spec, wanted.seconds, self._serve_urgent)
        self._failpoints.reached(Failpoint.SETS)
        untracked = objects.untracked
        for family, lines in _by_family(objects):
            self._serve_urgent()
            # Only now: the last other rule, if it ends meanwhile, takes the allow-list's sets along.
            self._allow_sets.fill_with(short, wanted.allow, family)
            short = ""
            self._failpoints.reached(Failpoint.ALLOW)
            if untracked:  # the sets are there now, and nothing is untracked yet
                self._install_beside(rule_id, untracked, wanted.seconds)
                self._failpoints.reached(Failpoint.BESIDE)
                untracked = ()
            self.lines.add(family, rule_id, lines)
            self._failpoints.reached(_CHAIN_FAILPOINTS[family])
        return ""

    def renew(self, wanted: Wanted) -> None:
        """Fill sets again, those of the allow-list first."""
        objects = wanted.objects
        if objects.lines:
            self._allow_sets.fill(wanted.allow, [family for family, _ in _by_family(objects)])
        for spec in objects.sets:
            if spec.shared:
                self.lists.ensure(spec)
            else:
                sets.renew(spec, wanted.seconds)
        if objects.untracked:
            self.variants.of(wanted.rule.id).beside.renew(wanted.rule.id, wanted.seconds)

    def switch(self, wanted: Wanted) -> None:
        """Fill and empty the enable sets of a protected port; raises FwtopError."""
        enable_sets = (spec for spec in wanted.objects.sets if spec.timed and spec.seeds is None)
        sets.switch(enable_sets, wanted.seconds)

    def change(self, changes: Sequence[Changed]) -> None:
        """Write lines anew, with their counters; where sets are others, they ask copies of those meanwhile.

        Sets and lines can't be exchanged in one step, but lines that ask other sets can.
        """
        aside: dict[str, str] = {}  # names of sets, and of their copies
        for one in changes:
            if one.rule.mode is Mode.OFF:
                continue
            if other := [spec for spec in one.objects.sets if sets.is_other(spec, one.before.sets)]:
                aside |= {spec.name: f"{spec.name}{sets.NEXT}" for spec in other}
            else:
                self.renew(one)
                self.follow(one)
        if aside:
            self._exchange_sets(changes, aside)
        self._write(changes, {})
        for one in changes:
            if one.before.sets != one.objects.sets:
                self._destroy_others(one.rule.id, [spec.name for spec in one.objects.sets])

    def _exchange_sets(self, changes: Sequence[Changed], aside: Mapping[str, str]) -> None:
        """Have lines ask copies of sets that are to be others, and make those then; their counts go on."""
        mine = [one for one in changes if any(spec.name in aside for spec in one.objects.sets)]
        for one in mine:
            self._allow_sets.fill(one.allow, [family for family, _ in _by_family(one.objects)])
            for spec in one.objects.sets:
                if spec.shared:
                    self.lists.ensure(spec)
                elif spec.name in aside:
                    sets.fill(replace(spec, name=aside[spec.name]), one.seconds)
        self._write(changes, aside)
        self._failpoints.reached(Failpoint.ASIDE)
        for one in mine:
            counted = sets.counts_of(one.before.sets)
            self._destroy_others(one.rule.id, [aside.get(spec.name, spec.name) for spec in one.objects.sets])
            for spec in one.objects.sets:
                if spec.name in aside:
                    sets.fill(spec, one.seconds)
                    sets.count_on(spec, one.seconds, counted)

    def _write(self, changes: Sequence[Changed], names: Mapping[str, str]) -> None:
        """Write the lines of rules, a family after the other, with other names for some of their sets."""
        for family in FAMILIES:
            mine = {}
            for one in changes:
                lines = [
                    replace(line, match=tuple(names.get(word, word) for word in line.match))
                    for line in one.objects.lines
                    if line.family == family
                ]
                if lines or any(line.family == family for line in one.before.lines):
                    mine[one.rule.id] = lines
            self.lines.restore(family, mine)

    @staticmethod
    def _destroy_others(rule_id: str, kept: Collection[str]) -> None:
        """Destroy the sets of a rule that none of its lines asks any more."""
        for name in sorted(sets.names()):
            if name.split("-")[1] == rule_id and name not in kept and not _BESIDE_SET.fullmatch(name):
                ipset.destroy_set(name)

    def restore(self, wanted: Wanted) -> None:  # noqa: D102
        rule_id, objects = wanted.rule.id, wanted.objects
        grouped = _by_family(objects)
        self._allow_sets.fill(wanted.allow, [family for family, _ in grouped])
        for spec in objects.sets:
            if spec.shared:
                self.lists.ensure(spec, by_contents=True)
            else:
                sets.restore_missing(spec, wanted.seconds)
        self._install_beside(rule_id, objects.untracked, wanted.seconds)
        self._failpoints.reached(Failpoint.REPAIR_SETS)
        for family, lines in grouped:
            self.lines.restore(family, {rule_id: lines}, heads_anew=True)
            self._failpoints.reached(_REPAIR_FAILPOINTS[family])
        self._destroy_others(rule_id, [spec.name for spec in objects.sets])  # of a change half made

    def follow(self, wanted: Wanted) -> bool:
        """Have enable sets spare the prefixes of this allow-list, and move lines, with their counters.

        Lines that are gone are not restored.
        """
        rule_id, moved = wanted.rule.id, False
        for spec in wanted.objects.sets:
            if spec.name.endswith(f"-{UNLISTED}{spec.family}"):
                moved |= sets.spare_others(spec, wanted.seconds)
        self._failpoints.reached(Failpoint.FOLLOWED)
        for family, lines in _by_family(wanted.objects):
            found = self.variants.of(rule_id).own_lines(family)
            there = found.chains_of(rule_id) - {line.chain for line in lines}
            if there and len(found.lines_of(rule_id)) == len(lines):
                self.lines.restore(family, {rule_id: lines})
                moved = True
        return moved

    def disable(self, rule_ids: set[str]) -> None:
        """Empty the rules' sets: then their lines match nothing."""
        each(lambda step: step(rule_ids), (sets.flush_of, self._disable_beside))

    def _disable_beside(self, rule_ids: set[str]) -> None:
        if mine := _with_lines_beside(rule_ids):
            each(lambda chains: chains.beside.disable(mine), self.variants.there())

    def remove(self, rule_ids: set[str]) -> None:
        """Remove lines, those beside others' once everything is tracked again."""
        each(lambda step: step(rule_ids), (self.lines.remove, self._remove_beside))

    def _remove_beside(self, rule_ids: set[str]) -> None:
        if mine := _with_lines_beside(rule_ids):
            each(lambda chains: chains.beside.remove(mine), self.variants.there())

    def destroy(self, rule_ids: set[str]) -> None:
        """Destroy sets, which the kernel refuses as long as a line asks them."""
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

    def forget(self, rule_ids: set[str]) -> None:  # noqa: D102
        self.lines.forget(rule_ids)

    def _install_beside(self, rule_id: str, services: tuple[Match, ...], timeout_seconds: int) -> None:
        if services:
            beside = self.variants.of(rule_id).beside
            beside.install(rule_id, services, timeout_seconds)
            self.lines.note_beside(rule_id, beside.contents(rule_id))

    def present(self, expected: Expected) -> bool:  # noqa: D102
        if not {spec.name for spec in expected.objects.sets} <= sets.names():
            return False
        return self.lines.present(expected.rule.id, expected.objects.lines)

    def compare(self, rules: Sequence[Expected]) -> dict[str, Shortfall]:  # noqa: D102
        self._comparison.begin(rules)
        return super().compare(rules)

    def shortfall(self, expected: Expected) -> Shortfall | None:  # noqa: D102
        return self._comparison.shortfall(expected)

    def refresh_allow(self, allow: AllowList) -> None:  # noqa: D102
        self._allow_sets.refresh(allow)

    def rule_ids(self) -> set[str]:  # noqa: D102
        nothing: set[str] = set()
        in_sets = {name.split("-")[1] for name in readable(sets.names, nothing)}
        return {rule_id for rule_id in in_sets if rule_id.isdigit()} | self.lines.rule_ids()

    def remains(self, rule_id: str) -> Remains | None:
        """Read a rule's ipsets: the sources are the elements, the clock is their timeout."""
        named = map(_SET.fullmatch, sorted(sets.names()))
        mine = [found for found in named if found is not None and found[1] == rule_id]
        sources: list[Prefix] = []
        left = 0
        for found in mine:
            for entry in ipset.entries(found[0]):
                if entry.element.flags:  # `nomatch`
                    continue
                left = max(left, entry.seconds)
                if not found[2]:
                    sources.append(entry.prefix)
        families = {int(found[3]) for found in mine}
        match = Match(sources=tuple(sources), family=families.pop() if len(families) == 1 else None)
        kind = Kind.PROTECT if any(found[2] == SHUT for found in mine) else Kind.IPSET
        return Remains(kind, match, left, self.lines.mode_of(rule_id))

    def counts(self) -> dict[str, Count]:  # noqa: D102
        return self.lines.counts()

    def entries(self, rule: Rule, most: int) -> dict[str, int]:
        """Return what the sets of a rule, or of the named list that it is on, count by element."""
        if len(rule.match.sources) > COUNTED_ELEMENTS:
            return {}
        counted: dict[str, int] = {}
        families = families_of(rule.match.sources)
        for family in (family for family in rule.match.families if family in families):
            listed = rule.list_name
            name = set_name(rule.id, family) if listed is None else list_set_name(listed, family)
            try:
                counted |= sets.entry_counters(name, top=most)
            except FwtopError:
                continue
        return counted


def _by_family(objects: KernelObjects) -> list[tuple[int, list[ChainLine]]]:
    grouped = [(family, [line for line in objects.lines if line.family == family]) for family in FAMILIES]
    return [(family, lines) for family, lines in grouped if lines]


def _with_lines_beside(rule_ids: set[str]) -> set[str]:
    return rule_ids & {found[1] for name in sets.names() if (found := _BESIDE_SET.fullmatch(name))}
