"""A rule's lines beside others' in nftables' own tables: one transaction, found again by their comment.

Each asks a set that the rule puts into that table, whose elements have the rule's timeout: an nft set can't
be asked from another table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from fwtop.model.rule import Match
from fwtop.netfilter import nf_tables, nft
from fwtop.netfilter.iptables import Variant
from fwtop.netfilter.nft import Json
from fwtop.netfilter.nft_listed import Listed, Place
from fwtop.netfilter.states.nft_stateless import NftInsert, commands, inserts, read_native

_OWN = re.compile(r"fwtop-(\d+)")
_SET = re.compile(r"fwtop-(\d+)-st")
_ELEMENTS = ("ipv4", "ipv6")


class NftInserts(Struct, frozen=True):
    """The lines of all rules in tables that are not fwtop's, nor those of iptables."""

    variant: Variant

    def wanted(self, services: Sequence[Match]) -> list[NftInsert]:
        """Return the lines that untracked services need; raises FwtopError."""
        return inserts(read_native(self.variant), services)

    def plan(self, rule_id: str, services: Sequence[Match]) -> list[str]:
        """Return the commands that `install` amounts to, after nft has checked it; raises FwtopError."""
        items = self.wanted(services)
        nft.change(_additions(rule_id, items, 1), check=True)
        return [item.command for item in items]

    def install(self, rule_id: str, services: Sequence[Match], timeout_seconds: int) -> None:
        """Put in a rule's lines, of which none is there; raises FwtopError."""
        nft.change(_additions(rule_id, self.wanted(services), timeout_seconds))

    def renew(self, rule_id: str, timeout_seconds: int) -> None:
        """Set the timeout of a rule's sets, where they are; raises FwtopError."""
        places = [place for place in read_native(self.variant).own_sets if _rule_of(place) == rule_id]
        changed: list[Json] = []
        for place in places:
            changed += [{"flush": {"set": _named(place)}}, _filled(place, timeout_seconds)]
        nft.change(changed)

    def disable(self, rule_ids: set[str]) -> None:
        """Empty the sets of rules, whose lines then match nothing; raises FwtopError."""
        places = read_native(self.variant).own_sets
        nft.change([{"flush": {"set": _named(place)}} for place in places if _rule_of(place) in rule_ids])

    def remove(self, rule_ids: set[str]) -> None:
        """Take out the lines and sets of rules; raises FwtopError. What is not there is no error."""
        nft.change(_removals(read_native(self.variant), rule_ids))

    def contents(self, rule_id: str) -> list[str]:
        """Return what a rule's lines say, and how many elements each of its sets has; raises FwtopError."""
        listed = read_native(self.variant)
        lines = [line for line in listed.lines if line.comment == f"fwtop-{rule_id}"]
        places = sorted(place for place in listed.own_sets if _rule_of(place) == rule_id)
        sizes = [len([*nf_tables.set_elements(f"{family} {table}", name)]) for family, table, name in places]
        said = [
            f"{line.place} {[part for part in line.expressions if 'counter' not in part]}" for line in lines
        ]
        return said + [f"{place} {size}" for place, size in zip(places, sizes, strict=True)]


def _rule_of(place: Place) -> str:
    found = _SET.fullmatch(place[2])
    return found[1] if found else ""


def _named(place: Place) -> Json:
    return dict(zip(("family", "table", "name"), place, strict=True))


def _filled(place: Place, timeout_seconds: int) -> Json:
    elements = [{"elem": {"val": value, "timeout": timeout_seconds}} for value in _ELEMENTS]
    return {"add": {"element": {**_named(place), "elem": elements}}}


def _additions(rule_id: str, items: Sequence[NftInsert], timeout_seconds: int) -> list[Json]:
    """Return what makes a set for each table and the lines."""
    made: list[Json] = []
    name = f"fwtop-{rule_id}-st"
    for family, table in dict.fromkeys((item.line.family, item.line.table) for item in items):
        place = family, table, name
        made.append({"add": {"set": {**_named(place), "type": "nf_proto", "flags": ["timeout"]}}})
        made.append(_filled(place, timeout_seconds))
    asks = {"match": {"op": "==", "left": {"meta": {"key": "nfproto"}}, "right": f"@{name}"}}
    return [*made, *commands(items, (asks,), f"fwtop-{rule_id}")]


def _removals(listed: Listed, rule_ids: set[str]) -> list[Json]:
    found: list[Json] = []
    for line in listed.lines:
        own = _OWN.fullmatch(line.comment)
        if own and own[1] in rule_ids:
            place = dict(zip(("family", "table", "chain"), line.place, strict=True))
            found.append({"delete": {"rule": place | {"handle": line.handle}}})
    sets = [place for place in listed.own_sets if _rule_of(place) in rule_ids]
    return found + [{"delete": {"set": _named(place)}} for place in sets]
