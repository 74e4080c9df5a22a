"""How well this machine is protected, now and before: pure functions of a snapshot, and what was remembered.

The ledger tells where all packets ended; the verdict goes by what became of the attacks' own packets. What
firewalls drop besides says nothing about an attack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct, field

from fwtop.model.rule import ACTIVE_STATES, RuleStatus, State
from fwtop.model.traffic.session import FULL_TABLE, NOTICED, STOPPED, Flow, TrendRow, Trends, flow_of
from fwtop.model.traffic.snapshot import Attack, Origin, Sampling, Share, Snapshot, Source, Tables, Totals

NOTHING = Snapshot("", Origin("live"), 0.0, 0.0, Tables(Totals(0, 0, 0.0, 0.0, 0, 0), Sampling(1.0, 0, 0)))


class Badge(StrEnum):
    """What the badge says."""

    UNPROTECTED = "UNPROTECTED"
    TRIAL = "TRIAL"
    PARTLY = "PARTLY"
    PROTECTED = "PROTECTED"
    ALREADY = "ALREADY STOPPED BY YOUR FIREWALL"
    CALM = "CALM"
    NOT_JUDGED = "NOT JUDGED"  # the judgement failed: what it says is older, if it says anything
    RECORDED = "ATTACK"  # in a capture, which doesn't tell what became of the packets


class Verdict(Struct, frozen=True):
    """The verdict; all shares are of the packets of all present attacks, 0 to 1."""

    badge: Badge
    attack_pps: float = 0.0
    mine: float = 0.0  # dropped by rules that are active
    other: float = 0.0
    kernel: float = 0.0
    rule: RuleStatus | None = None  # on trial; of several the one that ends first
    trials: tuple[str, ...] = ()  # ids of all rules on trial
    trial_pps: float = 0.0  # what they drop
    trial_share: float = 0.0  # of the packets of all attacks; of one window with `mine`
    seconds_left: float = 0.0
    left: float = 0.0  # of the trial's time, 0 to 1

    @property
    def stopped(self) -> float:
        """Share that firewalls drop."""
        return min(self.mine + self.other, 1.0)


def verdict_of(snapshot: Snapshot, now: float) -> Verdict:
    """Judge the snapshot; drops of rules that have ended don't protect any more."""
    attacks = attacks_of(snapshot)
    trials = _on_trial(snapshot)
    is_judged = not snapshot.judgement.not_judged
    if flow_of(snapshot) is None:
        return Verdict(Badge.NOT_JUDGED if not is_judged else Badge.RECORDED if attacks else Badge.CALM)
    whole = attack_pps(snapshot)
    mine, other, kernel = (_weighted(attacks, name) for name in ("mine_share", "other_share", "kernel_share"))
    mine *= _lasting(snapshot)
    if trials:
        left, part = _time_left(trials[0], now)
        ids = tuple(sorted((status.rule.id for status in trials), key=lambda name: (len(name), name)))
        pps = _dropped(snapshot, set(ids))
        active = _dropped(snapshot, active_rules(snapshot))
        share = mine * pps / active if active > 0 else 0.0
        return Verdict(Badge.TRIAL, whole, mine, other, kernel, trials[0], ids, pps, share, left, part)
    badge = Badge.NOT_JUDGED if not is_judged else _kind(mine, other) if attacks else Badge.CALM
    return Verdict(badge, whole, mine, other, kernel)


def _weighted(attacks: tuple[Attack, ...], name: str) -> float:
    """Return a share of all attacks' packets."""
    whole = sum(attack.pps for attack in attacks)
    part = sum(attack.pps * getattr(attack, name) for attack in attacks)
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


def _lasting(snapshot: Snapshot) -> float:
    """Return the share of the drops by fwtop's rules that is of active rules."""
    mine = sum(row.pps for row in snapshot.tables.ledger if row.rule is not None)
    return _dropped(snapshot, active_rules(snapshot)) / mine if mine > 0 else 1.0


def _kind(mine: float, other: float) -> Badge:
    if mine + other >= STOPPED:
        return Badge.PROTECTED if mine >= NOTICED else Badge.ALREADY
    return Badge.PARTLY if mine + other >= NOTICED else Badge.UNPROTECTED


def attacks_of(snapshot: Snapshot) -> tuple[Attack, ...]:
    """Return the attacks that have packets of their own; a full table is another's effect."""
    attacks = snapshot.judgement.attacks
    return tuple(attack for attack in attacks if attack.kind != FULL_TABLE) or attacks


