"""A screen on a terminal: what it shows, and how many bytes it sent when."""

from __future__ import annotations

import codecs
import contextlib
import re
import time
import unicodedata
from collections import deque
from pathlib import Path

from fwtop.bench.frame import until
from fwtop.bench.programs import HEIGHT, WIDTH, Terminal
from fwtop.lab.namespaces import processes_in
from fwtop.model.errors import FwtopError

_KEPT_ARRIVALS = 1 << 14  # newest reads


class Screen(Terminal):
    """A terminal that keeps what its cells show."""

    def __init__(
        self,
        argv: list[str],
        environment: dict[str, str] | None = None,
        size: tuple[int, int] = (WIDTH, HEIGHT),
    ) -> None:
        super().__init__(argv, environment, size)
        self._cells = Cells(*size)
        self.bytes = 0
        self._arrivals: deque[tuple[float, int]] = deque(maxlen=_KEPT_ARRIVALS)  # monotonic time, bytes

    def arrived(self, chunk: bytes) -> None:
        """Count and draw some output."""
        self.bytes += len(chunk)
        self._arrivals.append((time.monotonic(), len(chunk)))
        self._cells.feed(chunk)

    def most_in(self, seconds: float, *, since: float) -> float:
        """Return the most bytes a second that arrived in any window of that length since a monotonic time."""
        with self._lock:
            arrivals = [(at, size) for at, size in self._arrivals if at >= since]
        first, held, most = 0, 0, 0
        for at, size in arrivals:
            held += size
            while arrivals[first][0] <= at - seconds:
                held -= arrivals[first][1]
                first += 1
            most = max(most, held)
        return most / seconds

    def screen(self) -> str:
        """Return what the terminal shows."""
        with self._lock:
            return "\n".join(self._cells.lines())

    def wait_to_show(self, pattern: str, seconds: float) -> float:
        """Wait until the screen matches and return the monotonic time; raises FwtopError on timeout."""
        if not until(lambda: re.search(pattern, self.screen(), re.MULTILINE), seconds, every=0.01):
            raise FwtopError(
                f"the screen did not show {pattern!r} within {seconds:g} s; the lab is taken down"
            )
        return time.monotonic()


def process_in(netns: str, module: str) -> int | None:
    """Return the pid of the process in a named namespace that runs a Python module, or None."""
    for pid in processes_in([netns]):
        with contextlib.suppress(OSError):
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return pid
    return None


_TOKEN = re.compile(
    r"\x1b\[(?P<parameters>[0-9;?<>=:]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b[\]P^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b(?:[ -/]+[0-~]|[0-OQ-Z\\`-~])"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f])"
    r"|(?P<text>[^\x00-\x1f]+)"
)
_LONGEST_SEQUENCE = 4096  # what is longer is no sequence that was cut in two


class Cells:
    """A grid of characters; the second cell of a wide character is empty."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._x = self._y = 0
        self._clear()

    def _clear(self) -> None:
        self._rows = [[" "] * self.width for _ in range(self.height)]

    def lines(self) -> list[str]:
        """Return the rows as text."""
        return ["".join(row).rstrip() for row in self._rows]

    def feed(self, data: bytes) -> None:
        """Take the program's output."""
        text = self._rest + self._decode(data)
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                if len(text) - at < _LONGEST_SEQUENCE:
                    break
                at += 1
                continue
            self._take(found)
            at = found.end()
        self._rest = text[at:]

    def _take(self, found: re.Match[str]) -> None:
        if found["text"]:
            for character in found["text"]:
                self._put(character)
        elif found["control"] == "\r":
            self._x = 0
        elif found["control"] == "\n":
            self._x, self._y = 0, self._y + 1
        elif found["final"] in ("H", "f"):
            row, _, column = found["parameters"].partition(";")
            self._y, self._x = int(row or 1) - 1, int(column or 1) - 1
        elif found["final"] == "J":
            self._clear()

    def _put(self, character: str) -> None:
        if unicodedata.combining(character):
            return
        wide = unicodedata.east_asian_width(character) in "WF"
        for part in (character, "") if wide else (character,):
            if 0 <= self._y < self.height and 0 <= self._x < self.width:
                self._rows[self._y][self._x] = part
            self._x += 1
