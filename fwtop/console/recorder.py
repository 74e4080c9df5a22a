"""Session recording; the live view continues when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from fwtop import __version__
from fwtop.console.history_sampler import HistorySampler
from fwtop.console.judging import failure_line
from fwtop.dissect.client import Dissect
from fwtop.enrich.geoip import CityLookup
from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.traffic.packets import OriginLookup, Window
from fwtop.model.traffic.session import AttackEvidence, Event
from fwtop.model.traffic.snapshot import Origin, Snapshot
from fwtop.rules.costs import load_costs
from fwtop.store.baselines import BaselineStore
from fwtop.store.directory import SESSION_DIRECTORY, session_paths
from fwtop.store.history import HistoryWriter
from fwtop.store.reader import load_session
from fwtop.store.trends import session_trends
from fwtop.store.upkeep import interruption, put_in_order
from fwtop.store.writer import SessionWriter

# Between two savings: at first, so that a screen beside a new recorder has one; then twice as long each time.
_BASELINE_SECONDS = 15.0, 300.0
_MAX_NEWS = 3
_NEWS_SECONDS = 60.0  # how long the screen says what was set aside


class Recorder:
    """Writes one session, the history, and the baseline that later sessions start from."""

    def __init__(
        self,
        host: str,
        origin: Origin,
        state: Path = STATE_DIRECTORY,
        *,
        lookup: OriginLookup | None = None,
        cities: CityLookup | None = None,
        window: Callable[[], Window | None] = lambda: None,
        evidence: Callable[[Snapshot], tuple[AttackEvidence, ...]] = lambda _snapshot: (),
        geoip: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`window` returns the newest snapshot's packets; `evidence` what to keep of them."""
        self._host = host
        self._netns = origin.netns
        self._interfaces = origin.interfaces
        self._sessions = state / SESSION_DIRECTORY.name
        self._writer = SessionWriter(
            self._sessions,
            host=host,
            interfaces=origin.interfaces,
            netns=origin.netns,
            version=__version__,
            geoip=geoip,
            clock=clock,
        )
        self._history = HistoryWriter(state, interfaces=origin.interfaces, netns=origin.netns, clock=clock)
        self._clock = clock
        self._sampler = HistorySampler(lookup, cities, self._history.answered())
        self._window = window
        self._evidence = evidence
        self._baselines = BaselineStore(state)
        self._baseline_saved = clock()
        self._baseline_problem = ""
        self._baseline_seconds = _BASELINE_SECONDS[0]
        self.baseline: Callable[[], bytes] | None = None
        self._news: list[str] = []
        self._news_until = 0.0
        self._began = time.time()
        self._interruption: tuple[Event, ...] = ()  # not stored yet
        self._before: list[Path] = []
        with suppress(FwtopError):
            self._before = session_paths(self._sessions)
        # A crashed session may be large: checking it must not delay the first tick.
        self._upkeep = threading.Thread(target=self._put_in_order, name="upkeep", daemon=True)
        self._upkeep.start()

    @property
    def problem(self) -> str:
        """Since when and why the session is not being stored, in one line; "" while it is."""
        return self._writer.problem

    @property
    def path(self) -> Path | None:
        """The session's file, None before the first snapshot."""
        return self._writer.path

    @property
    def name(self) -> str:
        """The session's name; "" before the first snapshot."""
        return "" if self.path is None else self.path.stem

    def write(self, snapshot: Snapshot) -> Snapshot:
        """Store a snapshot, and now and then the baseline; return it with a note if storing fails."""
        found, self._interruption = self._interruption, ()
        evidence: tuple[AttackEvidence, ...] = ()
        failed = []
        try:
            evidence = self._evidence(snapshot)
        except Exception as failure:  # it is judged, too: the snapshot is stored without
            failed.append(failure_line("gathering evidence", failure))
        self._writer.write(snapshot, found, evidence)
        sample = self._sampler.sample(snapshot, self._window())
        if sample is not None:
            self._history.add(sample)
        if self._clock() - self._baseline_saved > self._baseline_seconds:
            self._save_baseline()
            self._baseline_seconds = min(2 * self._baseline_seconds, _BASELINE_SECONDS[1])
        notes = [*self.notes(), *failed]  # first: there is one line for them all
        return replace(snapshot, notes=(*notes, *snapshot.notes)) if notes else snapshot

    def notes(self) -> list[str]:
        """Return what fails and what was set aside lately, a line each, the worst first."""
        for writer in (self._writer, self._history):
            if writer.news:
                self._say([writer.news])
                writer.news = ""
        # What keeps the session from being stored does so with the rest.
        fails = self.problem or self._history.problem or self._writer.warning or self._baseline_problem
        news = self._news if self._clock() < self._news_until else []
        return [fails, *news] if fails else news

    def export(self, format_name: str, dissect: Dissect | None = None) -> str:
        """Write a report on the session so far next to its database; return its path."""
        if self.path is None:
            raise FwtopError(self.problem or "nothing has been stored yet; try again in a second")
        from fwtop.report import render  # late: 2 MB that only an export needs

        record = load_session(self.path)
        text = render(record, format_name, load_costs().costs, session_trends(record.info), dissect)
        path = self.path.with_suffix(f".{format_name}")
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise FwtopError(f"{path} could not be written: {error.strerror}") from None
        return str(path)

    def close(self, *, clean: bool) -> None:
        """Save the baseline and end the session; without `clean` it stays marked as crashed."""
        self._save_baseline()
        self._history.close()
        self._writer.close(clean=clean)

    def wait(self) -> None:
        """Wait until the directory of sessions is in order."""
        self._upkeep.join()

    def _put_in_order(self) -> None:
        found = interruption(self._before, self._began, self._interfaces, self._netns)
        self._interruption = () if found is None else (found,)
        lines = put_in_order(self._sessions)
        if lines:
            self._say(lines)

    def _say(self, lines: list[str]) -> None:
        self._news_until = self._clock() + _NEWS_SECONDS
        self._news = [*self._news, *lines][-_MAX_NEWS:]

    def _save_baseline(self) -> None:
        self._baseline_saved = self._clock()
        if self.baseline is not None:
            self._baseline_problem = self._baselines.put(self._host, self.baseline(), self._netns)
