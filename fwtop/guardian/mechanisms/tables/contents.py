"""Whether fwtop's own nftables tables say what they said when written: lines, heads of chains, sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from fwtop.guardian.mechanisms.mechanism import HEAD_CHANGED, Baseline, digest, head_key
from fwtop.guardian.mechanisms.tables.words import rule_chain
from fwtop.netfilter import nf_tables
from fwtop.rules.nft_objects import Layout, NftRule, set_of

_MOST_READ = 65_536  # elements: a longer set is only found to be shorter than that


class _Read(Struct):
    """A table as the kernel has it: digests of lines by chain, those of rules apart from all others."""

    heads: dict[str, list[str]] = field(default_factory=dict)
    rules: dict[str, list[str]] = field(default_factory=dict)  # by comment


class NftContents:
    """The contents of all tables."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline = baseline
        self._latest: dict[str, tuple[int, _Read]] = {}  # by table, with the number of the rule set

    def _read(self, layout: Layout) -> _Read:
        now = nf_tables.generation()
        before, found = self._latest.get(layout.table, (0, _Read()))
        if not now or now != before:
            found = _read(layout)
            self._latest[layout.table] = now, found
        return found

    def note_rule(self, rule_id: str, rule: NftRule, *, anew: bool = True) -> None:
        """Take a rule's lines and sets as they are, just written; not `anew`: where nothing is known."""
        table = rule.layout.table
        lines = self._read(rule.layout).rules.get(f"fwtop-{rule_id}", [])
        self._baseline.note(f"{table}/rule/{rule_id}", lines, anew=anew)
        self.note_sets(rule.layout, _sets(rule_id, rule), anew=anew)

    def note_heads(self, layout: Layout, heads: Mapping[str, Sequence[str]], *, anew: bool = False) -> None:
        """Take the first lines of chains as they are; where some with these words are known, only `anew`."""
        there = self._read(layout).heads
        for chain, words in heads.items():
            if words and chain in there:
                self._baseline.note(head_key(layout.table, chain, words), there[chain], anew=anew)

    def note_sets(self, layout: Layout, names: Iterable[str], *, anew: bool = True) -> None:
        """Take sets as they are, just filled."""
        for name in names:
            self._baseline.note(f"{layout.table}/set/{name}", _of_set(layout, name), anew=anew)

    def forget_rules(self, rule_ids: Iterable[str]) -> None:
        """Forget the sets of rules that ended."""
        ended = tuple(f"/set/{set_of(rule_id, '')}" for rule_id in rule_ids)
        self._baseline.forget(lambda key: any(mark in key for mark in ended))

    def forget_table(self, layout: Layout) -> None:
        """Forget a table that is gone."""
        self._baseline.forget(lambda key: key.startswith(f"{layout.table}/"))

    def shortfall(self, rule_id: str, rule: NftRule, heads: Mapping[str, Sequence[str]]) -> str:
        """Say what of a rule, or of the chains that lead to it, was changed; "" if nothing.

        Raises FwtopError.
        """
        table, there = rule.layout.table, self._read(rule.layout)
        for chain, words in heads.items():
            found = there.heads.get(chain, ())
            if self._baseline.differs(head_key(table, chain, words), found) or (found and not words):
                return f"{HEAD_CHANGED} {chain} in table {table} were changed"
        for family in rule.families:
            if there.heads.get(rule_chain(rule_id, family)):
                return (
                    f"somebody put lines of others into chain {rule_chain(rule_id, family)} of table {table}"
                )
        if self._baseline.differs(f"{table}/rule/{rule_id}", there.rules.get(f"fwtop-{rule_id}", ())):
            return f"its lines in table {table} were changed"
        for name in _sets(rule_id, rule):
            if self._baseline.differs(f"{table}/set/{name}", _of_set(rule.layout, name)):
                return f"set {name} in table {table} holds other elements than it should"
        return ""


def _sets(rule_id: str, rule: NftRule) -> list[str]:
    """Return the names of the sets whose elements only fwtop changes."""
    return [
        set_of(rule_id, "on"),
        *(item.name(rule_id) for item in rule.sets if item.elements or item.shared),
    ]


def _read(layout: Layout) -> _Read:
    found = _Read()
    for rule in nf_tables.table_rules(layout.table):
        text = digest(rule.content)
        if rule.comment:
            found.rules.setdefault(rule.comment, []).append(f"{rule.chain} {text}")
        else:
            found.heads.setdefault(rule.chain, []).append(text)
    return found


def _of_set(layout: Layout, name: str) -> list[str]:
    count = total = 0
    for key, is_end in nf_tables.set_elements(layout.table, name):
        count += 1
        total += int(digest(key, b"\1" if is_end else b"\0"), 16)  # whatever their order
        if count >= _MOST_READ:
            return [f"{count} or more"]
    return [f"{count} {total:x}"]
