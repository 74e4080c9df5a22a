"""The loop of live observation: samples in, one frozen Snapshot a tick out."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from fwtop.console.coverage import Coverage
from fwtop.console.guardian_link import GuardianLink, GuardianLost
from fwtop.console.pace import Pace
from fwtop.model.counters import Counters, RuleCount, TcpService
from fwtop.model.packets import PacketBatch
from fwtop.model.protocol import Status
from fwtop.model.rule import ACTIVE_STATES, Kind, RuleStatus, rule_status_from_dict
from fwtop.model.snapshot import Judgement, Origin, Snapshot, Tables
from fwtop.model.window import Window

_STATUS_SECONDS = 1.0
_NETFILTER_DROPS = frozenset({Kind.IPSET, Kind.HASHLIMIT, Kind.STRING})


class Source(Protocol):
    """Delivers what was measured since the last call."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the operator should know of the watched interfaces now."""
        ...

    @property
    def pressed(self) -> bool:
        """Whether no processor has time to spare."""
        ...

    def glance(self) -> bool:
        """Say whether another thing arrives than at the last glance, which was no longer ago than a tick."""
        ...

    def poll(self) -> tuple[PacketBatch, Counters]:
        """Return the pending samples and the interval's exact counters, without blocking."""
        ...


class ServiceMeter(Protocol):
    """fwtop.collect.tcp_service.TcpServiceMeter, as seen from here."""

    def sample(self) -> TcpService | None:
        """Return how this machine's own TCP connections fare."""
        ...


class Aggregation(Protocol):
    """fwtop.aggregate.engine.Engine, as seen from here."""

    def feed(self, batch: PacketBatch, counters: Counters | None, now: float) -> None: ...  # noqa: D102
    def window(self) -> Window: ...  # noqa: D102
    def tables(self) -> Tables: ...  # noqa: D102


class Judge(Protocol):
    """fwtop.advise.advisor.Advisor, as seen from here."""

    def judge(self, window: Window, tables: Tables) -> Judgement: ...  # noqa: D102


class LiveSession:
    """Turns polls into snapshots; `tick` is the whole of it, `run` calls it by the clock.

    The guardian is asked for its rules once a second, at every tick while there are any: their kernel
    counters tell which netfilter drops are ours.
    """

    def __init__(
        self,
        link: GuardianLink,
        source: Source,
        engine: Aggregation,
        advisor: Judge,
        service: ServiceMeter,
        *,
        host: str,
        origin: Origin,
        notes: Iterable[str] = (),
    ) -> None:
        self._link = link
        self._source = source
        self._engine = engine
        self._advisor = advisor
        self._service = service
        self._host = host
        self._origin = origin
        self._notes = tuple(notes)
        self._started = time.time()
        self._rules: tuple[RuleStatus, ...] = ()
        self._coverage = Coverage(())
        self._counted: dict[str, tuple[int, int]] = {}
        self._asked_rules = -_STATUS_SECONDS
        self._pace = Pace()
        self._judgement = Judgement()
        self.judging = threading.Lock()  # held while the advisor works
        self.latest: Window | None = None

    def rules_changed(self) -> None:
        """Have the guardian asked again at the next tick: a key changed something."""
        self._asked_rules = -_STATUS_SECONDS
        self._pace.changed()

    def start(self) -> None:
        """Begin the observation now: what was counted before belongs to nobody."""
        self._source.poll()
        self._service.sample()
        self._rule_counts()
        self._started = time.time()

    def observe(self) -> None:
        """Take in what is pending without building a snapshot."""
        batch, counters = self._source.poll()
        counters = dataclasses.replace(counters, rules=self._rule_counts())
        self._engine.feed(batch, counters, time.time())

    def tick(self) -> Snapshot:
        """Take in what is pending and say what it means."""
        self.observe()
        window, tables = self._engine.window(), self._engine.tables()
        self.latest = window
        tables = dataclasses.replace(tables, sources=self._coverage.mark(tables.sources))
        return Snapshot(
            host=self._host,
            origin=self._origin,
            started=window.started,
            seconds=window.seconds,
            tables=tables,
            judgement=self._judge(window, tables),
            conntrack=window.counters.conntrack,
            mitigations=self._rules,
            guardian=f"lost: {self._link.lost}" if self._link.lost else "ready",
            softirq_share=window.counters.softirq_share,
            tcp=self._service.sample(),
            notes=(*self._notes, *self._source.notes),
        )

    def run(
        self, stop: threading.Event, tick_seconds: float, on_snapshot: Callable[[Snapshot], None]
    ) -> None:
        """Tick until told to stop; a tick that took too long delays the next instead of piling up."""
        due = time.monotonic()
        while not stop.is_set():
            on_snapshot(self.tick())
            left = self._pace.tick_seconds(tick_seconds)
            while left > 0 and not stop.is_set():
                due = max(due + tick_seconds, time.monotonic())
                stop.wait(due - time.monotonic())
                if self._source.glance() and self._pace.saving:
                    self._pace.changed()
                # A key or another attack may have come in between, whose effect is to be seen
                left = min(left, self._pace.tick_seconds(tick_seconds)) - tick_seconds

    def _judge(self, window: Window, tables: Tables) -> Judgement:
        mix = {name: share.share for name, share in tables.protocols.items()}
        if self._pace.judge_now(tables.totals.pps, mix):
            with self.judging:
                self._judgement = self._advisor.judge(window, tables)
        attacks = frozenset(attack.kind for attack in self._judgement.attacks)
        rules = tuple((status.rule.id, status.state) for status in self._rules)
        self._pace.note(pressed=self._source.pressed, picture=(attacks, rules))
        return self._judgement

    def _rule_counts(self) -> tuple[RuleCount, ...]:
        """Ask for the rules when it is time, and return what each matched since the last asking."""
        now = time.monotonic()
        # What a rule dropped must be counted for the same time as what netfilter dropped in all.
        wait = 0.0 if any(status.state in ACTIVE_STATES for status in self._rules) else _STATUS_SECONDS
        if self._link.lost or now - self._asked_rules < wait:
            return ()
        self._asked_rules = now
        try:
            answer = self._link.demand(Status())
        except GuardianLost:
            return ()
        self._rules = tuple(rule_status_from_dict(item) for item in answer.data["rules"])
        self._coverage = Coverage(self._rules)
        counts = []
        for status in self._rules:
            if status.rule.kind not in _NETFILTER_DROPS:
                continue
            before = self._counted.get(status.rule.id, (0, 0))
            self._counted[status.rule.id] = (status.packets, status.bytes)
            packets, size = max(status.packets - before[0], 0), max(status.bytes - before[1], 0)
            counts.append(RuleCount(status.rule.id, packets, size))
        return tuple(counts)
