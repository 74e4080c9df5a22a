"""What iptables-save prints, as values: rules with their counters, chains and policies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct, field

from fwtop.netfilter.arguments import Arguments, split, take_apart

REFUSAL = "is incompatible, use 'nft' tool"  # what iptables says of a table with native rules
_RULE = re.compile(r"(?:\[(\d+):(\d+)\] )?-A (\S+) ?(.*)")
_CHAIN = re.compile(r":(\S+) (\S+)(?: \[(\d+):(\d+)\])?")


class Line(Struct, frozen=True):
    """A rule of iptables; not sanitised."""

    family: int
    table: str
    chain: str
    number: int  # position in its chain, from 1
    text: str  # its arguments

    @property
    def words(self) -> list[str]:
        """Its arguments, without the quotes around some."""
        return split(self.text)

    @property
    def arguments(self) -> Arguments:
        """Its arguments, taken apart."""
        return take_apart(self.text)

    @property
    def target(self) -> str:
        """What it jumps or goes to ("" when it only counts)."""
        return self.arguments.target_name


class Counted(NamedTuple):
    """Packets and bytes that a rule or a policy was about."""

    packets: int
    bytes: int


class Chain(Struct, frozen=True):
    """A chain; its policy is "-" where it is no base chain."""

    policy: str = "-"
    lines: list[Line] = field(default_factory=list)


class Saved(Struct, frozen=True):
    """The rules of one variant and family, in order; none of a table that iptables refuses to list."""

    family: int
    lines: dict[Line, Counted] = field(default_factory=dict)
    chains: dict[tuple[str, str], Chain] = field(default_factory=dict)  # by table and name
    refused: bool = False


def each(text: str, family: int) -> Iterator[tuple[Line, Counted]]:
    """Yield what iptables-save printed, in order, with counters or without: a chain as line 0, its policy."""
    table, places = "", dict[str, int]()
    for row in text.split("\n"):  # not splitlines: a comment may hold other line separators
        if row.startswith("*"):
            table, places = row[1:], {}
        elif rule := _RULE.fullmatch(row):
            packets, size, chain, arguments = rule.groups(default="0")
            places[chain] = places.get(chain, 0) + 1
            yield Line(family, table, chain, places[chain], arguments), Counted(int(packets), int(size))
        elif declared := _CHAIN.fullmatch(row):
            name, policy, packets, size = declared.groups(default="0")
            yield Line(family, table, name, 0, policy), Counted(int(packets), int(size))


def parse(text: str, family: int) -> Saved:
    """Read it as a whole."""
    found = Saved(family, refused=REFUSAL in text)
    for line, counted in each(text, family):
        place = line.table, line.chain
        if line.number:
            found.lines[line] = counted
            found.chains.setdefault(place, Chain()).lines.append(line)
        else:
            found.chains[place] = Chain(line.text)
    return found
