"""The lines around the panels: tabs, status, keys, a recording's time bar; and their widgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field
from rich.style import Style
from textual import events

from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import EventKind
from fwtop.model.traffic.snapshot import NOTHING, Snapshot
from fwtop.ui.feed import PlayerState
from fwtop.ui.graph import Graph, Unit
from fwtop.ui.header.lines import HeaderState, header_lines
from fwtop.ui.keys import KEY_MAP, Here
from fwtop.ui.layout import MINIMUM, Box, Clicked, Lines
from fwtop.ui.lists.history import History
from fwtop.ui.lists.rows import LogEntry
from fwtop.ui.style import (
    ACCENT,
    ALARM,
    BAD,
    BRAND,
    DIM,
    GOOD,
    NOTICE,
    STRONG,
    TEXT,
    TITLE,
    WARN,
    Line,
    Span,
    fit,
    spread,
    width_of,
)
from fwtop.ui.tabs import TABS


def pending(mitigations: Sequence[RuleStatus]) -> list[RuleStatus]:
    """Return the unconfirmed rules, the most urgent first."""
    found = [status for status in mitigations if status.state is State.PROVISIONAL]
    return sorted(found, key=lambda status: status.confirm_by or 0.0)


def not_acting(mitigations: Sequence[RuleStatus]) -> list[RuleStatus]:
    """Return the active rules that are not in effect."""
    return [status for status in mitigations if status.state in ACTIVE_STATES and not status.acting]


def status_line(snapshot: Snapshot, message: Line, state: HeaderState, width: int) -> Line:
    """Write the most urgent of: a message, a rule that is not in effect, a note."""
    if snapshot is NOTHING:
        return message or [(" waiting for the first numbers …", DIM)]
    return message or _standing_line(snapshot, state, width)


def _standing_line(snapshot: Snapshot, state: HeaderState, width: int) -> Line:
    if snapshot.guardian.startswith("lost"):
        why = snapshot.guardian.removeprefix("lost").removeprefix(":").strip() or "no answer"
        told: Line = [(" quit and start fwtop again", BAD), ("  rules expire by themselves", DIM)]
        return [*told, (f"  {why}", DIM)]
    broken = [] if state.readonly else not_acting(snapshot.mitigations)
    if broken:
        alarm: Line = [(f" RULE {broken[0].rule.id} IS NOT IN EFFECT ", ALARM)]
        alarm += [
            (f"  {KEY_MAP.label('repair')}", TITLE),
            (" restores it  ", TEXT),
            (safe_text(broken[0].not_acting), BAD),
        ]
        return fit(alarm, width)
    return [(f" {note}", DIM) for note in snapshot.notes[:1]]


_BUSY = " …"  # what a message ends with while something is being done
_SPINNER = "|/-\\"
_BUSY_SECONDS = 0.3


def working(text: str, passed: float, style: Style = DIM) -> Line:
    """Write what is being done, once it takes longer with a turning sign and for how many seconds it has."""
    if passed < _BUSY_SECONDS:
        return [(text, style)]
    turn = _SPINNER[int(passed * 4) % len(_SPINNER)]
    return [(turn, WARN), (" ", TEXT), (text, style), (f" {passed:.1f} s", DIM)]


class StatusMessage(Struct):
    """The last message, shown for some seconds; one that ends with an ellipsis spins until it is replaced."""

    clock: Callable[[], float]
    line: Line = field(default_factory=list)
    said: float = 0.0

    def say(self, text: str, style: Style = TEXT) -> None:
        """Replace the message."""
        self.line = [(f" {text}", style)]
        self.said = self.clock()

    def current(self) -> Line:
        """Return the message while it is recent, with the time that something has taken so far."""
        passed = self.clock() - self.said
        if not self.line or not self.line[0][0].endswith(_BUSY):
            return self.line if passed < 8.0 else []
        (text, style), *_ = self.line
        return [(" ", TEXT), *working(text.lstrip(), passed, style)]


class _Choices(Lines):
    """A line of things to click."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._ends: list[tuple[int, str]] = []  # the cell after each, and what it stands for

    def on_click(self, event: events.Click) -> None:
        """Choose what is under the pointer."""
        found = next((value for end, value in self._ends if event.x < end), None)
        if found is not None:
            self.post_message(Clicked(self, found))


