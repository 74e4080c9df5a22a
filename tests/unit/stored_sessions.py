"""Sessions in a test's own directory, written as the console writes them."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from stored_samples import session_ticks

from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.store.writer import SessionWriter


def as_read(ticks: list[Snapshot], path: Path) -> list[Snapshot]:
    """What a reader gets: the same, but from a session."""
    origins = [Origin("session", tick.origin.interfaces, tick.origin.netns, path.stem) for tick in ticks]
    return [replace(tick, origin=origin) for tick, origin in zip(ticks, origins, strict=True)]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def writer(state: Path, *interfaces: str, **options: object) -> SessionWriter:
    given = {"host": "web-1", "interfaces": interfaces or ("eth0",), **options}
    return SessionWriter(state / "sessions", **given)  # type: ignore[arg-type]


def path_of(session: SessionWriter) -> Path:
    assert session.path is not None
    return session.path


def sample_session(state: Path) -> Path:
    """Write the sample session and end it cleanly."""
    session = writer(state)
    for tick in session_ticks():
        session.write(tick)
    session.close()
    assert session.problem == ""
    return path_of(session)
