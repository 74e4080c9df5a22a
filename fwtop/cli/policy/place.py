"""Find the line of a mistake in a policy: tomllib names the lines of syntax errors, but not of keys."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(#.*)?")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*[.=]""")
_QUOTES = re.compile(r'"""|\'\'\'')


class Source(Struct, frozen=True):
    """A policy's text, and what it is called."""

    name: str
    text: str

    def wrong(self, where: str, reason: str, key: str = "") -> FwtopError:
        """Return the error for a mistake in a table, at one of its keys, with the line if it is found.

        `where` is the table's header, of one of several with " number N" after it.
        """
        number = self._line(where, key)
        parts = [self.name, f"line {number}" if number else "", where, reason]
        told = ": ".join(safe_text(part, limit=300) for part in parts if part)
        return FwtopError(f"{told}; nothing was changed", 2)

    def _line(self, where: str, key: str) -> int | None:
        """Return the number of the line of a key, else of its table; None where neither is on its own."""
        if not (where or key):
            return None
        header, _, count = where.partition(" number ")
        wanted, found = int(count or 1) if header else 0, None
        inside = not header
        for number, line in self._lines():
            table = _HEADER.fullmatch(line)
            if table is not None:
                closing = "]" * len(table[1])
                same = f"{table[1]}{table[2]}{closing}" == header
                if inside and (found is not None or header):
                    break
                if not header and _root(table[2]) == key:
                    return number
                wanted -= same
                inside = same and wanted == 0
                found = number if inside else found
            elif inside and key and (given := _KEY.match(line)) is not None and given[1] == key:
                return number
        return found

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines with their numbers, without those that begin within a string of several lines."""
        within = ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if not within:
                yield number, line
            for quotes in _QUOTES.findall(line):
                within = "" if within == quotes else within or quotes


def _root(table: str) -> str:
    return table.partition(".")[0].strip(" \"'")
