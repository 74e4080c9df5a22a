"""What drops packets besides nf_tables: legacy iptables, ipsets, tc filters, BPF programs, routes.

A filter counts what its actions did. A BPF program counts in maps that only its owner understands; how often
it ran is known while kernel.bpf_stats_enabled is 1. What routes discard the kernel doesn't count. Sources:
tc(8), rtnetlink(7), include/uapi/linux/{pkt_cls,gen_stats,rtnetlink}.h.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator

from fwtop.kernel import bpf, netlink
from fwtop.kernel.links import Link, list_links
from fwtop.kernel.netlink import attributes, c_string, u32
from fwtop.model.errors import FwtopError
from fwtop.model.ruleset import IPSET, IPTABLES_LEGACY, ROUTE, TC, XDP, ListedRule, ListedSet
from fwtop.model.text import safe_text
from fwtop.netfilter import ipset
from fwtop.netfilter.iptables import LEGACY, loaded_tables, save_program
from fwtop.netfilter.listing.output import NAME, TEXT, is_own_name, is_own_rule, output_of
from fwtop.netfilter.saved import Counted, Line, each

_GETQDISC, _GETFILTER = 38, 46
_TCMSG = struct.Struct("=BBHiIII")
_KIND, _OPTIONS = 1, 2  # TCA_*
_CLSACT_HOOKS = {0xFFFFFFF2: "ingress", 0xFFFFFFF3: "egress"}
_INGRESS_QDISC = 0xFFFFFFF1
# TCA_*_ACT and TCA_*_POLICE by kind of filter
_ACTIONS = {"u32": 7, "flower": 3, "matchall": 2, "bpf": 1, "basic": 3, "fw": 4, "flow": 9, "route": 6}
_BPF_NAME = 7
_ACTION_KIND, _ACTION_OPTIONS, _ACTION_STATS = 1, 2, 4
_BASIC, _PACKETS64 = 1, 8  # TCA_STATS_*
_GACT_PARAMETERS, _GACT = 2, "gact"
_VERDICTS = {0: "pass", 2: "drop", 3: "pipe", 7: "redirect", 8: "trap"}
_PROTOCOLS = {0x0003: "all", 0x0800: "ip", 0x86DD: "ipv6", 0x0806: "arp", 0x8100: "802.1Q"}
_TCX_HOOKS = {46: "ingress", 47: "egress"}  # BPF_TCX_*
_MOST_LINKS = 1024


def attached_programs(_end: float, most: int) -> tuple[list[ListedRule], list[str], int]:
    """Return XDP programs, TCX programs and tc filters of all interfaces, no notes, and how many there are.

    Raises OSError.
    """
    found: list[ListedRule] = []
    links = list_links()[:_MOST_LINKS]
    for link in links:
        found += _xdp(link)
        found += _tcx(link)
    found += _filters({link.index: link for link in links})
    return found[:most], [], len(found)


def _xdp(link: Link) -> Iterator[ListedRule]:
    for number in link.xdp_programs:
        place = f"{link.name} {'generic' if link.generic_xdp else 'native'}"
        yield _program(XDP, place, number)


def _tcx(link: Link) -> Iterator[ListedRule]:
    for kind, hook in _TCX_HOOKS.items():
        try:
            numbers = bpf.attached_programs(kind, link.index)
        except (OSError, FwtopError):  # before Linux 6.6
            return
        for number in numbers:
            yield _program(TC, f"{link.name} {hook}", number)


def _program(source: str, place: str, number: int) -> ListedRule:
    name, runs = "", None
    with contextlib.suppress(OSError, FwtopError):
        name, runs = bpf.program_name(number), bpf.program_runs(number)
    place, shown = safe_text(place, limit=NAME), safe_text(name, limit=NAME)
    text = f"program {number} {shown}".rstrip()
    return ListedRule(f"{source} {place} {number}", source, "", place, text, is_own_name(name), runs)


def _filters(links: dict[int, Link]) -> Iterator[ListedRule]:
    """List the filters under every qdisc that takes some."""
    parents: dict[int, set[int]] = {}
    for body in netlink.dump(socket.NETLINK_ROUTE, _GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0, 0, 0)):
        _, _, _, index, handle, parent, _ = _TCMSG.unpack_from(body)
        mine = parents.setdefault(index, set())
        kind = c_string(dict(attributes(body, _TCMSG.size)).get(_KIND, b""))
        if parent == _INGRESS_QDISC:
            mine |= set(_CLSACT_HOOKS) if kind == "clsact" else {handle}
        elif handle:
            mine.add(handle)
    for index, link in links.items():
        for parent in sorted(parents.get(index, ())):
            with contextlib.suppress(OSError):  # a qdisc without classes
                request = _TCMSG.pack(0, 0, 0, index, 0, parent, 0)
                for body in netlink.dump(socket.NETLINK_ROUTE, _GETFILTER, request):
                    found = _filter(body, link, parent)
                    if found is not None:
                        yield found


def _filter(body: bytes, link: Link, parent: int) -> ListedRule | None:
    handle, info = _TCMSG.unpack_from(body)[4], _TCMSG.unpack_from(body)[6]
    found = dict(attributes(body, _TCMSG.size))
    options = dict(attributes(found.get(_OPTIONS, b"")))
    kind = c_string(found.get(_KIND, b""))
    if not handle or not options or (kind == "u32" and handle & 0xFFF == 0):  # heads and hash tables
        return None
    protocol = socket.ntohs(info & 0xFFFF)
    name = c_string(options.get(_BPF_NAME, b"")) if kind == "bpf" else ""
    words = [kind, "protocol", _PROTOCOLS.get(protocol, f"0x{protocol:04x}"), "pref", str(info >> 16)]
    words += ["handle", _handle(kind, handle), name]
    actions = list(_actions(options.get(_ACTIONS.get(kind, -1), b"")))
    words += [word for word, _, _ in actions]
    hook = _CLSACT_HOOKS.get(parent, "ingress" if parent == 0xFFFF0000 else f"{parent >> 16:x}:")
    place = safe_text(f"{link.name} {hook}", limit=NAME)
    packets = [count for _, count, _ in actions if count is not None]
    sizes = [size for _, _, size in actions if size is not None]
    return ListedRule(
        f"{TC} {place} {info:x} {handle:x}",
        TC,
        "",
        place,
        safe_text(" ".join(filter(None, words)), limit=200),
        is_own_name(name),
        packets[0] if packets else None,  # the first action sees all that the filter matches
        sizes[0] if sizes else None,
    )


def _handle(kind: str, handle: int) -> str:
    return f"{handle >> 20:x}::{handle & 0xFFF:x}" if kind == "u32" else f"0x{handle:x}"


def _actions(value: bytes) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield each action in words, its packets and its bytes."""
    for _, action in attributes(value):
        found = dict(attributes(action))
        kind = c_string(found.get(_ACTION_KIND, b""))
        word = kind
        if kind == _GACT:
            parameters = dict(attributes(found.get(_ACTION_OPTIONS, b""))).get(_GACT_PARAMETERS, b"")
            word = _VERDICTS.get(_signed(parameters[8:12]), kind)  # tc_gact: index, capab, action
        stats = dict(attributes(found.get(_ACTION_STATS, b"")))
        basic = stats.get(_BASIC, b"")
        packets = size = None
        if len(basic) >= 12:  # struct gnet_stats_basic
            size, packets = struct.unpack_from("=QI", basic)
        if len(stats.get(_PACKETS64, b"")) == 8:
            packets = struct.unpack("=Q", stats[_PACKETS64])[0]
        yield word, packets, size


