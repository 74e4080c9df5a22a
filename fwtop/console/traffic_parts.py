"""Tables of a part of the traffic, off the observing thread: for who looks at it, and as evidence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from fwtop.analysis.shown import JudgedTraffic, part_traffic
from fwtop.console.samples import framed
from fwtop.dissect.client import LINK_ETHERNET
from fwtop.model.traffic.flow import FULL_TABLE
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.traffic.session import AttackEvidence, SamplePacket
from fwtop.model.traffic.snapshot import Attack, PartTraffic, Snapshot, Sources, TrafficPart
from fwtop.model.traffic.window import OriginLookup


class TrafficParts:
    """Makes the tables of a part once per judged window, however often `of` is asked for them."""

    def __init__(
        self,
        judged: Callable[[], JudgedTraffic | None],
        mark: Callable[[Sources], Sources],
        lookup: OriginLookup,
        top: int,
    ) -> None:
        """`mark` tells who the sources are, and which rules cover them."""
        self._judged = judged
        self._mark = mark
        self._lookup = lookup
        self._top = top
        self._lock = threading.Lock()  # never taken by the observing thread
        self._made: tuple[JudgedTraffic, TrafficPart, PartTraffic | None] | None = None

    def of(self, part: TrafficPart) -> PartTraffic | None:
        """Return the tables of a part; None if the newest window has no packets of it."""
        judged = self._judged()
        if judged is None:
            return None
        with self._lock:
            if self._made is None or self._made[0] is not judged or self._made[1] != part:
                self._made = judged, part, self._make(judged, part)
            return self._made[2]

    def once(self, part: TrafficPart) -> PartTraffic | None:
        """Do the same for one who asks once: nothing is kept, with which the whole window would stay."""
        judged = self._judged()
        return None if judged is None else self._make(judged, part)

    def _make(self, judged: JudgedTraffic, part: TrafficPart) -> PartTraffic | None:
        found = part_traffic(judged, part, self._lookup, self._top)
        if found is None:
            return None
        return replace(found, tables=replace(found.tables, sources=self._mark(found.tables.sources)))


_PAUSE_SECONDS = 3.0  # between two looks: making the tables of an attack takes about 20 ms
_AGAIN_SECONDS = 10.0  # until the same attack is looked at again
_PACKETS = 4  # of one look
_MOST_ATTACKS = 64


class EvidenceSampler:
    """Looks at one attack after the other, first at those not yet seen; costs nothing while there is none."""

    def __init__(
        self, judged: Callable[[], JudgedTraffic | None], part: Callable[[TrafficPart], PartTraffic | None]
    ) -> None:
        """`part` makes the tables of a part of `judged`, the last judged window."""
        self._judged = judged
        self._part = part
        self._looked: dict[str, float] = {}  # by the attack's key
        self._last = float("-inf")

    def take(self, snapshot: Snapshot) -> tuple[AttackEvidence, ...]:
        """Return evidence of at most one attack."""
        at = snapshot.at
        if 0 <= at - self._last < _PAUSE_SECONDS:
            return ()
        due = [attack for attack in snapshot.judgement.attacks if self._is_due(attack, at)]
        judged = self._judged()
        if not due or judged is None:
            return ()
        attack = min(due, key=lambda item: self._looked.get(item.key, float("-inf")))
        self._last = at
        self._looked = dict(list({**self._looked, attack.key: at}.items())[-_MOST_ATTACKS:])
        part = self._part(TrafficPart(attack=attack.key))
        if part is None:
            return ()
        return (AttackEvidence(at, attack.kind, attack.pps, part, _packets(judged, attack)),)

    def _is_due(self, attack: Attack, at: float) -> bool:
        since = at - self._looked.get(attack.key, float("-inf"))
        return attack.kind != FULL_TABLE and not 0 <= since < _AGAIN_SECONDS


def _packets(judged: JudgedTraffic, attack: Attack) -> tuple[SamplePacket, ...]:
    finding = judged.findings.get(attack.key)
    if finding is None or not len(finding.rows):
        return ()
    chosen = np.unique(np.linspace(0, len(finding.rows) - 1, _PACKETS).astype(np.intp))
    batch = judged.context.traffic.packets.select(finding.rows[chosen])
    clock_ns = time.time_ns() - time.monotonic_ns()
    return tuple(_packet(batch, row, attack.kind, clock_ns) for row in range(len(batch)))


def _packet(batch: PacketBatch, row: int, kind: str, clock_ns: int) -> SamplePacket:
    data, link = framed(batch, row)
    is_ethernet = link == LINK_ETHERNET
    blank = 14  # bytes of the empty Ethernet header before packets of interfaces without one
    if is_ethernet and not any(data[: blank - 2]) and int(batch.family[row]):
        data, is_ethernet = data[blank:], False
    at = (int(batch.time_ns[row]) + clock_ns) / 1e9
    return SamplePacket(at, kind, max(int(batch.length[row]), len(data)), is_ethernet, data)