class Footer(_Choices):
    """Shows the most important keys of a tab with their words; "" stands for those of the proposals."""

    def write(self, here: Here | None) -> None:
        """Draw the keys that work here, or none."""
        line: Line = []
        self._ends = []
        for row in KEY_MAP.footer(self.box.width, here) if here is not None else ():
            style = NOTICE if row.name == "keep" else TITLE
            line += [(" ", TEXT), (row.label, style), (f" {row.footer}", TEXT), (" ", TEXT)]
            self._ends.append((width_of(line), "" if row.name == "proposal" else row.keys[0]))
        self.show([line])


class TabBar(_Choices):
    """Says which tab is shown, what the others hold, what they are scoped to; a click chooses one."""

    def write(self, shown: str, counts: Mapping[str, int], scope: str) -> None:
        """Draw the bar; `counts` are written behind the titles, `scope` at the right."""
        line: Line = []
        self._ends = []
        for tab in TABS:
            count = counts.get(tab.name, 0)
            title = f" {tab.title} {count} " if count else f" {tab.title} "
            line.append((title, BRAND if tab.name == shown else TEXT))
            self._ends.append((width_of(line), tab.name))
        keys = f"{KEY_MAP.label('previous_tab')} {KEY_MAP.label('next_tab')}"
        right: Line = [(keys, TITLE), (" tab ", DIM)]
        if scope:
            right = [(f"{scope}  ", TITLE), (KEY_MAP.label("unscope"), TITLE), (" shows all ", DIM)]
        self.show([spread(line, right, self.box.width)])


