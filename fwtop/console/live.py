"""The live loop: samples in, one immutable Snapshot per tick out."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.memory import Baseline
from fwtop.analysis.proposals.preview import Basis, basis, preview_on
from fwtop.console.frugal import FreedMemory, RefreshRate
from fwtop.console.guardian_link import GuardianLink
from fwtop.console.judging import failure_line, not_judged
from fwtop.console.rules import RuleMonitor, SurveyMonitor
from fwtop.console.sightings import Sightings
from fwtop.console.tracked import TrackingMonitor
from fwtop.incidents.advisor import Advisor, of_window
from fwtop.incidents.counted import CountWatch
from fwtop.incidents.losses import LossWatch
from fwtop.live.connections import ConnectionMeter, TcpServiceMeter
from fwtop.live.source import LiveSource
from fwtop.model.console_scope import AUTOMATIC, maker, owner_elsewhere
from fwtop.model.errors import FwtopError
from fwtop.model.harm import ClientLoss
from fwtop.model.rule import ACTIVE_STATES, Preview, Rule, State
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import U64, PacketBatch, Window
from fwtop.model.traffic.snapshot import (
    Judgement,
    Origin,
    Sampling,
    Snapshot,
    Sources,
    Surroundings,
    Tables,
    Totals,
)
from fwtop.rehearsal.asked import asked_of
from fwtop.rehearsal.host import KnownPeers
from fwtop.stats.engine import Engine
from fwtop.stats.services import with_rates

if TYPE_CHECKING:  # a recorder has none
    from fwtop.console.packet_ring import PacketRing

WITHOUT_GUARDIAN = (
    "the guardian has ended: rules in force end by the kernel's clock, and no other can be installed; "
    "stop fwtop and start it again"
)
_CLIENTS = 20  # that are listed during an attack, however little they send
_SOME_CONNECTIONS = 32
_LATE_SECONDS = 60.0  # how long a late answer stays in the notes
_CLIENT_SECONDS = 3.5  # that the rate of known clients is of: no bots are in that of all then
_NOTICE_SECONDS = 0.1  # until another thread's wish for a tick is seen
_MOST_MISSED = 20  # ticks in a row without a snapshot: that is no watch any more


class Observed(Struct, frozen=True):
    """An immutable window, and baseline, allow-list and active rules at that time.

    The input of previews and dissection.
    """

    window: Window
    baseline: Baseline
    known: KnownPeers = KnownPeers()
    rules: tuple[Rule, ...] = ()
    attackers: Sequence[U64] = ()  # as of AnalysisContext


class RulePreviews:
    """Replays rules on the latest window, off the observing thread.

    Each window is judged once, however often a dialog is edited.
    """

    def __init__(self, latest: Callable[[], Observed | None], config: AdviseConfig) -> None:
        self._latest = latest
        self._config = config
        self._lock = threading.Lock()  # never taken by the observing thread
        self._judged: tuple[Observed, Basis] | None = None

    def preview(self, rule: Rule) -> Preview:
        """Return what a rule would match; raises FwtopError before the first observation."""
        observed = self._latest()
        if observed is None:
            raise FwtopError("nothing has been observed yet; try again in a second")
        try:
            with self._lock:
                if self._judged is None or self._judged[0] is not observed:
                    seen = observed.window, observed.baseline, self._config, observed.rules
                    self._judged = observed, basis(*seen, observed.attackers)
                judged = self._judged[1]
            return preview_on(rule, judged, observed.known)
        except FwtopError:
            raise
        except Exception as failure:
            raise FwtopError(f"{failure_line('the preview', failure)}; nothing was changed") from None


Tap = Callable[[PacketBatch, Counters], None]


class LiveSession:
    """Turns polls into snapshots: `tick` builds one, `run` calls it on schedule."""

    def __init__(
        self,
        link: GuardianLink,
        source: LiveSource,
        engine: Engine,
        advisor: Advisor,
        service: TcpServiceMeter,
        *,
        host: str,
        origin: Origin,
        notes: Iterable[str] = (),
        late: Callable[[], list[str]] = list,
        connections: ConnectionMeter | None = None,
        refresh: RefreshRate | None = None,
        ring: PacketRing | None = None,
        undo: Callable[[str, str], object] | None = None,
    ) -> None:
        """`late` returns a line per guardian answer that arrived after its request had timed out.

        `undo` ends a trial that harms clients, and says so; None: nothing may be changed.

        `ring` keeps the newest packets, for whoever looks at them.
        """
        self._connections = connections
        self._link = link
        self._source = source
        self._engine = engine
        self._advisor = advisor
        self._service = service
        self._host = host
        self._origin = origin
        self._notes = tuple(notes)
        self._late = late
        self._late_notes: dict[str, float] = {}  # line → monotonic time until which it is shown
        self.rules = RuleMonitor(link)
        self._sightings = Sightings(link)
        self._previews = RulePreviews(lambda: self.latest, advisor.config)
        self._survey = SurveyMonitor(link, origin.interfaces)
        self._tracked = TrackingMonitor(link)
        self._refresh = refresh or RefreshRate()
        self._judgement = Judgement()
        self._judged_pps = 0.0  # the total of its window
        self._baseline = advisor.baseline.copy()  # as of the last judgement
        self.latest: Observed | None = None
        self._last: Snapshot | None = None
        self._missed = 0  # ticks since
        self._wanted = math.inf  # a tick that can't wait; monotonic
        self._losses = LossWatch()
        self._counted = CountWatch(self._whole_rule)
        self._reading: GuardianLink | None = None  # of long lists, which others need not wait for
        self._undo = undo
        self._ended: set[str] = set()  # trials that did harm
        self.taps: list[Tap] = [] if ring is None else [ring.add]  # get each poll

    def _whole_rule(self, rule_id: str) -> Rule:
        """Return a rule with all of its sources; raises FwtopError. Only one thread does so."""
        self._reading = self._reading or self._link.another()
        return self._reading.whole_rule(rule_id)

    def rules_changed(self) -> None:
        """Tick now, with the rules polled, and then at the normal rate: an action changed a rule."""
        self.rules.poll_soon()
        self._refresh.changed()
        self._wanted = 0.0

    def tick_by(self, when: float) -> None:
        """Have the next tick no later than at a time, Unix seconds."""
        self._wanted = min(self._wanted, time.monotonic() + when - time.time())

    def start(self) -> None:
        """Begin the observation; discard everything counted earlier."""
        self._source.poll()
        self._service.sample()
        if self._connections is not None:
            self._connections.poll()
        self.rules.counts()

    def observe(self) -> None:
        """Consume pending samples without building a snapshot."""
        batch, counters = self._source.poll()
        now = time.time()  # before the guardian is asked: that may take its time
        before = self.rules.in_force
        counters = replace(counters, rules=self.rules.counts(counters.drops))
        batch = self.rules.attribute(batch, counters)
        self._engine.feed(batch, counters, now)
        if self.rules.in_force != before:
            self._engine.rules_changed()
        for tap in self.taps:
            tap(batch, counters)
        rules, learned = self.rules, self._baseline
        self._counted.add(
            batch, counters.seconds, rules.statuses, learned=learned, allowed=rules.allowed, now=now
        )
        self._survey.poll()

    def tick(self) -> Snapshot:
        """Consume pending samples, judge the window if due, and build a snapshot."""
        self.observe()
        service = self._service.sample()  # at once: rates of one window belong together
        told = self._survey
        window = replace(self._engine.window(), services=told.last.listeners, answering=told.answering)
        shaken = service.handshakes_per_s if service else None
        window = replace(window, handshakes_per_s=shaken, handshakes=self._service.handshakes)
        normal = self._judgement.normal_pps
        most = 0.0 if normal is None else normal[1] * window.seconds  # the first window may be all there is
        if self._judgement.attacks or window.counters.arrived_packets > most:  # before an attack has a name
            window = replace(window, tracked=self._tracked.poll(window.arrived))
        if self._connections is not None:
            window = replace(window, sockets=self._connections.poll())
        judgement, tables = self._judged(window)
        self._sightings.tell(judgement.harmful)
        self._sightings.tell_clients(self._baseline.clients)
        losses = self._lost(window, judgement)
        bots, known = self._losses.lately(_CLIENT_SECONDS)
        if service is not None and bots:
            service = replace(service, bots=True, known_per_s=known)
        surroundings = self._survey.last
        listeners = with_rates(surroundings.listeners, window)
        attackers, rules = self._advisor.attackers, self.rules.effective
        self.latest = Observed(window, self._baseline, self._known(), rules, attackers)
        snapshot = Snapshot(
            host=self._host,
            origin=self._origin,
            started=window.started,
            seconds=window.seconds,
            tables=tables,
            judgement=judgement,
            conntrack=window.counters.conntrack,
            mitigations=self._counted.with_hits(self.rules.rated(window.seconds, tables.ledger)),
            guardian=f"lost: {self._link.lost}" if self._link.lost else "ready",
            softirq_share=window.counters.softirq_share,
            cores=window.counters.cores,
            tcp=service,
            losses=losses,
            notes=(
                *_told(judgement),
                *_copied(judgement, surroundings),
                *self._notes,
                *self._source.notes,
                *self._guardian_notes(),
            ),
            surroundings=replace(surroundings, listeners=listeners),
        )
        self._sightings.tell_summary(snapshot, self._previews.preview)
        return snapshot

    def _lost(self, window: Window, judgement: Judgement) -> tuple[ClientLoss, ...]:
        """Return what clients lost to rules; a trial that harms them ends, unless a policy tries its own."""
        losses = self._losses.take(window, self._advisor.baseline, judgement, self.rules.statuses)
        harmful = {loss.rule: loss for loss in losses if loss.is_harm and loss.rule not in self._ended}
        if self._undo is None:
            return losses
        for status in self.rules.statuses:
            if status.rule.id in harmful and status.state is State.PROVISIONAL and _may_end(status.rule):
                self._ended.add(status.rule.id)
                with suppress(FwtopError):  # its time is short anyway
                    self._undo(status.rule.id, f"it did harm, {harmful[status.rule.id].words}")
        return losses

    def forget_window(self) -> None:
        """Let go of the last tick's packets, 10 MiB in a flood, if nobody asks before the next."""
        self.latest = self._advisor.judged = None

    def mark(self, sources: Sources) -> Sources:
        """Tell who the sources are and which rules cover them; safe in any thread."""
        return self._advisor.standing.mark(self.rules.mark(sources))

    def run(
        self, stop: threading.Event, tick_seconds: float, on_snapshot: Callable[[Snapshot], None]
    ) -> None:
        """Tick until `stop` is set; an overlong tick delays the next one, ticks never pile up."""
        due = time.monotonic()
        freed = FreedMemory()
        while not stop.is_set():
            self._wanted = math.inf
            on_snapshot(self._tick_or_last())
            freed.give_back()
            waited = 0.0
            # A key press or a change in traffic may restore the normal rate meanwhile.
            while waited < self._refresh.tick_seconds(tick_seconds) and not stop.is_set():
                step = self._refresh.check_seconds(tick_seconds)
                due = max(due + step, time.monotonic())
                if self._waited(due, stop):
                    due = time.monotonic()
                    break
                waited += step
                if self._source.traffic_changed() and self._refresh.tick_early(tick_seconds):
                    break

    def _waited(self, until: float, stop: threading.Event) -> bool:
        """Wait; return whether another thread, or a policy, wants a tick before then."""
        while (left := min(until, self._wanted) - time.monotonic()) > 0:
            if stop.wait(min(left, _NOTICE_SECONDS)):
                break
        return self._wanted <= until

    def _tick_or_last(self) -> Snapshot:
        """Return a snapshot; the last one, marked, if none can be made: the watch goes on."""
        try:
            self._last, self._missed = self.tick(), 0
        except (FwtopError, MemoryError):
            raise
        except Exception as failure:
            self._missed += 1
            if self._last is None or self._missed > _MOST_MISSED:
                raise
            judgement = not_judged(self._last.judgement, failure, "observing")
            self._last = replace(
                self._last,
                started=time.time() - self._last.seconds,
                judgement=judgement,
                mitigations=self.rules.statuses,
                notes=(*_told(judgement), *self._notes, *self._guardian_notes()),
            )
        return self._last

    def _judged(self, window: Window) -> tuple[Judgement, Tables]:
        """Return judgement and tables; without what fails, for counters and rules have to be shown."""
        try:
            tables = self._engine.tables(self._advisor.standing.clients(_CLIENTS))
        except Exception as failure:
            return not_judged(self._judgement, failure, "counting"), _totals_only(window)
        judgement = self._judge(window, tables)
        try:
            tables = replace(tables, sources=self.mark(tables.sources))
        except Exception as failure:
            judgement = not_judged(judgement, failure)
        return judgement, tables

    def _known(self) -> KnownPeers:
        return replace(self.rules.known, asked=asked_of(self._survey.last.asks))

    def _judge(self, window: Window, tables: Tables) -> Judgement:
        is_due = self._refresh.judge_now(tables.totals.pps, self._mix(tables), _ends(tables))
        if is_due or self._judgement.not_judged:
            try:
                self._advisor.known = self._known()
                self._judgement = self._advisor.judge(window, tables, self.rules.effective)
                self._judged_pps = tables.totals.pps
                self._baseline = self._advisor.baseline.copy()
            except Exception as failure:
                self._judgement = not_judged(self._judgement, failure)
        else:
            self._advisor.watch(window)
        attacks = frozenset(attack.kind for attack in self._judgement.attacks)
        rules = tuple((status.rule.id, status.state) for status in self.rules.statuses)
        served = _order(len(window.sockets.connections)) if window.sockets is not None else 0
        self._refresh.update(
            cpu_saturated=self._source.cpu_saturated,
            calm=not (attacks or self._judgement.not_judged)
            and not any(state in ACTIVE_STATES for _, state in rules),
            fingerprint=(attacks, rules, served),
        )
        return of_window(self._judgement, self._judged_pps, tables.totals.pps)

    def _mix(self, tables: Tables) -> dict[str, float]:
        """Return the shares of protocols and, in an attack, of ports: another may be of its protocol."""
        mix = {name: share.share for name, share in tables.protocols.items()}
        if self._judgement.attacks:
            mix |= {f"{row.protocol} {row.side} {row.port}": row.share.share for row in tables.ports}
        return mix

    def _guardian_notes(self) -> tuple[str, ...]:
        now = time.monotonic()
        self._late_notes |= dict.fromkeys(self._late(), now + _LATE_SECONDS)
        self._late_notes = {line: until for line, until in self._late_notes.items() if until > now}
        lost = [WITHOUT_GUARDIAN] if self._link.lost else []
        return (*self._late_notes, *lost, *([self.rules.problem] if self.rules.problem else []))


