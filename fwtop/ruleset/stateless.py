"""The stateless equivalent of rules on connection states, for the packets of services that are not tracked.

An untracked packet is neither NEW nor ESTABLISHED, and an ICMP error about it is INVALID, not RELATED
(nf_conntrack_proto_icmp.c). So beside each line of table filter that asks for such a state comes one that
looks at the packet: not a bare SYN for ESTABLISHED, a bare SYN for NEW. It comes where its line is, so that
the order among all others stays.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fwtop.kernel.netfilter.iptables import Variant
from fwtop.kernel.programs import run
from fwtop.model.rule import Match
from fwtop.model.text import safe_text
from fwtop.render.xtables import quote
from fwtop.ruleset import nft_stateless
from fwtop.ruleset.tracking import (
    TRANSLATES,
    Line,
    forwarding,
    may_meet,
    needs_tracking,
    parse_lines,
)

TCP, UDP = 6, 17
_DROPPING = frozenset({"DROP", "REJECT"})
_NAMES = {TCP: "tcp", UDP: "udp"}
_STATE = re.compile(r"-m (?:conntrack --ctstate|state --state) (\S+)")
_PLAIN = frozenset({"NEW", "ESTABLISHED", "RELATED", "INVALID", "UNTRACKED"})
_ERRORS_MATTER = frozenset({"ESTABLISHED", "RELATED", "INVALID"})
_PORTS = re.compile(r"(?:-m (?:tcp|udp) )?--[ds]port \S+|-m multiport --[ds]ports \S+|-p \S+")
_NOT_SYN = re.compile(r"! (--syn|--tcp-flags)\b")
_SYN = ("--tcp-flags", "FIN,SYN,RST,ACK", "SYN")
# Errors that a connection needs: fragmentation needed is one of type 3 (RFC 1191), without which segments
# that are too large for the path vanish; for IPv6 that is packet too big, type 2 (RFC 8201).
_ERRORS = {4: ("3", "11", "12"), 6: ("1", "2", "3", "4")}
_NEIGHBOURS = ("133", "134", "135", "136")  # neighbour discovery (RFC 4861), from the link only


@dataclass(frozen=True, slots=True)
class Insert:
    """A line to put into a chain of table filter."""

    family: int
    chain: str
    number: int  # the line before which it goes, from 1
    arguments: tuple[str, ...]
    why: str  # in words

    def line(self, asks: Sequence[str] = ()) -> str:
        """Return it as `iptables-restore` reads it, behind a further condition."""
        return " ".join(["-I", self.chain, str(self.number), *map(quote, (*asks, *self.arguments))])


def obstacles(variant: Variant, match: Match) -> list[str]:
    """Name what needs tracking of a service and has no stateless equivalent; empty if nothing does."""
    found: list[str] = []
    for family in match.families:
        lines = parse_lines(run([f"{variant.program(family)}-save", "-c"]), family)
        found += [
            f"{_kind(line)}, '-A {line.chain} {line.text}' in {line.table} of IPv{family}"
            for line in lines
            if needs_tracking(line) and may_meet(line, match) and not _convertible(line)
        ]
    return [safe_text(text, limit=200) for text in found] + [
        *nft_stateless.obstacles(nft_stateless.read_native(variant), match),
        *forwarding(match),
    ]


def _kind(line: Line) -> str:
    if line.target in TRANSLATES:
        return "NAT"
    return "a helper" if "helper" in line.text else "a rule that counts or marks connections"


def service_name(match: Match) -> str:
    """Return a service's name: tcp/80."""
    return f"{_NAMES.get(match.protocol or 0, match.protocol)}/{match.dport}"


def inserts(lines: Sequence[Line], services: Sequence[Match], family: int) -> list[Insert]:
    """Return the lines that go beside those of table filter that ask for states, in their order.

    Only chains that packets to or from this machine pass are changed.
    """
    mine = [line for line in lines if line.family == family and line.table == "filter"]
    found: list[Insert] = []
    for hook in ("INPUT", "OUTPUT"):
        chains = _reached(mine, hook)
        there = [line for line in mine if line.chain in chains and _convertible(line)]
        opened: set[str] = set()
        for line in there:
            if line.chain not in opened and states(line) & _ERRORS_MATTER and hook == "INPUT":
                opened.add(line.chain)  # before the first: one on INVALID would drop the errors
                first = next(item for item in there if item.chain == line.chain)
                found += _errors(first, family)
            for match in services:
                arguments = _equivalent(line, match, hook)
                if arguments is not None:
                    found.append(Insert(family, line.chain, line.number + 1, arguments, _why(line, match)))
    return list(dict.fromkeys(found))


