"""Keys and output of a terminal that may stall or vanish; its title and bell, for who looks elsewhere.

Textual repaints a changed part of a line from the line's left edge, and all of a widget that was moved or
shown: a change of tab is the whole screen twice, most of it blank before and after.

A terminal sends Alt and a key as Escape and that key, and so does a slow link that delivers two keys at once:
of Escape and Enter, Textual's parser leaves Enter, which installs what Escape was to cancel. Alt is bound to
nothing here, so an Escape that begins no control sequence (ECMA-48, 5.3) is that key.

In pasted text Textual's parser takes what follows an Escape for keys, so it gets the text without.
"""

from __future__ import annotations

import codecs
import contextlib
import math
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from msgspec import Struct, field
from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Key
from textual.message import Message
from textual.strip import Strip
from textual.worker import WorkerFailed

from fwtop.model.text import safe_text
from fwtop.model.traffic.session import flow_of
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.verdict import Badge, Verdict, verdict_of
from fwtop.ui.format import number
from fwtop.ui.style import Cell, cells_of, differing

SAVE_TITLE, RESTORE_TITLE, BELL = "\x1b[22;2t", "\x1b[23;2t", "\a"  # XTWINOPS, xterm's manual
_MARKS = {Badge.HARM: "✖ ", Badge.UNPROTECTED: "✖ ", Badge.PARTLY: "✖ ", Badge.PROTECTED: "✔ "}
_EVERY_SECONDS = 5.0  # between two titles that differ by a number
_SOON_SECONDS = 10.0  # before a trial ends


class Attention(Struct):
    """Remembers the title, and what the bell rang for."""

    title: bool = True
    bell: bool = True
    _shown: str = ""
    _badge: str = ""
    _at: float = -math.inf
    _attacked: bool = False
    _rung: set[str] = field(default_factory=set)  # rules whose trial ends soon or that do harm

    def forget(self) -> None:
        """Begin again with a terminal whose title is another's."""
        self._shown, self._badge = "", ""

    def take(self, snapshot: Snapshot, now: float) -> str:
        """Return what to write to the terminal: nothing, the title (OSC 2), or a bell with it."""
        verdict = verdict_of(snapshot, now)
        rings = self._rings(verdict, snapshot) and self.bell and snapshot.origin.kind == "live"
        return (self._renamed(verdict, snapshot, now) if self.title else "") + (BELL if rings else "")

    def _renamed(self, verdict: Verdict, snapshot: Snapshot, now: float) -> str:
        if verdict.badge == self._badge and 0 <= now - self._at < _EVERY_SECONDS:
            return ""
        flow = flow_of(snapshot)
        through = "" if flow is None or verdict.badge is Badge.CALM else f" {number(flow.reaches)}"
        text = safe_text(f"{_MARKS.get(verdict.badge, '')}{verdict.badge}{through} – fwtop {snapshot.host}")
        before, self._shown = self._shown, text
        self._badge, self._at = verdict.badge, now
        return "" if text == before else f"\x1b]2;{text}{BELL}"

    def _rings(self, verdict: Verdict, snapshot: Snapshot) -> bool:
        attacked = any(one.is_on for one in snapshot.judgement.harmful)
        begins, self._attacked = attacked and not self._attacked, attacked
        urgent = {f"harm {verdict.loss.rule}"} if verdict.loss is not None else set()
        if verdict.rule is not None and verdict.seconds_left <= _SOON_SECONDS:
            urgent.add(verdict.rule.rule.id)
        new, self._rung = urgent - self._rung, urgent
        return begins or bool(new)


_ESCAPE = "\x1b"
_BEGIN = "[]OPX^_"  # CSI, OSC, SS3, DCS, SOS, PM, APC
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"


class KeyParser(XTermParser):
    """Textual's parser without Alt, except from terminals that tell it apart (Kitty's protocol)."""

    _pasting = False
    _tail = ""  # outside a paste the last characters, which may begin one; in it those that may end it

    def feed(self, data: str) -> Iterable[Message]:
        """Read what the terminal sent; a paste may come in any number of parts."""
        if not data:  # the end
            yield from super().feed(data)
        while data:
            if self._pasting:
                text, found, data = (self._tail + data).partition(_PASTED)
                end = len(text) - (0 if found else _begun(text, _PASTED))
                text, self._tail, self._pasting = (
                    text[:end].replace(_ESCAPE, "") + found,
                    text[end:],
                    not found,
                )
            else:
                text, found, rest = (self._tail + data).partition(_PASTE)
                text, data = (text + found)[len(self._tail) :], rest
                self._tail, self._pasting = (
                    "" if found else (self._tail + text)[1 - len(_PASTE) :],
                    bool(found),
                )
            if text:
                yield from super().feed(text)

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[Key]:
        is_pair = len(sequence) == 2 and sequence[0] == _ESCAPE and sequence[1] not in _BEGIN
        if alt or is_pair:
            yield Key("escape", _ESCAPE)
        yield from super()._sequence_to_key_events(sequence[-1] if is_pair else sequence)


