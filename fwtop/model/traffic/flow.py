"""Where the packets of a window went, by its ledger, and from which share on attacks count as stopped."""

from __future__ import annotations

from msgspec import Struct

from fwtop.model.traffic.snapshot import LedgerRow, Snapshot

STOPPED = 0.95  # from this share of the attacks' packets they count as stopped; estimates err by some percent
NOTICED = 0.05  # below this share drops don't count as protection
FULL_TABLE = "conntrack_exhaustion"  # the effect of other attacks: it has no packets of its own
_FIREWALLS = ("xdp", "tc", "netfilter")
_UNKNOWN = ("capture",)  # recorded packets, whose fate isn't


class Flow(Struct, frozen=True):
    """Where the packets of a window went, in packets a second; the parts add up to `arrives`."""

    arrives: float = 0.0
    mine: float = 0.0  # dropped by fwtop's rules
    other: float = 0.0  # dropped by other firewalls
    kernel: float = 0.0  # dropped by NIC, kernel or sockets
    reaches: float = 0.0  # accepted
    unaccounted: float = 0.0  # neither dropped nor accepted; negative: more than arrived
    bps: float = 0.0


def flow_of(snapshot: Snapshot) -> Flow | None:
    """Sum up the ledger; None where the fate of the packets isn't known."""
    ledger, totals = snapshot.tables.ledger, snapshot.tables.totals
    if any(row.layer in _UNKNOWN for row in ledger):
        return None
    sums = dict.fromkeys(("mine", "other", "kernel", "reaches"), 0.0)
    for row in ledger:
        if row.layer != "unexplained":
            sums[end_of(row)] += row.pps
    return Flow(
        arrives=totals.pps,
        mine=sums["mine"],
        other=sums["other"],
        kernel=sums["kernel"],
        reaches=sums["reaches"],
        unaccounted=totals.pps - sum(sums.values()),
        bps=totals.bps,
    )


def end_of(row: LedgerRow) -> str:
    """Say who took a row's packets: reaches, mine, other or kernel."""
    if row.layer == "delivered":
        return "reaches"
    if row.rule is not None:
        return "mine"
    return "other" if row.layer in _FIREWALLS else "kernel"