def _signed(value: bytes) -> int:
    return int(struct.unpack("=i", value)[0]) if len(value) == 4 else -1


_GETROUTE = 26
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg
_DESTINATION, _TABLE, _PRIORITY = 1, 15, 6  # RTA_*
_DISCARDS = {6: "blackhole", 7: "unreachable", 8: "prohibit"}  # RTN_*
_OF_SOCKETS = {socket.AF_INET: "ip", socket.AF_INET6: "ip6"}
_MAIN = 254
_BYTES = {socket.AF_INET: 4, socket.AF_INET6: 16}


def discarding_routes(end: float, most: int) -> tuple[list[ListedRule], list[str], int]:
    """Return at most so many routes read until `end`, what is missing in words, and how many were seen.

    The kernel sorts them out: a router may have a million others. Raises OSError.
    """
    found: list[ListedRule] = []
    total = 0
    for family, name in _OF_SOCKETS.items():
        for kind, word in _DISCARDS.items():
            request = _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, kind, 0)
            for body in netlink.dump(socket.NETLINK_ROUTE, _GETROUTE, request, filtered=True):
                if body[7] != kind:  # before Linux 4.20 the kernel lists all
                    continue
                total += 1
                if len(found) < most:
                    found.append(_route(body, family, name, word))
                elif time.monotonic() > end:
                    return found, [f"routes: only the first {len(found):,} were read in time"], total
    return found, [], total


