"""One batch of packets reduced to sums as it arrives; ticks only add the sums."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from fwtop.model.traffic.packets import F64, Hook, PacketBatch
from fwtop.model.traffic.window import OriginLookup
from fwtop.stats import destinations, payloads, ports, sources
from fwtop.stats.keyed_sums import BYTES, DROPPED, SAMPLES, SUMS, VARIANCE, WEIGHT, XDP_DROPPED, KeyedSums


class Digest(Struct, frozen=True):
    """Everything that the tables need from a set of packets; digests can be added."""

    total: F64  # (SUMS,)
    sources: sources.SourceSums
    destinations: KeyedSums
    ports: KeyedSums
    payloads: payloads.PayloadSums
    protocols: KeyedSums

    @staticmethod
    def of(arrived: PacketBatch, dropped: PacketBatch, one_in: float, lookup: OriginLookup) -> Digest:
        """Count a batch; `one_in` is the interval's sampling rate at ingress."""
        sums = arrived_sums(arrived, one_in)
        lost = np.zeros((SUMS, len(dropped)))
        lost[DROPPED] = dropped.weight
        return Digest(
            total=sums.sum(axis=1) + lost.sum(axis=1),
            sources=sources.sum_sources(arrived, sums, dropped, lost, lookup),
            destinations=destinations.sum_destinations(arrived, sums, dropped, lost),
            ports=ports.sum_ports(arrived, sums),
            payloads=payloads.sum_payloads(arrived, sums),
            protocols=ports.sum_protocols(arrived, sums),
        )

    @staticmethod
    def join(digests: list[Digest]) -> Digest:
        """Add one or more digests."""
        if len(digests) == 1:
            return digests[0]
        total, *parts = map(list, zip(*map(astuple, digests), strict=True))
        return Digest(np.sum(total, axis=0), *(type(same[0]).join(same) for same in parts))

    def bounded(self) -> Digest:
        """Return a digest of bounded size, its lightest keys folded together."""
        return replace(
            self,
            sources=self.sources.bounded(),
            destinations=self.destinations.cut(destinations.MOST),
            payloads=self.payloads.bounded(),
        )


def arrived_sums(batch: PacketBatch, one_in: float) -> F64:
    """Return the contribution of each packet to `KeyedSums.sums`, shape (SUMS, n).

    A record taken with probability 1/N stands for N × s packets, s the packets joined in it (GRO). The
    variance of such a sum is estimated by Σ (N s)² (1 − 1/N) (Horvitz and Thompson 1952): none at N = 1.
    """
    weight = batch.weight
    joined = np.where(batch.hook == Hook.INGRESS, np.maximum(weight / max(one_in, 1.0), 1.0), 1.0)
    sums = np.zeros((SUMS, len(batch)))
    sums[SAMPLES] = 1.0
    sums[WEIGHT] = weight
    sums[VARIANCE] = np.maximum(weight * (weight - joined), 0.0)
    sums[BYTES] = weight * batch.length
    sums[XDP_DROPPED] = np.where(batch.hook == Hook.XDP, weight, 0.0)
    return sums
