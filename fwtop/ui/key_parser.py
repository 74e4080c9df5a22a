"""Reads keys from a terminal's bytes, of which Escape is always a key of its own.

A terminal sends Alt and a key as Escape and that key, and so does a slow link that delivers two keys at once:
of Escape and Enter, Textual's parser leaves Enter, which installs what Escape was to cancel. Alt is bound to
nothing here, so an Escape that begins no control sequence (ECMA-48, 5.3) is that key.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual._xterm_parser import XTermParser
from textual.events import Key

_ESCAPE = "\x1b"
_BEGIN = "[]OPX^_"  # CSI, OSC, SS3, DCS, SOS, PM, APC


class KeyParser(XTermParser):
    """Textual's parser without Alt, except from terminals that tell it apart (Kitty's protocol)."""

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[Key]:
        is_pair = len(sequence) == 2 and sequence[0] == _ESCAPE and sequence[1] not in _BEGIN
        if alt or is_pair:
            yield Key("escape", _ESCAPE)
        yield from super()._sequence_to_key_events(sequence[-1] if is_pair else sequence)
