"""A terminal that may vanish or stall: a cut SSH session must neither hang nor print a traceback."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from typing import Any, cast

from textual.app import App
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver

GONE_STATUS = 129  # as a shell reports SIGHUP
_STALLED_WRITES = 6  # frames waiting for a slow terminal
_CLOSE_SECONDS = 1.0
_WRITE_SECONDS = 0.25


class TerminalFile:
    """Writes to a descriptor without Python's buffers; forgets the text once the terminal is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.gone = False
        self.closing = False

    def write(self, text: str) -> int:
        """Write all of it, or give up when the terminal is gone or won't take it while closing."""
        data = memoryview(text.encode("utf-8", "replace"))
        while data and not self.gone:
            try:
                _, ready, _ = select.select([], [self._descriptor], [], _WRITE_SECONDS)
                if ready:
                    data = data[os.write(self._descriptor, data) :]
                elif self.closing:
                    self.gone = True
            except BlockingIOError:
                continue
            except OSError:
                self.gone = True
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Say whether it is a terminal."""
        return os.isatty(self._descriptor)


class SturdyDriver(LinuxDriver):
    """Textual's driver on a TerminalFile."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._terminal = TerminalFile(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2)
        self._file = cast(Any, self._terminal)

    @property
    def stalled(self) -> bool:
        """Whether the terminal takes less than it is sent: frames should be left out."""
        writer = self._writer_thread
        return isinstance(writer, WriterThread) and writer._queue.qsize() > _STALLED_WRITES

    def disable_input(self) -> None:
        """Stop waiting for a terminal that doesn't take anything: this is the way out."""
        self._terminal.closing = True
        super().disable_input()

    def start_application_mode(self) -> None:
        """Begin, also after having been suspended."""
        self._terminal.closing = False
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the writer, but wait for it only a moment."""
        self._terminal.closing = True
        writer = self._writer_thread
        if isinstance(writer, WriterThread):
            writer._queue.put(None)
            writer.join(_CLOSE_SECONDS)

    @property
    def hung_up(self) -> bool:
        """Whether the terminal is gone; Textual's reader would spin on its end of file."""
        poll = select.poll()
        poll.register(self.fileno, 0)
        return self._terminal.gone or any(event & select.POLLHUP for _, event in poll.poll(0))

    def _run_input_thread(self) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: `hung_up` tells
            self.run_input_thread()