def _route(body: bytes, family: int, name: str, word: str) -> ListedRule:
    found = dict(attributes(body, _ROUTE.size))
    raw = found.get(_DESTINATION, bytes(_BYTES[socket.AddressFamily(family)]))
    destination = f"{socket.inet_ntop(family, raw)}/{body[1]}" if body[1] else "default"
    table = u32(found.get(_TABLE)) or body[4]
    metric = u32(found.get(_PRIORITY))
    place = "main" if table == _MAIN else f"table {table}"
    text = f"{word} {destination}" + (f" metric {metric}" if metric else "")
    return ListedRule(f"{ROUTE} {name} {table} {text}", ROUTE, name, place, text, False)


_FAMILIES = {4: "ip", 6: "ip6"}


def legacy_rules(end: float, most: int) -> tuple[list[ListedRule], list[str], int]:
    """Return the rules of iptables-legacy, what is missing in words, and how many there are.

    Nothing is run where no table is loaded, and no table is loaded by reading.
    """
    found: list[ListedRule] = []
    notes: list[str] = []
    total = 0
    for family, name in _FAMILIES.items():
        if not loaded_tables(family):
            continue
        program = save_program(LEGACY, family)
        if not program:
            notes.append(f"{name}tables-legacy holds rules, and its program is not installed")
            continue
        output = output_of([program, "-c"], end)
        notes += [output.problem] if output.problem else []
        times = Counter[tuple[str, str, str]]()
        for line, counted in each(output.text, family):
            if not line.number and line.text == "-":
                continue
            total += 1
            if len(found) < most:
                times[line.table, line.chain, line.text] += 1
                found.append(_listed(name, line, times[line.table, line.chain, line.text], counted))
    return found, notes, total


def _listed(family: str, line: Line, time: int, counted: Counted) -> ListedRule:
    # The same text stands for the same rule, wherever in its chain it has moved to
    kind, text = (line.text, line.text) if line.number else ("policy", f"policy {line.text}")
    return ListedRule(
        f"{IPTABLES_LEGACY} {family} {line.table} {line.chain} {time} {safe_text(kind, limit=TEXT)}",
        IPTABLES_LEGACY,
        family,
        safe_text(f"{line.table} {line.chain}", limit=NAME),
        safe_text(text, limit=TEXT),
        is_own_rule(line.table, line.chain, text),
        *counted,
    )


def ipset_sets() -> list[ListedSet]:
    """List all sets; raises FwtopError."""
    found = []
    for header in ipset.headers():
        name, kind = safe_text(header.name, limit=NAME), safe_text(header.type, limit=NAME)
        own = is_own_name(header.name)
        found.append(
            ListedSet(f"{IPSET} {name}", IPSET, header.family, name, kind, own, header.entries, header.size)
        )
    return found
