"""Toasts: what happened just now, at the right over the graph or above the status, for a few seconds."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace
from rich.style import Style

from fwtop.model.rule import RuleStatus
from fwtop.ui.format import cut, duration
from fwtop.ui.layout import Box, Lines
from fwtop.ui.style import (
    ALARM,
    BAD,
    CALM,
    GOOD,
    NOTICE,
    SELECTED,
    WARN,
    Line,
    fit,
    width_of,
    wrap_line,
)

TOAST_SECONDS = 8.0
MOST_TOASTS = 3
_LINES = 2  # of one toast
WIDEST_TOAST = 64
_REVERSED = {BAD: ALARM, GOOD: CALM, WARN: NOTICE}


class Toast(Struct, frozen=True):
    """One line of it."""

    key: str  # a newer one of the same key takes its place
    text: str
    style: Style
    until: float
    count: int = 1


class ToastQueue(Struct):
    """The toasts that are shown, the newest last."""

    _toasts: list[Toast] = field(default_factory=list)

    def add(self, key: str, text: str, style: Style, now: float) -> None:
        """Show something; the same key replaces and counts."""
        held = next((toast for toast in self.current(now) if toast.key == key), None)
        toast = Toast(key, text, _REVERSED.get(style, SELECTED), now + TOAST_SECONDS)
        if held is not None:
            self._toasts.remove(held)
            toast = replace(toast, count=held.count + 1)
        self._toasts = [*self._toasts, toast][-MOST_TOASTS:]

    def current(self, now: float) -> Sequence[Toast]:
        """Return those that are still to be shown."""
        self._toasts = [toast for toast in self._toasts if 0 <= toast.until - now <= TOAST_SECONDS]
        return self._toasts

    def clear(self) -> None:
        """Show nothing any more."""
        self._toasts = []


def expiry_line(status: RuleStatus, at: float, now: float, verdict: str, width: int) -> Line:
    """Write that a trial ended unconfirmed: it stays until a key is pressed.

    Where room is short the verdict gives way, which the badge shows too, never the key that helps.
    """
    what, key = f"Rule {status.rule.id} expired {duration(now - at)} ago", "Enter reinstalls"
    for text in (f" {what}, {verdict}. {key} ", f" {what}. {key} "):
        if len(text) <= width:
            break
    return [(text, ALARM)]


def toast_lines(toasts: Sequence[Toast], width: int, alarm: Line | None = None) -> list[Line]:
    """Draw the toasts, the newest last, in MOST_TOASTS lines; the alarm first. What is too long is broken."""
    lines = [alarm] if alarm else []
    below: list[Line] = []
    for toast in reversed(toasts):
        times = f" ×{toast.count}" if toast.count > 1 else ""
        room = max(width - 2, 1)
        rows = wrap_line([(f"{toast.text}{times}", toast.style)], room)
        if len(rows) > _LINES:
            rows = [*rows[: _LINES - 1], [(cut(f"{rows[_LINES - 1][0][0]}…", room), toast.style)]]
        widest = max(map(width_of, rows), default=0)
        edge = (" ", toast.style)
        block = [[edge, *row, (" " * (widest - width_of(row)), toast.style), edge] for row in rows]
        if len(lines) + len(block) + len(below) > MOST_TOASTS:
            break
        below = [*block, *below]
    return [fit(line, min(width_of(line), width)) for line in (*lines, *below)]


class Toasts(Lines):
    """Shows toasts, right-aligned; takes no more room than they need."""

    def __init__(self) -> None:
        super().__init__("toasts")

    def write(self, lines: Sequence[Line], top: int, columns: int) -> None:
        """Draw these lines from `top` on; without any, hide."""
        widest = max(map(width_of, lines), default=0)
        if not widest:
            self.place(None)
            return
        self.place(Box(columns - widest, top, widest, len(lines)))
        self.show([fit(line, widest, right=True) for line in lines])
