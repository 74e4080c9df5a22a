"""Which rules need connection tracking, which a notrack rule takes away.

An untracked packet has no entry: NAT never sees it, and matches on its state see UNTRACKED, which
`--ctstate ESTABLISHED` is not (iptables-extensions(8), conntrack and CT).
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from fwtop.kernel.programs import CommandError, run
from fwtop.model.rule import Match
from fwtop.model.text import safe_text
from fwtop.netfilter.arguments import NUMBERS, Arguments, split, take_apart
from fwtop.netfilter.iptables import NFT, Variant

_STATEFUL = ("conntrack", "state", "connmark", "connlimit", "connbytes", "connlabel", "helper")  # matches
_STATEFUL_TARGETS = frozenset({"CONNMARK", "CONNSECMARK", "SYNPROXY"})
TRANSLATES = frozenset({"DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP"})
_NFT_NEEDS = re.compile(r"(^|\s)(ct (state|mark|status|count|helper|direction|original|reply|zone|label|bytes"
                        r"|packets|expiration|avgpkt|id)|dnat|snat|masquerade|redirect)\b")  # fmt: skip
_IPTABLES_TABLES = frozenset({"raw", "mangle", "nat", "filter", "security"})
_SHOWN = 5
_COUNTED = re.compile(r"^\[(\d+):\d+\] -A (\S+) ?(.*)$")


class Line(Struct, frozen=True):
    """A rule of iptables as it is listed."""

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


def parse_lines(saved: str, family: int) -> dict[Line, int]:
    """Read `iptables-save -c`: every rule of every table with its packets."""
    found: dict[Line, int] = {}
    table, places = "", dict[str, int]()
    for text in saved.splitlines():
        if text.startswith("*"):
            table, places = text[1:], {}
        counted = _COUNTED.match(text)
        if counted:
            packets, chain, rest = counted.groups()
            places[chain] = places.get(chain, 0) + 1
            found[Line(family, table, chain, places[chain], rest)] = int(packets)
    return found


def notrack_warnings(variant: Variant, match: Match) -> tuple[str, ...]:
    """Name the rules that would stop working for the packets that a match exempts from tracking."""
    found = tracking_rules(variant, match)
    warnings = [f"{what}: untracked packets won't get this" for what in found[:_SHOWN]]
    if len(found) > _SHOWN:
        warnings.append(f"and {len(found) - _SHOWN} more rules need connection tracking")
    return (*warnings, *forwarding(match))


def tracking_rules(variant: Variant, match: Match) -> list[str]:
    """Name the rules of iptables and nftables that need connection tracking of what a match is about."""
    found: list[str] = []
    for family in match.families:
        lines = parse_lines(run([f"{variant.program(family)}-save", "-c"]), family)
        found += [_named(line) for line in lines if needs_tracking(line) and may_meet(line, match)]
    return found + native_rules(variant, match)


def needs_tracking(line: Line) -> bool:
    """Return whether a rule of iptables works on tracked packets only."""
    rule = line.arguments
    if rule.target_name in TRANSLATES | _STATEFUL_TARGETS or rule.named(*_STATEFUL):
        return True
    return rule.target_name == "CT" and "--helper" in rule.target


def may_meet(line: Line, match: Match) -> bool:
    """Return whether a rule can be about packets of a match or their answers; unclear counts as yes."""
    words = line.words
    protocol = _option(words, "-p")
    if match.protocol is not None and protocol is not None:
        number = NUMBERS.get(protocol, int(protocol) if protocol.isdigit() else None)
        if number is not None and number != match.protocol:
            return False
    port = _option(words, "--dport")
    if match.dport is not None and port is not None and port.isdigit():
        return int(port) in (match.dport, match.sport)
    return True


def _option(words: list[str], name: str) -> str | None:
    if name not in words:
        return None
    place = words.index(name)
    negated = place > 0 and words[place - 1] == "!"
    return None if negated or place + 1 >= len(words) else words[place + 1]


def _named(line: Line) -> str:
    kind = "NAT" if line.target in TRANSLATES else "a stateful rule"
    text = safe_text(f"-A {line.chain} {line.text}", limit=140)
    return f"{kind} in {line.table} of IPv{line.family}, '{text}'"


def native_rules(variant: Variant, match: Match) -> list[str]:
    """Name the rules of foreign nftables tables; iptables-nft's own tables were read as iptables."""
    try:
        listed = run(["nft", "-t", "list", "ruleset"], timeout=20)
    except CommandError:
        return []
    found, table, chain = [], "", ""
    for line in listed.splitlines():
        words = line.split()
        if line.startswith("table ") and len(words) > 2:
            table = f"{words[1]} {words[2]}"
        elif words[:1] == ["chain"] and len(words) > 1:
            chain = words[1]
        elif _NFT_NEEDS.search(line) and is_foreign(table, variant) and _in_families(table, match):
            text = safe_text(line.strip(), limit=140)
            found.append(f"nftables rule in {safe_text(table)} {safe_text(chain)}, '{text}'")
    return found


def is_foreign(table: str, variant: Variant) -> bool:
    """Whether an nftables table, "FAMILY NAME", is neither fwtop's nor one that iptables lists."""
    family, _, name = table.partition(" ")
    if name.startswith("fwtop"):
        return False
    return not (variant.name == NFT and family in ("ip", "ip6") and name in _IPTABLES_TABLES)


def _in_families(table: str, match: Match) -> bool:
    number = {"ip": 4, "ip6": 6}.get(table.partition(" ")[0])
    return number is None or number in match.families


def forwarding(match: Match) -> tuple[str, ...]:
    """Answers to forwarded packets come in by PREROUTING, where nothing tells them from requests."""
    switches = {4: "/proc/sys/net/ipv4/ip_forward", 6: "/proc/sys/net/ipv6/conf/all/forwarding"}
    try:
        routing = [family for family in match.families if Path(switches[family]).read_text().strip() == "1"]
    except OSError:
        return ()
    if not routing:
        return ()
    which = " and ".join(f"IPv{family}" for family in routing)
    return (f"this host forwards {which}: answers to forwarded packets stay tracked, and appear as INVALID",)
