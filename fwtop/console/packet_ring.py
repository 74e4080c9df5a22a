"""The newest sampled packets, written by the observing thread and read by any other without a lock; lists."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.packets.recent import (
    MOST_PACKETS,
    DropReason,
    PacketList,
    RecentPackets,
    captured_packets,
    verdicts,
)
from fwtop.analysis.standing import Standing, who_of
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.rule import RuleStatus
from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, Mask, PacketBatch, Window

_ARRIVED = (Hook.INGRESS, Hook.XDP)
_MOST_POLLS = 64  # that wait to be joined


class _Poll(Struct, frozen=True):
    """The samples of one poll, or of several that were joined."""

    packets: PacketBatch
    arrivals: int  # among `packets`


class _Kept(Struct, frozen=True):
    """The newest polls, which hold all packets to show, and perhaps older ones."""

    polls: tuple[_Poll, ...] = ()
    clock_ns: int = 0
    reasons: dict[int, DropReason] = field(default_factory=dict)
    seen: int = 0


class PacketRing:
    """Keeps the samples of the newest polls in one immutable value, and joins them when somebody looks.

    `most` bounds the packets that arrived; at each other hook twice as many samples are kept.
    """

    def __init__(self, most: int = MOST_PACKETS) -> None:
        self._most = most
        self._reasons: dict[int, DropReason] = {}
        self._kept = _Kept()

    @property
    def latest(self) -> RecentPackets:
        """The newest packets; the value never changes."""
        kept = self._kept
        packets = PacketBatch.concat([poll.packets for poll in kept.polls])
        arriving = _arriving(packets)[-self._most :]
        arrived = packets.select(arriving)
        since = int(arrived.time_ns.min()) if len(arrived) else 0
        return RecentPackets(
            arrived,
            kept.seen - len(arrived) + np.arange(len(arrived), dtype=np.int64),
            self._outcomes(packets, Hook.DROP, since),
            self._outcomes(packets, Hook.ACCEPTED, since),
            kept.clock_ns,
            kept.reasons,
            kept.seen,
        )

    def _outcomes(self, packets: PacketBatch, hook: Hook, since: int) -> PacketBatch:
        """Return the samples of a hook that can belong to packets that are shown."""
        rows = np.flatnonzero((packets.hook == hook) & (packets.time_ns >= since))
        return packets.select(rows[-2 * self._most :])

    def add(self, batch: PacketBatch, counters: Counters) -> None:
        """Take the samples of a poll."""
        self._learn(counters)
        if not len(batch):
            return
        arrivals = len(_arriving(batch))
        polls = (*self._kept.polls, _Poll(self._newest(batch), min(arrivals, self._most)))
        if len(polls) > _MOST_POLLS:
            joined = self._newest(PacketBatch.concat([poll.packets for poll in polls]))
            polls = (_Poll(joined, len(_arriving(joined))),)
        waiting = sum(poll.arrivals for poll in polls)
        while waiting - polls[0].arrivals >= self._most:  # the others are enough
            waiting -= polls[0].arrivals
            polls = polls[1:]
        clock_ns = time.time_ns() - time.monotonic_ns()
        self._kept = _Kept(polls, clock_ns, self._reasons, self._kept.seen + arrivals)

    def _newest(self, batch: PacketBatch) -> PacketBatch:
        """Return the packets of a batch that may be shown, in the same order."""
        if len(batch) <= self._most:
            return batch
        newest = [
            _arriving(batch)[-self._most :],
            np.flatnonzero(batch.hook == Hook.DROP)[-2 * self._most :],
            np.flatnonzero(batch.hook == Hook.ACCEPTED)[-2 * self._most :],
        ]
        return batch.select(np.sort(np.concatenate(newest)))

    def _learn(self, counters: Counters) -> None:
        """Remember the names of drop reasons; a new table replaces the old one, which others may read."""
        found = {
            drop.code: DropReason(drop.layer, safe_text(drop.reason, limit=60))
            for drop in counters.drops
            if drop.code is not None
        }
        if any(self._reasons.get(code) != reason for code, reason in found.items()):
            self._reasons = {**self._reasons, **found}


def _arriving(batch: PacketBatch) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    arrived: Mask = (batch.hook == _ARRIVED[0]) | (batch.hook == _ARRIVED[1])
    return np.flatnonzero(arrived)


def judged_packets(
    recent: RecentPackets, statuses: Sequence[RuleStatus], peers: Sequence[AllowedPeer], standing: Standing
) -> PacketList:
    """Return what the ring holds, with what is known about each packet.

    Called in a thread, and only while somebody looks, so it costs nothing otherwise.
    """
    places, kinds = verdicts(recent, statuses, peers)
    who = who_of(recent.arrived, peers, standing)
    return PacketList(recent.arrived, recent.numbers, recent.clock_ns, who, places, kinds, seen=recent.seen)


class CapturedPackets:
    """Lists the packets of the window of a capture that is shown."""

    def __init__(self, shown: Callable[[], tuple[Window, Standing]]) -> None:
        self._shown = shown
        self._made: tuple[Window, PacketList] | None = None

    def packets(self) -> PacketList:
        """Return the first packets of the window."""
        window, standing = self._shown()
        if self._made is None or self._made[0] is not window:
            found = captured_packets(window.arrived)
            self._made = window, replace(found, who=who_of(found.packets, (), standing))
        return self._made[1]
