"""What was seen before this window: usual numbers of connections, whom ports served, what was requested."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from fwtop.analysis.held.behaviour import flows_of, source_of
from fwtop.model.traffic.connections import SocketTable
from fwtop.model.traffic.packets import F64, U64

_SETTLE_SECONDS = 10.0  # what comes so long before an attack is not part of it
_LEARNED_SECONDS = 10.0  # of quiet, from which there is a usual number
_FADES = 0.998  # a second: half in six minutes
_MOST_SOURCES = 16_384


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float  # Unix seconds
    numbers: dict[tuple[int, str], int]
    served: U64  # sources that got answers


class HeldMemory:
    """Learns what is usual from quiet readings, with a delay; bounded."""

    def __init__(self) -> None:
        self._pending: deque[_Reading] = deque()
        self._usual: dict[tuple[int, str], float] = {}
        self._learned = 0.0  # seconds
        self._last: tuple[float, SocketTable] | None = None
        self.known: U64 = np.zeros(0, np.uint64)
        self._posts: dict[int, bool] = {}  # by connection
        self._forms: dict[int, bool] = {}  # by connection

    def usual(self, port: int, behaviour: str) -> float | None:
        """Return how many connections usually do that, None as long as nothing is known."""
        if self._learned < _LEARNED_SECONDS:
            return None
        return self._usual.get((port, behaviour), 0.0)

    def hear(self, posts: Mapping[int, bool], forms: Mapping[int, bool]) -> None:
        """Keep of connections whether their request announces a body, and whether pieces are form data.

        A connection that is held says its request once, and the window forgets it after seconds. A piece that
        isn't form data is a header line, and who sends one has sent no body so far.
        """
        self._posts |= posts
        for flow, form in forms.items():
            self._forms[flow] = self._forms.get(flow, True) and form

    def posts(self, flows: U64) -> F64:
        """Return which requests of these connections announced a body, without header lines later."""
        known = (flow for flow in flows.tolist() if flow in self._posts)
        return np.array([self._posts[flow] and self._forms.get(flow, True) for flow in known], np.float64)

    def forms(self, flows: U64) -> F64:
        """Return which of these connections, of those whose request wasn't seen, send form data."""
        unknown = (flow for flow in flows.tolist() if flow in self._forms and flow not in self._posts)
        return np.array([self._forms[flow] for flow in unknown], np.float64)

    @property
    def requested(self) -> Collection[int]:
        """The connections on which an HTTP request was seen."""
        return self._posts.keys()

    def forget_closed(self, table: SocketTable) -> None:
        """Forget what connections sent that are no longer open."""
        if self._posts or self._forms:
            still = set(flows_of(table.connections).tolist())
            self._posts = {flow: post for flow, post in self._posts.items() if flow in still}
            self._forms = {flow: form for flow, form in self._forms.items() if flow in still}

    def learn(
        self, now: float, table: SocketTable, numbers: dict[tuple[int, str], int], *, quiet: bool
    ) -> None:
        """Take a reading; while an attack lasts nothing is learned."""
        if not quiet:
            self._pending.clear()
            return
        if self._last is not None and self._last[1] is table:
            return
        self._last = (now, table)
        held = table.connections
        answered = (held.segments_out > 0) & (held.unsent == 0)
        self._pending.append(_Reading(now, numbers, np.unique(source_of(held.select(answered)))))
        while self._pending and self._pending[0].at <= now - _SETTLE_SECONDS:
            self._keep(self._pending.popleft())

    def _keep(self, reading: _Reading) -> None:
        passed = min(_SETTLE_SECONDS, self._pending[0].at - reading.at if self._pending else 1.0)
        self._learned += passed
        fade = _FADES**passed
        names = self._usual.keys() | reading.numbers.keys()
        usual = {name: max(fade * self._usual.get(name, 0.0), reading.numbers.get(name, 0)) for name in names}
        self._usual = {name: number for name, number in usual.items() if number >= 1}
        if len(reading.served):
            self.known = np.union1d(self.known, reading.served)[:_MOST_SOURCES]
