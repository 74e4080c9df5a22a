"""What a key that is a number means: proposals may get other numbers just before it is pressed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct, field

from fwtop.model.traffic.snapshot import Proposal

RECENT_SECONDS = 1.0  # within which a key still means what was shown before


class ShownNumbers(Struct):
    """Remembers for a second which proposal had which number."""

    _shown: deque[tuple[float, dict[int, str]]] = field(default_factory=deque)

    def take(self, proposals: Iterable[Proposal], now: float) -> None:
        """Note what is shown from now on (seconds of any clock)."""
        shown = {proposal.number: proposal.key for proposal in proposals}
        if not self._shown or self._shown[-1][1] != shown:
            self._shown.append((now, shown))
        # Of those replaced more than a second ago none is meant
        while len(self._shown) > 1 and not 0 <= now - self._shown[1][0] < RECENT_SECONDS:
            self._shown.popleft()

    def meant(self, number: int, now: float) -> str | None:
        """Return the key of the proposal that was shown longest under a number in the last second."""
        recent = list(self._shown)
        while len(recent) > 1 and not 0 <= now - recent[1][0] < RECENT_SECONDS:
            del recent[0]
        return next((shown[number] for _, shown in recent if number in shown), None)
