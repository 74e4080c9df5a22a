"""The same judgement on a capture file."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import BinaryIO

from fwtop.advise.advisor import Advisor
from fwtop.aggregate.engine import Engine
from fwtop.collect.capture import read_capture
from fwtop.console.judging import for_captures
from fwtop.enrich.geoip import open_lookup
from fwtop.model.errors import FwtopError
from fwtop.model.snapshot import Origin, Snapshot
from fwtop.model.text import safe_text
from fwtop.model.window import Window


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """What a capture came to, with what a preview needs to try rules on it."""

    snapshot: Snapshot
    window: Window
    advisor: Advisor


def observe_capture(file: BinaryIO, name: str, *, top: int, geoip: str | None = None) -> CaptureResult:
    """Read a whole capture and judge it as one window; raises FwtopError on a file that is none."""
    capture = read_capture(file, name)
    engine = Engine(open_lookup(geoip), window_seconds=None, top=top, live=False)
    for batch in capture.batches():
        engine.feed(batch, None, capture.started)
    window, tables = engine.window(), engine.tables()
    if tables.totals.packets == 0:
        why = f" ({'; '.join(capture.notes)})" if capture.notes else ""
        raise FwtopError(f"{safe_text(name)} holds no packets{safe_text(why)}; nothing to judge")
    judging = for_captures()
    advisor = Advisor(judging.config)
    snapshot = Snapshot(
        host=safe_text(socket.gethostname(), limit=64),
        origin=Origin("capture", file=safe_text(name)),
        started=window.started,
        seconds=window.seconds,
        tables=tables,
        judgement=advisor.judge(window, tables),
        notes=tuple(safe_text(note) for note in (*judging.notes, *capture.notes)),
    )
    return CaptureResult(snapshot, window, advisor)
