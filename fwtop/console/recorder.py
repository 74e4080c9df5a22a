"""Storing the session beside the live view, which goes on when storing fails."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from fwtop import __version__
from fwtop.model.costs import load_costs
from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.snapshot import Origin, Snapshot
from fwtop.report import export_snapshot, render
from fwtop.store.baselines import BaselineStore
from fwtop.store.reader import load_session
from fwtop.store.writer import SessionWriter

_BASELINE_SECONDS = 60.0


class Recorder:
    """One session's writer, and the baseline that is carried from one session to the next."""

    def __init__(self, host: str, origin: Origin) -> None:
        self._host = host
        self._netns = origin.netns
        self._writer = SessionWriter(
            host=host, interfaces=origin.interfaces, netns=origin.netns, version=__version__
        )
        self._baselines = BaselineStore()
        self._baseline_saved = time.monotonic()
        self.baseline: Callable[[], bytes] | None = None

    @property
    def problem(self) -> str:
        """Why the session is not stored at the moment, in a line; empty while it is."""
        return self._writer.problem

    @property
    def path(self) -> Path | None:
        """The session's file, once there is one."""
        return self._writer.path

    def write(self, snapshot: Snapshot) -> Snapshot:
        """Store a snapshot, now and then the baseline; returns it with a note where storing fails."""
        self._writer.write(snapshot)
        if time.monotonic() - self._baseline_saved > _BASELINE_SECONDS:
            self._save_baseline()
        if not self.problem:
            return snapshot
        return dataclasses.replace(snapshot, notes=(*snapshot.notes, self.problem))

    def export(self, format_name: str) -> str:
        """Write a report of the session so far beside its database and return its path."""
        if self.path is None:
            raise FwtopError(self.problem or "nothing has been stored yet; try again in a second")
        text = render(load_session(self.path), format_name, load_costs().costs)
        path = self.path.with_suffix(f".{format_name}")
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise FwtopError(f"{path} could not be written: {error.strerror}") from None
        return str(path)

    def close(self, *, clean: bool) -> None:
        """Keep the baseline, and end the session; one that crashed is left as such."""
        self._save_baseline()
        if clean:
            self._writer.close()

    def _save_baseline(self) -> None:
        self._baseline_saved = time.monotonic()
        if self.baseline is not None:
            self._baselines.put(self._host, self.baseline(), self._netns)


def export_once(snapshot: Snapshot, format_name: str) -> str:
    """Write a single snapshot beside the sessions, or in the present directory, and return its path."""
    for directory in (STATE_DIRECTORY, Path.cwd()):
        try:
            return str(export_snapshot(snapshot, directory, format_name))
        except FwtopError as error:
            failure = error
    raise failure
