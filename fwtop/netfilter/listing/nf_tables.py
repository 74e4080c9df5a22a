"""The nf_tables rule set as text: counters from netlink, texts from the programs that wrote the rules.

A dump has the counters of 100,000 rules in about a second. Programs are run only when a rule is there whose
text is not known, for a rule's text never changes, so a look costs milliseconds as long as nobody changes
anything; what they don't tell is described by its expressions. Source:
include/uapi/linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import re
import struct
import time
from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, field

from fwtop.kernel import netlink
from fwtop.kernel.netlink import NETFILTER_HEADER_BYTES, NETLINK_NETFILTER, attributes, c_string
from fwtop.model.errors import FwtopError
from fwtop.model.ruleset import IPTABLES_NFT, NFT, ListedRule, ListedSet
from fwtop.model.text import safe_text
from fwtop.netfilter import iptables, nf_tables, nft
from fwtop.netfilter.listing.output import NAME, TEXT, is_own_name, is_own_rule, output_of
from fwtop.netfilter.nf_tables import FAMILIES, INTERVAL_END, counters_of
from fwtop.netfilter.nft_listed import rule_text
from fwtop.netfilter.saved import parse

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
            for rule in dumped_rules(end):
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
            if not program or not any(item == family and table in iptables.TABLES for item, table in tables):
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
            text = expressions(rule.body)
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


def key_of(*parts: str) -> str:
    """Return the key of a rule (family, table, chain, handle) or a set (family, table, "set", name)."""
    return " ".join((NFT, *(safe_text(part, limit=NAME) for part in parts)))


def _rule(key: tuple[str, ...], place: str, said: _Text, packets: int | None, size: int | None) -> ListedRule:
    where = safe_text(place, limit=NAME)
    return ListedRule(key_of(*key), said.source, key[0], where, said.text, said.ours, packets, size)


_SUBSYSTEM = 10 << 8  # NFNL_SUBSYS_NFTABLES
_GETRULE, _GETSET, _GETSETELEM, _GETOBJ = (_SUBSYSTEM | number for number in (7, 10, 13, 19))
_HEAD = struct.Struct("=HH")
_NUMBER = struct.Struct(">Q")
_TYPE = 0x3FFF
_ANONYMOUS = 0x1  # NFT_SET_ANONYMOUS
_COUNTER_OBJECT = 1  # NFT_OBJECT_COUNTER
_VERDICTS = {0: "drop", 1: "accept", 3: "queue", -1: "continue", -2: "break", -5: "return"}
_JUMPS = {-3: "jump", -4: "goto"}
_KEY_TYPES = {
    7: "ipv4_addr", 8: "ipv6_addr", 9: "ether_addr", 12: "inet_proto", 13: "inet_service", 19: "mark",
    20: "iface_index", 41: "ifname",
}  # fmt: skip
_TYPE_BITS = 6  # of each part of a concatenation
_CHECK_EVERY = 1024  # rules, between two looks at the clock


class DumpedRule(Struct):
    """A rule as dumped; `packets` is None where it counts nothing."""

    family: str
    table: str
    chain: str
    handle: int
    packets: int | None
    size: int | None  # bytes
    body: bytes  # for `expressions`


def dumped_rules(end: float) -> Iterator[DumpedRule]:
    """Yield all rules in order until `end` (CLOCK_MONOTONIC); raises TimeoutError then, and OSError."""
    for number, body in enumerate(netlink.dump(NETLINK_NETFILTER, _GETRULE, netlink.netfilter_header())):
        if number % _CHECK_EVERY == 0 and time.monotonic() > end:
            raise TimeoutError
        yield _dumped(body)


def _dumped(body: bytes) -> DumpedRule:
    """Decode what changes and what identifies; `attributes` would take five times as long."""
    names: dict[int, bytes] = {}
    packets = size = None
    at, stop = NETFILTER_HEADER_BYTES, len(body)
    while at + 4 <= stop:
        length, kind = _HEAD.unpack_from(body, at)
        kind &= _TYPE
        if length < 4 or at + length > stop:
            break
        if kind < 4:  # NFTA_RULE_TABLE, _CHAIN, _HANDLE
            names[kind] = body[at + 4 : at + length]
        elif kind == 4:  # NFTA_RULE_EXPRESSIONS
            packets, size = _counter(body, at + 4, at + length)
            break  # what follows is not needed
        at += (length + 3) & ~3
    handle = _NUMBER.unpack(names[3])[0] if len(names.get(3, b"")) == 8 else 0
    family = FAMILIES.get(body[0], "")
    return DumpedRule(
        family, c_string(names.get(1, b"")), c_string(names.get(2, b"")), handle, packets, size, body
    )


def _counter(body: bytes, at: int, stop: int) -> tuple[int | None, int | None]:
    """Return packets and bytes of the first counter among a rule's expressions."""
    while at + 16 <= stop:
        length, _ = _HEAD.unpack_from(body, at)
        if length < 4 or at + length > stop:
            break
        if body[at + 8 : at + 16] == b"counter\0":
            found = dict(attributes(body[at + 4 : at + length]))
            return counters_of(found.get(2, b""))
        at += (length + 3) & ~3
    return None, None


