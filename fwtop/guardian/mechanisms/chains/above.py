"""Foreign lines above the jumps to fwtop's chains that may let a rule's packets pass before it sees them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from fwtop.kernel.links import LOOPBACK
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.netfilter.saved import Line
from fwtop.rules.objects import OWN_CHAINS

_OWN_CHAINS = frozenset(name for chains in OWN_CHAINS.values() for name in chains)
ENDS_PACKET = frozenset({"DROP", "REJECT", "QUEUE", "NFQUEUE"})
_LETS_PASS = frozenset({"ACCEPT", "RETURN", "QUEUE", "NFQUEUE"})
_PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "ipv6-icmp": 58, "sctp": 132}
_DEEPEST = 8  # chains within chains
_MAX_COMPARED = 10_000


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
    """Return whether a line and a rule can be about the same packet, by protocol, source, and loopback."""
    words = line.words
    given = dict(pairwise(words))
    if "!" in words:
        return True
    if given.get("-i") == LOOPBACK or given.get("-o") == LOOPBACK:
        return False
    protocol = given.get("-p")
    number = int(protocol) if protocol and protocol.isdigit() else _PROTOCOLS.get(protocol or "")
    if None not in (number, rule.match.protocol) and number != rule.match.protocol:
        return False
    sources = rule.match.sources
    if "-s" not in given or not sources or len(sources) > _MAX_COMPARED:
        return True
    theirs = Prefix.parse(given["-s"])
    return any(theirs.contains(mine) or mine.contains(theirs) for mine in sources)
