"""Whether the rules in table raw act: their lines, what comes before these, and their sets.

No program is run while the generation of the nf_tables rule set is the same; for ipsets a few messages are
enough. Lines and sets are compared by what they say and hold (raw_lines.py, sets.py)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from fwtop.guardian.mechanisms.chains.allow_sets import AllowSets
from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.chains.raw_lines import RawLines
from fwtop.guardian.mechanisms.chains.sets import Change, SetContents
from fwtop.guardian.mechanisms.chains.table_raw import (
    TABLE,
    TableState,
    changed_chain,
    table_of,
    wake_command,
)
from fwtop.guardian.mechanisms.mechanism import HEAD_CHANGED, Expected, Shortfall
from fwtop.kernel.links import LOOPBACK
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.netfilter import ipset, nf_tables
from fwtop.netfilter.iptables import NFT
from fwtop.netfilter.saved import Line, Packets, may_be_about
from fwtop.rules.kind import HOOK_CHAINS, OWN_CHAINS

_SAVE_SECONDS = 2.0  # for iptables-save: with tens of thousands of rules it takes longer
_SLOW_PAUSE_SECONDS = 60.0  # until it is tried again
_Read = tuple[TableState, list[Line]]
_OWN_CHAINS = frozenset(name for chains in OWN_CHAINS.values() for name in chains)
ENDS_PACKET = frozenset({"DROP", "REJECT", "QUEUE", "NFQUEUE"})
_LETS_PASS = frozenset({"ACCEPT", "RETURN", "QUEUE", "NFQUEUE"})
_DEEPEST = 8  # chains within chains
_MAX_COMPARED = 10_000


class ChainComparison:
    """Compares what the kernel has with what was installed, and remembers what it read."""

    def __init__(self, lines: RawLines, allow_sets: AllowSets) -> None:
        self._lines, self._allow_sets = lines, allow_sets
        self._contents = SetContents()
        self._tables: dict[tuple[str, int], _Read] = {}
        self._beside: dict[str, str] = {}  # shortfall of lines in table filter, by rule
        self._generation = 0
        self._slow_until = 0.0
        self._sizes: dict[str, int] | None = {}  # of all sets; None: they can't be read
        self._changed: dict[str, Change] = {}  # sets

    def begin(self, rules: Sequence[Expected]) -> None:
        """Read what all rules have in common; never raises."""
        generation = nf_tables.generation()
        if not generation or generation != self._generation:
            self._tables, self._beside, self._generation = {}, {}, generation
        else:  # tables of the legacy variant have no such number
            variants = self._lines.variants
            self._tables = {key: read for key, read in self._tables.items() if key[0] == NFT}
            self._beside = {
                rule_id: text
                for rule_id, text in self._beside.items()
                if variants.of(rule_id).variant.name == NFT
            }
        specs = {spec.name: spec for item in rules for spec in item.objects.sets}
        try:
            headers = ipset.headers() if any(item.objects.lines for item in rules) else []
            self._sizes = {header.name: header.entries for header in headers}
            self._changed = self._contents.look(specs, self._sizes)
        except FwtopError:
            self._sizes, self._changed = None, {}

    def shortfall(self, item: Expected) -> Shortfall | None:
        """Return what the kernel lacks of a rule, the worst first; raises FwtopError."""
        if text := self._lines_short(item) or self._beside_short(item):
            return Shortfall(text)
        if text := self._accepted_above(item):
            return Shortfall(text, obstructed=True)
        if self._sizes is None:
            return Shortfall("the sets can't be read")
        found = [self._changed[spec.name] for spec in item.objects.sets if spec.name in self._changed]
        if found:
            return Shortfall(found[0].text, elements_only=all(change.missing_only for change in found))
        for family in sorted({line.family for line in item.objects.lines}):
            if text := self._allow_sets.shortfall(family, self._sizes):
                return Shortfall(text, elements_only=True)  # with which it drops too much or too little
        return None

    def _beside_short(self, item: Expected) -> str:
        rule_id = item.rule.id
        if item.objects.untracked and rule_id not in self._beside:
            found = self._lines.variants.of(rule_id).beside.contents(rule_id)
            changed = self._lines.changed_beside(rule_id, found)
            self._beside[rule_id] = (
                "lines or sets of it beside those on states were changed" if changed else ""
            )
        return self._beside.get(rule_id, "")

    def _lines_short(self, item: Expected) -> str:
        """Describe damage to a rule's lines, or to the jumps to fwtop's chains; "" if none."""
        places = Counter((line.family, line.hook, line.chain) for line in item.objects.lines)
        for (family, hook, chain), count in places.items():
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
            chains = self._lines.variants.of(item.rule.id)
            changed = changed_chain(state, family, hook) or self._lines.changed_head(
                chains, family, hook, state
            )
            if changed:
                return f"{HEAD_CHANGED} {changed} (IPv{family}) were changed"
            if self._lines.changed(chains, family, item.rule.id, state):
                return f"its lines in table {TABLE} (IPv{family}) were changed"
        return ""

    def _accepted_above(self, item: Expected) -> str:
        """Name a foreign rule above the jumps to our chains that may accept the rule's packets."""
        for family, hook in dict.fromkeys((line.family, line.hook) for line in item.objects.lines):
            state, saved = self._table(item.rule.id, family)
            position = state.hook_position[HOOK_CHAINS[hook]]
            above = accepting_line(saved, family, hook, position, item.rule)
            if above:
                return f"a rule above fwtop's lets packets pass first: '{above}' (IPv{family})"
        return ""

    def _table(self, rule_id: str, family: int) -> _Read:
        chains = self._lines.variants.of(rule_id)
        key = (chains.variant.name, family)
        if key not in self._tables:
            self._tables[key] = self._saved(chains, family) or (chains.read(family), [])
        return self._tables[key]

    def _saved(self, chains: Chains, family: int) -> _Read | None:
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


