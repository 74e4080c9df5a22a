"""One batch of packets reduced to tallies, once, when it comes in: ticks then only add tallies up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fwtop.aggregate import payloads, ports, sources
from fwtop.aggregate.tally import (
    BYTES,
    DROPPED,
    SAMPLES,
    SUMS,
    VARIANCE,
    WEIGHT,
    XDP_DROPPED,
    Tally,
)
from fwtop.model.packets import F64, Hook, PacketBatch
from fwtop.model.window import OriginLookup


@dataclass(frozen=True, slots=True)
class Digest:
    """What the tables need to know of some packets; digests can be added up."""

    total: F64  # (SUMS,)
    sources: sources.SourceTallies
    ports: Tally
    payloads: payloads.PayloadTallies
    protocols: Tally

    @staticmethod
    def of(arrived: PacketBatch, dropped: PacketBatch, one_in: float, lookup: OriginLookup) -> Digest:
        """Count a batch; `one_in` is the interval's sampling rate at ingress."""
        sums = arrived_sums(arrived, one_in)
        lost = np.zeros((SUMS, len(dropped)))
        lost[DROPPED] = dropped.weight
        return Digest(
            total=sums.sum(axis=1) + lost.sum(axis=1),
            sources=sources.tally(arrived, sums, dropped, lost, lookup),
            ports=ports.tally(arrived, sums),
            payloads=payloads.tally(arrived, sums),
            protocols=ports.tally_protocols(arrived, sums),
        )

    @staticmethod
    def join(digests: list[Digest]) -> Digest:
        """Add digests up; at least one."""
        if len(digests) == 1:
            return digests[0]
        return Digest(
            total=np.sum([digest.total for digest in digests], axis=0),
            sources=sources.SourceTallies.join([digest.sources for digest in digests]),
            ports=Tally.join([digest.ports for digest in digests]),
            payloads=payloads.PayloadTallies.join([digest.payloads for digest in digests]),
            protocols=Tally.join([digest.protocols for digest in digests]),
        )

    def bounded(self) -> Digest:
        """Return it with the least important keys folded together, in bounded memory."""
        return Digest(self.total, self.sources.bounded(), self.ports, self.payloads.bounded(), self.protocols)


def arrived_sums(batch: PacketBatch, one_in: float) -> F64:
    """Return each packet's part of a Tally's sums, shape (SUMS, n).

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
