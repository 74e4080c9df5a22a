"""When attacks began, peaked, changed and came back: the memory between two ticks."""

from __future__ import annotations

from dataclasses import dataclass, field

from fwtop.advise.scene import Finding

_REMEMBERED = 256


@dataclass
class Track:
    """One vector's life so far, Unix seconds."""

    title: str
    since: float
    last: float
    peak_pps: float
    pulses: int = 1


@dataclass
class Timeline:
    """Knows a vector again by kind and port. One that returns within `linger_seconds` keeps its onset."""

    linger_seconds: float
    tracks: dict[tuple[str, int | None], Track] = field(default_factory=dict)

    def note(self, finding: Finding, pps: float, onset: float, now: float) -> tuple[float, list[str]]:
        """Record a sighting; return the vector's onset and sentences about its history."""
        key = (finding.kind, finding.match.sport)
        track = self.tracks.get(key)
        ended = self._just_ended(key, onset)
        if track is None or now - track.last > self.linger_seconds:
            track = Track(finding.title, min(onset, now), now, pps)
            self.tracks[key] = track
        elif now - track.last > 2.5:
            track.pulses += 1
        track.last, track.peak_pps = now, max(track.peak_pps, pps)
        self._trim(now)
        notes = []
        if track.peak_pps > 1.2 * pps:
            notes.append(f"its peak was {track.peak_pps:,.0f} packets a second")
        if track.pulses > 1:
            notes.append(f"it comes in waves: {track.pulses} so far")
        if ended is not None:
            notes.append(f"it follows {ended}")
        return track.since, notes

    def _just_ended(self, key: tuple[str, int | None], onset: float) -> str | None:
        """Name the vector that stopped when this one began: the attacker changed it."""
        for other, track in self.tracks.items():
            if other != key and abs(onset - track.last) < self.linger_seconds / 3 and track.since < onset:
                current = self.tracks.get(key)
                if current is None or current.since > track.since:
                    return track.title if track.last < onset else None
        return None

    def _trim(self, now: float) -> None:
        if len(self.tracks) > _REMEMBERED:
            keep = sorted(self.tracks.items(), key=lambda item: -item[1].last)[:_REMEMBERED]
            self.tracks = dict(keep)
        stale = [key for key, track in self.tracks.items() if now - track.last > 20 * self.linger_seconds]
        for key in stale:
            del self.tracks[key]
