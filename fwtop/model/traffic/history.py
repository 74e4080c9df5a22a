"""Traffic over days: what a recording adds to the history, and the trends that are read from it."""

from __future__ import annotations

from msgspec import Struct

KINDS = ("country", "network", "city", "port", "target")
TRAFFIC = ("arrived", "mine", "other", "kernel", "accepted")  # where packets ended, after the total
TREND_HOURS = 24
TREND_DAYS = 15


class HistoryPart(Struct, frozen=True):
    """Packets with something in common; `kind` is one of KINDS."""

    kind: str
    key: str  # "NL", "AS64500", "Amsterdam, NL", "tcp/80", "192.0.2.1"
    packets: float
    dropped: float | None = None  # None: not known
    label: str = ""  # the name of the network or service


class HistorySample(Struct, frozen=True):
    """Some seconds of traffic, in packets."""

    at: float  # Unix seconds: the end
    seconds: float
    traffic: tuple[float, ...]  # in the order of TRAFFIC
    bits: float
    parts: tuple[HistoryPart, ...] = ()

    @property
    def pps(self) -> float:
        """Packets that arrived, a second."""
        return self.traffic[0] / self.seconds if self.seconds > 0 else 0.0


class TrendRow(Struct, frozen=True):
    """Averages of one thing, in packets a second; None where nothing was observed."""

    key: str  # sanitised, as is `label`
    label: str
    hour: float | None  # the last 60 minutes
    hours: tuple[float | None, ...]  # TREND_HOURS whole hours, the present one last
    day: float | None  # those hours together
    days: tuple[float | None, ...]  # TREND_DAYS × 24 hours, the present one last
    dropped_share: float | None = None  # of its packets of the last day, 0 to 1


class TrendGroup(Struct, frozen=True):
    """Rows of one kind, the largest of the last hour first.

    The kinds are traffic, country, network, city, port, service and dark: a target address is dark if at
    least 99 % of its packets were dropped, by whomever.
    """

    kind: str
    rows: tuple[TrendRow, ...]


class Trends(Struct, frozen=True):
    """The last hour, day and 15 days of what was watched on some interfaces."""

    at: float  # Unix seconds
    interfaces: tuple[str, ...]
    netns: str | None
    note: str  # "synthetic" data say so here
    hour_seconds: float  # observed of the last hour
    day_seconds: float  # of TREND_HOURS
    days_seconds: float  # of TREND_DAYS
    groups: tuple[TrendGroup, ...]

    def group(self, kind: str) -> tuple[TrendRow, ...]:
        """Return the rows of a kind, none if there is no such group."""
        return next((group.rows for group in self.groups if group.kind == kind), ())