def _copied(judgement: Judgement, around: Surroundings) -> list[str]:
    """Say during an attack who has every packet copied, which slows this machine's path."""
    return [
        f"{item.process} (process {item.pid}) has every packet copied by a packet socket, which slows this "
        "machine: end it unless it is needed"
        for item in around.copying[: int(bool(judgement.harmful))]
    ]


def _told(judgement: Judgement) -> tuple[str, ...]:
    return (judgement.not_judged,) if judgement.not_judged else ()


def _may_end(rule: Rule) -> bool:
    """Whether a trial that harms ends here: automatic rules and policies have a policy of their own."""
    return maker(rule) != AUTOMATIC and not owner_elsewhere(rule)


def _totals_only(window: Window) -> Tables:
    counters = window.counters
    per_second = 1.0 / counters.seconds if counters.seconds > 0 else 1.0
    packets, size = counters.arrived_packets, counters.arrived_bytes
    totals = Totals(packets, size, packets * per_second, size * 8 * per_second, 0, 0)
    return Tables(totals, Sampling(counters.one_in, 0, counters.records_lost, counters.watched))


def _order(connections: int) -> int:
    """Return a number that changes when many connections were opened or closed."""
    return connections.bit_length() if connections >= _SOME_CONNECTIONS else 0


def _ends(tables: Tables) -> dict[str, float]:
    """Return the share of all packets that ended at each rule and layer."""
    ends: dict[str, float] = {}
    for row in tables.ledger:
        place = f"{row.layer} {row.rule}"
        ends[place] = ends.get(place, 0.0) + row.pps / max(tables.totals.pps, 1.0)
    return ends