def _begun(text: str, mark: str) -> int:
    """Return how many characters of a mark a text ends with."""
    return next((size for size in range(len(mark) - 1, 0, -1) if text.endswith(mark[:size])), 0)


GONE_STATUS = 129  # as a shell reports SIGHUP
_STALLED_WRITES = 6  # frames waiting for a slow terminal
_CLOSE_SECONDS = 5.0  # for a busy terminal to take the last of the screen, else it stays in disorder
_WRITE_SECONDS = 0.25
_AGAIN_SECONDS = 0.1
_POLL_MS = 100


class TerminalFile:
    """Unbuffered output to a descriptor; discards everything once the terminal is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.gone = False
        self.closing = False
        self.sent = 0  # bytes

    def write(self, text: str) -> int:
        """Write everything; give up when the terminal is gone, or stalls while closing."""
        data = memoryview(text.encode("utf-8", "replace"))
        waited_s = 0.0
        while data and not self.gone:
            try:
                _, ready, _ = select.select([], [self._descriptor], [], _WRITE_SECONDS)
                if ready:
                    written = os.write(self._descriptor, data)
                    self.sent += written
                    data, waited_s = data[written:], 0.0
                else:
                    waited_s += _WRITE_SECONDS
                    self.gone = self.closing and waited_s >= _CLOSE_SECONDS
            except BlockingIOError:
                continue
            except OSError:
                self.gone = True
        return len(text)

    def flush(self) -> None:
        """Do nothing: writes are unbuffered."""

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)


class ResilientDriver(LinuxDriver):
    """Textual's driver on a TerminalFile."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._terminal = TerminalFile(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2)
        self._file = cast(Any, self._terminal)
        self._captured = mouse
        self.restarted: Callable[[], None] = lambda: None  # the terminal shows nothing of ours any more

    @property
    def stalled(self) -> bool:
        """Whether output is backing up, so that frames should be skipped."""
        writer = self._writer_thread
        return isinstance(writer, WriterThread) and writer._queue.qsize() > _STALLED_WRITES

    @property
    def sent(self) -> int:
        """Return the bytes that the terminal took so far."""
        return self._terminal.sent

    def disable_input(self) -> None:
        """Stop waiting for a stalled terminal: the program is about to exit."""
        self._terminal.closing = True
        super().disable_input()

    def start_application_mode(self) -> None:
        """Start, or resume after a suspension."""
        self._terminal.closing = False
        self.restarted()
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self.write(SAVE_TITLE)

    def stop_application_mode(self) -> None:
        """Give the terminal back as it was, its title too."""
        self.write(RESTORE_TITLE)
        super().stop_application_mode()

    def _sigcont_application(self, *_: object) -> None:
        """Resume with one reader of keys: after SIGSTOP, which nobody sees, there still is one."""
        if self.hung_up:
            return
        if self._key_thread is not None and self._key_thread.is_alive():
            self.suspend_application_mode()
        super()._sigcont_application()

    def close(self) -> None:
        """End the writer thread, waiting at most _CLOSE_SECONDS."""
        self._terminal.closing = True
        writer = self._writer_thread
        if isinstance(writer, WriterThread):
            writer._queue.put(None)
            writer.join(_CLOSE_SECONDS)

    def turn_mouse(self) -> bool:
        """Take the mouse from the terminal or give it back; return whether the program has it now."""
        self._captured = not self._captured
        if self._captured:
            self._enable_mouse_support()
        else:
            self._disable_mouse_support()
        return self._captured

    @property
    def hung_up(self) -> bool:
        """Whether the terminal is gone; Textual's reader would spin on its end of file."""
        poll = select.poll()
        poll.register(self.fileno, 0)
        return self._terminal.gone or any(event & select.POLLHUP for _, event in poll.poll(0))

    def run_input_thread(self) -> None:
        """Read keys until told to end."""
        parser, decode = KeyParser(), codecs.getincrementaldecoder("utf-8")("replace").decode
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        while not self.exit_event.is_set():
            if poll.poll(_POLL_MS):
                data = os.read(self.fileno, 4096)
                if not data:  # the terminal is gone: `hung_up` tells
                    self.exit_event.wait(_POLL_MS / 1000)
                for message in parser.feed(decode(data)) if data else ():
                    self.process_message(message)
            for message in parser.tick():
                self.process_message(message)

    def _run_input_thread(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: `hung_up` tells
            while not self.exit_event.is_set():
                try:
                    self.run_input_thread()
                except OSError:
                    raise
                except Exception as error:  # of what was typed; without this thread no key works
                    self._app.call_later(self._app._handle_exception, WorkerFailed(error))
                    self.exit_event.wait(_AGAIN_SECONDS)


_MANY = 1_000  # cells from which an update is compared with what is shown: widgets compare their own lines


class ShownCells:
    """What the terminal shows, as far as it is known; lines and columns from 0."""

    def __init__(self) -> None:
        self._lines: dict[int, list[Cell | None]] = {}

    def forget(self) -> None:
        """Take nothing for known: the terminal was cleared, or others wrote on it."""
        self._lines = {}

    def note(self, update: LayoutUpdate) -> None:
        """Remember a whole screen that is about to be sent."""
        self._lines = {}
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                self.replace(x, y, strip)
                x += strip.cell_length

    def replace(self, x: int, y: int, strip: Strip) -> tuple[list[Cell | None], list[Cell | None]]:
        """Remember a strip that is about to be sent; return the cells before and after."""
        after: list[Cell | None] = [*cells_of(strip)]
        if len(after) != strip.cell_length:  # a wide character: cells and characters don't match
            after = [None] * strip.cell_length
        line = self._lines.setdefault(y, [])
        line += [None] * (x + len(after) - len(line))
        before = line[x : x + len(after)]
        line[x : x + len(after)] = after
        return before, after

    def lose(self, x: int, y: int, cells: int) -> None:
        """Take some cells of a line for unknown."""
        line = self._lines.get(y, [])
        line[x : x + cells] = [None] * len(line[x : x + cells])


class ExactUpdate(ChopsUpdate):
    """Renders the spans that changed, cut at both ends, without cells that are shown already."""

    shown: ShownCells

    @classmethod
    def of(cls, update: ChopsUpdate, shown: ShownCells) -> ExactUpdate:
        """Take over an update of Textual's compositor."""
        exact = cls(update.chops, update.spans, update.chop_ends)
        exact.shown = shown
        return exact

    def render_segments(self, console: Console) -> str:
        """Return the cursor movements and texts."""
        sequences: list[str] = []
        for x, y, strip in self._new_parts():
            sequences.append(Control.move_to(x, y).segment.text)
            sequences.append(strip.render(console))
        return "".join(sequences)

    def _new_parts(self) -> Iterator[tuple[int, int, Strip]]:
        many = sum(right - left for _, left, right in self.spans) >= _MANY
        for x, y, strip in self._parts():
            if not many:
                self.shown.lose(x, y, strip.cell_length)
                yield x, y, strip
                continue
            for first, last in differing(*self.shown.replace(x, y, strip)):
                yield x + first, y, strip.crop(first, last)

    def _parts(self) -> Iterator[tuple[int, int, Strip]]:
        for y, left, right in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                first, last = max(x, left), min(end, right)
                if strip is not None and first < last:
                    yield first, y, strip.crop(first - x, last - x)


_SECONDS = 10.0
_BYTES = 26_000  # in those; bars and status lines may add 4 KB to it: 3 KiB a second in all
_CELL_BYTES = 1.3  # of a list in which every row has changed, colours and moves of the cursor included
_LIST_BYTES = 13_000  # at most, or a terminal that is larger than 200×50 would never get one


class LinkBudget:
    """Remembers how much was sent, and when; times are in seconds, of any clock."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, int]] = deque()

    def note(self, now: float, sent: int) -> None:
        """Take down the bytes that were sent so far."""
        if self._noted and now < self._noted[-1][0]:
            self._noted.clear()  # the clock was set back
        self._noted.append((now, sent))
        while len(self._noted) > 1 and self._noted[1][0] <= now - _SECONDS:
            self._noted.popleft()

    def has_room(self, cells: int) -> bool:
        """Return whether what fills so many cells may be sent now, as of the last note."""
        if not self._noted:
            return True
        used = self._noted[-1][1] - self._noted[0][1]
        return used + min(cells * _CELL_BYTES, _LIST_BYTES) <= _BYTES
