"""How far off networks were before the attack, against how far their packets seem to come from now.

Source: Jin, Wang and Shin, "Hop-count filtering" (2003): a forger can't know the distance of those he names.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fwtop.advise.traffic import Rows
from fwtop.model.packets import U64, PacketBatch

_FIRST = np.array([32, 64, 128, 255])  # TTLs that systems begin with
_SLACK = 2  # hops: routes change
_NETWORKS = 8  # known ones, before they say something

_Hops = NDArray[np.intp]


@dataclass(frozen=True)
class Distances:
    """The least and greatest number of hops to each /24 and /48 that was seen, networks in order."""

    networks: U64
    least: _Hops
    most: _Hops

    @staticmethod
    def of(packets: PacketBatch) -> Distances:
        """Learn the distances of packets' sources."""
        networks, place = np.unique(_network(packets), return_inverse=True)
        least, most = np.full(len(networks), 255), np.zeros(len(networks), np.intp)
        hops = _hops(packets)
        np.minimum.at(least, place, hops)
        np.maximum.at(most, place, hops)
        return Distances(networks, least, most)

    def changed(self, packets: PacketBatch, rows: Rows) -> tuple[int, float] | None:
        """Return how many known networks the rows name, and what part of them is at another distance now.

        None where too few of them are known. Each network counts alike, however much it sends.
        """
        some = packets.select(rows)
        place = np.searchsorted(self.networks, network := _network(some))
        place = np.minimum(place, len(self.networks) - 1)
        met = self.networks[place] == network if len(self.networks) else np.zeros(len(rows), np.bool_)
        place, hops = place[met], _hops(some)[met]
        off = (hops < self.least[place] - _SLACK) | (hops > self.most[place] + _SLACK)
        seen = np.bincount(place, minlength=1)
        known = seen > 0
        if known.sum() < _NETWORKS:
            return None
        return int(known.sum()), float((np.bincount(place, off)[known] / seen[known]).mean())


def _network(packets: PacketBatch) -> U64:
    four = packets.family == 4
    return np.where(four, packets.src_lo >> np.uint64(8), packets.src_hi >> np.uint64(16))


def _hops(packets: PacketBatch) -> _Hops:
    ttl = packets.ttl.astype(np.intp)
    return np.asarray(_FIRST[np.searchsorted(_FIRST, ttl)] - ttl, np.intp)
