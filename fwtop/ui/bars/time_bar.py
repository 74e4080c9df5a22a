"""The time bar of a recording: where the player stands, the events, and what a click on it means."""

from __future__ import annotations

from textual import events

from fwtop.model.traffic.session import EventKind
from fwtop.ui.drawing.layout import Clicked, Lines
from fwtop.ui.drawing.style import (
    ACCENT,
    BAD,
    DIM,
    GOOD,
    STRONG,
    TEXT,
    TITLE,
    WARN,
    Line,
    Span,
    fit,
    width_of,
)
from fwtop.ui.feed import PlayerState
from fwtop.ui.keys import KEY_MAP

_KEYS = (
    ("{pause}", "play"),
    ("{previous_step} {next_step}", "step"),
    ("{slower} {faster}", "speed"),
    ("{previous_event} {next_event}", "event"),
)
# The most important first: where several events share a cell, it shows that one.
_GLYPHS: dict[EventKind, Span] = {
    EventKind.ATTACK_BEGAN: ("▲", BAD),
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
    for names, words in _KEYS:
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
