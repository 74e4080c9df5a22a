"""What the parts of the screen share: the snapshot shown, the clock, ways to tell and to ask."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace
from rich.style import Style
from textual.screen import Screen

from fwtop.analysis.rule_readings import Change, RatedRule, RuleAlarms, RuleRates
from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES, RuleStatus
from fwtop.model.ruleset import ListedSet, Ruleset
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import NOTHING, Snapshot
from fwtop.ui.actions.dialog import ChoiceDialog, Details, DetailsDialog, Dialog, Dissect
from fwtop.ui.actions.log import REFUSED, SessionLog
from fwtop.ui.bars import StatusBars, StatusMessage
from fwtop.ui.feed import Feed
from fwtop.ui.layout import Begin
from fwtop.ui.lists.history import HistoryAnswer
from fwtop.ui.lists.numbers import ProposalList
from fwtop.ui.lists.rows import Scope
from fwtop.ui.style import BAD, TEXT

Answer = TypeVar("Answer")


_OVERLAY_SECONDS = 5.0  # for which snapshots may not know yet what the guardian answered


class OptimisticOverlay(Struct):
    """The guardian's latest answers, laid over snapshots until these have caught up."""

    answers: dict[str, tuple[RuleStatus, float]] = field(default_factory=dict)

    def note(self, status: RuleStatus, now: float) -> None:
        """Keep an answer."""
        self.answers[status.rule.id] = (status, now)

    def over(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with newer answers in place of its rules, however late it comes."""
        if not self.answers:
            return snapshot
        known = {status.rule.id: status for status in snapshot.mitigations}
        for rule_id, (answer, since) in list(self.answers.items()):
            seen = known.get(rule_id)
            agrees = seen is not None and seen.state is answer.state
            if agrees or snapshot.at - since > _OVERLAY_SECONDS:
                del self.answers[rule_id]
            elif seen is not None or answer.state in ACTIVE_STATES:
                known[rule_id] = answer
        return replace(snapshot, mitigations=tuple(known.values()))


class Desk:
    """Each part has one and the same desk; what only one part needs is that part's own."""

    def __init__(
        self, screen: Screen[None], feed: Feed, clock: Callable[[], float], *, begin: Begin, slow: bool
    ) -> None:
        self.screen = screen
        self.feed = feed
        self.controls = feed.controls
        self.clock = clock
        self.begin = begin
        self.slow = slow
        self.snapshot = NOTHING  # what is listed
        self.newest = NOTHING  # later, while the display is paused
        self.bars = StatusBars(StatusMessage(clock))
        self.log = SessionLog()
        self.scope = Scope()
        self.proposals = ProposalList()
        self.overlay = OptimisticOverlay()
        self.redraw: Callable[[], None] = lambda: None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of the terminal."""
        return self.screen.app.size

    def now(self) -> float:
        """Return the time that ages and countdowns refer to; a recording has its own."""
        return self.clock() if self.snapshot.origin.kind == "live" else self.snapshot.at

    def current(self, snapshot: Snapshot | None = None) -> Snapshot:
        """Return the snapshot that is listed, or another, with the rules as they are now."""
        listed = self.snapshot if snapshot is None else snapshot
        if listed is not self.newest:
            listed = replace(listed, mitigations=self.newest.mitigations)
        return self.overlay.over(listed)

    @property
    def is_behind(self) -> bool:
        """Whether the lists stand still and other attacks are on than these show."""
        shown, on = ({one.id for one in shot.judgement.on} for shot in (self.snapshot, self.newest))
        return shown != on

    def say(self, text: str, style: Style = TEXT) -> None:
        """Show a message for some seconds; what was refused or failed is worth a line of the log, too."""
        if style is BAD:
            self.log.note(REFUSED, text, self.now())
        self.bars.message.say(text, style)
        self.redraw()

    def say_if_empty(self) -> None:
        """Say why a key seems to do nothing before the first snapshot."""
        if self.snapshot is NOTHING:
            self.say("nothing has been observed yet")

    async def attempt(self, request: Awaitable[Answer]) -> Answer | None:
        """Await a request's answer; None if it fails, as the status line says."""
        try:
            return await request
        except FwtopError as error:
            self.say(safe_text(error), BAD)
            return None

    async def ask(self, dialog: Dialog[Answer]) -> Answer | None:
        """Open a dialog and await its answer."""
        return await self.screen.app.push_screen_wait(dialog)

    async def choose(self, title: str, question: str, answers: Sequence[str]) -> str | None:
        """Ask a question with a few answers; None: cancelled."""
        return await self.ask(ChoiceDialog(title, question, answers))

    def show(self, title: str, lines: Details, dissect: Dissect | None = None) -> None:
        """Show lines to read, and below them a packet once it is decoded."""
        self.screen.app.push_screen(DetailsDialog(title, lines, dissect))


_SHOWN_SECONDS = 2.0
_HIDDEN_SECONDS = 30.0  # for the alarms
_FIRST_SECONDS = 3.0  # until the first time while hidden: numbers, and an attack's name, come first
_TREND_SECONDS = 20.0  # averages a minute and an hour change no faster


class MachineRulesWatch:
    """Keeps everybody's rules and sets; `changed` gets the alarms that began or ended with each reading."""

    def __init__(self, desk: Desk, changed: Callable[[Sequence[Change]], None]) -> None:
        self._ruleset: Ruleset | None = None  # None: not read yet
        self._rated: tuple[RatedRule, ...] = ()
        self._alarms = RuleAlarms()
        self._rates = RuleRates()
        self._desk = desk
        self._changed = changed
        self._asking = False
        self._asked = time.monotonic() + _FIRST_SECONDS - _HIDDEN_SECONDS

    def refresh(self, statuses: Sequence[RuleStatus], *, shown: bool) -> None:
        """Ask if that is due; called with every snapshot."""
        now = time.monotonic()
        if self._asking or now - self._asked < (_SHOWN_SECONDS if shown else _HIDDEN_SECONDS):
            return
        self._asking, self._asked = True, now
        self._desk.begin(self._fetch, statuses, group="machine rules")

    async def _fetch(self, statuses: Sequence[RuleStatus]) -> None:
        try:
            found = await self._desk.controls.ruleset()
        except FwtopError:  # the screen reports a lost guardian
            return
        finally:
            self._asking = False
        if found is None:  # not read yet, or there is none
            self._asked = time.monotonic() - _HIDDEN_SECONDS
            return
        if self._ruleset is None or found.taken != self._ruleset.taken:
            self._ruleset, self._rated = found, self._rates.take(found)
        self._changed(self._alarms.take(self._rated, found.sets, statuses))

    def rows(self) -> list[RatedRule | ListedSet]:
        """Return rules, the busiest first, and sets, those that are nearly full before all."""
        sets = self._ruleset.sets if self._ruleset is not None else ()
        full = [item for item in sets if item.nearly_full]
        rules = sorted(
            self._rated,
            key=lambda item: (bool(item.abnormal), item.pps or 0.0, item.rule.packets or 0),
            reverse=True,
        )
        return [*full, *rules, *(item for item in sets if not item.nearly_full)]


class TrendWatch:
    """Keeps the newest answer while it is shown."""

    def __init__(self, desk: Desk) -> None:
        self.answer = HistoryAnswer()
        self._desk = desk
        self._asking = False
        self._asked = -math.inf

    @property
    def may_tell(self) -> bool:
        """Whether something is known of the time before, or nobody has asked yet."""
        found = self.answer.trends
        return bool(found.group("traffic")) if found is not None else not self.answer.problem

    def refresh(self, now: float) -> None:
        """Ask for the trends at a time, if the last answer is old."""
        if not self._asking and not 0 <= now - self._asked < _TREND_SECONDS:
            self._asking, self._asked = True, now
            self._desk.begin(self._fetch, now, group="trends", exclusive=True)

    async def _fetch(self, now: float) -> None:
        try:
            self.answer = HistoryAnswer(await self._desk.controls.trends(now))
        except FwtopError as error:
            self.answer = HistoryAnswer(problem=safe_text(error))
        finally:
            self._asking = False
        self._desk.redraw()
