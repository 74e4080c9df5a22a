"""Reading the history: averages a minute and an hour as the trends of one place that was watched."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic import session
from fwtop.store.database import connect
from fwtop.store.history import FILE_NAME, FORMAT, HOUR, MINUTE, answered_keys

_COLUMNS = session.TREND_DAYS * session.TREND_HOURS
_LEAST_SECONDS = 1.0  # observed of an hour, below which it has no average
_CHOSEN_PORTS = 32_768  # from which on the kernel gives programs a port to ask from
_TOP = 10  # rows of each kind by the last hour, and as many by the last day and the last 15 days


def read_trends(
    path: Path, now: float, *, interfaces: Iterable[str] | None = None, netns: str | None = None
) -> session.Trends:
    """Return the trends of what this host watched last, or of these interfaces and this namespace only.

    Raises FwtopError.
    """
    with _reading(path) as database:
        scope = _scope(database, tuple(interfaces) if interfaces is not None else None, netns)
        return _trends(database, scope, now)


def session_trends(info: session.SessionInfo, history: Path | None = None) -> session.Trends | None:
    """Return the trends up to a session's end, of what it watched; None without a history.

    `history` is its file, by default the one beside the session's directory.
    """
    try:
        found = read_trends(
            history or info.path.parent.parent / FILE_NAME,
            info.ended,
            interfaces=info.interfaces,
            netns=info.netns,
        )
    except FwtopError:
        return None
    return found if found.days_seconds > 0 else None


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    shown = safe_text(path)
    try:
        path.stat()
    except FileNotFoundError:
        raise FwtopError(
            f"no history is stored in {shown} yet; 'sudo fwtop' or 'sudo fwtop record' makes one"
        ) from None
    except PermissionError:
        raise FwtopError(f"{shown} may not be read by you; try the same with sudo", 3) from None
    except OSError as error:
        raise FwtopError(f"{shown} can't be read: {error.strerror}") from None
    try:
        with closing(connect(path, timeout=2.0, mode="ro")) as database:
            FORMAT.check(database)
            yield database
    except sqlite3.Error as error:
        raise FwtopError(
            f"the history {shown} can't be read ({safe_text(error, limit=80)}); it was not changed"
        ) from None


class _Scope(Struct, frozen=True):
    number: int
    interfaces: tuple[str, ...]
    netns: str | None
    note: str


def _scope(database: sqlite3.Connection, interfaces: tuple[str, ...] | None, netns: str | None) -> _Scope:
    query = (
        "SELECT id, interfaces, netns, note FROM scope "
        "WHERE EXISTS (SELECT 1 FROM bucket WHERE bucket.scope = scope.id) ORDER BY netns <> '', seen DESC"
    )
    for number, names, where, note in database.execute(query):
        watched = tuple(name for name in names.split("\n") if name)
        fits = interfaces is None or watched == interfaces
        if fits and ((interfaces is None and netns is None) or where == (netns or "")):
            shown = tuple(safe_text(name, limit=40) for name in watched)
            return _Scope(number, shown, safe_text(where, limit=80) or None, safe_text(note, limit=120))
    of = f" of {safe_text(' '.join(interfaces), limit=80)}" if interfaces else ""
    of += f" in {safe_text(netns, limit=80)}" if netns else ""
    raise FwtopError(f"the history holds nothing{of} yet; it begins with the first full minute")


class _Sums(Struct):
    """Packets of one thing: in the last hour, by hour, and of these those that were dropped."""

    label: str = ""
    last: float = 0.0
    hours: dict[int, float] = field(default_factory=dict)  # sparse: an attacker makes many names
    dropped: float | None = None  # of the last day

    def add(self, place: int | None, packets: float) -> None:
        """Add to an hour."""
        if place is not None:
            self.hours[place] = self.hours.get(place, 0.0) + packets

    def day(self) -> float:
        """Return the packets of the last day."""
        return sum(
            packets for place, packets in self.hours.items() if place >= _COLUMNS - session.TREND_HOURS
        )


class _Period:
    """The seconds that were observed, by which packets become rates."""

    def __init__(self, database: sqlite3.Connection, scope: int, now: float) -> None:
        self.first = int(now) // HOUR * HOUR - (_COLUMNS - 1) * HOUR  # start of the first hour
        self.since = int(now) // MINUTE * MINUTE - HOUR  # start of the last 60 minutes that are over
        self.day = self.first + (_COLUMNS - session.TREND_HOURS) * HOUR
        query = "SELECT at, seconds FROM bucket WHERE scope = ? AND span = ? AND at >= ?"
        self.last = sum(min(row[1], MINUTE) for row in database.execute(query, (scope, MINUTE, self.since)))
        self.hours = [0.0] * _COLUMNS
        for at, seconds in database.execute(query, (scope, HOUR, self.first)):
            if (place := self.place(at)) is not None:
                self.hours[place] = float(seconds)

    def place(self, at: int) -> int | None:
        """Return which of the hours a time is in."""
        place = (at - self.first) // HOUR
        return place if 0 <= place < _COLUMNS else None

    def observed(self, count: int) -> float:
        """Return the observed seconds of the last hours; two recordings at once count as one."""
        return sum(min(seconds, HOUR) for seconds in self.hours[-count:])


def _trends(database: sqlite3.Connection, scope: _Scope, now: float) -> session.Trends:
    period = _Period(database, scope.number, now)
    query = "SELECT sum(seconds) FROM bucket WHERE scope = ? AND span = ? AND at >= ?"
    last = database.execute(query, (scope.number, MINUTE, period.since)).fetchone()[0] or 0.0
    sums = _traffic_sums(database, scope.number, period)
    answered = answered_keys(database, scope.number)
    parts = _part_sums(database, scope.number, period)
    places = parts.pop("place")
    traffic = [(key, sums[key]) for key in session.TRAFFIC] + [
        (key, places[key]) for key in session.PLACES if key in places
    ]
    groups = [session.TrendGroup("traffic", tuple(_row(key, entry, period, last) for key, entry in traffic))]
    for kind, found in parts.items():
        rows = _rows(found, period, last)
        if kind == "target":
            rows = [replace(row, answers=None if answered is None else row.key in answered) for row in rows]
            dark = tuple(row for row in rows if row.answers is False)
            groups.append(session.TrendGroup("service", tuple(row for row in rows if row not in dark)))
            groups.append(session.TrendGroup("dark", dark))
        else:
            if kind.endswith("port"):
                rows = [replace(row, answers=_port_answers(row.key, answered)) for row in rows]
            groups.append(session.TrendGroup(kind, tuple(rows)))
    return session.Trends(
        at=now,
        interfaces=scope.interfaces,
        netns=scope.netns,
        note=scope.note,
        hour_seconds=min(period.last, HOUR),
        day_seconds=period.observed(session.TREND_HOURS),
        days_seconds=period.observed(_COLUMNS),
        groups=tuple(groups),
    )


def _port_answers(port: str, answered: frozenset[str] | None) -> bool | None:
    """Say whether anything answered from a port; None where what arrives may be an answer to this host."""
    number = port.rpartition("/")[2]
    asks_from = not number.isdecimal() or int(number) >= _CHOSEN_PORTS
    return None if answered is None or (asks_from and port not in answered) else port in answered


def _traffic_sums(database: sqlite3.Connection, scope: int, period: _Period) -> dict[str, _Sums]:
    sums = {key: _Sums() for key in session.TRAFFIC}
    query = f"SELECT at, {', '.join(session.TRAFFIC)} FROM bucket WHERE scope = ? AND span = ? AND at >= ?"
    for _, *packets in database.execute(query, (scope, MINUTE, period.since)):
        for key, count in zip(session.TRAFFIC, packets, strict=True):
            sums[key].last += count
    for at, *packets in database.execute(query, (scope, HOUR, period.first)):
        for key, count in zip(session.TRAFFIC, packets, strict=True):
            sums[key].add(period.place(at), count)
    return sums


def _part_sums(database: sqlite3.Connection, scope: int, period: _Period) -> dict[str, dict[str, _Sums]]:
    sums: dict[str, dict[str, _Sums]] = {kind: {} for kind in session.KINDS}
    query = (
        "SELECT part.at, kind, key, label, packets, dropped FROM part JOIN name ON name.id = part.name "
        "WHERE scope = ? AND span = ? AND part.at >= ?"
    )
    for _, kind, key, label, packets, _dropped in database.execute(query, (scope, MINUTE, period.since)):
        if kind in sums:
            sums[kind].setdefault(key, _Sums(label)).last += packets
    for at, kind, key, label, packets, dropped in database.execute(query, (scope, HOUR, period.first)):
        if kind not in sums:
            continue
        entry = sums[kind].setdefault(key, _Sums(label))
        entry.add(period.place(at), packets)
        if dropped is not None and at >= period.day:
            entry.dropped = (entry.dropped or 0.0) + dropped
    return sums


def _rows(sums: dict[str, _Sums], period: _Period, last: float) -> list[session.TrendRow]:
    """Return the largest of the last hour, the last day and the last 15 days, in this order."""

    def rank(entry: _Sums) -> tuple[float, float, float]:
        return entry.last, entry.day(), sum(entry.hours.values())

    chosen: set[str] = set()
    for place in range(3):
        chosen |= set(sorted(sums, key=lambda key: -rank(sums[key])[place])[:_TOP])
    ordered = sorted(chosen, key=lambda key: (*(-value for value in rank(sums[key])), key))
    return [_row(key, sums[key], period, last) for key in ordered]


def _row(key: str, sums: _Sums, period: _Period, last: float) -> session.TrendRow:
    days = tuple(
        sums.hours.get(place, 0.0) / seconds if seconds >= _LEAST_SECONDS else None
        for place, seconds in enumerate(period.hours)
    )
    packets, seconds = sums.day(), sum(period.hours[-session.TREND_HOURS :])
    hour = sums.last / last if last >= _LEAST_SECONDS else None
    return session.TrendRow(
        key=safe_text(key, limit=80),
        label=safe_text(sums.label, limit=80),
        hour=hour,
        packets=None if hour is None else round(hour * min(period.last, HOUR)),
        hours=days[-session.TREND_HOURS :],
        day=packets / seconds if seconds >= _LEAST_SECONDS else None,
        days=days,
        dropped_share=min(sums.dropped / packets, 1.0) if sums.dropped is not None and packets > 0 else None,
    )