def accepting_line(lines: Iterable[Line], family: int, hook: str, before: int, rule: Rule) -> str:
    """Return a line of table raw above a place in a hook that may let a rule's packets pass."""
    listed = [line for line in lines if (line.table, line.family) == ("raw", family)]
    for line in listed:
        if line.chain == hook and line.number < before and _may_meet(line, rule) and _passes(line, listed):
            return safe_text(f"-A {hook} {line.text}", limit=120)
    return ""


def _passes(line: Line, listed: list[Line], depth: int = 0) -> bool:
    """Return whether a line can end the way through the hook without a verdict against the packet."""
    if line.target in _LETS_PASS:
        return depth == 0 or line.target != "RETURN"
    inner = [item for item in listed if item.chain == line.target]
    if depth == 0 and leaves(line):
        return not any(item.target in ENDS_PACKET and item.words[0] == "-j" for item in inner)
    return depth <= _DEEPEST and any(_passes(item, listed, depth + 1) for item in inner)


def leaves(line: Line) -> bool:
    """Return whether a line of a hook goes to a chain of others, from which no packet returns to the hook."""
    return "-g" in line.words and line.target not in _OWN_CHAINS


def _may_meet(line: Line, rule: Rule) -> bool:
    """Return whether a line and a rule can be about the same packet, by header, source, and loopback."""
    match, arguments = rule.match, line.arguments
    options = (one for part in arguments.matches for one in part.options if one.values and not one.negated)
    given = {one.name: one.values[0] for one in options}
    packets = Packets(match.protocol, match.sport, match.dport, match.families)
    if LOOPBACK in (given.get("-i"), given.get("-o")) or not may_be_about(arguments, packets):
        return False
    if "-s" not in given or not match.sources or len(match.sources) > _MAX_COMPARED:
        return True
    theirs = Prefix.parse(given["-s"])
    return any(theirs.contains(mine) or mine.contains(theirs) for mine in match.sources)
