"""What iptables-save prints, as values: chains with their policies, rules with their counters and arguments.

`iptables-save` quotes words with double quotes and escapes with backslashes (xtables_save_string); what
stands in a comment or a prefix of the log is never a condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

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


NUMBERS = {
    "tcp": 6, "udp": 17, "icmp": 1, "ipv6-icmp": 58, "icmpv6": 58, "sctp": 132, "dccp": 33, "udplite": 136,
}  # fmt: skip
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ANYTHING = frozenset({"--comment", "--string", "--hex-string"})  # options whose value may look like another
_PORT_MATCHES = frozenset({"tcp", "udp", "udplite", "sctp", "dccp", "multiport"})
_KEPT_RULES = 1024


class Option(Struct, frozen=True):
    """One condition: `! --dport 80`, `-s 192.0.2.0/24`."""

    name: str
    values: tuple[str, ...] = ()
    negated: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """It as arguments."""
        return (*("!",) * self.negated, self.name, *self.values)


class MatchOptions(Struct, frozen=True):
    """The conditions of one match; those before any match have the name ""."""

    name: str
    options: tuple[Option, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """It as arguments."""
        head = ("-m", self.name) if self.name else ()
        return (*head, *(word for option in self.options for word in option.words))


class Arguments(Struct, frozen=True):
    """A rule: all conditions must hold for its target."""

    matches: tuple[MatchOptions, ...]
    target: tuple[str, ...]  # from -j or -g on; empty: it only counts

    @property
    def target_name(self) -> str:
        """What it jumps or goes to, "" without a target."""
        return self.target[1] if len(self.target) > 1 else ""

    def named(self, *names: str) -> list[MatchOptions]:
        """Return the matches of these names."""
        return [match for match in self.matches if match.name in names]


def split(text: str) -> list[str]:
    """Return the words of a saved rule."""
    return [
        _ESCAPED.sub(r"\1", found[1]) if found[1] is not None else found[2] for found in _WORD.finditer(text)
    ]


@lru_cache(maxsize=_KEPT_RULES)
def take_apart(text: str) -> Arguments:
    """Read the arguments of a saved rule."""
    matches: list[tuple[str, list[Option]]] = [("", [])]
    options = matches[0][1]
    words, negated = iter(split(text)), False
    target: tuple[str, ...] = ()
    for word in words:
        if word in ("-j", "-g"):
            target = (word, *words)
        elif word == "-m":
            matches.append((next(words, ""), []))
            options = matches[-1][1]
        elif word == "!":
            negated = True
        elif word.startswith("-"):
            options = matches[-1][1] if word.startswith("--") else matches[0][1]
            options.append(Option(word, (next(words, ""),) if word in _ANYTHING else (), negated))
            negated = False
        elif options:
            options[-1] = replace(options[-1], values=(*options[-1].values, word))
    return Arguments(tuple(MatchOptions(name, tuple(some)) for name, some in matches), target)


class Packets(Struct, frozen=True):
    """What is known of some packets: their protocol and families, and their ports where known."""

    protocol: int | None
    sport: int | None = None
    dport: int | None = None
    families: tuple[int, ...] = (4, 6)


def holds(match: str, option: Option, packets: Packets) -> bool | None:
    """Whether a condition holds for these packets: for all, for none, or None where that isn't known."""
    held: bool | None = None
    if not match and option.name == "-p":
        if packets.protocol is None:
            return None
        name = option.values[0] if option.values else ""
        held = NUMBERS.get(name, int(name) if name.isdigit() else -1) == packets.protocol
    elif match in _PORT_MATCHES and option.values:
        held = _among_ports(option.name, option.values[0], packets)
    return None if held is None else held != option.negated


def _among_ports(name: str, ports: str, packets: Packets) -> bool | None:
    if name == "--ports":  # one of the two
        either = [port for port in (packets.sport, packets.dport) if port is not None]
        return True if any(_contains(ports, port) for port in either) else None
    known = {"--sport": packets.sport, "--dport": packets.dport}.get(name.removesuffix("s"))
    return None if known is None else _contains(ports, known)


def _contains(ports: str, port: int) -> bool:
    """Whether a port is among 22, 1000:2000 or 80,443,8000:8100."""
    spans = (item.split(":") for item in ports.split(","))
    ends = ((span[0] or "0", span[-1] or "65535") for span in spans)
    return any(low.isdigit() and high.isdigit() and int(low) <= port <= int(high) for low, high in ends)


def may_be_about(arguments: Arguments, packets: Packets) -> bool:
    """Whether a rule may be about some of these packets; what isn't understood excludes nothing."""
    return not any(
        holds(match.name, option, packets) is False for match in arguments.matches for option in match.options
    )


def names_port(arguments: Arguments, packets: Packets) -> bool:
    """Whether a rule is about these packets by a condition that lists the port they go to."""
    listing = [
        option
        for match in arguments.matches
        for option in match.options
        if not option.negated
        and option.name in ("--dport", "--dports", "--ports")
        and holds(match.name, option, packets)
    ]
    return bool(listing) and may_be_about(arguments, packets)


def without_known(matches: Sequence[MatchOptions], packets: Packets) -> list[MatchOptions]:
    """Return the conditions that these packets leave open, without matches that have none left."""
    found = []
    for match in matches:
        left = tuple(option for option in match.options if not holds(match.name, option, packets))
        if left or (not match.options and match.name not in _PORT_MATCHES):
            found.append(replace(match, options=left))
    return found
