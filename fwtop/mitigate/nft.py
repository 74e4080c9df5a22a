"""Rules in nftables tables of our own: one transaction in, one out, the table gone with the last rule.

A rule is some sets named `rID-…` and some lines with the comment `fwtop-ID`. Each line first asks the rule's
switch, a set whose elements have a kernel timeout: that is its dead man's switch. Every chain that decides
begins with the allow-list. Source: nft(8).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fwtop.mitigate.allowlist import AllowList
from fwtop.mitigate.run import CommandError, run
from fwtop.mitigate.steps import Step, Steps
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_SET = re.compile(r"r(\d+)-\w+")
_COMMENT = re.compile(r"fwtop-(\d+)")
_PLAIN_NAME = re.compile(r"[\w.@-]{1,15}")
_INTERVALS = "flags interval"
_TYPES = {4: "ipv4_addr", 6: "ipv6_addr"}
_SHOWN_ELEMENTS = 5
# Neighbour discovery, as in chain.py: hop limit 255 proves that it comes from the link (RFC 4861).
_NEIGHBOURS = "icmpv6 type { 134, 135, 136 } ip6 hoplimit 255 return"


@dataclass(frozen=True, slots=True)
class Layout:
    """A table of ours: its chains, and how a switch looks in it."""

    table: str  # family and name
    switch_type: str
    switch_elements: dict[int, str]
    switch_ask: str  # what a line's set is asked with
    chains: dict[str, str]  # name → its hook; "" for one that others jump to
    per_interface: str = ""  # a base chain for each interface, with this hook, jumps to the first chain


NETDEV = Layout(
    "netdev fwtop", "ether_type", {4: "0x0800", 6: "0x86dd"}, "meta protocol", {"rules": ""},
    'type filter hook ingress device "{}" priority -500; policy accept;',
)  # fmt: skip
PROXY = Layout(
    "inet fwtop-synproxy", "nf_proto", {4: "ipv4", 6: "ipv6"}, "meta nfproto",
    {
        # After table raw, whose drops come first, and before conntrack (linux/netfilter_ipv4.h).
        "raw": "type filter hook prerouting priority -290; policy accept;",
        "in": "type filter hook input priority -1; policy accept;",
        "forward": "type filter hook forward priority -1; policy accept;",
    },
)  # fmt: skip
LAYOUTS = (NETDEV, PROXY)


@dataclass(frozen=True, slots=True)
class NftSet:
    """A set of a rule: its role in the name, nft's type and flags, and its elements as text."""

    role: str
    kind: str
    flags: str
    elements: tuple[str, ...]
    counted: bool = False


@dataclass(frozen=True, slots=True)
class NftRule:
    """What a rule is in a table of ours; a line is its chain, its family, its text after the switch."""

    layout: Layout
    sets: tuple[NftSet, ...]
    lines: tuple[tuple[str, int, str], ...]

    @property
    def families(self) -> tuple[int, ...]:
        """The families that its lines are about."""
        return tuple(sorted({family for _, family, _ in self.lines}))


@dataclass(slots=True)
class _Table:
    """A table as the kernel has it."""

    chains: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    rules: list[tuple[str, str, int, int, int]] = field(default_factory=list)  # id, chain, handle, counts

    def rule_ids(self) -> set[str]:
        named = {found[1] for name in self.sets if (found := _SET.fullmatch(name))}
        return named | {rule_id for rule_id, *_ in self.rules}


def address_set(role: str, family: int, prefixes: Sequence[Prefix], *, counted: bool = False) -> NftSet:
    """Return a set of prefixes; those that lie within others are left out, as nft refuses them."""
    kept: list[Prefix] = []
    for prefix in sorted(set(prefixes)):
        if not kept or not kept[-1].contains(prefix):
            kept.append(prefix)
    return NftSet(f"{role}{family}", _TYPES[family], _INTERVALS, tuple(map(str, kept)), counted)


def set_of(rule_id: str, role: str) -> str:
    """Return the name of a rule's set."""
    return f"r{rule_id}-{role}"


