"""Judge a capture file: as one window, and windows of it that end at the player's cursor."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

# numpy imports these on first use, when root is gone and a clone below /root is no longer readable.
import numpy.ma
import numpy.random
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.analysis.config import AdviseConfig
from fwtop.capture.reader import Opened, read_capture
from fwtop.console.judging import load_config, not_judged
from fwtop.console.playback.player import Frame, Reel
from fwtop.incidents.advisor import Advisor
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import OriginLookup, PacketBatch, Window
from fwtop.model.traffic.session import Event, EventKind, Flow, Mark
from fwtop.model.traffic.snapshot import Judgement, Origin, Snapshot, Tables
from fwtop.render.numbers import duration_words
from fwtop.stats.engine import Engine
from fwtop.ui.lists.history import HISTORY_SECONDS, Past, Point, step_for

_WINDOW_SECONDS = 3.0  # as on a live screen
_PARTS = 12  # a short capture is shown in windows of a twelfth of its length
_STEPS = 3  # of a window
_MOST_ROWS = 30_000  # judged of one window, so that a step takes a moment only


class Judged(Struct, frozen=True):
    """A judged window, with what a preview needs to replay rules on it."""

    snapshot: Snapshot
    window: Window
    advisor: Advisor


class CaptureResult(Struct, frozen=True):
    """The judged capture, and what judges its windows."""

    whole: Judged
    config: AdviseConfig
    lookup: OriginLookup
    top: int

    @property
    def snapshot(self) -> Snapshot:
        """Return the judgement of the whole capture."""
        return self.whole.snapshot


def observe_capture(
    file: Opened,
    name: str,
    *,
    top: int,
    lookup: OriginLookup,
    explains: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> CaptureResult:
    """Read a whole capture and judge it as one window; raises FwtopError if it is no capture.

    `progress` is told the number of packets read by now.
    """
    capture = read_capture(file, name)
    count = 0
    engine = Engine(lookup, window_seconds=None, top=top, live=False)
    for batch in capture.batches():
        engine.feed(batch, None, capture.started)
        count += len(batch)
        progress(count)
    window, tables = engine.window(), engine.tables()
    if tables.totals.packets == 0:
        why = f" ({'; '.join(capture.notes)})" if capture.notes else ""
        raise FwtopError(f"{safe_text(name)} holds no packets{safe_text(why)}; nothing to judge")
    loaded = load_config()
    advisor = Advisor(loaded.config, lookup=lookup, explains=explains)
    judgement, tables = _judged(advisor, window, tables)
    snapshot = Snapshot(
        host=safe_text(socket.gethostname(), limit=64),
        origin=Origin("capture", file=safe_text(name)),
        started=window.started,
        seconds=window.seconds,
        tables=tables,
        judgement=judgement,
        notes=tuple(
            safe_text(note) for note in (*filter(None, [judgement.not_judged]), *loaded.notes, *capture.notes)
        ),
    )
    return CaptureResult(Judged(snapshot, window, advisor), loaded.config, lookup, top)


def _judged(advisor: Advisor, window: Window, tables: Tables) -> tuple[Judgement, Tables]:
    """Judge a window and say who its sources are; one that can't be judged is shown all the same."""
    try:
        judgement = advisor.judge(window, tables)
        return judgement, replace(tables, sources=advisor.standing.mark(tables.sources))
    except Exception as failure:
        return not_judged(Judgement(), failure), tables


