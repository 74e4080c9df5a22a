"""When attacks began, peaked, changed and came back: the memory between two ticks."""

from __future__ import annotations

from dataclasses import dataclass, field

from fwtop.advise.scene import Finding

_REMEMBERED = 256
_FORGET_SECONDS = 3600.0
_PAUSE_SECONDS = 2.0  # without packets: then it has stopped, and what comes is another wave


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

    def note(self, finding: Finding, pps: float, onset: float, until: float) -> tuple[float, list[str]]:
        """Record that a vector was active from `onset` to `until` in the present window.

        Returns when it began at all, and sentences about its history.
        """
        key = (finding.kind, finding.match.sport)
        track = self.tracks.get(key)
        if track is None or onset - track.until > self.linger_seconds:
            track = Track(finding.title, onset, until, pps)
            self.tracks[key] = track
        elif onset - track.until > _PAUSE_SECONDS:
            track.waves += 1
        track.until, track.peak_pps = max(track.until, until), max(track.peak_pps, pps)
        track.follows = track.follows or self._predecessor(key, track)
        self._trim(until)
        notes = []
        if track.peak_pps > 1.2 * pps:
            notes.append(f"its peak was {track.peak_pps:,.0f} packets a second")
        if track.waves > 1:
            notes.append(f"it comes in waves: {track.waves} so far")
        if track.follows:
            notes.append(f"it follows {track.follows}: the vector was changed")
        return track.since, notes

    def _predecessor(self, key: tuple[str, int | None], track: Track) -> str:
        """Name the vector that ended when this one began, and has not come back."""
        for other, earlier in self.tracks.items():
            ended = abs(earlier.until - track.since) < _PAUSE_SECONDS < track.until - earlier.until
            if other != key and ended and earlier.since < track.since:
                return earlier.title
        return ""

    def _trim(self, now: float) -> None:
        stale = [key for key, track in self.tracks.items() if now - track.until > _FORGET_SECONDS]
        for key in stale:
            del self.tracks[key]
        if len(self.tracks) > _REMEMBERED:
            del self.tracks[min(self.tracks, key=lambda key: self.tracks[key].until)]
