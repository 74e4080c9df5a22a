"""What is in nftables tables of our own now, and what of it is ours."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from fwtop.mitigate.nft_words import NETDEV, Layout, set_of
from fwtop.mitigate.run import CommandError, run
from fwtop.model.errors import FwtopError

_SET = re.compile(r"r(\d+)-\w+")
_COMMENT = re.compile(r"fwtop-(\d+)")
_BASE_CHAIN = re.compile(r"in-\d+")
ALLOW_SETS = frozenset({"allow4", "allow6"})
_NO_PROGRAM = 3  # the status of an error about a program that is not installed
_COMMON = frozenset({"metainfo", "table", "chain", "set", "rule"})


@dataclass(slots=True)
class Table:
    """A table as the kernel has it; nothing is known of one by this name that is somebody else's."""

    foreign: bool = False  # there, but not made by fwtop
    shared: bool = False  # ours, and somebody put things of their own in
    chains: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    rules: list[tuple[str, str, int, int, int]] = field(default_factory=list)  # id, chain, handle, counts

    def rule_ids(self) -> set[str]:
        """Return the ids of the rules that have sets or lines here."""
        named = {found[1] for name in self.sets if (found := _SET.fullmatch(name))}
        return named | {rule_id for rule_id, *_ in self.rules}


def read(layout: Layout) -> Table:
    """Read a table of ours; one that isn't there, or can't be here, is empty. Raises FwtopError."""
    try:
        text = run(["nft", "-j", "-t", "list", "table", *layout.table.split()])
    except FwtopError as error:
        if error.code == _NO_PROGRAM or is_missing(str(error)):
            return Table()
        raise
    table = Table()
    for item in json.loads(text)["nftables"]:
        if "chain" in item:
            table.chains.add(item["chain"]["name"])
        elif "set" in item:
            table.sets.add(item["set"]["name"])
        elif "rule" in item and (comment := _COMMENT.fullmatch(item["rule"].get("comment", ""))):
            rule = item["rule"]
            counter = next((part["counter"] for part in rule["expr"] if "counter" in part), None) or {}
            counts = (int(counter.get("packets", 0)), int(counter.get("bytes", 0)))
            table.rules.append((comment[1], rule["chain"], int(rule["handle"]), *counts))
        elif not item.keys() & _COMMON:
            table.shared = True
    if not table.sets >= ALLOW_SETS:  # they come in one transaction with all the rest
        return Table(foreign=True)
    own = {name for name in table.sets if name in ALLOW_SETS or _SET.fullmatch(name)}
    own |= {name for name in table.chains if name in layout.chains or _BASE_CHAIN.fullmatch(name)}
    table.shared = table.shared or bool((table.sets | table.chains) - own)
    return table


def is_missing(complaint: str) -> bool:
    """Say whether nft complained that a table, or nf_tables itself, is not there."""
    return any(text in complaint for text in ("No such file or directory", "not supported", "syntax error"))


def removal(layout: Layout, table: Table, rule_ids: set[str]) -> list[str]:
    """Return what takes rules out of a table that stays."""
    places = [(chain, handle) for rule_id, chain, handle, _, _ in table.rules if rule_id in rule_ids]
    doomed = [f"delete rule {layout.table} {chain} handle {handle}" for chain, handle in places]
    gone = [name for name in sorted(table.sets) if (found := _SET.fullmatch(name)) and found[1] in rule_ids]
    return doomed + [f"delete set {layout.table} {name}" for name in gone]


def entry_counters(rule_id: str, *, top: int) -> dict[str, int]:
    """Return the `top` sources of a rule at netdev ingress that matched most: prefix → packets."""
    counted: list[tuple[int, str]] = []
    for family in (4, 6):
        try:
            text = run(["nft", "-j", "list", "set", *NETDEV.table.split(), set_of(rule_id, f"src{family}")])
        except CommandError:
            continue
        listed = [item["set"].get("elem", ()) for item in json.loads(text)["nftables"] if "set" in item]
        elements = [item["elem"] for elements in listed for item in elements]
        counted += [(int(element["counter"]["packets"]), _element(element["val"])) for element in elements]
    return {name: packets for packets, name in sorted(counted, reverse=True)[:top]}


def _element(value: str | dict[str, Any]) -> str:
    if isinstance(value, dict):
        return f"{value['prefix']['addr']}/{value['prefix']['len']}"
    return str(value)
