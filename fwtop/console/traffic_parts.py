"""Tables of parts of the traffic on request, off the observing thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec.structs import replace

from fwtop.analysis.shown.traffic_part import JudgedTraffic, part_traffic
from fwtop.model.traffic.snapshot import PartTraffic, Sources, TrafficPart
from fwtop.model.traffic.window import OriginLookup


class TrafficParts:
    """Makes the tables of a part once per judged window, however often `of` is asked for them."""

    def __init__(
        self,
        judged: Callable[[], JudgedTraffic | None],
        mark: Callable[[Sources], Sources],
        lookup: OriginLookup,
        top: int,
    ) -> None:
        """`mark` tells who the sources are, and which rules cover them."""
        self._judged = judged
        self._mark = mark
        self._lookup = lookup
        self._top = top
        self._lock = threading.Lock()  # never taken by the observing thread
        self._made: tuple[JudgedTraffic, TrafficPart, PartTraffic | None] | None = None

    def of(self, part: TrafficPart) -> PartTraffic | None:
        """Return the tables of a part; None if the newest window has no packets of it."""
        judged = self._judged()
        if judged is None:
            return None
        with self._lock:
            if self._made is None or self._made[0] is not judged or self._made[1] != part:
                self._made = judged, part, self._make(judged, part)
            return self._made[2]

    def once(self, part: TrafficPart) -> PartTraffic | None:
        """Do the same for one who asks once: nothing is kept, with which the whole window would stay."""
        judged = self._judged()
        return None if judged is None else self._make(judged, part)

    def _make(self, judged: JudgedTraffic, part: TrafficPart) -> PartTraffic | None:
        found = part_traffic(judged, part, self._lookup, self._top)
        if found is None:
            return None
        return replace(found, tables=replace(found.tables, sources=self._mark(found.tables.sources)))
