"""Start a screen with what a running recorder has seen: the history, and when attacks began."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from fwtop.analysis.timeline import Known
from fwtop.console.playback.replay import SessionReel
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.store.directory import SESSION_DIRECTORY, is_running, session_paths
from fwtop.store.reader import playback, session_info
from fwtop.ui.lists.history import Past

_FRESH_SECONDS = 30.0  # a recorder that wrote nothing for so long is stuck, or its disk is full


class Earlier(Struct, frozen=True):
    """What another process's running session holds of the minutes before now."""

    path: Path | None = None  # None: there is none
    past: tuple[Past, ...] = ()
    rules: dict[str, float] = field(default_factory=dict)  # id → when it was installed
    attacks: tuple[Known, ...] = ()


def find_earlier(origin: Origin, directory: Path = SESSION_DIRECTORY) -> Earlier:
    """Return what the longest running session of these interfaces saw; nothing if none can be read."""
    with suppress(FwtopError):
        for path in session_paths(directory):
            if is_running(path) and (found := _read(path, origin)) is not None:
                return found
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
                return Earlier(path, frame.past, frame.rules, _attacks(frame.snapshot))
    return None


def _attacks(snapshot: Snapshot) -> tuple[Known, ...]:
    """Return the attacks of the last snapshot, as the timeline remembers them."""
    return tuple(
        Known(
            attack.kind,
            attack.match.sport if attack.match is not None else None,
            attack.since,
            snapshot.at if attack.ended is None else attack.ended,
            attack.peak_pps,
        )
        for attack in snapshot.judgement.attacks
    )
