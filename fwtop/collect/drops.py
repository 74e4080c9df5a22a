"""Tell drops apart that the kernel counts together, and count none twice."""

from __future__ import annotations

from dataclasses import replace

from fwtop.collect.links import LinkStats
from fwtop.collect.reasons import place_of_function
from fwtop.model.counters import ConntrackSample, DropCount


def grown(now: dict[int, LinkStats], before: dict[int, LinkStats], field: str) -> int:
    """Add up by how much a counter of all interfaces grew; one that began anew counts from nothing."""
    return sum(
        max(0, getattr(stats, field) - getattr(before[index], field))
        for index, stats in now.items()
        if index in before
    )


def driver_drops(
    now: dict[int, LinkStats], before: dict[int, LinkStats], drops: list[DropCount], by_xdp: int = 0
) -> list[DropCount]:
    """Return what the drivers dropped before the stack, less what the stack counted there as well.

    `by_xdp` packets were dropped by XDP programs: some drivers (virtio_net) count these as dropped, too.
    """
    totals = {name: grown(now, before, name) for name in ("missed", "fifo", "errors", "dropped")}
    twice = sum(drop.packets for drop in drops if drop.reason in ("CPU_BACKLOG", "UNHANDLED_PROTO"))
    totals["dropped"] = max(0, totals["dropped"] - twice - by_xdp)
    totals["errors"] = max(0, totals["errors"] - totals["fifo"] - totals["missed"])
    if totals["missed"]:  # drivers that count both mean the same packets
        totals["fifo"] = 0
    return [DropCount("nic", f"RX_{name.upper()}", packets) for name, packets in totals.items() if packets]


def split_conntrack(drop: DropCount, conntrack: ConntrackSample | None) -> list[DropCount]:
    """Take the packets that connection tracking refused out of those dropped by netfilter.

    Both come with the same reason; conntrack's own statistics tell them apart.
    """
    if conntrack is None:
        return [drop]
    parts: list[DropCount] = []
    rest = drop.packets
    for name, packets, before in (
        ("TABLE_FULL", conntrack.drop, True),
        ("INSERT_FAILED", conntrack.insert_failed, False),  # at confirmation: behind every rule
    ):
        taken = min(rest, packets)
        if taken:
            share = drop.bytes * taken // drop.packets
            parts.append(DropCount("conntrack", name, taken, share, before_delivery=before))
            rest -= taken
    if rest:
        left = drop.bytes - sum(part.bytes for part in parts)
        parts.append(replace(drop, packets=rest, bytes=left))
    return parts


def split_sites(drop: DropCount, sites: dict[int, int], names: dict[int, str]) -> list[DropCount]:
    """Tell drops without a reason by the function that dropped, as far as that is known."""
    parts: dict[str, int] = {}
    rest = drop.packets
    for address, packets in sites.items():
        taken = min(rest, packets)
        rest -= taken
        parts[names[address]] = parts.get(names[address], 0) + taken
    parts[""] = parts.get("", 0) + rest
    found = []
    for name, packets in parts.items():
        layer, before = place_of_function(name, outbound=False)
        if packets and layer:
            reason = f"{drop.reason} ({name})" if name else drop.reason
            size = drop.bytes * packets // drop.packets
            found.append(DropCount(layer, reason, packets, size, before_delivery=before, code=drop.code))
    return found
