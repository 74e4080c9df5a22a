"""Check whether active rules act: what the kernel has now, compared with what was installed.

Checked on demand, at most once a second. No program is run while the generation of the nf_tables rule set is
the same; for ipsets and sysctls a few messages or a read are enough. Lines and sets are compared by what they
say and hold (baseline.py, set_contents.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.diagnose.obstacles import accepting_line
from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.chains.chain_text import changed_chain
from fwtop.guardian.mechanisms.chains.set_contents import Change, SetContents
from fwtop.guardian.mechanisms.chains.table_state import TABLE, TableState, table_of, wake_command
from fwtop.guardian.mechanisms.kernel import Kernel
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule, Setting
from fwtop.netfilter import ipset, nf_tables
from fwtop.netfilter.iptables import NFT
from fwtop.netfilter.saved import Line
from fwtop.rules.nft_objects import NftRule
from fwtop.rules.objects import HEAD_CHANGED, HOOK_CHAINS, KernelObjects, SetSpec

_SECONDS = 0.9  # between two looks
_SAVE_SECONDS = 2.0  # for iptables-save: with tens of thousands of rules it takes longer
_SLOW_PAUSE_SECONDS = 60.0  # until it is tried again


class Expected(Struct, frozen=True):
    """What the kernel should have of a rule."""

    rule: Rule
    sets: tuple[SetSpec, ...]
    lines: dict[tuple[int, str, str], int]  # family, hook and chain → lines
    nft: NftRule | None
    needs: tuple[Setting, ...]
    compiled: bool
    beside: bool  # it has lines in table filter


class Shortfall(Struct, frozen=True):
    """Why a rule does not act, or not in full."""

    text: str
    elements_only: bool = False  # `keep` fills its sets again
    obstructed: bool = False  # complete, but a foreign rule lets packets pass first


def _places(objects: KernelObjects) -> dict[tuple[int, str, str], int]:
    return Counter((line.family, line.hook, line.chain) for line in objects.lines)


class Acting:
    """Compares the kernel's state with the expected one, and caches the result."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._expected: dict[str, Expected] = {}
        self._sets = SetContents()
        self._tables: dict[tuple[str, int], tuple[TableState, list[Line]]] = {}
        self._nft: dict[str, str] = {}  # shortfall by rule
        self._beside: dict[str, str] = {}  # the same of lines in table filter
        self._generation = 0
        self._looked_at = 0.0
        self._slow_until = 0.0
        self._short: dict[str, Shortfall] = {}

    def expect(self, rule: Rule, objects: KernelObjects) -> None:
        """Note what was installed or repaired."""
        made = Expected(
            rule,
            objects.sets,
            _places(objects),
            objects.nft,
            objects.needs,
            objects.compiled is not None,
            bool(objects.untracked),
        )
        self._expected[rule.id] = made
        self._sets.forget(spec.name for spec in objects.sets)
        self._looked_at = 0.0

    def followed(self, rule_id: str, objects: KernelObjects) -> None:
        """Note that a rule's lines are in other chains now, or that its sets spare others."""
        if rule_id in self._expected:
            places = _places(objects)
            self._expected[rule_id] = replace(self._expected[rule_id], sets=objects.sets, lines=places)
            self._sets.forget(spec.name for spec in objects.sets)
            self._looked_at = 0.0

    def forget(self, rule_id: str) -> None:
        """Forget a rule that ended."""
        old = self._expected.pop(rule_id, None)
        self._short.pop(rule_id, None)
        self._sets.forget(spec.name for spec in (old.sets if old is not None else ()))

    def look(self, rule_ids: Iterable[str], *, force: bool = False) -> dict[str, Shortfall]:
        """Return the rules that don't act, with the reason; also those that can't be read."""
        now = time.monotonic()
        if force or now - self._looked_at >= _SECONDS:
            wanted = [self._expected[rule_id] for rule_id in rule_ids if rule_id in self._expected]
            self._short = self._compare(wanted)
            self._looked_at = now
        return self._short

    def _compare(self, wanted: list[Expected]) -> dict[str, Shortfall]:
        generation = nf_tables.generation()
        if not generation or generation != self._generation:
            self._tables, self._nft, self._beside, self._generation = {}, {}, {}, generation
        else:  # tables of the legacy variant have no such number
            self._tables = {key: read for key, read in self._tables.items() if key[0] == NFT}
            self._beside = {
                rule_id: text
                for rule_id, text in self._beside.items()
                if self._kernel.variants.of(rule_id).variant.name == NFT
            }
        try:
            headers = ipset.headers() if any(item.lines for item in wanted) else []
            sizes = {header.name: header.entries for header in headers}
            changed = self._sets.look({spec.name: spec for item in wanted for spec in item.sets}, sizes)
        except FwtopError:
            sizes, changed = None, {}
        found: dict[str, Shortfall] = {}
        for item in wanted:
            short = self._short_of(item, sizes, changed)
            if short is not None:
                found[item.rule.id] = short
        return found

    def _short_of(
        self, item: Expected, sizes: dict[str, int] | None, changed: dict[str, Change]
    ) -> Shortfall | None:
        try:
            text = self._lines_short(item) or self._elsewhere_short(item)
            above = "" if text else self._accepted_above(item)
            if text or above:
                return Shortfall(text or above, obstructed=not text)
            if sizes is None:
                return Shortfall("the sets can't be read")
            found = [changed[spec.name] for spec in item.sets if spec.name in changed]
            if found:
                return Shortfall(found[0].text, elements_only=all(change.missing_only for change in found))
            return self._allow_short(item, sizes)
        except Exception as error:  # one rule that can't be looked at must not hide the others
            return Shortfall(f"can't be checked: {FwtopError.of(error)}")

    def _allow_short(self, item: Expected, sizes: dict[str, int]) -> Shortfall | None:
        """Name a changed set of the allow-list, with which a rule drops too much or too little."""
        if item.nft is not None:
            text = self._kernel.tables.allow_shortfall(item.nft.layout)
        if not (item.nft is not None and text):
            families = {family for family, _, _ in item.lines}
            found = (self._kernel.allow_shortfall(family, sizes) for family in sorted(families))
            text = next(filter(None, found), "")
        return Shortfall(text, elements_only=True) if text else None

    def _elsewhere_short(self, item: Expected) -> str:
        rule_id = item.rule.id
        if item.compiled:
            return self._kernel.compiled.shortfall(item.rule)
        if item.nft is not None and rule_id not in self._nft:
            self._nft[rule_id] = self._kernel.tables.shortfall(rule_id, item.nft)
        if item.beside and rule_id not in self._beside:
            found = self._kernel.variants.beside_of(rule_id).contents(rule_id)
            changed = self._kernel.lines.contents.changed_beside(rule_id, found)
            self._beside[rule_id] = (
                "lines or sets of it beside those on states were changed" if changed else ""
            )
        text = self._nft.get(rule_id, "") or self._beside.get(rule_id, "")
        return text or self._kernel.sysctls.shortfall(rule_id, item.needs)

    def _lines_short(self, item: Expected) -> str:
        """Describe damage to a rule's lines, or to the jumps to fwtop's chains; "" if none."""
        for (family, hook, chain), count in item.lines.items():
            entry = HOOK_CHAINS[hook]
            state, _ = self._table(item.rule.id, family)
            mine = [line for line in state.chains.get(chain, ()) if line.rule_id == item.rule.id]
            if len(mine) < count:
                gone = "its line is" if count == 1 else f"{count - len(mine)} of its {count} lines are"
                return f"{gone} gone from chain {chain} (IPv{family})"
            if state.dormant:
                return f"table {TABLE} (IPv{family}) is dormant: {wake_command(family)} wakes it"
            if entry not in state.hook_position:
                return f"nothing jumps to chain {entry} (IPv{family}) any more"
            contents, chains = self._kernel.lines.contents, self._kernel.variants.of(item.rule.id)
            changed = changed_chain(state, family, hook) or contents.changed_head(chains, family, hook, state)
            if changed:
                return f"{HEAD_CHANGED} {changed} (IPv{family}) were changed"
            if contents.changed(chains, family, item.rule.id, state):
                return f"its lines in table {TABLE} (IPv{family}) were changed"
        return ""

    def _accepted_above(self, item: Expected) -> str:
        """Name a foreign rule above the jumps to our chains that may accept the rule's packets."""
        for family, hook, _ in item.lines:
            state, saved = self._table(item.rule.id, family)
            position = state.hook_position[HOOK_CHAINS[hook]]
            above = accepting_line(saved, family, hook, position, item.rule)
            if above:
                return f"a rule above fwtop's lets packets pass first: '{above}' (IPv{family})"
        return ""

    def _table(self, rule_id: str, family: int) -> tuple[TableState, list[Line]]:
        chains = self._kernel.variants.of(rule_id)
        key = (chains.variant.name, family)
        if key not in self._tables:
            self._tables[key] = self._saved(chains, family) or (chains.read(family), [])
        return self._tables[key]

    def _saved(self, chains: Chains, family: int) -> tuple[TableState, list[Line]] | None:
        """Read the table with all foreign lines; None where iptables refuses, or would take too long."""
        now = time.monotonic()
        if now < self._slow_until:
            return None
        try:
            saved = chains.variant.read(family, TABLE, seconds=_SAVE_SECONDS)
            state = table_of(saved)  # where iptables refuses
            return state if chains.variant.name != NFT else chains.read(family), [*saved.lines]
        except FwtopError:
            if time.monotonic() - now >= _SAVE_SECONDS:
                self._slow_until = time.monotonic() + _SLOW_PAUSE_SECONDS
            return None
