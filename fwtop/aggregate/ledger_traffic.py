"""What kind of traffic mostly ends in one place: the condition that most samples of a ledger row share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fwtop.model.counters import DropCount
from fwtop.model.packets import U16, Fragment, Mask, PacketBatch
from fwtop.model.protocols import WITH_PORTS
from fwtop.model.rule import Match
from fwtop.model.snapshot import LedgerRow

_LEAST_SAMPLES = 20
_LEAST_SHARE = 0.5
_READ_ROWS = 4_096  # of one place, the newest: shares to ±1.6 percentage points


def with_traffic(
    rows: list[LedgerRow], drops: list[DropCount], dropped: PacketBatch, accepted: PacketBatch
) -> list[LedgerRow]:
    """Add to the rows of drops (one a DropCount, in order) and to "delivered" what they mostly consist of.

    A reason that some rule of fwtop's shares with others says nothing about the others: their samples can't
    be told apart.
    """
    shared = {drop.code for drop in drops if drop.rule is not None}
    out = []
    for row, drop in zip(rows, [*drops, *[None] * (len(rows) - len(drops))], strict=True):
        samples = accepted if row.layer == "delivered" else None
        if drop is not None and drop.code is not None and drop.code not in shared:
            samples = dropped.select(np.flatnonzero(dropped.reason == drop.code)[-_READ_ROWS:])
        found = dominant(samples) if samples is not None else None
        out.append(row if found is None else replace(row, mostly=found[0], mostly_share=found[1]))
    return out


def dominant(samples: PacketBatch) -> tuple[Match, float] | None:
    """Return the condition that at least half of the packets meet, and how many do (0 to 1); None: a mixture.

    A port says more than a protocol, and of two ports the commoner one.
    """
    samples = samples.select(slice(-_READ_ROWS, None))
    whole = float(samples.weight.sum())
    if len(samples) < _LEAST_SAMPLES or whole <= 0:
        return None
    later = samples.fragment == Fragment.LATER
    ported = np.isin(samples.protocol, list(WITH_PORTS)) & ~later
    to_port = _commonest(samples, samples.dport, ported)
    from_port = _commonest(samples, samples.sport, ported)
    found = [
        (Match(protocol=to_port[0], dport=to_port[1]), to_port[2]),
        (Match(protocol=from_port[0], sport=from_port[1]), from_port[2]),
    ]
    found.sort(key=lambda item: -item[1])
    fragments = float(samples.weight[samples.fragment != Fragment.NONE].sum())
    found.append((Match(fragment=True), fragments))
    protocol, _, weight = _commonest(samples, np.zeros(len(samples), np.uint16), samples.family > 0)
    found.append((Match(protocol=protocol), weight))
    return next(((match, weight / whole) for match, weight in found if weight >= _LEAST_SHARE * whole), None)


def _commonest(samples: PacketBatch, port: U16, rows: Mask) -> tuple[int, int, float]:
    """Return the protocol and port of greatest weight among some rows, and that weight; port 0 is none."""
    keys = samples.protocol[rows].astype(np.int64) << 16 | port[rows]
    if not len(keys):
        return 0, 0, 0.0
    unique, place = np.unique(keys, return_inverse=True)
    weights = np.bincount(place, samples.weight[rows])
    best = int(weights.argmax())
    return int(unique[best]) >> 16, int(unique[best]) & 0xFFFF, float(weights[best])
