"""Where packets go: the addresses of this host, or of those behind it."""

from __future__ import annotations

import numpy as np

from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import F64, PacketBatch
from fwtop.model.traffic.snapshot import Destination
from fwtop.stats.keyed_sums import SAMPLES, WEIGHT, KeyedSums
from fwtop.stats.shares import Scale
from fwtop.stats.sources import Drops, address_keys

MOST = 20_000  # a scan of a large network reaches any number of addresses: keep the heaviest


def sum_destinations(arrived: PacketBatch, sums: F64, dropped: PacketBatch, lost: F64) -> KeyedSums:
    """Sum arrived packets by destination, and what the drop hook sampled of each; tags: family, hi, lo."""
    family, hi, lo, both = arrived.family, arrived.dst_hi, arrived.dst_lo, sums
    if len(dropped):
        family = np.concatenate((family, dropped.family))
        hi = np.concatenate((hi, dropped.dst_hi))
        lo = np.concatenate((lo, dropped.dst_lo))
        both = np.concatenate((sums, lost), axis=1)
    known = family != 0
    if not known.all():
        family, hi, lo, both = family[known], hi[known], lo[known], both[:, known]
    length = np.where(family == 4, np.uint8(32), np.uint8(128))
    return KeyedSums.of(address_keys(family, length, hi, lo), both, {"family": family, "hi": hi, "lo": lo})


def table(counted: KeyedSums, scale: Scale, drops: Drops, top: int) -> tuple[Destination, ...]:
    """Return the destinations in descending order of packets."""
    seen = counted.rows(counted.sums[SAMPLES] > 0)
    total = float(scale.total[WEIGHT])
    found = scale.top(seen, top)
    dropped = drops.share(
        seen.sums[:, [row for row, _ in found]], scale.packets / total if total > 0 else 0.0
    )
    out = []
    for (row, share), lost in zip(found, dropped, strict=True):
        prefix = Prefix.of_columns(*(int(seen.tags[name][row]) for name in ("family", "hi", "lo")))
        out.append(Destination(str(prefix), share, lost, prefix))
    return tuple(out)