class CaptureReel:
    """A capture in windows of the packets that were kept in memory: all of a small one, a sample of a large.

    `shown` is the window on the screen; other threads read it to preview rules and dissect packets.
    """

    def __init__(self, result: CaptureResult) -> None:
        self._result = result
        self._begins = result.snapshot.started
        self._seconds = result.snapshot.seconds
        self._width = min(_WINDOW_SECONDS, self._seconds / _PARTS)
        self._step = self._width / _STEPS
        self._last = math.ceil((self._seconds - self._width) / self._step) if self._step > 0 else 0
        self.shown = result.whole
        packets = result.whole.window.arrived
        order = np.argsort(packets.time_ns, kind="stable")
        self._order, self._times = order, packets.time_ns[order]
        self._whole = Frame(result.snapshot, self._past(self._begins + self._seconds, self._seconds))

    @contextmanager
    def opened(self) -> Iterator[Reel]:
        """Play it: everything is in memory already."""
        yield self

    @property
    def note(self) -> str:
        """Say how large a window is, and how many packets were kept for it."""
        kept, packets = len(self._times), self._result.snapshot.tables.totals.packets
        sampled = f", 1 packet in {packets / kept:,.0f} kept" if packets > 1.5 * kept else ""
        words = duration_words(self._width) if self._width >= 1 else f"{self._width * 1000:,.0f} ms"
        return f"window {words}{sampled}" if self._width > 0 else "too short for windows"

    def span(self) -> tuple[float, float]:
        """Return the times of the first and last packet."""
        return self._begins, self._begins + self._seconds

    def marks(self) -> tuple[Mark, ...]:
        """Return when attacks began and ended, as judged from the whole capture."""
        found = []
        for attack in self._result.snapshot.judgement.attacks:
            began = Event(attack.since, EventKind.ATTACK_BEGAN, attack.kind, attack.title, attack.id)
            found.append(self._mark(began))
            if attack.ended is not None:
                text = f"{attack.title} ended"
                ended = Event(attack.ended, EventKind.ATTACK_ENDED, attack.kind, text, attack.id)
                found.append(self._mark(ended))
        return tuple(sorted(found, key=lambda mark: mark.at))

    def _mark(self, event: Event) -> Mark:
        return Mark(self.locate(event.at + self._width), event)

    def whole(self) -> Frame:
        """Return the judgement of the whole capture."""
        self.shown = self._result.whole
        return self._whole

    def beside(self, at: float, count: int) -> float | None:
        """Return the end of another window."""
        place = self._place(at)
        other = min(max(place + count, 0), self._last)
        return None if other == place else self._end(other)

    def locate(self, at: float) -> float:
        """Return the end of the window that ends about then."""
        return self._end(self._place(at))

    def _place(self, at: float) -> int:
        place = round((at - self._begins - self._width) / self._step) if self._step > 0 else 0
        return min(max(place, 0), self._last)

    def _end(self, place: int) -> float:
        return min(self._begins + self._width + place * self._step, self._begins + self._seconds)

    def frame(self, at: float) -> Frame:
        """Judge the window that ends at a time by itself: what came before doesn't count."""
        low = at - self._width
        span = round(low * 1e9), round((low + self._width) * 1e9)
        first, last = np.searchsorted(self._times, span[0]), np.searchsorted(self._times, span[1], "right")
        packets = self._thinned(self._order[first:last])
        whole, result = self._result.whole, self._result
        engine = Engine(result.lookup, window_seconds=None, top=result.top, live=False, span_ns=span)
        engine.feed(packets, None, low)
        window, tables = engine.window(), engine.tables()
        advisor = Advisor(result.config, lookup=result.lookup)
        judgement, tables = _judged(advisor, window, tables)
        snapshot = replace(
            whole.snapshot, started=low, seconds=self._width, tables=tables, judgement=judgement
        )
        self.shown = Judged(snapshot, window, advisor)
        return Frame(snapshot, self._past(at, HISTORY_SECONDS))

    def _past(self, until: float, span: float) -> tuple[Past, ...]:
        """Return the rates of each step before a time; what became of the packets isn't recorded."""
        since, each = max(self._begins, until - span), step_for(span)
        first = np.searchsorted(self._times, round(since * 1e9))
        last = np.searchsorted(self._times, round(until * 1e9), "right")
        if first >= last:
            return ()
        packets, rows = self._result.whole.window.arrived, self._order[first:last]
        steps = self._times[first:last] // round(each * 1e9)
        start = int(steps[0])
        rates = np.bincount(steps - start, packets.weight[rows]) / each
        bits = np.bincount(steps - start, packets.weight[rows] * packets.length[rows] * 8) / each
        flows = (
            Flow(arrives=float(pps), unaccounted=float(pps), bps=float(rate))
            for pps, rate in zip(rates, bits, strict=True)
        )
        return tuple(Past((start + step) * each, Point(flow)) for step, flow in enumerate(flows))

    def _thinned(self, rows: NDArray[np.intp]) -> PacketBatch:
        """Select packets; of too many every n-th, each counting for n."""
        step = -(-len(rows) // _MOST_ROWS) or 1
        packets = self._result.whole.window.arrived.select(rows[::step])
        return replace(packets, weight=packets.weight * (len(rows) / max(len(packets), 1)))