def attack_pps(snapshot: Snapshot) -> float:
    """Return the packets a second of all attacks, of the same window as the total and never above it."""
    return min(sum(attack.pps for attack in attacks_of(snapshot)), snapshot.tables.totals.pps)


def active_rules(snapshot: Snapshot) -> set[str]:
    """Return the ids of the rules in force."""
    return {status.rule.id for status in snapshot.mitigations if status.state in ACTIVE_STATES}


def _on_trial(snapshot: Snapshot) -> list[RuleStatus]:
    """Return the unconfirmed rules in effect, first the one that ends first."""
    found = [rule for rule in snapshot.mitigations if rule.state is State.PROVISIONAL and rule.acting]
    return sorted(found, key=lambda rule: rule.confirm_by or 0.0)


def _time_left(rule: RuleStatus, now: float) -> tuple[float, float]:
    if rule.confirm_by is None:
        return 0.0, 0.0
    left = max(rule.confirm_by - now, 0.0)
    known = 0 < rule.rule.created < rule.confirm_by
    whole = rule.confirm_by - rule.rule.created if known else 30.0  # the usual length
    return left, min(left / whole, 1.0)


def _dropped(snapshot: Snapshot, rules: set[str]) -> float:
    return sum(row.pps for row in snapshot.tables.ledger if row.rule in rules)


HISTORY_SECONDS = 600
_CALM_SECONDS = 60  # the baseline of clients is their mean over this long


class Point(Struct, frozen=True):
    """One second."""

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
    """The last seconds, the newest last, and when rules were installed."""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=HISTORY_SECONDS))
    second: int = 0  # Unix time of the newest point
    marks: dict[str, float] = field(default_factory=dict)  # rule id → Unix seconds
    _calm: deque[tuple[float, Clients]] = field(default_factory=lambda: deque(maxlen=_CALM_SECONDS))
    _before: Clients | None = None
    _attacked: bool = False

    def take(self, snapshot: Snapshot, now: float) -> None:
        """Note a snapshot: within a second the greatest rate counts, missed seconds repeat the last."""
        self._note_rules(snapshot.mitigations, now)
        tcp, attacks = snapshot.tcp, snapshot.judgement.attacks
        clients = Clients(tcp.handshakes_per_s, tcp.acknowledged_per_s) if tcp is not None else None
        if not snapshot.judgement.not_judged:
            self._note_clients(clients, min((attack.since for attack in attacks), default=None), now)
        flow = flow_of(snapshot)
        if flow is not None:
            stopped = verdict_of(snapshot, now).stopped >= STOPPED
            shakes = clients.handshakes if clients is not None else None
            self.add(Point(flow, bool(attacks), stopped, shakes), now)

    def rebuild(self, past: Iterable[Past], marks: dict[str, float]) -> None:
        """Start again from a recording's past: its cursor may have jumped."""
        self.points.clear()
        self._calm.clear()
        self._before, self._attacked = None, False
        self.marks = dict(marks)
        for moment in past:
            since = moment.at if moment.point.attack else None
            self._note_clients(moment.clients, since, moment.at)
            self.add(moment.point, moment.at)

    def add(self, point: Point, now: float) -> None:
        """Note a point."""
        second = int(now)
        if self.points and second <= self.second:
            if point.flow.arrives >= self.points[-1].flow.arrives:
                self.points[-1] = point
            return
        if self.points:
            missed = min(second - self.second - 1, HISTORY_SECONDS)
            self.points.extend([self.points[-1]] * missed)
        self.points.append(point)
        self.second = second

    def at(self, second: int) -> Point | None:
        """Return what was seen in a second; None: not remembered."""
        age = self.second - second
        return self.points[-1 - age] if 0 <= age < len(self.points) else None

    def _note_rules(self, rules: Iterable[RuleStatus], now: float) -> None:
        for status in rules:
            if status.state in ACTIVE_STATES and status.rule.id not in self.marks:
                self.marks[status.rule.id] = status.rule.created or now
        while len(self.marks) > 50:
            del self.marks[next(iter(self.marks))]

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
        if not known or width < 1:
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
        return "".join(_EIGHTHS[round(8 * rate / top) or (1 if rate > 0 else 0)] for rate in cells)


class TrendItem(Struct, frozen=True):
    """A row of the Trends tab."""

    kind: str  # of TrendGroup
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
        return tuple(TrendItem(kind, row) for row in self.trends.group(kind)) if self.trends else ()
