"""The session keys: pause, export, quit, moving through a recording; and what quitting prints."""

from __future__ import annotations

from fwtop.model.rule import State
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import utc
from fwtop.ui.actions.desk import Desk
from fwtop.ui.actions.log import EXPORTED
from fwtop.ui.actions.rule_actions import RuleActions
from fwtop.ui.bars import pending
from fwtop.ui.feed import SPEEDS, Player, PlayerState
from fwtop.ui.format import duration, number
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.numbers import Numbers
from fwtop.ui.style import WARN

KEEP_AND_QUIT = "Keep and quit"
QUIT = "Quit"
_STAY = "Stay"


class SessionActions:
    """Carries out the session keys, and moves through recordings."""

    def __init__(self, desk: Desk, rules: RuleActions) -> None:
        self.paused = False
        self._desk = desk
        self._say = desk.say
        self._rules = rules
        self._first: Snapshot | None = None
        self._peak: Snapshot | None = None
        self._installed: dict[str, str] = {}  # meanwhile, by whom ever: id → summary

    def note(self, snapshot: Snapshot) -> None:
        """Keep what the farewell needs."""
        self._first = self._first or snapshot
        new = (one.rule for one in snapshot.mitigations if one.rule.created >= self._first.started)
        self._installed |= {rule.id: rule.summary for rule in new}
        if self._peak is None or snapshot.tables.totals.pps > self._peak.tables.totals.pps:
            self._peak = snapshot

    def farewell(self) -> list[str]:
        """Write three lines on leaving: the session, its peak and what was done, and rules that remain."""
        last = self._desk.current(self._desk.newest)  # lists may be paused
        if self._first is None or self._peak is None or last.origin.kind != "live":
            return []
        lasted = duration(last.started + last.seconds - self._first.started)
        name = safe_text(self._desk.feed.session)
        stored = f"session {name}, {lasted}: fwtop report {name}" if name else f"{lasted}, not stored"
        return [f"fwtop: {stored}", f"  {self._peak_line(self._peak)}", f"  {_remaining(last)}"]

    def _peak_line(self, peak: Snapshot) -> str:
        attacks = ", ".join(safe_text(attack.title) for attack in peak.judgement.harmful[:3]) or "no attack"
        here = self._rules.installed_rules
        elsewhere = {name: told for name, told in self._installed.items() if name not in here}
        done = [
            f"rule {rule_id} ({safe_text(summary)}){' elsewhere' * (rule_id in elsewhere)}"
            for rule_id, summary in (here | elsewhere).items()
        ]
        told = f"installed {', '.join(done[:3])}" if done else "no rule installed"
        more = f" and {len(done) - 3} more" if len(done) > 3 else ""
        at = utc(peak.started + peak.seconds)
        return f"peak {number(peak.tables.totals.pps)} pps at {at} ({attacks}); {told}{more}"

    def pause(self) -> None:
        """Hold the lists still, or go on; play or pause a recording, which isn't played again by itself."""
        if self._desk.feed.player is None:
            self.paused = not self.paused
            key = KEY_MAP.label("pause")
            if self.paused:
                self._say(f"lists paused until {key}; verdict, graph, log and rules go on", WARN)
            else:
                if self._desk.is_behind:  # none of the numbers could be chosen
                    self._desk.proposals.numbers = Numbers()
                self._desk.snapshot = self._desk.newest
                self._say("resumed")
        elif found := self._found():
            player, state = found
            if not state.playing and not state.whole and state.position >= state.ends:
                words = "this is the end of the recording: {previous_event} or a click on the bar goes back"
                self._say(KEY_MAP.words(words))
                return
            player.play(not state.playing)
            self._desk.redraw()

    def player(self, method: str, value: float) -> None:
        """Have the player do something with a value: step, skip or seek."""
        if found := self._found():
            getattr(found[0], method)(value)

    def faster(self, steps: int) -> None:
        """Change the speed to the next one up or down."""
        found = self._found()
        if found is None:
            return
        player, state = found
        others = [speed for speed in SPEEDS if (speed > state.speed if steps > 0 else speed < state.speed)]
        if not others:
            self._say(f"{state.speed:g}× is the {'highest' if steps > 0 else 'lowest'} speed")
            return
        player.set_speed(min(others) if steps > 0 else max(others))
        self._desk.redraw()

    def _found(self) -> tuple[Player, PlayerState] | None:
        """Return the player and where it stands; say why if there is nothing to play."""
        player = self._desk.feed.player
        state = player.state if player is not None else None
        if player is None or state is None:
            self._say("this key moves through recordings: fwtop replay, fwtop read")
            return None
        return player, state

    def export(self) -> None:
        """Write a report in the format that the operator chooses."""
        self._desk.begin(self._export, group="export", exclusive=True)

    async def _export(self) -> None:
        controls = self._desk.controls
        formats = controls.export_formats
        chosen: str | None = formats[0]
        if len(formats) > 1:
            chosen = await self._desk.choose("export", "Write a report of the session so far, as:", formats)
        if chosen is None:
            return
        self._say("writing a report …")
        path = await self._desk.attempt(controls.export(chosen))
        if path is not None:
            self._desk.log.note(EXPORTED, safe_text(path), self._desk.now())
            self._say(f"written to {safe_text(path)}")

    def leave(self) -> None:
        """Quit; ask first if that removes unconfirmed rules."""
        if self._unconfirmed():
            self._desk.begin(self._ask_to_leave, group="leave", exclusive=True)
        else:
            self._desk.screen.app.exit(return_code=0)

    def _unconfirmed(self) -> int:
        """Return how many rules quitting removes that could be confirmed."""
        snapshot = self._desk.current()
        if self._desk.controls.readonly or snapshot.guardian.startswith("lost"):
            return 0
        return len(pending(snapshot.mitigations))

    async def _ask_to_leave(self) -> None:
        count = self._unconfirmed()
        question = "1 rule is not confirmed. Quitting removes it, and the traffic it stops returns."
        if count != 1:
            question = (
                f"{count} rules are not confirmed. Quitting removes them, and the traffic they stop returns."
            )
        answer = await self._desk.choose("quit", question, (_STAY, KEEP_AND_QUIT, QUIT))
        if answer == KEEP_AND_QUIT:
            await self._rules.keep()
            if self._unconfirmed():
                return  # the status line says why
        if answer in (KEEP_AND_QUIT, QUIT):
            self._desk.screen.app.exit(return_code=0)


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