def from_below(wanted: Iterable[Insert]) -> list[Insert]:
    """Order lines so that none moves the place of another; those of one place keep their order."""
    items = list(enumerate(wanted))
    return [item for _, item in sorted(items, key=lambda pair: (pair[1].chain, -pair[1].number, -pair[0]))]


def _why(line: Line, match: Match) -> str:
    asked = ",".join(sorted(states(line)))
    return f"stands for {asked} where {service_name(match)} is not tracked"


def _reached(lines: Sequence[Line], hook: str) -> set[str]:
    """Return a hook's chain and all that it leads to."""
    found, before = {hook}, 0
    while len(found) > before:
        before = len(found)
        found |= {line.target for line in lines if line.chain in found}
    return found


def names(lines: Iterable[Line], match: Match) -> bool:
    """Whether a rule that lets packets in names a service's port."""
    return any(
        line.target not in _DROPPING and {"--dport", "--dports"} & {*line.words} and _about(line, match)
        for line in lines
        if line.table == "filter"
    )


def states(line: Line) -> frozenset[str]:
    """Return the connection states that a line asks for, empty if it asks for none."""
    found = _STATE.search(line.text)
    return frozenset(found[1].split(",")) if found else frozenset()


def _convertible(line: Line) -> bool:
    """Whether it needs nothing of tracking but the plain state, not negated."""
    if line.table != "filter" or not states(line) or not states(line) <= _PLAIN:
        return False
    if "! --ctstate" in line.text or "! --state" in line.text:
        return False
    return not needs_tracking(
        Line(line.family, line.table, line.chain, line.number, _STATE.sub("", line.text))
    )


def _equivalent(line: Line, match: Match, hook: str) -> tuple[str, ...] | None:
    """Return a line's arguments for the packets of one untracked service, None where there is nothing to add.

    A segment to a TCP service is NEW if it is a bare SYN, else ESTABLISHED. A datagram to a UDP service is
    always judged as NEW: taken for ESTABLISHED it would pass whatever lets only some clients in.
    """
    incoming, asked = hook == "INPUT", states(line)
    about = match if incoming else Match(protocol=match.protocol, sport=match.dport)
    wanted = (
        {"NEW", "ESTABLISHED"}
        if incoming and match.protocol == TCP
        else {"NEW" if incoming else "ESTABLISHED"}
    )
    if not asked & wanted or "UNTRACKED" in asked or not _about(line, about):
        return None
    bare = _STATE.sub("", line.text)
    if "ESTABLISHED" not in asked and _NOT_SYN.search(bare):
        return None  # a connection that begins without a SYN is what tracking alone can tell
    rest = shlex.split(_PORTS.sub("", bare))
    name = _NAMES[match.protocol or 0]
    where = ["-p", name, "-m", name, "--dport" if incoming else "--sport", str(match.dport)]
    if match.protocol == TCP and incoming and not wanted <= asked and "--tcp-flags" not in rest:
        where += ["!"] * ("ESTABLISHED" in asked) + list(_SYN)
    return (*where, *rest)


def _about(line: Line, match: Match) -> bool:
    """Whether a line is about a service's packets, or its answers: as `may_meet`, and by lists of ports."""
    if not may_meet(line, Match(protocol=match.protocol)):
        return False
    words = line.words
    for option, port in (("--dport", match.dport), ("--sport", match.sport)):
        for name in (option, f"{option}s"):
            if name in words and not _holds(words[words.index(name) + 1], port):
                return False
    return True


def _holds(ports: str, port: int | None) -> bool:
    """Whether a port is among 22, 1000:2000 or 80,443; None is never named."""
    if port is None:
        return False
    spans = (item.split(":") for item in ports.split(","))
    ends = ((span[0] or "0", span[-1] or "65535") for span in spans)
    return any(low.isdigit() and high.isdigit() and int(low) <= port <= int(high) for low, high in ends)


def _errors(line: Line, family: int) -> list[Insert]:
    option, protocol = ("--icmp-type", "icmp") if family == 4 else ("--icmpv6-type", "ipv6-icmp")
    head = ("-p", protocol, "-m", "icmp" if family == 4 else "icmp6", option)
    why = "an error about an untracked packet is INVALID: fragmentation needed must pass"
    made: list[tuple[str, ...]] = [(*head, kind, "-j", "ACCEPT") for kind in _ERRORS[family]]
    if family == 6:
        near = ("-m", "hl", "--hl-eq", "255", "-j", "ACCEPT")
        made += [(*head, kind, *near) for kind in _NEIGHBOURS]
    return [Insert(family, line.chain, line.number, arguments, why) for arguments in made]