class NftTables:
    """Our tables in this namespace. `interfaces` says where packets come in."""

    def __init__(self, steps: Steps, interfaces: Callable[[], list[tuple[int, str]]]) -> None:
        self._steps = steps
        self._interfaces = interfaces
        self._allowed: dict[tuple[str, int], list[Prefix]] = {}

    def plan(self, rule_id: str, rule: NftRule, timeout_seconds: int, allow: AllowList) -> list[str]:
        """Return the transaction as text for people, tried without being done; raises FwtopError."""
        lines = self._transaction(rule_id, rule, allow, timeout_seconds)
        _apply(lines, check=True)
        return [f"nft {_shortened(line)}" for line in lines]

    def install(self, rule_id: str, rule: NftRule, allow: AllowList, timeout_seconds: int) -> str:
        """Put a rule in, in one transaction; returns where it runs. Raises FwtopError, nothing changed."""
        _apply(self._transaction(rule_id, rule, allow, timeout_seconds))
        self._remember(rule.layout, allow)
        self._steps.reached(Step.NFT)
        if not rule.layout.per_interface:
            return ""
        return f"netdev ingress of {', '.join(safe_text(name) for _, name in self._interfaces())}"

    def renew(self, rule_id: str, rule: NftRule, timeout_seconds: int) -> None:
        """Set a rule's switch to another time."""
        if set_of(rule_id, "on") not in _read(rule.layout).sets:
            raise FwtopError(f"rule {rule_id} is gone from the kernel; nothing was changed")
        _apply(_switch(rule_id, rule, timeout_seconds))

    def remove(self, rule_ids: set[str]) -> None:
        """Take rules out, and a table with its last one; what is not there is no error."""
        for layout in LAYOUTS:
            table = _read(layout)
            if not table.chains:
                continue
            if table.rule_ids() <= rule_ids:
                _apply([f"delete table {layout.table}"])
                self._allowed = {key: old for key, old in self._allowed.items() if key[0] != layout.table}
                self._steps.reached(Step.UNNFT)
            elif doomed := _removal(layout, table, rule_ids):
                _apply(doomed)
                self._steps.reached(Step.UNNFT)

    def present(self, rule_id: str, rule: NftRule) -> bool:
        """Say whether the kernel has all lines and sets of a rule."""
        table = _read(rule.layout)
        wanted = {set_of(rule_id, role) for role in ("on", *(item.role for item in rule.sets))}
        return wanted <= table.sets and sum(found[0] == rule_id for found in table.rules) == len(rule.lines)

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules of which our tables hold anything."""
        return {rule_id for layout in LAYOUTS for rule_id in _read(layout).rule_ids()}

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return packets and bytes of each rule, over its lines that count."""
        found: dict[str, tuple[int, int]] = {}
        for layout in LAYOUTS:
            for rule_id, _, _, packets, size in _read(layout).rules:
                before = found.get(rule_id, (0, 0))
                found[rule_id] = (before[0] + packets, before[1] + size)
        return found

    def refresh_allow(self, allow: AllowList) -> None:
        """Follow the allow-list where there are rules."""
        for layout in LAYOUTS:
            stale = any(
                self._allowed.get((layout.table, family)) != allow.of_family(family) for family in (4, 6)
            )
            if stale and _read(layout).chains:
                _apply(_allow_lines(layout, allow))
                self._remember(layout, allow)

    def _transaction(self, rule_id: str, rule: NftRule, allow: AllowList, seconds: int) -> list[str]:
        layout, table = rule.layout, _read(rule.layout)
        lines = [f"add table {layout.table}", *_allow_lines(layout, allow)]
        for name, hook in layout.chains.items():
            if name not in table.chains:
                lines.append(f"add chain {layout.table} {name}" + (f" {{ {hook} }}" if hook else ""))
                lines += [f"add rule {layout.table} {name} {text}" for text in _head(layout)]
        if layout.per_interface:
            lines += self._base_chains(layout, table)
        for item in rule.sets:
            lines += _set_lines(layout, rule_id, item)
        lines += _switch(rule_id, rule, seconds)
        ask = f"{layout.switch_ask} @{set_of(rule_id, 'on')}"
        for chain, family, text in rule.lines:
            only = f"{layout.switch_ask} {layout.switch_elements[family]}"
            lines.append(f'add rule {layout.table} {chain} {ask} {only} {text} comment "fwtop-{rule_id}"')
        return lines

    def _base_chains(self, layout: Layout, table: _Table) -> list[str]:
        lines = []
        for index, name in self._interfaces():
            chain = f"in-{index}"
            if chain in table.chains:
                continue
            if not _PLAIN_NAME.fullmatch(name):
                raise FwtopError(f"nftables can't name interface {safe_text(name)!r}; nothing was installed")
            lines.append(f"add chain {layout.table} {chain} {{ {layout.per_interface.format(name)} }}")
            lines.append(f"add rule {layout.table} {chain} jump {next(iter(layout.chains))}")
        return lines

    def _remember(self, layout: Layout, allow: AllowList) -> None:
        for family in (4, 6):
            self._allowed[layout.table, family] = allow.of_family(family)


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