def expressions(body: bytes) -> str:
    """Describe a rule by its expressions, as well as that goes without nft(8); not sanitised."""
    words: list[str] = []
    found = dict(attributes(body, NETFILTER_HEADER_BYTES))
    for _, expression in attributes(found.get(4, b"")):
        parts = dict(attributes(expression))
        words.append(_expression(c_string(parts.get(1, b"")), dict(attributes(parts.get(2, b"")))))
    return " ".join(word for word in words if word)


def _expression(name: str, data: dict[int, bytes]) -> str:
    if name == "immediate":
        verdict = dict(attributes(dict(attributes(data.get(2, b""))).get(2, b"")))
        if 1 not in verdict:  # it loads a value
            return ""
        code = int.from_bytes(verdict[1], "big", signed=True)
        return (
            f"{_JUMPS[code]} {c_string(verdict.get(2, b''))}" if code in _JUMPS else _VERDICTS.get(code, "")
        )
    if name == "lookup":
        return f"@{c_string(data.get(1, b''))}"
    if name in ("match", "target"):  # of xtables
        return f"{name} {c_string(data.get(1, b''))}"
    return name


def _counters() -> list[ListedRule]:
    """List the named counters, to which rules refer; raises OSError."""
    found = []
    for body in netlink.dump(NETLINK_NETFILTER, _GETOBJ, netlink.netfilter_header()):
        item = dict(attributes(body, NETFILTER_HEADER_BYTES))
        packets, size = counters_of(item.get(4, b""))
        if int.from_bytes(item.get(3, b""), "big") == _COUNTER_OBJECT and packets is not None:
            table, name = c_string(item.get(1, b"")), c_string(item.get(2, b""))
            said = _Text(NFT, f'counter "{safe_text(name, limit=NAME)}"', is_own_name(table))
            key = FAMILIES.get(body[0], ""), table, "counter", name
            found.append(_rule(key, table, said, packets, size or 0))
    return found


def _sets(end: float) -> list[ListedSet]:
    """List the named sets and maps; raises OSError."""
    found = []
    for body in netlink.dump(NETLINK_NETFILTER, _GETSET, netlink.netfilter_header()):
        item = dict(attributes(body, NETFILTER_HEADER_BYTES))
        flags = int.from_bytes(item.get(3, b""), "big")
        if flags & _ANONYMOUS:
            continue
        family, table, name = (
            FAMILIES.get(body[0], ""),
            c_string(item.get(1, b"")),
            c_string(item.get(2, b"")),
        )
        size = int.from_bytes(dict(attributes(item.get(9, b""))).get(1, b""), "big")
        if 20 in item:  # NFTA_SET_COUNT, since Linux 6.16
            entries: int | None = int.from_bytes(item[20], "big")
        else:
            entries = _count_elements(body[0], item[1], item[2], end)
        kind = key_type(int.from_bytes(item.get(4, b""), "big"))
        key, place = key_of(family, table, "set", name), safe_text(f"{table} {name}", limit=NAME)
        found.append(ListedSet(key, NFT, family, place, kind, is_own_name(table), entries, size or None))
    return found


def _count_elements(family: int, table: bytes, name: bytes, end: float) -> int | None:
    """Count a set's elements by dumping them; None if that takes too long or fails."""
    request = netlink.netfilter_header(family) + netlink.attribute(1, table) + netlink.attribute(2, name)
    count = 0
    try:
        for body in netlink.dump(NETLINK_NETFILTER, _GETSETELEM, request):
            if time.monotonic() > end:
                return None
            count += elements_in(dict(attributes(body, NETFILTER_HEADER_BYTES)).get(3, b""))
    except OSError:
        return None
    return count


def elements_in(listed: bytes) -> int:
    """Count the elements of NFTA_SET_ELEM_LIST_ELEMENTS; an interval is one, its end is none."""
    parts = (dict(attributes(element)) for _, element in attributes(listed))
    return sum(not int.from_bytes(part.get(3, b""), "big") & INTERVAL_END for part in parts)


def key_type(number: int) -> str:
    """Name the type of a set's keys (nft's datatypes, which the kernel only stores)."""
    parts: list[str] = []
    while number:
        parts.append(_KEY_TYPES.get(number & ((1 << _TYPE_BITS) - 1), "other"))
        number >>= _TYPE_BITS
    return " . ".join(reversed(parts)) or "other"
