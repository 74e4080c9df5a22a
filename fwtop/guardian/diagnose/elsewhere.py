"""Traffic that a rule can't match, by counters of devices, of the IP layer and of every rule, read twice.

It is of another address family, fragments, below IP, or in another namespace. Only text that the kernel
prints is read; nothing is attached and nothing is changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from fwtop.kernel.bridges import list_bridges
from fwtop.kernel.links import LOOPBACK, Link, readable_links
from fwtop.kernel.namespaces import name_of
from fwtop.kernel.procfs import parse_paired, parse_single, read_text
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.netfilter.iptables import Variant
from fwtop.netfilter.saved import Line

FEW = 5  # packets in the sample that say nothing yet
OTHERS = 3
_NAMESPACES = 8
_WITH_OWN_ADDRESS = frozenset({"macvlan", "ipvlan", "macvtap"})
_QUIET = 50  # packets in the sample: the attack is not here
_MAX_NAMESPACES = 64
_Key = TypeVar("_Key")


def elsewhere(rule: Rule, gained: Reading, seconds: float, *, own_xdp: bool) -> list[str]:
    """Name the traffic that this rule can't see: another family, fragments, layer 2, another namespace."""
    found = other_family(rule, gained, seconds) + fragments(rule, gained, seconds)
    return found + _below_ip(gained, seconds, own_xdp=own_xdp) + other_namespaces(gained, seconds)


def other_family(rule: Rule, gained: Reading, seconds: float) -> list[str]:
    """Name a family that brings more packets and that the rule is not about."""
    found: list[str] = []
    mine = sum(gained.ip[family] for family in rule.match.families)
    others = {family: count for family, count in gained.ip.items() if family not in rule.match.families}
    for family, count in others.items():
        if count > max(FEW, 2 * mine):
            covered = " and ".join(f"IPv{item}" for item in rule.match.families)
            found.append(
                f"the rule is about {covered}, which brought {mine:,} packets in {seconds:g} s; "
                f"IPv{family} brought {count:,}"
            )
    return found


def fragments(rule: Rule, gained: Reading, seconds: float) -> list[str]:
    """Name fragments, where the rule asks what later ones don't carry."""
    count = sum(gained.fragments[family] for family in rule.match.families)
    if count <= FEW or not _needs_header(rule):
        return []
    return [
        f"{count:,} fragments came in {seconds:g} s: later fragments carry no ports, flags or "
        "payload start, so it can't match them; 'fwtop drop --fragment --via xdp' can"
    ]


def _needs_header(rule: Rule) -> bool:
    match = rule.match
    ports = match.sport is not None or match.dport is not None
    return ports or match.reads_tcp or match.icmp_type is not None or bool(match.payload)


