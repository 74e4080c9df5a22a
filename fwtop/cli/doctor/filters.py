"""Packet filters of this namespace: which are in use, and how full connection tracking is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fwtop.cli.doctor.check import OK, UNKNOWN, WARNING, Check, program
from fwtop.model.errors import FwtopError
from fwtop.render.numbers import percent

_GROUP = "filters"
_CONNTRACK = Path("/proc/sys/net/netfilter")
_NEARLY_FULL = 0.8


def checks() -> Iterator[Check]:
    """Check the required programs, the iptables variant in use, and connection tracking."""
    yield program(_GROUP, "ip", "iproute2", essential=True)
    yield program(_GROUP, "iptables", "iptables", essential=True)
    yield program(_GROUP, "ipset", "ipset", essential=True)
    yield program(_GROUP, "nft", "nftables")
    yield program(_GROUP, "conntrack", "conntrack")
    yield _variant()
    yield _conntrack()


def _variant() -> Check:
    from fwtop.netfilter import iptables

    if os.geteuid() != 0:
        return Check(_GROUP, "iptables variant", UNKNOWN, "skipped: needs root", "sudo fwtop doctor")
    try:
        choice = iptables.choose()
    except FwtopError as error:
        return Check(_GROUP, "iptables variant", UNKNOWN, str(error))
    if choice.warnings:
        mend = "move the rules of one variant to the other: update-alternatives --config iptables"
        return Check(_GROUP, "iptables variant", WARNING, "; ".join(choice.warnings), mend)
    return Check(_GROUP, "iptables variant", OK, f"{choice.variant.name} is in use")


def _conntrack() -> Check:
    try:
        count = int((_CONNTRACK / "nf_conntrack_count").read_text(encoding="ascii"))
        limit = int((_CONNTRACK / "nf_conntrack_max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return Check(_GROUP, "connection tracking", OK, "not active")
    detail = f"{count:,} of {limit:,} entries in use ({percent(count / max(1, limit))})"
    if count > _NEARLY_FULL * limit:
        mend = f"sysctl net.netfilter.nf_conntrack_max={limit * 4}"
        return Check(_GROUP, "connection tracking", WARNING, f"nearly full: {detail}", mend)
    return Check(_GROUP, "connection tracking", OK, detail)
