"""Evidence for a session: from time to time the tables of one attack and a few of its packets."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from fwtop.analysis.shown.traffic_part import JudgedTraffic
from fwtop.console.packets.samples import framed
from fwtop.dissect.wire import LINK_ETHERNET
from fwtop.model.traffic.flow import FULL_TABLE
from fwtop.model.traffic.packets import PacketBatch
from fwtop.model.traffic.session import AttackEvidence, SamplePacket
from fwtop.model.traffic.snapshot import Attack, PartTraffic, Snapshot, TrafficPart

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
