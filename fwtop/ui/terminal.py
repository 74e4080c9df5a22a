"""Textual's driver on a terminal that may stall or vanish."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import sys
from collections.abc import Callable
from typing import Any, cast

from textual.app import App
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver
from textual.worker import WorkerFailed

from fwtop.ui.key_parser import KeyParser

_SAVE_TITLE, _RESTORE_TITLE = "\x1b[22;2t", "\x1b[23;2t"  # XTWINOPS, xterm's manual
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
        self.write(_SAVE_TITLE)

    def stop_application_mode(self) -> None:
        """Give the terminal back as it was, its title too."""
        self.write(_RESTORE_TITLE)
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
