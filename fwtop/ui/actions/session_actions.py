"""The session keys: pause, export and quit; and what quitting prints."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from rich.style import Style

from fwtop.model.errors import FwtopError
from fwtop.model.rule import State
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.ui.actions.rule_actions import RuleActions
from fwtop.ui.bars.status_bars import pending
from fwtop.ui.drawing.format import duration, number
from fwtop.ui.drawing.style import BAD, GOOD, TEXT, WARN
from fwtop.ui.feed import Feed
from fwtop.ui.keys import KEY_MAP

KEEP_AND_QUIT = "Keep and quit"
QUIT = "Quit"
_STAY = "Stay"


class SessionActions:
    """Carries out the session keys and reports the outcome; independent of widgets."""

    def __init__(
        self,
        feed: Feed,
        rules: RuleActions,
        *,
        choose: Callable[[str, str, Sequence[str]], Awaitable[str | None]],
        say: Callable[[str, Style], None],
        current: Callable[[], Snapshot | None],
        leave: Callable[[], None],
        exported: Callable[[str], None],
    ) -> None:
        self.paused = False
        self._feed = feed
        self._rules = rules
        self._choose = choose
        self._say = say
        self._current = current
        self._leave = leave
        self._exported = exported
        self._first: Snapshot | None = None
        self._last: Snapshot | None = None
        self._peak: Snapshot | None = None

    def note(self, snapshot: Snapshot) -> None:
        """Keep what the farewell needs."""
        self._first = self._first or snapshot
        self._last = snapshot
        if self._peak is None or snapshot.tables.totals.pps > self._peak.tables.totals.pps:
            self._peak = snapshot

    def farewell(self) -> list[str]:
        """Write three lines on leaving: the session, its peak and what was done, and rules that remain."""
        last = self._current()
        if last is None or self._first is None or self._peak is None or last.origin.kind != "live":
            return []
        lasted = duration(last.started + last.seconds - self._first.started)
        name = safe_text(self._feed.session)
        stored = f"session {name}, {lasted}: fwtop report {name}" if name else f"{lasted}, not stored"
        return [f"fwtop: {stored}", f"  {self._peak_line(self._peak)}", f"  {_remaining(last)}"]

    def _peak_line(self, peak: Snapshot) -> str:
        attacks = ", ".join(safe_text(attack.title) for attack in peak.judgement.attacks[:3]) or "no attack"
        done = [
            f"rule {rule_id} ({safe_text(summary)})"
            for rule_id, summary in self._rules.installed_rules.items()
        ]
        installed = f"installed {', '.join(done[:3])}" if done else "no rule installed"
        more = f" and {len(done) - 3} more" if len(done) > 3 else ""
        at = time.strftime("%H:%M:%SZ", time.gmtime(peak.started + peak.seconds))
        return f"peak {number(peak.tables.totals.pps)} pps at {at} ({attacks}); {installed}{more}"

    def pause(self) -> None:
        """Freeze or resume the display."""
        self.paused = not self.paused
        self._feed.pause(self.paused)
        if self.paused:
            self._say(f"paused until {KEY_MAP.label('pause')}; observation, rules and timers continue", WARN)
        else:
            self._say("resumed", GOOD)

    async def export(self) -> None:
        """Write a report in the format that the operator chooses."""
        formats = self._feed.controls.export_formats
        chosen: str | None = formats[0]
        if len(formats) > 1:
            chosen = await self._choose("export", "Write a report of the session so far, as:", formats)
        if chosen is None:
            return
        self._say("writing a report …", TEXT)
        try:
            path = await self._feed.controls.export(chosen)
        except FwtopError as error:
            self._say(safe_text(error), BAD)
            return
        self._exported(safe_text(path))
        self._say(f"written to {safe_text(path)}", GOOD)

    def must_ask(self) -> bool:
        """Whether quitting removes rules that could be confirmed."""
        snapshot = self._current()
        if snapshot is None or self._feed.controls.readonly or snapshot.guardian.startswith("lost"):
            return False
        return bool(pending(snapshot.mitigations))

    async def leave(self) -> None:
        """Quit after asking what should become of unconfirmed rules."""
        answer = await self._choose("quit", self._question(), (_STAY, KEEP_AND_QUIT, QUIT))
        snapshot = self._current()
        if answer == KEEP_AND_QUIT and snapshot is not None:
            await self._rules.confirm(snapshot)
            if self.must_ask():
                return  # the status line says why
        if answer in (KEEP_AND_QUIT, QUIT):
            self._leave()

    def _question(self) -> str:
        snapshot = self._current()
        count = len(pending(snapshot.mitigations)) if snapshot is not None else 0
        if count == 1:
            return "1 rule is not confirmed. Quitting removes it, and the traffic it stops returns."
        return f"{count} rules are not confirmed. Quitting removes them, and the traffic they stop returns."


def _remaining(snapshot: Snapshot) -> str:
    """Name the rules that outlive the screen, and how to remove them."""
    kept = [status for status in snapshot.mitigations if status.state is State.CONFIRMED]
    if not kept:
        return "no rule remains"
    until = [
        f"{status.rule.id} for {duration(status.expires - (snapshot.started + snapshot.seconds))}"
        if status.expires is not None
        else status.rule.id
        for status in kept[:8]
    ]
    more = f" and {len(kept) - 8} more" if len(kept) > 8 else ""
    noun = "rule" if len(kept) == 1 else "rules"
    ids = " ".join(status.rule.id for status in kept[:8])
    where = f" --netns {safe_text(snapshot.origin.netns)}" if snapshot.origin.netns else ""
    command = f"sudo fwtop undo {'--all' if more else ids}{where}"
    return f"in force: {noun} {', '.join(until)}{more}; to remove: {command}"
