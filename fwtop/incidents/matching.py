"""Which incident a sighting continues: by kind, target, signature and continuity.

Header fields that contradict each other are two attacks, whatever they are called. A sighting of another
kind continues an incident only if its packets were there before, when they had the other name: near a
threshold the same packets are named one way and then another. New packets of another kind are a change of
vector, and so a new incident.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fwtop.analysis.sighting import Sighting
from fwtop.incidents.tracked import Tracked
from fwtop.model.rule import Match

_BEFORE_SECONDS = 0.5  # that packets were there under another name
_SHARED = 0.3  # of a sighting's packets that go to the incident's target


def continued(
    incidents: Sequence[Tracked],
    sightings: Sequence[Sighting],
    may_continue: Callable[[Tracked, Sighting], bool],
) -> list[Tracked | None]:
    """Return the incident that each sighting continues; the closest pairs first, of equals the oldest."""
    pairs = [
        (likeness, -incident.began, place, incident)
        for place, sighting in enumerate(sightings)
        for incident in incidents
        if (likeness := _likeness(incident, sighting)) and may_continue(incident, sighting)
    ]
    result: list[Tracked | None] = [None] * len(sightings)
    taken: set[int] = set()
    for _, _, place, incident in sorted(pairs, key=lambda pair: pair[:3], reverse=True):
        if result[place] is None and incident.id not in taken:
            result[place] = incident
            taken.add(incident.id)
    return result


def _likeness(incident: Tracked, sighting: Sighting) -> int:
    """Return how much a sighting has in common with an incident; 0: it is another."""
    if incident.state != sighting.state or not _agree(incident.match, sighting.match):
        return 0
    hits = any(words == incident.target and share >= _SHARED for words, share in sighting.targets)
    same_part = incident.part == sighting.part
    if incident.kind == sighting.kind:
        if incident.part and sighting.part and not same_part and not hits:
            return 0
        return 4 + 2 * same_part + hits
    renamed = sighting.pulses[0][0] < incident.until - _BEFORE_SECONDS
    return int(renamed and hits and not sighting.state)


def _agree(one: Match, other: Match) -> bool:
    """Test whether the same packets can have the header fields of both."""
    names = ("family", "protocol", "sport", "dport", "icmp_type")
    pairs = ((getattr(one, name), getattr(other, name)) for name in names)
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        return False
    if one.tcp_flags is None or other.tcp_flags is None:
        return True
    (mask, value), (other_mask, other_value) = one.tcp_flags, other.tcp_flags
    return not (value ^ other_value) & mask & other_mask


def is_broader(one: Match, other: Match) -> bool:
    """Test whether header fields that all packets of `other` share are not shared by all of `one`."""
    names = ("protocol", "sport", "dport", "tcp_flags", "icmp_type")
    return any(getattr(one, name) is None and getattr(other, name) is not None for name in names)
