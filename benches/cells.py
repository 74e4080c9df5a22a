"""What a program shows on a terminal: the cells after its output so far.

Only what fwtop's screen sends is understood: text, line ends, absolute cursor positions and clearing.
Colours, modes and titles are skipped.
"""

from __future__ import annotations

import codecs
import re
import unicodedata

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
