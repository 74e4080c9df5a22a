"""Guarded learning: which windows of traffic become part of what is normal."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import AnalysisContext
from fwtop.analysis.memory import Baseline, class_rates
from fwtop.analysis.window.traffic import TCP
from fwtop.model.traffic.packets import F64, PacketBatch, Window

_LEARN_SECONDS = 6.0  # quiet time whose packets are learned together: that copies the whole reservoir


class _Pending(Struct):
    """What a quiet tick would teach, on hold: it may contain the onset of an attack."""

    end: float
    seconds: float
    rates: F64  # packets per second by traffic class
    packets: PacketBatch  # as many as the baseline would take of them


class Learner:
    """Teaches a baseline what is normal, from consecutive windows."""

    def __init__(self, baseline: Baseline, config: AdviseConfig) -> None:
        self.baseline = baseline
        self.config = config
        self._pending: list[_Pending] = []
        self._settled: list[_Pending] = []  # quiet ones whose packets the baseline takes together
        self._last_ns = -1
        self._last_end = 0.0

    def take(self, context: AnalysisContext, window: Window, *, quiet: bool) -> None:
        """Learn quiet packets with a delay; during an attack learn only real connections."""
        if len(context.traffic) == 0:
            return
        packets = context.traffic.packets
        new = packets.time_ns > self._last_ns
        self._last_ns = max(self._last_ns, int(packets.time_ns.max()))
        known = np.flatnonzero(new & context.unclaimed & context.proven)
        self.baseline.clients = self.baseline.clients.met(context.traffic, known, quiet=quiet)
        if not window.live:
            return
        end = window.started + window.seconds
        seconds = min(window.seconds, max(0.0, end - self._last_end))
        self._last_end = end
        if not quiet:
            self._pending.clear()
            if self.baseline.ready:
                real = packets.select(new & context.tcp.real & context.unclaimed)
                self.baseline.renew(real, self.baseline.rows.protocol == TCP)
            return
        fresh = replace(packets.select(new), weight=context.traffic.weight[new])
        settle = self.config.settle_seconds
        if seconds > settle:  # one long window, as in `fwtop snapshot`: learn all but its end
            old = fresh.time_ns < self._last_ns - int(settle * 1e9)
            self._keep(self._pending_of(fresh.select(old), end - settle, seconds - settle))
            fresh, seconds = fresh.select(~old), settle
        self._pending.append(self._pending_of(fresh, end, seconds))
        while self._pending and self._pending[0].end <= end - settle:
            self._keep(self._pending.pop(0))

    def _pending_of(self, packets: PacketBatch, end: float, seconds: float) -> _Pending:
        return _Pending(end, seconds, class_rates(packets, seconds), self.baseline.bounded(packets))

    def _keep(self, settled: _Pending) -> None:
        """Learn the rates of quiet packets at once, and the packets when there are some seconds of them."""
        self.baseline.keep_rates(settled.rates, settled.seconds)
        self._settled.append(settled)
        if self.baseline.ready and sum(part.seconds for part in self._settled) < _LEARN_SECONDS:
            return
        self.baseline.keep_rows(*(part.packets for part in self._settled))
        self._settled.clear()
