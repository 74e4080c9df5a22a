"""The nf_tables rule set as text: counters from netlink, texts from the programs that wrote the rules.

Programs are run only when a rule is there whose text is not known, for a rule's text never changes. So a
look costs milliseconds as long as nobody changes anything.
"""

from __future__ import annotations

import re
import time
from collections import Counter

from msgspec import Struct, field

from fwtop.model.errors import FwtopError
from fwtop.model.ruleset import IPTABLES_NFT, NFT, ListedRule, ListedSet
from fwtop.model.text import safe_text
from fwtop.netfilter import iptables, nf_tables, nft
from fwtop.netfilter.listing import nft_dump
from fwtop.netfilter.listing.names import NAME, TEXT, is_own_name, is_own_rule
from fwtop.netfilter.listing.nft_dump import DumpedRule
from fwtop.netfilter.listing.output import output_of
from fwtop.netfilter.nft_text import rule_text
from fwtop.netfilter.saved import parse

_IPTABLES_TABLES = frozenset({"filter", "nat", "mangle", "raw", "security"})
_MOST_LISTED = 20_000  # rules of a table that nft is asked for: it takes 4 s for 100,000
# nft reads its arguments as commands, and whoever made a table may have put one into its name
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_DUMP_SHARE = 0.6  # of the time: programs get the rest
_TRY_AGAIN_SECONDS = 60.0  # where texts could not be had

Where = tuple[str, str, str, int]  # family, table, chain, handle


class Found(Struct):
    """What was read of nf_tables."""

    rules: list[ListedRule] = field(default_factory=list)
    sets: list[ListedSet] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    total: int = 0


class _Text(Struct, frozen=True):
    source: str
    text: str
    ours: bool


