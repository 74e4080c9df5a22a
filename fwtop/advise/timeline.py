"""When attacks began, peaked, changed and came back: the memory between two ticks."""

from __future__ import annotations

from dataclasses import dataclass, field

from fwtop.advise.activity import PAUSE_SECONDS, Activity
from fwtop.advise.scene import Finding

_REMEMBERED = 256
_FORGET_SECONDS = 3600.0


@dataclass
class Track:
    """One vector's life so far, Unix seconds."""

    title: str
    since: float
    until: float  # its last packets
    peak_pps: float
    waves: int = 1
    follows: str = ""


@dataclass
class Timeline:
    """Knows a vector again by kind and port. One that returns within `linger_seconds` keeps its onset."""

    linger_seconds: float
    tracks: dict[tuple[str, int | None], Track] = field(default_factory=dict)

    def note(self, finding: Finding, active: Activity) -> Track:
        """Record a vector's activity in the present window, and return its life so far."""
        key = (finding.kind, finding.match.sport)
        onset, until = active.pulses[0][0], active.pulses[-1][1]
        track = self.tracks.get(key)
        if track is None or onset - track.until > self.linger_seconds:
            track = self.tracks[key] = Track(finding.title, *active.pulses[0], active.peak_pps)
        for begin, end in active.pulses:
            track.waves += not finding.state and begin - track.until > PAUSE_SECONDS
            track.until = max(track.until, end)
        track.peak_pps = max(track.peak_pps, active.peak_pps)
        if not finding.state:  # a full table is what a vector did, and takes the place of none
            track.follows = track.follows or self._predecessor(key, track)
        self._trim(until)
        return track

    def _predecessor(self, key: tuple[str, int | None], track: Track) -> str:
        """Name the vector that ended when this one began, and has not come back."""
        for other, earlier in self.tracks.items():
            ended = abs(earlier.until - track.since) < PAUSE_SECONDS < track.until - earlier.until
            if other != key and ended and earlier.since < track.since:
                return earlier.title
        return ""

    def _trim(self, now: float) -> None:
        stale = [key for key, track in self.tracks.items() if now - track.until > _FORGET_SECONDS]
        for key in stale:
            del self.tracks[key]
        if len(self.tracks) > _REMEMBERED:
            del self.tracks[min(self.tracks, key=lambda key: self.tracks[key].until)]
