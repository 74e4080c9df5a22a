"""A line on standard error while a capture is read: how far it is, or what is waited for."""

from __future__ import annotations

import os
import sys
import time

from fwtop.capture.source import CaptureSource
from fwtop.model.text import safe_text

_SILENT_SECONDS = 0.5  # what is over sooner needs no line
_EVERY_SECONDS = 0.2
_WIDTH = 24
_CLEAR = "\r\x1b[K"


class Progress:
    """The line of one source. Not on a terminal, it says once that data is waited for."""

    def __init__(self, source: CaptureSource) -> None:
        self._source = source
        self._packets = 0
        self._due = time.monotonic() + _SILENT_SECONDS
        self._shown = False
        self._is_terminal = sys.stderr.isatty()

    def read(self, packets: int) -> None:
        """Tell how many packets were read by now."""
        self._packets = packets
        if self._is_terminal:
            self._draw()

    def wait(self) -> None:
        """Tell that a stream has no data now."""
        if self._is_terminal or not (self._packets or self._shown):
            self._draw()

    def end(self) -> None:
        """Take the line away."""
        if self._shown and self._is_terminal:
            _write(_CLEAR)

    def _draw(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due, self._shown = now + _EVERY_SECONDS, True
        _write(f"{_CLEAR}{self._text()}" if self._is_terminal else f"fwtop: {self._text()}\n")

    def _text(self) -> str:
        source, name = self._source, safe_text(os.path.basename(self._source.name), limit=30)
        if source.is_stream and not source.position:
            return f"waiting for data from {name}; Ctrl-C ends"
        if source.is_stream:
            read = f"{source.position / 1e6:,.1f} MB"
            return f"reading {name}: {self._packets:,} packets, {read}; Ctrl-C ends, and shows them"
        share = min(1.0, source.position / source.size) if source.size else 1.0
        bar = ("█" * round(share * _WIDTH)).ljust(_WIDTH, "░")
        return f"reading {name} {bar} {share:4.0%}  {self._packets:,} packets"


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