class NfTables:
    """Reads nf_tables, again and again; remembers the texts of its rules."""

    def __init__(self) -> None:
        self._texts: dict[Where, _Text] = {}
        self._iptables: set[tuple[str, str]] = set()  # family and table of those that iptables-nft lists
        self._try_again = 0.0

    def read(self, end: float, most: int) -> Found:
        """Read everything until `end` (CLOCK_MONOTONIC), at most so many rules."""
        found = Found()
        try:
            chains = [chain for chain in nf_tables.chains() if chain.hook]
            now = time.monotonic()
            rules = self._dump(now + _DUMP_SHARE * (end - now), most, found)
            self._learn(rules, end, found)
            found.rules = [self._policy(chain) for chain in chains] + [self._listed(rule) for rule in rules]
            found.total += len(chains)
            named = _counters()
            found.total += len(named)
            found.rules += named
            found.sets = _sets(end)
        except OSError as error:
            found.notes.append(f"nf_tables can't be read: {error.strerror or error}")
        return found

    def _dump(self, end: float, most: int, found: Found) -> list[DumpedRule]:
        rules: list[DumpedRule] = []
        try:
            for rule in nft_dump.dumped_rules(end):
                found.total += 1
                if len(rules) < most:
                    rules.append(rule)
        except TimeoutError:
            found.notes.append(f"nf_tables: only the first {len(rules):,} rules were read in time")
        return rules

    def _learn(self, rules: list[DumpedRule], end: float, found: Found) -> None:
        """Get the texts of rules that are new."""
        present = {_where(rule) for rule in rules}
        new = present - self._texts.keys()
        if new and time.monotonic() >= self._try_again:
            self._learn_iptables({where[:2] for where in new}, rules, end, found)
            left = {where[:2] for where in present - self._texts.keys()}
            self._learn_nft(left, rules, end, found)
            if present - self._texts.keys():
                self._try_again = time.monotonic() + _TRY_AGAIN_SECONDS
        self._texts = {where: text for where, text in self._texts.items() if where in present}
        missing = len(present - self._texts.keys())
        if missing:
            found.notes.append(f"nf_tables: {missing:,} rules are described by their expressions only")

    def _learn_iptables(
        self, tables: set[tuple[str, str]], rules: list[DumpedRule], end: float, found: Found
    ) -> None:
        """Match what iptables-nft-save prints with the rules as dumped, by their order in each chain."""
        for number, family in ((4, "ip"), (6, "ip6")):
            program = iptables.save_program(iptables.NFT, number)
            if not program or not any(item == family and table in _IPTABLES_TABLES for item, table in tables):
                continue
            output = output_of([program, "-c"], end)
            found.notes += [output.problem] if output.problem else []
            saved = parse(output.text, number)
            handles: dict[tuple[str, str], list[int]] = {}
            for rule in rules:
                if rule.family == family:
                    handles.setdefault((rule.table, rule.chain), []).append(rule.handle)
            self._iptables |= {(family, table) for table, _ in saved.chains}
            for (table, chain), declared in saved.chains.items():
                known = handles.get((table, chain), [])
                if len(known) == len(declared.lines):  # nobody changed it in between
                    for handle, line in zip(known, declared.lines, strict=True):
                        self._note((family, table, chain, handle), IPTABLES_NFT, line.text)

    def _learn_nft(
        self, tables: set[tuple[str, str]], rules: list[DumpedRule], end: float, found: Found
    ) -> None:
        sizes = Counter((rule.family, rule.table) for rule in rules)
        for family, table in sorted(tables):
            if sizes[family, table] > _MOST_LISTED or not _PLAIN_NAME.fullmatch(table):
                continue
            output = output_of(["nft", "-j", "-t", "list", "table", family, table], end)
            if output.problem:
                found.notes.append(safe_text(f"table {family} {table}: {output.problem}"))
                continue
            try:
                for kind, rule in nft.parse(output.text):
                    if kind == "rule":
                        where = family, table, rule["chain"], int(rule["handle"])
                        self._note(where, NFT, rule_text(rule.get("expr", ()), rule.get("comment", "")))
            except (FwtopError, ValueError, KeyError, TypeError, AttributeError):
                line = f"table {family} {table}: nft printed something else than rules"
                found.notes.append(safe_text(line))

    def _note(self, where: Where, source: str, text: str) -> None:
        ours = is_own_rule(where[1], where[2], text)
        self._texts[where] = _Text(source, safe_text(text, limit=TEXT), ours)

    def _listed(self, rule: DumpedRule) -> ListedRule:
        known = self._texts.get(_where(rule))
        if known is None:
            text = nft_dump.expressions(rule.body)
            source = IPTABLES_NFT if (rule.family, rule.table) in self._iptables else NFT
            known = _Text(source, safe_text(text, limit=TEXT), is_own_rule(rule.table, rule.chain, text))
        place = f"{rule.table} {rule.chain}"
        key = rule.family, rule.table, rule.chain, str(rule.handle)
        return _rule(key, place, known, rule.packets, rule.size)

    def _policy(self, chain: nf_tables.Chain) -> ListedRule:
        source = IPTABLES_NFT if (chain.family, chain.table) in self._iptables else NFT
        text = f"policy {'drop' if chain.drops else 'accept'} at {chain.hook}"
        said = _Text(source, text, is_own_rule(chain.table, chain.name, ""))
        key = chain.family, chain.table, chain.name, "policy"
        return _rule(key, f"{chain.table} {chain.name}", said, chain.packets, chain.bytes)


def _where(rule: DumpedRule) -> Where:
    return rule.family, rule.table, rule.chain, rule.handle


def _key(*parts: str) -> str:
    return " ".join((NFT, *(safe_text(part, limit=NAME) for part in parts)))


def _rule(key: tuple[str, ...], place: str, said: _Text, packets: int | None, size: int | None) -> ListedRule:
    where = safe_text(place, limit=NAME)
    return ListedRule(_key(*key), said.source, key[0], where, said.text, said.ours, packets, size)


def _counters() -> list[ListedRule]:
    found = []
    for item in nft_dump.counters():
        said = _Text(NFT, f'counter "{safe_text(item.name, limit=NAME)}"', is_own_name(item.table))
        key = item.family, item.table, "counter", item.name
        found.append(_rule(key, item.table, said, item.packets, item.bytes))
    return found


def _sets(end: float) -> list[ListedSet]:
    return [
        ListedSet(
            _key(item.family, item.table, "set", item.name),
            NFT,
            item.family,
            safe_text(f"{item.table} {item.name}", limit=NAME),
            item.type,
            is_own_name(item.table),
            item.entries,
            item.size,
        )
        for item in nft_dump.sets(end)
    ]
