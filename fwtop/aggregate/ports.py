"""Transport ports of both sides, and protocols."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fwtop.aggregate.services import SERVICES
from fwtop.aggregate.shares import Scale
from fwtop.aggregate.tally import Tally
from fwtop.model.packets import F64, FLAG_MALFORMED, FLAG_TRUNCATED, Fragment, PacketBatch
from fwtop.model.protocols import NAMES
from fwtop.model.snapshot import Port, Share

_UDP, _DST = 1 << 17, 1 << 16  # bits of a port's key
_ETHERTYPES = {
    0x0806: "arp",
    0x88CC: "lldp",
    0x8863: "pppoe",
    0x8864: "pppoe",
    0x8847: "mpls",
    0x888E: "eapol",
}


def tally(batch: PacketBatch, sums: F64) -> Tally:
    """Count TCP and UDP ports, each packet on both sides."""
    udp = batch.protocol == 17
    headless = (
        (batch.flags & (FLAG_MALFORMED | FLAG_TRUNCATED) != 0) & (batch.sport == 0) & (batch.dport == 0)
    )
    rows = np.flatnonzero((udp | (batch.protocol == 6)) & (batch.fragment != Fragment.LATER) & ~headless)
    protocol = np.where(udp[rows], np.uint64(_UDP), np.uint64(0))
    keys = np.concatenate((protocol | batch.sport[rows], protocol | batch.dport[rows] | np.uint64(_DST)))
    part = sums[:, rows]
    return Tally.of(keys, np.concatenate((part, part), axis=1), {})


def table(counted: Tally, scale: Scale, top: int) -> tuple[Port, ...]:
    """Return the ports with most packets."""
    return tuple(_port(int(counted.keys[row]), share) for row, share in scale.top(counted, top))


def _port(key: int, share: Share) -> Port:
    protocol = "udp" if key & _UDP else "tcp"
    number = key & 0xFFFF
    side = "dst" if key & _DST else "src"
    return Port(protocol, side, number, SERVICES.get((protocol, number)), share)


def tally_protocols(batch: PacketBatch, sums: F64) -> Tally:
    """Count by IP protocol, or by ethertype where it is not IP."""
    keys = np.where(batch.family != 0, batch.protocol, np.uint64(1 << 16) | batch.ethertype).astype(np.uint64)
    return Tally.of(keys, sums, {})


def protocols(counted: Tally, scale: Scale) -> dict[str, Share]:
    """Return the share of each protocol, largest first."""
    rows: NDArray[np.intp] = counted.largest(len(counted))
    shares = scale.shares(counted.sums[:, rows])
    return {_name(int(key)): share for key, share in zip(counted.keys[rows], shares, strict=True)}


def _name(key: int) -> str:
    if key < 1 << 16:
        return NAMES.get(key, f"ip-{key}")
    return _ETHERTYPES.get(key & 0xFFFF, f"ethertype-0x{key & 0xFFFF:04x}")
