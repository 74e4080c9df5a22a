"""Stored sessions: what the player shows of them, and what a screen that starts takes from a running one.

That is the history, and when attacks began.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.console.playback.player import Frame, Reel
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.session import STOPPED, Flow, Mark, PastAttack, unstored
from fwtop.model.traffic.snapshot import Incident, Origin, Snapshot
from fwtop.render.numbers import CLOCK, utc
from fwtop.store.directory import SESSION_DIRECTORY, is_running, session_paths
from fwtop.store.reader import Playback, SeriesPoint, past_attacks, playback, session_info
from fwtop.ui.lists.history import HISTORY_SECONDS, Clients, Past, Point


def session_recording(path: Path) -> Callable[[], AbstractContextManager[Reel]]:
    """Return what opens a session for the player."""

    @contextmanager
    def opened() -> Iterator[Reel]:
        with playback(path) as stored:
            yield SessionReel(stored)

    return opened


class SessionReel:
    """One stored session; keeps its events in memory, and a snapshot at a time."""

    note = ""

    def __init__(self, stored: Playback) -> None:
        self._stored = stored
        self._marks = stored.marks()
        self._unstored = unstored(mark.event for mark in self._marks)
        self.beside, self.locate = stored.beside, stored.locate

    def span(self) -> tuple[float, float]:
        """Return the times of the first and last snapshot."""
        span = self._stored.span()
        if span is None:
            raise FwtopError("the session holds no snapshots; 'fwtop sessions' lists the others")
        return span

    def marks(self) -> tuple[Mark, ...]:
        """Return the session's events."""
        return self._marks

    def whole(self) -> Frame | None:
        """Return None: a session is shown from its beginning."""
        return None

    def frame(self, at: float) -> Frame | None:
        """Load a snapshot and its past."""
        snapshot = self._stored.snapshot(at)
        if snapshot is None:
            return None
        past = tuple(map(_past, self._stored.series(at - HISTORY_SECONDS, at)))
        return Frame(self._marked(snapshot, at), past)

    def _marked(self, snapshot: Snapshot, at: float) -> Snapshot:
        """Add a note where nothing was stored of the time shown, so that the snapshot is of another time."""
        for gap in self._unstored:
            if gap.since < at <= gap.until:
                since, until = utc(gap.since, CLOCK), utc(gap.until, CLOCK)
                words = f"nothing was stored from {since} to {until}: {gap.why}"
                return replace(snapshot, notes=(words, *snapshot.notes))
        return snapshot


def _past(point: SeriesPoint) -> Past:
    mine = min(point.mine_pps, point.dropped_pps)
    other = min(point.other_pps, point.dropped_pps - mine)
    flow = Flow(
        arrives=point.pps,
        mine=mine,
        other=other,
        kernel=point.dropped_pps - mine - other,
        reaches=point.accepted_pps,
        unaccounted=point.pps - point.dropped_pps - point.accepted_pps,
        bps=point.bps,
    )
    known = point.handshakes_per_s is not None and point.acknowledged_per_s is not None
    clients = Clients(point.handshakes_per_s or 0.0, point.acknowledged_per_s or 0.0) if known else None
    stopped = mine + other >= STOPPED * point.pps  # of all packets: those of the attacks weren't stored
    shakes = clients.handshakes if clients is not None else None
    return Past(point.at, Point(flow, point.attack, stopped, shakes), clients)


_FRESH_SECONDS = 30.0  # a recorder that wrote nothing for so long is stuck, or its disk is full


class Earlier(Struct, frozen=True):
    """What another process's running session holds of the minutes before now, and what older ones do."""

    path: Path | None = None  # None: there is none
    past: tuple[Past, ...] = ()
    attacks: tuple[Incident, ...] = ()
    over: tuple[PastAttack, ...] = ()  # attacks of any session before


def find_earlier(origin: Origin, directory: Path = SESSION_DIRECTORY) -> Earlier:
    """Return what the longest running session of these interfaces saw, and the attacks of all."""
    with suppress(FwtopError):
        over = past_attacks(origin, directory)
        for path in session_paths(directory):
            if is_running(path) and (found := _read(path, origin)) is not None:
                return replace(found, over=over)
        return Earlier(over=over)
    return Earlier()


def _read(path: Path, origin: Origin) -> Earlier | None:
    with suppress(FwtopError):
        info = session_info(path)
        if (info.interfaces, info.netns) != (origin.interfaces, origin.netns):
            return None
        with playback(path, whole=False) as stored:
            now = time.time()
            reel = SessionReel(stored)
            frame = reel.frame(now)
            if frame is not None and abs(now - frame.snapshot.at) < _FRESH_SECONDS:
                return Earlier(path, frame.past, frame.snapshot.judgement.attacks)
    return None
