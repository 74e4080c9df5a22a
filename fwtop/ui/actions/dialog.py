"""Dialogs: a frame over the screen with a scrolling body and a fixed foot; details, help and choices."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from fwtop.dissect.client import Dissection
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.ui.format import wrap
from fwtop.ui.keys import KEY_MAP, Action, Here
from fwtop.ui.layout import Box, Guarded, Lines
from fwtop.ui.style import ACCENT, BUTTON, DIM, STRONG, TEXT, TITLE, WARN, Line, fit, paragraph, wrapped

Result = TypeVar("Result")
MINIMUM = (24, 8)  # columns and rows below which a dialog shows only that it can't be read
_FRAME_ROWS = 3


def bound(table: str) -> list[BindingType]:
    """Bind keys to actions, each written as "up,k scroll(-1)"."""
    words = table.split()
    return [Binding(key, action, show=False) for key, action in zip(words[::2], words[1::2], strict=True)]


class Dialog(Guarded, ModalScreen[Result], inherit_bindings=False):
    """Base of all dialogs; subclasses provide `body` and `foot`, and bind their keys."""

    WIDTH: ClassVar[int] = 92
    BINDINGS: ClassVar[list[BindingType]] = bound("""
        up,k scroll(-1)   down,j scroll(1)   pageup scroll(-8)   pagedown scroll(8)
        escape,q,ctrl+c close
    """)

    def __init__(self, heading: str = "") -> None:
        super().__init__()
        self.heading = heading
        self.trouble = ""  # what failed while the dialog was open
        self._answers_given: list[Result | None] = []  # the first counts
        self._frame = Lines("dialog")
        self._top = 0
        self._most = 0

    def compose(self) -> ComposeResult:
        """Yield the one widget of lines."""
        yield self._frame

    def title_line(self) -> str:
        """Return the text in the upper edge."""
        return self.heading

    def body(self, width: int) -> list[Line]:
        """Return the lines that scroll."""
        raise NotImplementedError

    def essential(self, body: Sequence[Line]) -> int:
        """Return how many leading lines of the body must stay visible when the foot is long."""
        return min(len(body), 1)

    def foot(self, width: int, room: int) -> list[Line]:  # noqa: ARG002
        """Return the fixed lines, at most `room` of them if possible."""
        return [hints("Esc closes")]

    def on_mount(self) -> None:
        """Draw for the first time."""
        self.draw()

    def on_resize(self, _: events.Resize) -> None:
        """Fit into the new size."""
        self.draw()

    def on_mouse_scroll_down(self, _: events.MouseScrollDown) -> None:
        """Scroll with the wheel."""
        self.action_scroll(3)

    def on_mouse_scroll_up(self, _: events.MouseScrollUp) -> None:
        """Scroll with the wheel."""
        self.action_scroll(-3)

    def buttons(self) -> Sequence[str]:
        """Return the texts that can be clicked, as the foot shows them."""
        return ()

    def press_button(self, text: str) -> None:
        """Do what a clicked button does."""

    def on_click(self, event: events.Click) -> None:
        """Press the button under the pointer."""
        x, y = event.screen_x - self._frame.box.x, event.screen_y - self._frame.box.y
        if not 0 <= y < self._frame.box.height:
            return
        line = self._frame.render_line(int(y)).text
        for text in self.buttons():
            start = line.find(f" {text} ")
            if start >= 0 and start <= x < start + len(text) + 2:
                self.press_button(text)
                return

    def action_scroll(self, delta: int) -> None:
        """Scroll the body."""
        self._top += delta
        self.draw()

    def action_close(self) -> None:
        """Leave without doing anything."""
        self.dismiss(None)

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Leave with an answer, once: Textual would close whatever is in front.

        A dialog that lies behind another one leaves when it comes to the front again.
        """
        self._answers_given.append(result)
        if len(self._answers_given) == 1 and self.app.screen is self:
            return super().dismiss(result)
        return AwaitComplete()

    def on_screen_resume(self) -> None:
        """Leave if that was decided behind another dialog."""
        if self._answers_given and self.app.screen is self:
            super().dismiss(self._answers_given[0])

    @property
    def readable(self) -> bool:
        """Whether the terminal is large enough to show the dialog."""
        columns, rows = self.app.size
        return columns >= MINIMUM[0] and rows >= MINIMUM[1]

    @property
    def shows_essentials(self) -> bool:
        """Whether all essential lines of the body are visible without scrolling."""
        if not self.readable:
            return False
        body, foot = self._parts()
        return self.app.size[1] - _FRAME_ROWS - len(foot) >= self.essential(body)

    def draw(self) -> None:
        """Compose frame, body and foot for the present size."""
        try:
            self._draw()
        except Exception as error:
            self._draw_message(f"{self.survive(error)}; Esc closes this")

    def _draw(self) -> None:
        columns, rows = self.app.size
        if not self.readable:
            self._draw_message(f"a dialog is open: it needs {MINIMUM[0]}×{MINIMUM[1]}; Esc closes it")
            return
        width = self._width()
        inner = width - 4
        body, foot = self._parts()
        room = max(min(len(body), rows - _FRAME_ROWS - len(foot)), 1)
        self._most = max(len(body) - room, 0)
        self._top = max(min(self._top, self._most), 0)
        height = min(room + len(foot) + _FRAME_ROWS, rows)
        self._frame.place(Box((columns - width) // 2, max((rows - height) // 2, 0), width, height))
        lines = [_edge("╭", "╮", self.title_line(), width)]
        lines += [_framed(line, inner) for line in body[self._top : self._top + room] or [[]]]
        middle = self.trouble or self.position(room, len(body))
        lines.append(_edge("├", "┤", middle, width, quiet=not self.trouble))
        lines += [_framed(line, inner) for line in foot]
        lines.append(_edge("╰", "╯", "", width))
        self._frame.show(lines)

    def _width(self) -> int:
        columns = self.app.size[0]
        return self.WIDTH if columns >= self.WIDTH + 12 else columns  # no slivers beside it

    def _parts(self) -> tuple[list[Line], list[Line]]:
        inner = self._width() - 4
        body = self.body(inner)
        return body, self.foot(inner, self.app.size[1] - _FRAME_ROWS - self.essential(body))

    def _draw_message(self, text: str) -> None:
        columns, rows = self.app.size
        self._frame.place(Box(0, 0, columns, rows))
        self._frame.show([[(row, WARN)] for row in wrap(text, columns)[:rows]])

    def position(self, room: int, total: int) -> str:
        """Return the text in the line between body and foot."""
        return f"{self._top + 1}–{self._top + room} of {total} lines ↑ ↓" if self._most else ""


def _edge(left: str, right: str, text: str, width: int, *, quiet: bool = False) -> Line:
    if not text:
        return [(left + "─" * (width - 2) + right, ACCENT)]
    label = fit([(f" {text} ", DIM if quiet else TITLE)], min(len(text) + 2, width - 4))
    rest = width - 3 - sum(len(part) for part, _ in label)
    return [(left + "─", ACCENT), *label, ("─" * rest + right, ACCENT)]


def _framed(line: Line, inner: int) -> Line:
    return [("│ ", ACCENT), *fit(line, inner), (" │", ACCENT)]


def hints(*texts: str, indent: int = 0) -> Line:
    """Write keys and what they do ("Esc closes"), as at the foot of a dialog."""
    line: Line = []
    for place, text in enumerate(texts):
        key, _, does = text.partition(" ")
        gap = "" if place == len(texts) - 1 else "  "
        line += [(key if line else " " * indent + key, TITLE), (f"{f' {does}'.rstrip()}{gap}", DIM)]
    return line


Details = Sequence[Line] | Callable[[], Sequence[Line]]
Dissect = Callable[[], Awaitable[Dissection | None]]


class DetailsDialog(Dialog[None], inherit_bindings=False):
    """Details of a row: fixed lines, or a function that is asked again for every snapshot.

    `dissect` decodes a packet, which appears below them later; it returns None where there is none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*Dialog.BINDINGS, *bound("enter close")]

    def __init__(self, title: str, lines: Details, dissect: Dissect | None = None) -> None:
        super().__init__(title)
        self._lines = lines
        self._dissect = dissect
        self._packet: list[Line] = [[], [("decoding a sample packet …", DIM)]] if dissect else []

    def on_mount(self) -> None:
        """Ask for the packet; Textual calls the base class's handler as well."""
        if self._dissect is not None:
            self.begin(self._fetch, self._dissect, group="fetch", exclusive=True)

    async def _fetch(self, dissect: Dissect) -> None:
        try:
            found = await dissect()
            self._packet = [[], *_packet_lines(found)] if found is not None else []
        except FwtopError as error:
            self._packet = [[], [(safe_text(error), WARN)]]
        except Exception as error:
            self._packet = [[], [(self.survive(error), WARN)]]
        self.draw()

    def body(self, width: int) -> list[Line]:  # noqa: ARG002
        """Return the details and the packet."""
        return [*(self._lines() if callable(self._lines) else self._lines), *self._packet]

    def on_key(self, event: events.Key) -> None:
        """Close on the keys that open details, too."""
        action = KEY_MAP.action(event.key, "")
        if action is not None and action.name in ("details", "attacks", "help"):
            event.stop()
            self.dismiss(None)


def _packet_lines(dissection: Dissection) -> list[Line]:
    lines: list[Line] = [[("a sample packet", DIM)]]
    for layer in dissection.layers:
        lines.append([(layer.name, STRONG)])
        for name, value in layer.fields:
            lines += (
                wrapped(f"  {name}"[:12], value) if len(name) <= 10 else [*wrapped("", f"{name}: {value}")]
            )
    if dissection.problem:
        lines.append([(dissection.problem, WARN)])
    return lines


_QUESTIONS = (
    ("What hits me?", "the attacks, the worst first; {attacks}: the evidence"),
    ("How much reaches me?", "the third line: REACHES YOU, what clients get"),
    ("What do I press?", "{proposal}…9: what a defence stops, and whom it hits"),
)
_FIRST = ("proposal", "open", "keep", "undo", "next_tab", "quit")  # keys that one needs in an attack


def short_help() -> list[Line]:
    """Answer the three questions of an operator under attack, and write the keys for it."""
    asked = [[(f"{ask:<22}", STRONG), (KEY_MAP.words(told), TEXT)] for ask, told in _QUESTIONS]
    return [*asked, [], *key_lines(lambda row: row.name in _FIRST, grouped=False)]


def key_lines(shown: Callable[[Action], bool], *, grouped: bool = True) -> list[Line]:
    """Write the table of keys, or a part of it, in its groups."""
    lines: list[Line] = []
    told = [row for row in KEY_MAP.actions if row.label and shown(row)]
    for group in dict.fromkeys(row.group for row in told):
        if grouped:
            lines += [*([[]] if lines else []), [(group, STRONG)]]
        lines += [[(f"  {row.label:<11}", TITLE), (row.help, TEXT)] for row in told if row.group == group]
    return lines


class HelpDialog(DetailsDialog):
    """Leads from a short page to the keys that work for the panel in focus, and to all keys."""

    def __init__(self, where: str, here: Here) -> None:
        super().__init__("help", short_help)
        self._pages: list[tuple[str, Details]] = [
            ("help", short_help),
            (f"keys for {where}", lambda: key_lines(lambda row: KEY_MAP.works(row, here))),
            ("all keys", lambda: key_lines(lambda _: True)),
        ]

    def foot(self, width: int, room: int) -> list[Line]:  # noqa: ARG002
        """Name the page that follows."""
        following = self._pages[1][0] if self._pages[1:] else "closes"
        return [hints(f"{KEY_MAP.label('help')} {following}", "Esc closes")]

    def on_key(self, event: events.Key) -> None:
        """Turn the page, or close after the last."""
        action = KEY_MAP.action(event.key, "")
        if action is not None and action.name == "help":
            event.stop()
            event.prevent_default()  # it would close as other details do
            if not self._pages[1:]:
                self.dismiss(None)
                return
            del self._pages[0]
            self.heading, self._lines = self._pages[0]
            self._top = 0
            self.draw()


class ChoiceDialog(Dialog[str | None], inherit_bindings=False):
    """A question with a few answers; the first one is the safe one and preselected."""

    WIDTH = 72
    BINDINGS: ClassVar[list[BindingType]] = bound("""
        tab,right,down mark(1)   shift+tab,left,up mark(-1)   enter choose   y agree   n,escape,ctrl+c close
    """)

    def __init__(self, title: str, question: str, answers: Sequence[str]) -> None:
        super().__init__(title)
        self._question = question
        self._answers = list(answers)
        self._marked = 0

    def body(self, width: int) -> list[Line]:
        """Return the question."""
        return paragraph(self._question, width)

    def foot(self, width: int, room: int) -> list[Line]:
        """Return the answers as buttons, in several lines where one is too short."""
        rows: list[Line] = [[]]
        for number, answer in enumerate(self._answers):
            style = BUTTON if number == self._marked else TEXT
            mark = "▸" if number == self._marked else " "
            used = sum(len(text) for text, _ in rows[-1])
            if rows[-1] and used + len(answer) + 3 > width:
                rows.append([])
            rows[-1] += [(f"{mark} {answer} ", style), (" ", TEXT)]
        yes = [f"y: {self._answers[1]}"] if self._is_yes_or_no else []
        keys = hints("Enter chooses", *yes, "Esc cancels")
        return [[], *rows, keys] if room >= len(rows) + 2 else rows

    @property
    def _is_yes_or_no(self) -> bool:
        return len(self._answers) == 2

    def buttons(self) -> Sequence[str]:
        """Return the answers."""
        return self._answers

    def press_button(self, text: str) -> None:
        """Choose the answer."""
        self._marked = self._answers.index(text)
        self.action_choose()

    def action_mark(self, delta: int) -> None:
        """Mark another answer."""
        self._marked = (self._marked + delta) % len(self._answers)
        self.draw()

    def action_agree(self) -> None:
        """Return the second of two answers, which does what was asked for."""
        if self._is_yes_or_no:
            self.press_button(self._answers[1])

    def action_choose(self) -> None:
        """Return the marked answer."""
        if self.readable:
            self.dismiss(self._answers[self._marked])
