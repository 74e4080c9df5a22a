"""Reads keys from a terminal's bytes, of which Escape is always a key of its own.

A terminal sends Alt and a key as Escape and that key, and so does a slow link that delivers two keys at once:
of Escape and Enter, Textual's parser leaves Enter, which installs what Escape was to cancel. Alt is bound to
nothing here, so an Escape that begins no control sequence (ECMA-48, 5.3) is that key.

In pasted text Textual's parser takes what follows an Escape for keys, so it gets the text without.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.events import Key
from textual.message import Message

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
