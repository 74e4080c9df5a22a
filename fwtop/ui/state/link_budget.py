"""What a slow link may still be sent: long lists wait until the last ten seconds leave room for one."""

from __future__ import annotations

from collections import deque

_SECONDS = 10.0
_BYTES = 26_000  # in those; bars and status lines may add 4 KB to it: 3 KiB a second in all
_CELL_BYTES = 1.3  # of a list in which every row has changed, colours and moves of the cursor included
_LIST_BYTES = 13_000  # at most, or a terminal that is larger than 200×50 would never get one


class LinkBudget:
    """Remembers how much was sent, and when; times are in seconds, of any clock."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, int]] = deque()

    def note(self, now: float, sent: int) -> None:
        """Take down the bytes that were sent so far."""
        if self._noted and now < self._noted[-1][0]:
            self._noted.clear()  # the clock was set back
        self._noted.append((now, sent))
        while len(self._noted) > 1 and self._noted[1][0] <= now - _SECONDS:
            self._noted.popleft()

    def has_room(self, cells: int) -> bool:
        """Return whether what fills so many cells may be sent now, as of the last note."""
        if not self._noted:
            return True
        used = self._noted[-1][1] - self._noted[0][1]
        return used + min(cells * _CELL_BYTES, _LIST_BYTES) <= _BYTES
