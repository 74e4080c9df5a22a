"""What the screen remembers: half-seconds for the graph, clients before an attack, rates, trends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from fwtop.model.traffic.session import STOPPED, Flow, TrendRow, Trends, flow_of
from fwtop.model.traffic.snapshot import Share, Snapshot, Source
from fwtop.render.verdict import verdict_of

HISTORY_SECONDS = 600
STEP = 0.5  # seconds of a point
_MOST_POINTS = int(HISTORY_SECONDS / STEP)
_CALM_SECONDS = 60  # the baseline of clients is their mean over this long


def step_for(span: float) -> float:
    """Return the seconds of a point in a history of that length."""
    return max(STEP, math.ceil(span / HISTORY_SECONDS) * STEP)


class Point(Struct, frozen=True):
    """What was seen within STEP."""

    flow: Flow
    attack: bool = False
    stopped: bool = False  # firewalls drop the attacks
    clients: float | None = None  # handshakes that they finish, a second


class Clients(Struct, frozen=True):
    """What clients got, a second: handshakes they finished, segments they acknowledged."""

    handshakes: float
    acknowledged: float


class Past(Struct, frozen=True):
    """A point of a recording's past, for the history after a jump."""

    at: float  # Unix seconds
    point: Point
    clients: Clients | None = None


class History(Struct):
    """The last minutes, or the whole of a recording; the newest point last."""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=_MOST_POINTS))
    seconds: float = STEP  # of a point
    step: int = 0  # of the newest point, in such steps since 1970
    _calm: deque[tuple[float, Clients]] = field(default_factory=lambda: deque(maxlen=_CALM_SECONDS))
    _before: Clients | None = None
    _attacked: bool = False

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Note a snapshot: within a step the greatest rate counts, missed steps repeat the last."""
        tcp, attacks = snapshot.tcp, snapshot.judgement.harmful
        shakes = tcp.clients_per_s if tcp is not None else None
        clients = None if tcp is None or tcp.bots else Clients(tcp.handshakes_per_s, tcp.acknowledged_per_s)
        if not snapshot.judgement.not_judged:
            self._note_clients(clients, min((attack.since for attack in attacks), default=None), now)
        flow = flow_of(snapshot)
        if flow is not None:
            stopped = verdict_of(snapshot, now).stopped >= STOPPED
            self.add(Point(flow, bool(snapshot.judgement.on), stopped, shakes), now)

    def rebuild(self, past: Sequence[Past]) -> None:
        """Start again from a recording's past: its cursor may have jumped."""
        self.points.clear()
        self.seconds = step_for(past[-1].at - past[0].at) if past else STEP
        self._calm.clear()
        self._before, self._attacked = None, False
        for moment in past:
            since = moment.at if moment.point.attack else None
            self._note_clients(moment.clients, since, moment.at)
            self.add(moment.point, moment.at)

    def add(self, point: Point, now: float) -> None:
        """Note a point."""
        step = int(now / self.seconds)
        if self.points and step <= self.step:
            if point.flow.arrives >= self.points[-1].flow.arrives:
                self.points[-1] = point
            return
        if self.points:
            missed = min(step - self.step - 1, _MOST_POINTS)
            self.points.extend([self.points[-1]] * missed)
        self.points.append(point)
        self.step = step

    @property
    def ends(self) -> float:
        """Return the Unix time at which the newest point ends."""
        return (self.step + 1) * self.seconds

    def at(self, second: float) -> Point | None:
        """Return what was seen at a time; None: not remembered."""
        age = self.step - int(second / self.seconds)
        return self.points[-1 - age] if 0 <= age < len(self.points) else None

    def _note_clients(self, clients: Clients | None, since: float | None, now: float) -> None:
        """Keep what clients got in calm; what came after an attack's first packet isn't calm.

        `since` is when the present attacks began, None without any.
        """
        if since is not None and not self._attacked:
            calm = [clients for second, clients in self._calm if second < since - 1]
            self._before = _mean(calm) if len(calm) >= 5 else None  # fewer are no baseline
        if self._attacked and since is None:
            self._calm.clear()
        self._attacked = since is not None
        if since is None and clients is not None and (not self._calm or int(now) > int(self._calm[-1][0])):
            self._calm.append((now, clients))

    @property
    def before(self) -> Clients | None:
        """What clients got before the present attack; None: no attack, or nothing was seen before it."""
        return self._before if self._attacked else None


def _mean(points: list[Clients]) -> Clients:
    # Not by statistics: that takes time to load, and memory
    count = len(points)
    return Clients(sum(p.handshakes for p in points) / count, sum(p.acknowledged for p in points) / count)


TREND_SECONDS = 300
_STEP_SECONDS = 5
_LEAST_STEPS = 12  # a minute: less is no trend
_MOST = 64  # attacks and rules that are remembered
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class RecentRates(Struct):
    """Rates by key, the greatest of every five seconds, for five minutes."""

    _rates: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)

    def note(self, rates: Iterable[tuple[str, float]], now: float) -> None:
        """Note the present rates, in packets a second."""
        step = int(now) // _STEP_SECONDS
        for key, rate in rates:
            known = self._rates.setdefault(key, deque(maxlen=TREND_SECONDS // _STEP_SECONDS))
            if known and known[-1][0] == step:
                known[-1] = step, max(known[-1][1], rate)
            else:
                known.append((step, rate))
        while len(self._rates) > _MOST:
            del self._rates[min(self._rates, key=lambda key: self._rates[key][-1][0])]

    def spark(self, key: str, now: float, width: int) -> str:
        """Draw the last five minutes of a key in `width` cells, the newest at the right."""
        known = self._rates.get(key)
        if not known or known[-1][0] - known[0][0] < _LEAST_STEPS or width < 1:
            return ""
        last = int(now) // _STEP_SECONDS
        steps = TREND_SECONDS // _STEP_SECONDS
        cells = [0.0] * width
        for step, rate in known:
            place = width - 1 - (last - step) * width // steps
            if 0 <= place < width:
                cells[place] = max(cells[place], rate)
        top = max(cells)
        if top <= 0:
            return ""
        return "".join(_EIGHTHS[round(7 * rate / top) or (1 if rate > 0 else 0)] for rate in cells)


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
