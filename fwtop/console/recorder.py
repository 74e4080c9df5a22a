"""Storing the session beside the live view, which goes on when storing fails."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.snapshot import Origin, Snapshot
from fwtop.report.render import render_session
from fwtop.store.sessions import SessionWriter

_BASELINE_SECONDS = 60.0


class Recorder:
    """One session's writer; the first failure to write ends it with a note on the screen."""

    def __init__(self, writer: SessionWriter, host: str) -> None:
        self._writer = writer
        self._host = host
        self._failed = ""
        self._baseline_saved = time.monotonic()
        self.baseline: Callable[[], bytes] | None = None

    @staticmethod
    def open(host: str, origin: Origin, directory: Path = STATE_DIRECTORY) -> tuple[Recorder | None, str]:
        """Begin a session; returns None and a sentence where it can't be stored."""
        try:
            return Recorder(SessionWriter(directory, host=host, origin=origin), host), ""
        except FwtopError as error:
            return None, f"this session is not stored: {error}"

    @property
    def session_id(self) -> str:
        """Name of the session for `fwtop report`."""
        return self._writer.session_id

    def load_baseline(self) -> bytes | None:
        """Return what was normal on this host before, if it was kept."""
        return self._writer.load_baseline(self._host)

    def write(self, snapshot: Snapshot) -> None:
        """Store a snapshot, and now and then the baseline."""
        if self._failed:
            return
        try:
            self._writer.write(snapshot)
            if self.baseline is not None and time.monotonic() - self._baseline_saved > _BASELINE_SECONDS:
                self._baseline_saved = time.monotonic()
                self._writer.save_baseline(self._host, self.baseline())
        except FwtopError as error:
            self._failed = f"storing stopped: {error}"

    def annotate(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with a note if storing has failed."""
        if not self._failed:
            return snapshot
        return dataclasses.replace(snapshot, notes=(*snapshot.notes, self._failed))

    def export(self, format_name: str) -> str:
        """Write a report of the session so far beside its database and return its path."""
        if self._failed:
            raise FwtopError(self._failed)
        text = render_session(self._writer.path, format_name)
        path = self._writer.path.with_suffix(f".{format_name}")
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise FwtopError(f"{path} could not be written: {error.strerror}") from None
        return str(path)

    def close(self, *, clean: bool) -> None:
        """End the session, keeping the baseline."""
        if self._failed:
            return
        if self.baseline is not None:
            self._writer.save_baseline(self._host, self.baseline())
        self._writer.close(clean=clean)
