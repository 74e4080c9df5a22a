"""Storing the session beside the live view, which goes on when storing fails."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.snapshot import Origin, Snapshot
from fwtop.report.export import export_snapshot
from fwtop.report.render import render_session
from fwtop.store.reader import load_session
from fwtop.store.sessions import SessionWriter

_BASELINE_SECONDS = 60.0


class Recorder:
    """One session's writer, and the baseline that is carried from one session to the next."""

    def __init__(self, writer: SessionWriter, host: str) -> None:
        self._writer = writer
        self._host = host
        self._baseline_saved = time.monotonic()
        self.baseline: Callable[[], bytes] | None = None

    @staticmethod
    def begin(host: str, origin: Origin) -> tuple[Recorder | None, str]:
        """Begin a session; returns None and a line for people where it can't be stored."""
        try:
            return Recorder(SessionWriter(host=host, origin=origin), host), ""
        except FwtopError as error:
            return None, str(error)

    @property
    def session_id(self) -> str:
        """Name of the session for `fwtop report`."""
        return self._writer.session_id

    @property
    def problem(self) -> str:
        """Why the session is not stored at the moment, in a line; empty while it is."""
        return self._writer.problem

    def load_baseline(self) -> bytes | None:
        """Return what was normal on this host before, if it was kept."""
        return self._writer.load_baseline(self._host)

    def write(self, snapshot: Snapshot) -> Snapshot:
        """Store a snapshot, now and then the baseline; returns it with a note where storing fails."""
        with contextlib.suppress(FwtopError):  # told by `problem`, and tried again
            self._writer.write(snapshot)
        if time.monotonic() - self._baseline_saved > _BASELINE_SECONDS:
            self._save_baseline()
        if not self.problem:
            return snapshot
        return dataclasses.replace(snapshot, notes=(*snapshot.notes, self.problem))

    def export(self, format_name: str) -> str:
        """Write a report of the session so far beside its database and return its path."""
        text = render_session(load_session(self._writer.path), format_name)
        path = self._writer.path.with_suffix(f".{format_name}")
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise FwtopError(f"{path} could not be written: {error.strerror}") from None
        return str(path)

    def close(self, *, clean: bool) -> None:
        """Keep the baseline, and end the session."""
        self._save_baseline()
        self._writer.close(clean=clean)

    def _save_baseline(self) -> None:
        self._baseline_saved = time.monotonic()
        if self.baseline is not None:
            self._writer.save_baseline(self._host, self.baseline())


def export_once(snapshot: Snapshot, format_name: str) -> str:
    """Write a single snapshot beside the sessions, or in the present directory, and return its path."""
    with contextlib.suppress(FwtopError):
        return str(export_snapshot(snapshot, STATE_DIRECTORY, format_name))
    return str(export_snapshot(snapshot, Path.cwd(), format_name))
