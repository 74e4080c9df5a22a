"""Rows of the Trends tab, and what was read of the stored history for them."""

from __future__ import annotations

from msgspec import Struct

from fwtop.model.traffic.session import TrendRow, Trends
from fwtop.model.traffic.snapshot import Share, Source


class TrendItem(Struct, frozen=True):
    """A row of the Trends tab."""

    kind: str  # of TrendGroup, without a word of PLACES
    row: TrendRow

    @property
    def key(self) -> str:
        """What the row is about."""
        return self.row.key

    def source(self) -> Source | None:
        """Return a country or a network as a source that rules can be made of."""
        share = Share(0, 0, self.row.hour or 0.0, 0.0, 0.0, 0.0)
        if self.kind == "country" and len(self.key) == len("NL"):
            return Source(self.key, share, 0.0, country=self.key)
        number = self.key.removeprefix("AS")
        if self.kind == "network" and number.isascii() and number.isdigit():
            return Source(self.key, share, 0.0, asn=int(number), as_name=self.row.label or None)
        return None


class HistoryAnswer(Struct, frozen=True):
    """What was read of the history."""

    trends: Trends | None = None
    problem: str = ""  # in one line

    def items(self, kind: str) -> tuple[TrendItem, ...]:
        """Return the rows of a kind."""
        plain = kind.rpartition(" ")[2]
        return tuple(TrendItem(plain, row) for row in self.trends.group(kind)) if self.trends else ()
