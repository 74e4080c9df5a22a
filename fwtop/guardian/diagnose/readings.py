"""Counters of devices, of the IP layer and of every rule, to be read twice and compared.

Only text that the kernel prints is read; nothing is attached and nothing is changed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field

from fwtop.kernel.links import LOOPBACK
from fwtop.kernel.namespaces import name_of
from fwtop.kernel.procfs import parse_paired, parse_single, read_text
from fwtop.netfilter.iptables import Variant
from fwtop.netfilter.saved import Line

_MAX_NAMESPACES = 64
_Key = TypeVar("_Key")


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
