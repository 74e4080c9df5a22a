"""Which connections of an attack have completed, by connection tracking.

The sockets of a host tell of what it serves itself. What it passes on to containers, or to machines behind
it, has no socket here: there only connection tracking knows whether a sender's address is its own.
"""

from __future__ import annotations

import random
import time
from collections import deque

import numpy as np
from msgspec import Struct

from fwtop.analysis.connections import flows_of_packets
from fwtop.console.guardian_link import GuardianLink
from fwtop.model.addresses.address import format_address
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import MAX_TRACKED, Tracked
from fwtop.model.traffic.packets import U64, PacketBatch, TrackedFlows
from fwtop.model.traffic.protocols import TCP

_KEPT_SECONDS = 5.0
_RETRY_SECONDS = 5.0
_TIMEOUT_SECONDS = 0.2


class _Answer(Struct, frozen=True):
    at: float  # monotonic seconds
    asked: U64
    assured: U64


class TrackingMonitor:
    """Asks of a random part of the packets, so that shares of what is asked are shares of the packets."""

    def __init__(self, link: GuardianLink) -> None:
        """Take the connection of the observation."""
        self._link = link
        self._due = 0.0
        self._answers: deque[_Answer] = deque()

    def poll(self, arrived: PacketBatch) -> TrackedFlows | None:
        """Ask about some of these packets' connections; return what was told lately, None if nothing was."""
        now = time.monotonic()
        while self._answers and now - self._answers[0].at > _KEPT_SECONDS:
            self._answers.popleft()
        rows = np.flatnonzero((arrived.protocol == TCP) & (arrived.sport > 0))
        if now >= self._due and len(rows):
            until = np.cumsum(arrived.weight[rows])
            # numpy.random would be another 2 MB in memory, for 128 numbers at a time
            drawn = np.array([random.random() for _ in range(MAX_TRACKED)])  # noqa: S311 - no secret
            chosen = rows[np.searchsorted(until[:-1], drawn * until[-1], side="right")]
            self._ask(arrived.select(np.unique(chosen)), now)
        if not self._answers:
            return None
        return TrackedFlows(
            np.concatenate([one.asked for one in self._answers]),
            np.concatenate([one.assured for one in self._answers]),
        )

    def _ask(self, packets: PacketBatch, now: float) -> None:
        columns = (
            *(packets.family, packets.src_hi, packets.src_lo, packets.sport),
            *(packets.dst_hi, packets.dst_lo, packets.dport),
        )
        flows = tuple(
            (format_address(family, hi, lo), sport, format_address(family, to_hi, to_lo), dport)
            for family, hi, lo, sport, to_hi, to_lo, dport in zip(
                *(column.tolist() for column in columns), strict=True
            )
        )
        try:
            told = self._link.demand(Tracked(flows), seconds=_TIMEOUT_SECONDS).data.get("assured", ())
        except FwtopError:  # the screen reports a lost guardian
            told = ()
        if len(told) != len(flows):
            self._due = now + _RETRY_SECONDS
            return
        asked = flows_of_packets(packets)
        self._answers.append(_Answer(now, asked, asked[np.array(told, np.bool_)]))