def _read(layout: Layout) -> _Table:
    try:
        listed = json.loads(run(["nft", "-j", "-t", "list", "table", *layout.table.split()]))["nftables"]
    except CommandError:
        return _Table()
    table = _Table()
    for item in listed:
        if "chain" in item:
            table.chains.add(item["chain"]["name"])
        elif "set" in item:
            table.sets.add(item["set"]["name"])
        elif "rule" in item and (comment := _COMMENT.fullmatch(item["rule"].get("comment", ""))):
            rule = item["rule"]
            counter = next((part["counter"] for part in rule["expr"] if "counter" in part), None) or {}
            counts = (int(counter.get("packets", 0)), int(counter.get("bytes", 0)))
            table.rules.append((comment[1], rule["chain"], int(rule["handle"]), *counts))
    return table


def _removal(layout: Layout, table: _Table, rule_ids: set[str]) -> list[str]:
    places = [(chain, handle) for rule_id, chain, handle, _, _ in table.rules if rule_id in rule_ids]
    doomed = [f"delete rule {layout.table} {chain} handle {handle}" for chain, handle in places]
    gone = [name for name in sorted(table.sets) if (found := _SET.fullmatch(name)) and found[1] in rule_ids]
    return doomed + [f"delete set {layout.table} {name}" for name in gone]


def _head(layout: Layout) -> list[str]:
    lines = ['iif "lo" return'] if not layout.per_interface else []
    return [*lines, "ip saddr @allow4 return", "ip6 saddr @allow6 return", _NEIGHBOURS]


def _allow_lines(layout: Layout, allow: AllowList) -> list[str]:
    lines = []
    for family in (4, 6):
        name = f"{layout.table} allow{family}"
        made = address_set("allow", family, allow.of_family(family))
        lines += [f"add set {name} {{ type {made.kind}; {made.flags}; }}", f"flush set {name}"]
        if made.elements:
            lines.append(f"add element {name} {{ {', '.join(made.elements)} }}")
    return lines


def _set_lines(layout: Layout, rule_id: str, item: NftSet) -> list[str]:
    name = f"{layout.table} {set_of(rule_id, item.role)}"
    counter = " counter;" if item.counted else ""
    lines = [f"add set {name} {{ type {item.kind}; {item.flags};{counter} }}"]
    return [*lines, f"add element {name} {{ {', '.join(item.elements)} }}"] if item.elements else lines


def _switch(rule_id: str, rule: NftRule, seconds: int) -> list[str]:
    """Flush first: nft can't change the timeout of an element that is there (before Linux 6.12)."""
    name = f"{rule.layout.table} {set_of(rule_id, 'on')}"
    on = ", ".join(f"{rule.layout.switch_elements[family]} timeout {seconds}s" for family in rule.families)
    return [
        f"add set {name} {{ type {rule.layout.switch_type}; flags timeout; }}",
        f"flush set {name}",
        f"add element {name} {{ {on} }}",
    ]


def _shortened(line: str) -> str:
    head, brace, rest = line.partition(" { ")
    elements = rest.removesuffix(" }").split(", ")
    if not line.startswith("add element") or len(elements) <= _SHOWN_ELEMENTS:
        return line
    more = len(elements) - _SHOWN_ELEMENTS
    return f"{head}{brace}{', '.join(elements[:_SHOWN_ELEMENTS])} }}  # … and {more:,} more elements"


def _apply(lines: Iterable[str], *, check: bool = False) -> None:
    try:
        run(["nft", *(["-c"] if check else []), "-f", "-"], text="\n".join(lines) + "\n")
    except CommandError as error:
        raise FwtopError(f"{error}; nothing was changed", 3 if _is_missing(str(error)) else 1) from None


def _is_missing(complaint: str) -> bool:
    return any(text in complaint for text in ("No such file or directory", "not supported", "syntax error"))
