"""An incident so far, and how long it may pause."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field

from fwtop.analysis.sighting import Presence
from fwtop.model.rule import Match
from fwtop.model.traffic.packets import U64
from fwtop.model.traffic.snapshot import Incident

LEAST_PAUSE_SECONDS = 3.0  # a shorter pause ends nothing
FIRST_PAUSE_SECONDS = 10.0  # the longest that the first pause may last: it is not yet known to pulse
LONGEST_PAUSE_SECONDS = 60.0  # of one that pulses
_LONGER = 1.25  # times its pulses: how regular pulses are
_PAUSES = 1.5  # times the longest pause so far


class Tracked(Struct):
    """An incident so far; times are Unix seconds of packets."""

    id: int
    letter: str
    kind: str  # as it became known
    title: str
    began: float
    until: float  # its last packet
    part: str = ""
    match: Match = field(default_factory=Match)  # header fields that its packets share
    target: str = ""
    peak_pps: float = 0.0
    waves: int = 1
    follows: str = ""  # title of the incident that it replaced
    presence: Presence | None = None
    state: bool = False  # about state, such as a full table: no packets of its own
    paused: float | None = None
    ended: float | None = None
    noted: float = 0.0  # end of the last window that it was sighted in
    found_over: float = 0.0  # end of the window that showed its end
    shown: Incident | None = None  # as last shown
    mixed_since: float = 0.0  # end of the first window that shows it with packets of other fields; 0: alone
    alone_until: float = 0.0  # its last packet before that
    cut_since: float = 0.0  # when the first rule against it was installed
    cut_until: float = 0.0  # end of the last window that saw one in force; 0: none did
    sources: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # hashed, of its packets so far
    _pulse_began: float = 0.0
    _longest_pulse: float = 0.0
    _longest_pause: float = 0.0

    def note_pulse(self, begin: float, finish: float, *, after_pause: bool) -> None:
        """Add a pulse or go on with the last one."""
        if after_pause:
            self.waves += 1
            self._longest_pause = max(self._longest_pause, begin - self.until)
        if after_pause or not self._pulse_began:
            self._pulse_began = begin
        self.until = max(self.until, finish)
        self._longest_pulse = max(self._longest_pulse, self.until - self._pulse_began)

    @property
    def pause_limit_seconds(self) -> float:
        """How long it may pause: as long as its own pulses and pauses lasted."""
        own = _LONGER * self._longest_pulse
        if self.waves == 1:
            return max(min(own, FIRST_PAUSE_SECONDS), LEAST_PAUSE_SECONDS)
        longest = max(own, _PAUSES * self._longest_pause)
        return max(min(longest, LONGEST_PAUSE_SECONDS), LEAST_PAUSE_SECONDS)