class StatusBars:
    """The widgets of header, graph, status, footer and notice."""

    def __init__(self, message: StatusMessage) -> None:
        self.message = message
        self.history = History()
        self.welcome = ""  # to who has never seen the screen, until a key is pressed
        self.unit: Unit = "packets"  # what the graph shows
        self.cursor: float | None = None  # Unix seconds: what the graph's cursor stands on
        self.graph = Graph()
        self._footer = Footer("footer")
        plain = [Lines(name) for name in ("header", "status", "notice")]
        self._lines: dict[str | None, Lines] = {
            line.name: line for line in (*plain, self.graph, self._footer)
        }

    def __iter__(self) -> Iterator[Lines]:
        """Yield the widgets, for the screen to freeze."""
        yield from self._lines.values()

    def __getitem__(self, name: str) -> Lines:
        """Return a widget by its name."""
        return self._lines[name]

    def place(self, boxes: dict[str, Box]) -> None:
        """Give the lines their boxes; those without one hide."""
        for widget in self:
            widget.place(boxes.get(widget.name or ""))

    def show_too_small(self, width: int, height: int) -> None:
        """Show over the whole terminal that it is too small."""
        text = f"fwtop needs {MINIMUM[0]}×{MINIMUM[1]}; this is {width}×{height}"[:width]
        line: Line = [(" " * ((width - len(text)) // 2) + text, WARN)]
        self["notice"].place(Box(0, 0, width, height))
        self["notice"].show([*([[]] * ((height - 1) // 2)), line])

    def draw(
        self, snapshot: Snapshot, state: HeaderState, log: Sequence[LogEntry], here: Here | None
    ) -> None:
        """Write all bars; a dialog has keys of its own, so that none work `here`."""
        status, header = self["status"], self["header"]
        if not status.display:
            return
        width = status.box.width
        with status.guarded():
            line = status_line(snapshot, self.message.current(), state, width)
            status.show([line or [(f" {self.welcome}", ACCENT)]])
        with self._footer.guarded():
            self._footer.write(here)
        if snapshot is NOTHING:
            return
        with header.guarded():
            header.show(header_lines(snapshot, self.history, state, width))
        live = snapshot.origin.kind == "live"
        at = None if live else state.now
        with self.graph.guarded():
            if self.graph.display:
                self.graph.write(
                    self.history,
                    log,
                    unit=self.unit,
                    cursor=self.cursor,
                    at=at,
                    window=snapshot.seconds,
                )


_KEYS = (
    ("{previous_step} {next_step}", "step"),
    ("{slower} {faster}", "speed"),
    ("{previous_event} {next_event}", "event"),
)
# The most important first: where several events share a cell, it shows that one.
_GLYPHS: dict[EventKind, Span] = {
    EventKind.ATTACK_BEGAN: ("▲", BAD),
    EventKind.RULE_HARMS: ("◆", BAD),
    EventKind.GUARDIAN_LOST: ("◆", BAD),
    EventKind.RULE_EXPIRED: ("◆", WARN),
    EventKind.RULE_UNDONE: ("◆", WARN),
    EventKind.RULE_APPLIED: ("◆", GOOD),
    EventKind.RULE_CONFIRMED: ("◆", GOOD),
    EventKind.ATTACK_CHANGED: ("▲", WARN),
    EventKind.ATTACK_ENDED: ("▼", GOOD),
    EventKind.GUARDIAN_BACK: ("◆", GOOD),
    EventKind.RECORDS_LOST: ("•", WARN),
    EventKind.NOT_JUDGED: ("•", BAD),
    EventKind.JUDGED_AGAIN: ("•", DIM),
    EventKind.STORING_STOPPED: ("•", WARN),
    EventKind.STORING_RESUMED: ("•", DIM),
    EventKind.BASELINE_CHANGED: ("•", DIM),
}


def time_bar(state: PlayerState | None, width: int) -> Line:
    """Draw the bar on one line."""
    if state is None:
        return [(" opening the recording …", DIM)]
    left, right, cells = _parts(state, width)
    return fit([*left, *_bar(state, cells), *right], width)


def time_at(state: PlayerState | None, width: int, x: int) -> float | None:
    """Return the time that a cell of the line stands for; None beside the bar."""
    if state is None:
        return None
    left, _, cells = _parts(state, width)
    place = x - width_of(left)
    if not 0 <= place < cells:
        return None
    return state.begins + state.span * place / max(cells - 1, 1)


def clock(seconds: float, whole: float) -> str:
    """Write a position in a recording of that length, in a fixed width."""
    if whole < 10:
        return f"{seconds:.3f} s"
    rest = int(max(seconds, 0.0))
    minutes = f"{rest // 60 % 60:02}:{rest % 60:02}" if whole >= 3600 else f"{rest // 60:>2}:{rest % 60:02}"
    return f"{rest // 3600}:{minutes}" if whole >= 3600 else minutes


def _parts(state: PlayerState, width: int) -> tuple[Line, Line, int]:
    """Return what stands left and right of the bar, and the cells that remain for it."""
    total = clock(state.span, state.span)
    at = "whole" if state.whole else clock(state.position - state.begins, state.span)
    speed = f"{state.speed:g}×"
    head: Line = [(" ▶ " if state.playing else " ‖ ", TITLE)]
    left: Line = [*head, (f"{speed:<6}", TEXT), (f"{at:>{max(len(total), 5)}} ", STRONG)]
    right: Line = [(f" {total}", TEXT)]
    note: Line = [(f"  {state.note}", DIM)] if state.note else []
    end: Span = (" ", TEXT)
    keys: Line = []
    ended = not state.playing and not state.whole and state.position >= state.ends
    turn = [] if ended else [("{pause}", "pause" if state.playing else "play")]
    for names, words in (*turn, *_KEYS[: 2 + bool(state.marks)]):
        keys += [(f"  {KEY_MAP.words(names)}", TITLE), (f" {words}", DIM)]
    for tail in ([*right, *note, *keys, end], [*right, *note, end], [*right, end], [end], []):
        cells = width - width_of(left) - width_of(tail)
        if cells >= max(8, width // 3):  # cells of the bar itself: what stands beside it gives way first
            return left, tail, cells
    return head, [], max(width - width_of(head), 0)


def _bar(state: PlayerState, cells: int) -> Line:
    cursor = -1 if state.whole else _place(state, state.position, cells)
    drawn: Line = [("━", ACCENT) if place <= cursor else ("─", DIM) for place in range(cells)]
    for kind, glyph in reversed(_GLYPHS.items()):
        places = (_place(state, mark.at, cells) for mark in state.marks if mark.event.kind is kind)
        for place in places:
            if 0 <= place < cells:
                drawn[place] = glyph
    if 0 <= cursor < cells:
        drawn[cursor] = ("●", STRONG)
    return drawn


def _place(state: PlayerState, at: float, cells: int) -> int:
    if state.span <= 0:
        return 0
    return round((at - state.begins) / state.span * (cells - 1))


class TimeBar(Lines):
    """Shows the time bar; a click goes to that time."""

    def __init__(self) -> None:
        super().__init__("timebar")
        self._state: PlayerState | None = None

    def write(self, state: PlayerState | None) -> None:
        """Draw a state."""
        self._state = state
        self.show([time_bar(state, self.box.width)])

    def on_click(self, event: events.Click) -> None:
        """Go to the time under the pointer."""
        at = time_at(self._state, self.box.width, event.x)
        if at is not None:
            self.post_message(Clicked(self, at))