def _below_ip(gained: Reading, seconds: float, *, own_xdp: bool) -> list[str]:
    """Name interfaces that receive what this namespace's IP layer never sees."""
    received = {name: count for name, count in gained.devices.items() if name != LOOPBACK}
    arrived = sum(received.values())
    entered = sum(gained.ip.values()) - gained.devices.get(LOOPBACK, 0)
    if arrived - entered <= max(FEW, arrived // 2):
        return []
    name, count = max(received.items(), key=lambda item: item[1])
    reasons = _link_reasons(name, readable_links(), own_xdp=own_xdp)
    why = "; ".join(reasons) if reasons else "VLAN-tagged without an interface here, bridged, or not IP"
    return [
        f"{safe_text(name)} received {count:,} packets in {seconds:g} s, this namespace's IP layer "
        f"only {max(0, entered):,}: {why}"
    ]


def _link_reasons(name: str, links: list[Link], *, own_xdp: bool) -> list[str]:
    link = next((item for item in links if item.name == name), None)
    if link is None:
        return []
    reasons: list[str] = []
    if own_xdp and link.xdp_programs:
        reasons.append("fwtop's own XDP rules see them first")
    elif link.xdp_programs:
        reasons.append(f"an XDP program (id {link.xdp_programs[0]}) sees them first and may drop them")
    master = next((item for item in links if item.index == link.master), None)
    if master is not None:
        kind = safe_text(master.kind) or "master"
        past = any(one.link is master and len(one.netfilter) < 2 for one in list_bridges(links))
        hidden = " without netfilter: rules --via xdp, tc or nftables meet them at the port" if past else ""
        reasons.append(f"it is a port of {kind} {safe_text(master.name)}, which forwards them{hidden}")
    above = [item for item in links if item.lower == link.index and item.kind in _WITH_OWN_ADDRESS]
    reasons += [f"{item.kind} {safe_text(item.name)} is stacked on it" for item in above[:OTHERS]]
    return reasons


def other_namespaces(gained: Reading, seconds: float) -> list[str]:
    """Name busy namespaces where this one is quiet."""
    here = sum(count for name, count in gained.devices.items() if name != LOOPBACK)
    busy = sorted(gained.namespaces.items(), key=lambda item: -item[1])[:_NAMESPACES]
    shown = [f"{safe_text(name)} {count:,}" for name, count in busy if count > max(FEW, 2 * here)]
    if here > _QUIET or not shown:
        return []
    return [
        f"this namespace received {here:,} packets in {seconds:g} s, other network namespaces more: "
        f"{', '.join(shown)}; rules there need --netns NAME"
    ]


class Reading(Struct, frozen=True):
    """All counters at one moment."""

    devices: dict[str, int] = field(default_factory=dict)  # interface → packets received
    ip: dict[int, int] = field(default_factory=dict)  # family → packets that entered the IP layer
    fragments: dict[int, int] = field(default_factory=dict)  # family → fragments to be reassembled
    lines: dict[Line, int] = field(default_factory=dict)  # → packets
    namespaces: dict[str, int] = field(default_factory=dict)  # others on this machine → packets received


def read_all(variant: Variant, families: tuple[int, ...]) -> Reading:
    """Read everything now."""
    saved = (variant.read(family).lines for family in families)
    lines = {line: counted.packets for found in saved for line, counted in found.items()}
    arrived, fragments = _ip_counters("InReceives"), _ip_counters("ReasmReqds")
    return Reading(_devices(), arrived, fragments, lines, _other_namespaces())


def moved(before: Reading, after: Reading) -> Reading:
    """Return what each counter gained; what is new or was replaced counts as nothing."""
    return Reading(
        _gains(before.devices, after.devices),
        _gains(before.ip, after.ip),
        _gains(before.fragments, after.fragments),
        _gains(before.lines, after.lines),
        _gains(before.namespaces, after.namespaces),
    )


def _gains(before: dict[_Key, int], after: dict[_Key, int]) -> dict[_Key, int]:
    return {key: max(0, count - before[key]) for key, count in after.items() if key in before}


def _devices(path: str = "/proc/net/dev") -> dict[str, int]:
    found: dict[str, int] = {}
    for line in read_text(path).splitlines()[2:]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if len(fields) > 1:
            found[name.strip()] = int(fields[1])
    return found


def _ip_counters(name: str) -> dict[int, int]:
    ipv4 = parse_paired(read_text("/proc/net/snmp")).get("Ip", {})
    ipv6 = parse_single(read_text("/proc/net/snmp6"))
    return {4: ipv4.get(name, 0), 6: ipv6.get(f"Ip6{name}", 0)}


def _other_namespaces() -> dict[str, int]:
    """Return what other namespaces received, read through any process that lives in one."""
    mine = os.stat("/proc/self/ns/net").st_ino
    witnesses: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or len(witnesses) >= _MAX_NAMESPACES:
            continue
        try:
            number = (entry / "ns/net").stat().st_ino
        except OSError:
            continue  # it ended meanwhile
        if number != mine:
            witnesses.setdefault(number, entry.name)
    found: dict[str, int] = {}
    for number, pid in witnesses.items():
        counts = _devices(f"/proc/{pid}/net/dev")
        name = name_of(number) or f"that of process {pid}"
        found[name] = sum(count for device, count in counts.items() if device != LOOPBACK)
    return found
