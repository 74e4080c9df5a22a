"""The lines beside others' rules on states: in iptables' table filter, and in nft's own tables.

Each asks a set of its rule first, so that it has no effect once the set is empty or its time is over: that of
iptables' lines is an ipset, by which they are found again; nft's lines, found by their comment, ask a set
that the rule puts into their table, because an nft set can't be asked from another one. One transaction a
family in table filter, one for all that is nft's. Few guardians have such a rule, so this is imported for the
first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Match
from fwtop.netfilter import nf_tables, nft, nft_stateless, stateless
from fwtop.netfilter.iptables import LEGACY, LOCK_SECONDS, REMOVAL_LOCK_SECONDS, Variant, loaded_tables
from fwtop.netfilter.nft import Json
from fwtop.netfilter.nft_listed import Listed, Place
from fwtop.netfilter.nft_stateless import NftInsert, read_native
from fwtop.netfilter.saved import Line
from fwtop.netfilter.stateless import Insert, from_below
from fwtop.netfilter.tracking import service_name
from fwtop.rules.kind import BESIDE
from fwtop.rules.xtables import set_name

FAMILIES = (4, 6)
_XTABLES_OWN = re.compile(rf"--match-set fwtop-(\d+)-{BESIDE}[46] ")
_NFT_OWN = re.compile(r"fwtop-(\d+)")
_NFT_SET = re.compile(r"fwtop-(\d+)-st")
_ELEMENTS = ("ipv4", "ipv6")


class Beside(Struct, frozen=True):
    """The lines of all rules, in one iptables variant and in nft; the methods raise FwtopError."""

    variant: Variant

    def plan(self, rule_id: str, services: Sequence[Match]) -> list[str]:
        """Return the commands that `install` amounts to, after nft has checked its own."""
        self._require(services)
        text = [
            f"{self.variant.program(item.family)} -t filter {_command(rule_id, item)}  # {item.why}"
            for item in from_below(self._inserts(services))
        ]
        items = nft_stateless.inserts(read_native(self.variant), services)
        nft.change(_additions(rule_id, items, 1), check=True)
        return text + [item.command for item in items]

    def install(self, rule_id: str, services: Sequence[Match], timeout_seconds: int) -> None:
        """Put in a rule's lines, instead of those that are there."""
        self.remove({rule_id})
        self._require(services)
        items = from_below(self._inserts(services))
        for family in FAMILIES:
            self._apply(family, [_command(rule_id, item) for item in items if item.family == family])
        native = nft_stateless.inserts(read_native(self.variant), services)
        nft.change(_additions(rule_id, native, timeout_seconds))

    def renew(self, rule_id: str, timeout_seconds: int) -> None:
        """Set the timeout of nft's sets, where they are; the lines of iptables ask the rule's ipsets."""
        changed: list[Json] = []
        for place in _own_sets(read_native(self.variant), {rule_id}):
            changed += [{"flush": {"set": _named(place)}}, _filled(place, timeout_seconds)]
        nft.change(changed)

    def disable(self, rule_ids: set[str]) -> None:
        """Empty nft's sets, whose lines then match nothing; the lines of iptables end with their ipsets."""
        places = _own_sets(read_native(self.variant), rule_ids)
        nft.change([{"flush": {"set": _named(place)}} for place in places])

    def remove(self, rule_ids: set[str]) -> None:
        """Take out the lines and sets of rules. What is not there is no error."""
        for family in FAMILIES:
            mine = [line for line in self._read(family) if _rule_of(line) in rule_ids]
            doomed = sorted(mine, key=lambda line: (line.chain, -line.number))
            self._apply(family, [f"-D {line.chain} {line.number}" for line in doomed], REMOVAL_LOCK_SECONDS)
        nft.change(_removals(read_native(self.variant), rule_ids))

    def contents(self, rule_id: str) -> list[str]:
        """Return what a rule's lines say, and how many elements each of nft's sets has."""
        lines = (line for family in FAMILIES for line in self._read(family))
        said = [f"{line.family} {line.chain} {line.text}" for line in lines if _rule_of(line) == rule_id]
        listed = read_native(self.variant)
        said += [
            f"{line.place} {[part for part in line.expressions if 'counter' not in part]}"
            for line in listed.lines
            if line.comment == f"fwtop-{rule_id}"
        ]
        for place in sorted(_own_sets(listed, {rule_id})):
            family, table, name = place
            said.append(f"{place} {len([*nf_tables.set_elements(f'{family} {table}', name)])}")
        return said

    def _require(self, services: Sequence[Match]) -> None:
        for match in services:
            if reasons := stateless.obstacles(self.variant, match):
                raise FwtopError(f"{service_name(match)} must be tracked: {reasons[0]}; nothing was changed")

    def _inserts(self, services: Sequence[Match]) -> list[Insert]:
        found: list[Insert] = []
        for family in FAMILIES:
            mine = [match for match in services if family in match.families]
            found += stateless.inserts(self._read(family), mine, family) if mine else []
        return found

    def _read(self, family: int) -> list[Line]:
        """Return the lines of table filter. Never makes the kernel load a legacy table."""
        if self.variant.name == LEGACY and "filter" not in loaded_tables(family):
            return []
        return [*self.variant.read(family, "filter").lines]

    def _apply(self, family: int, lines: list[str], lock_seconds: int = LOCK_SECONDS) -> None:
        if lines:
            text = "\n".join(["*filter", *lines, "COMMIT", ""])
            self.variant.restore(family, text, lock_seconds=lock_seconds)


def _rule_of(line: Line) -> str:
    found = _XTABLES_OWN.search(line.text)
    return found[1] if found else ""


def _command(rule_id: str, item: Insert) -> str:
    return item.line(("-m", "set", "--match-set", set_name(rule_id, item.family, BESIDE), "src"))


def _own_sets(listed: Listed, rule_ids: set[str]) -> list[Place]:
    named = ((place, _NFT_SET.fullmatch(place[2])) for place in listed.own_sets)
    return [place for place, found in named if found and found[1] in rule_ids]


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
    return [*made, *nft_stateless.commands(items, (asks,), f"fwtop-{rule_id}")]


def _removals(listed: Listed, rule_ids: set[str]) -> list[Json]:
    found: list[Json] = []
    for line in listed.lines:
        own = _NFT_OWN.fullmatch(line.comment)
        if own and own[1] in rule_ids:
            place = dict(zip(("family", "table", "chain"), line.place, strict=True))
            found.append({"delete": {"rule": place | {"handle": line.handle}}})
    return found + [{"delete": {"set": _named(place)}} for place in _own_sets(listed, rule_ids)]
