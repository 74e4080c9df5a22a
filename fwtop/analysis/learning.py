"""Guarded learning: which traffic becomes part of what is normal, how fast, and what the operator says of it.

Quiet packets are learned three seconds late, for they may be the onset of an attack. What is far above normal
waits until it has outlasted what attacks last. A class's normal rate at most doubles in that time.
Who uses the services that make a class wait becomes no client meanwhile; clients of other services do.
"""

from __future__ import annotations

import math
import queue
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future

import numpy as np
from msgspec import Struct
from msgspec.structs import fields, replace

from fwtop.analysis.clients import Clients
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.connections import ConnectionMemory, Held, Learned
from fwtop.analysis.context import AnalysisContext, Finding
from fwtop.analysis.habits import Reading
from fwtop.analysis.memory import CLASSES, MEMORY_SECONDS, READY_SECONDS, Baseline, classes, rates_of
from fwtop.analysis.quarantine import Quarantine, swollen_services
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.traffic import TCP, Rows, from_hosts, mix
from fwtop.analysis.young import Moments, with_alike
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.packets import F64, U8, U32, U64, Mask, PacketBatch, Window
from fwtop.model.traffic.protocols import NAMES
from fwtop.model.traffic.snapshot import Incident
from fwtop.render.numbers import utc

_LEARN_SECONDS = 6.0  # quiet time whose packets are learned together: that copies the whole reservoir
_REMEMBERED = 30  # earlier states of the rates, to go back to
_REMEMBER_SECONDS = 60.0  # between two of them
_FORGET_SECONDS = 300.0  # that the operator's word takes back where no attack is named
_ANSWER_SECONDS = 10.0  # a judgement is due every two seconds even if all is calm
ATTACK, NORMAL, BACK = "attack", "normal", "back"  # what the operator can say


class _Tick(Struct):
    """What a quiet tick would teach, on hold: it may contain the onset of an attack."""

    end: float
    last_ns: int  # of its packets
    seconds: float
    rates: F64  # packets per second by traffic class
    above: Mask  # classes in quarantine, whose packets it doesn't have
    held: U32  # services in quarantine, the same
    packets: PacketBatch  # as many as the baseline would take of them
    seen: Reading  # what services got in its window
    clients: U64  # their keys
    swollen: dict[str, list[int]]  # the services that put each class in quarantine


class _Point(Struct):
    """The rates at one time."""

    end: float
    last_ns: int
    was: Baseline  # without packets and clients


class _State(Struct):
    """All that the operator's word changes, as it was before."""

    at: float
    baseline: Baseline
    young: Moments
    quarantine: Quarantine
    connections: Learned


class _Word(Struct):
    """What the operator said, and who waits for the answer."""

    said: str
    attack: object  # its key, None: none in particular
    answer: Future[str]


class Learner:
    """Teaches a baseline what is normal, from consecutive windows."""

    def __init__(self, baseline: Baseline, config: AdviseConfig) -> None:
        self.baseline = baseline
        self.config = config
        self.told = ""  # the last thing worth a line of the log
        self._floor = config.flood_pps / config.baseline_factor  # lower rates raise no threshold of a flood
        self._pending: list[_Tick] = []
        self._settled: list[_Tick] = []  # quiet ones whose packets the baseline takes together
        self._young = Moments()
        self._quarantine = Quarantine(config)
        self._raised: float | None = None  # when the ceilings were set
        self._kept_ns = -1  # of the last packet that was learned
        self._points: deque[_Point] = deque(maxlen=_REMEMBERED)
        self._before: _State | None = None  # the operator's last word
        self._words: queue.SimpleQueue[_Word] = queue.SimpleQueue()
        self._last_ns = -1
        self._last_end = 0.0

    # -- the operator's word

    def hear(self, said: str, attack: object = None) -> str:
        """Have the judging thread do what the operator says, with its next window; return what it did."""
        word = _Word(said, attack, Future())
        self._words.put(word)
        try:
            return word.answer.result(_ANSWER_SECONDS)
        except TimeoutError:
            word.answer.cancel()
            raise FwtopError("nothing was judged meanwhile, so nothing was changed: try again") from None

    def obey(self, context: AnalysisContext, named: Sequence[tuple[Incident, Finding]]) -> set[int]:
        """Do what was said; `named` are the attacks of this window. Return the ids of those that are none."""
        normal: set[int] = set()
        while not self._words.empty():
            word = self._words.get()
            if not word.answer.set_running_or_notify_cancel():
                continue
            try:
                self.told = self._obey(word, context, named)
            except Exception as failure:
                word.answer.set_exception(failure)
            else:
                if word.said == NORMAL:
                    normal |= {one.id for one, _ in named if word.attack in (None, one.id)}
                word.answer.set_result(self.told)
        return normal

    def _obey(self, word: _Word, context: AnalysisContext, named: Sequence[tuple[Incident, Finding]]) -> str:
        traffic = context.traffic
        now = traffic.started + traffic.seconds
        connections = context.memory.connections
        if word.said == BACK:
            return self._take_back(now, connections)
        chosen = [one for one in named if word.attack in (None, one[0].id)]
        kinds = classes(traffic.packets)
        rows = np.unique(np.concatenate([np.zeros(0, np.intp), *(finding.rows for _, finding in chosen)]))
        quarantine, learned = self._quarantine.copy(), connections.learned
        before = _State(now, self.baseline.copy(), replace(self._young), quarantine, learned)
        if word.said == ATTACK:
            since = min((attack.since for attack, _ in chosen), default=now - _FORGET_SECONDS)
            connections.forget(since)
            told = self._forget(
                since, now, rates_of(kinds, traffic.weight, traffic.seconds), _names(kinds[rows])
            )
        else:
            if word.attack is None and len(chosen) > 1:
                raise FwtopError("there are several attacks: select the one that is normal")
            held = [finding.held for _, finding in chosen if finding.held is not None]
            if chosen and not len(rows) and not held:
                raise FwtopError("this attack has no packets of its own that could be learned")
            if held:
                connections.accept(held, self.config.learn_factor)
            told = self._accept(context, kinds, rows, now, held)
        self._before = before
        return told

    def _forget(self, since: float, now: float, rates: F64, named: Collection[str]) -> str:
        """Go back to what was normal before a time; what exceeds that now isn't learned while it lasts."""
        self._pending.clear()
        self._settled.clear()
        self._quarantine.waiting.clear()
        baseline = self.baseline
        if self._points:
            earlier = [point for point in self._points if point.end <= since]
            point = earlier[-1] if earlier else self._points[0]
            self._points = deque(earlier, _REMEMBERED)
            was = point.was.copy()
            baseline.seconds, baseline.mean, baseline.square = was.seconds, was.mean, was.square
            baseline.ceiling, baseline.habits = was.ceiling, was.habits
            baseline.rows = baseline.rows.select(baseline.rows.time_ns <= point.last_ns)
            baseline.clients = baseline.clients.select(baseline.clients.first <= since)
            self._young = self._young.before(point.last_ns)
        usual = {name: math.inf if (rate := baseline.rate(name)) is None else rate for name in CLASSES}
        barred = dict.fromkeys([*named, *(name for name, pps in _by_class(rates) if pps > usual[name])])
        self._quarantine.bar(barred, now)
        kept_out = f"; {_listed(barred)} above that is not learned while it lasts" if barred else ""
        return f"attack: what was learned since {utc(since)} is forgotten{kept_out}"

    def _accept(
        self, context: AnalysisContext, kinds: U8, rows: Rows, now: float, held: Sequence[Held]
    ) -> str:
        """Learn the packets of an attack and of what waits, at their present rates.

        Connections that are `held` have perhaps sent no packet lately.
        """
        baseline, traffic = self.baseline, context.traffic
        names = _names(kinds[rows]) | set(self._quarantine.waiting)
        ports = [f"{one.number:,} connections held to port {one.port}" for one in held]
        if not names and ports:
            return f"normal: {', '.join(ports)} from {utc(now)} on"
        if not names:
            raise FwtopError("no attack is named and nothing waits: what is there is being learned already")
        chosen = np.isin(kinds, [CLASSES.index(name) for name in self._quarantine.waiting])
        chosen[rows] = True
        usual, kept = sum(baseline.mean.values()), float(baseline.rows.weight.sum())
        if baseline.seconds < READY_SECONDS:
            names |= _names(kinds)
            baseline.seconds = READY_SECONDS
        rates = dict(_by_class(rates_of(kinds, traffic.weight, traffic.seconds)))
        for name in names:
            pps = max(rates[name], self._quarantine.admit(name))
            self._set(name, pps, self.config.learn_factor * max(pps, self._floor))
        self._young = Moments()
        new = replace(traffic.packets.select(chosen), weight=traffic.weight[chosen])
        if usual > 0 and kept > 0:  # as if it had been there all the time
            new.weight[:] *= kept / usual / traffic.seconds
        baseline.keep_rows(new)
        baseline.habits = baseline.habits.accepted(context.services, now, self.config.learn_factor)
        learned = {name: baseline.rate(name) for name in sorted(names)}
        return f"normal: {', '.join([_listed(learned), *ports])} from {utc(now)} on"

    def _take_back(self, now: float, connections: ConnectionMemory) -> str:
        before, self._before = self._before, None
        if before is None or now - before.at > self.config.quarantine_seconds:  # much was learned since
            raise FwtopError("there is nothing to take back: no word on what is normal was said lately")
        for item in fields(Baseline):
            setattr(self.baseline, item.name, getattr(before.baseline, item.name))
        self._young, self._quarantine = before.young, before.quarantine
        connections.restore(before.connections)
        self._pending.clear()
        self._settled.clear()
        return f"taken back at {utc(now)}: what is normal is again what was learned before"

    def sentence(self, baseline: str) -> str:
        """Add to a sentence on the baseline what is in quarantine."""
        whole = self.config.quarantine_seconds / 60
        waiting = self._quarantine.words()
        habits, doors = self.baseline.habits, self.baseline.doors
        for row in np.flatnonzero(np.isfinite(habits.since)).tolist():
            place = int(next(iter(doors.plain[doors.number == habits.number[row]]), habits.number[row]))
            time = f"for {(habits.seconds[row] - habits.since[row]) / 60:.0f} of {whole:.0f} min"
            waiting.append(f"{NAMES.get(place >> 16, 'port')}/{place & 0xFFFF} {time}")
        return f"{baseline}; not learned: {', '.join(waiting)}" if waiting else baseline

    # -- windows

    def take(self, context: AnalysisContext, window: Window, *, quiet: bool) -> None:
        """Learn quiet packets with a delay; during an attack only real connections of long-known clients.

        What the senders of attacks that are on or ended some minutes ago go on sending, such as RSTs of what
        they left open, is nobody's habit.
        """
        self.baseline.meet(window.services, window.started + window.seconds)
        if len(context.traffic) == 0:
            return
        packets = context.traffic.packets
        new = packets.time_ns > self._last_ns
        self._last_ns = max(self._last_ns, int(packets.time_ns.max()))
        clients = self.baseline.clients
        if context.attackers:  # what they sent before the attack was named has made clients of them
            theirs = (
                from_hosts(clients.family, clients.hi, clients.lo, context.attackers) & ~clients.long_known
            )
            clients = self.baseline.clients = clients.select(~theirs) if theirs.any() else clients
            theirs = from_hosts(packets.family, packets.src_hi, packets.src_lo, context.attackers)
            new &= ~theirs | among(mix(packets.src_hi, packets.src_lo), clients.source[clients.long_known])
        known = np.flatnonzero(new & context.unclaimed & context.proven)
        held = self._held(context) if quiet and window.live else np.zeros(0, np.uint32)
        before = self.baseline.clients
        met = before.met(context.traffic, known, self.baseline.doors, quiet=quiet, held=held)
        if not window.live:
            self.baseline.clients = met
            return
        # In calm, too, only once that has lasted: bots of an attack's onset are not known from earlier ones
        self.baseline.clients, in_calm = met.on_hold(before)
        end = window.started + window.seconds
        seconds = min(window.seconds, max(0.0, end - self._last_end))
        self._last_end = end
        if not quiet:
            self._pending.clear()
            if self._quarantine.waiting:
                rows = [np.zeros(0, np.intp), *(finding.rows for finding in context.findings)]
                self._quarantine.release(_names(classes(packets)[np.concatenate(rows)]), seconds)
            if self.baseline.ready:
                clients = self.baseline.clients
                known_long = among(mix(packets.src_hi, packets.src_lo), clients.source[clients.long_known])
                real = packets.select(new & context.tcp.real & context.unclaimed & known_long)
                self.baseline.renew(real, self.baseline.rows.protocol == TCP)
            return
        fresh = replace(packets.select(new), weight=context.traffic.weight[new])
        settle = self.config.settle_seconds
        while self._pending and self._pending[0].end <= end - settle:
            self._keep(self._pending.pop(0))
        if seconds > settle:  # one long window, as in `fwtop snapshot`: learn all but its end
            old = fresh.time_ns < self._last_ns - int(settle * 1e9)
            before_ns = self._last_ns - int(settle * 1e9)
            self._keep(
                self._tick(
                    fresh.select(old),
                    end - settle,
                    seconds - settle,
                    before_ns,
                    context.services,
                    clients=in_calm,
                )
            )
            fresh, seconds = fresh.select(~old), settle
        self._pending.append(
            self._tick(fresh, end, seconds, self._last_ns, context.services, clients=in_calm)
        )

    def _held(self, context: AnalysisContext) -> U32:
        """Return the services that get far more than usual themselves, or have put a class in quarantine."""
        held = np.array(sorted(self._quarantine.services()), np.uint32)
        if not len(self.baseline.habits):
            return held
        return np.union1d(held, self.baseline.habits.above(context.services)[0])

    def _tick(
        self, packets: PacketBatch, end: float, seconds: float, last_ns: int, seen: Reading, *, clients: U64
    ) -> _Tick:
        """Make a tick without what is far above normal: of services in quarantine the usual part counts."""
        kinds, weight = classes(packets), packets.weight
        services, part = self.baseline.habits.above(seen)
        number = self.baseline.doors.numbers(packets)
        held = among(number, services)
        if held.any():
            weight = weight.copy()
            weight[held] *= part[np.searchsorted(services, number[held])]
        rates = rates_of(kinds, weight, seconds)
        most = np.array([self._quarantine.most(name, self.baseline) for name in CLASSES])
        above = rates > most
        swollen = {
            CLASSES[kind]: swollen_services(
                self.baseline,
                kind,
                number[kinds == kind],
                weight[kinds == kind] / seconds,
                rates[kind] - most[kind],
            )
            for kind in np.flatnonzero(above).tolist()
        }
        if held.any() or above.any():
            packets = packets.select(~(held | with_alike(above)[kinds]))
        kept = self.baseline.bounded(packets)
        return _Tick(end, last_ns, seconds, rates, above, services, kept, seen, clients, swollen)

    def _keep(self, tick: _Tick) -> None:
        """Learn the rates of quiet packets at once, and the packets when there are some seconds of them."""
        baseline = self.baseline
        baseline.clients = baseline.clients.in_calm(tick.clients, tick.end)
        if not self._points or tick.end >= self._points[-1].end + _REMEMBER_SECONDS:
            was = replace(baseline.copy(), rows=PacketBatch.empty(), clients=Clients.of())
            self._points.append(_Point(tick.end - tick.seconds, self._kept_ns, was))
        self._kept_ns = tick.last_ns
        if self._raised is None and baseline.ceiling:  # an earlier session's
            self._raised = tick.end
        self._wait(tick)
        patience, factor = self.config.quarantine_seconds, self.config.learn_factor
        baseline.habits = baseline.habits.learned(tick.seen, tick.seconds, tick.end, patience, factor)
        if baseline.seconds < MEMORY_SECONDS:
            self._mature(tick)
        else:
            baseline.keep_rates(tick.rates, tick.seconds, tick.above)
            if self._raised is None or tick.end >= self._raised + self.config.quarantine_seconds:
                self._raise(tick.end)
        self._settled.append(tick)
        if not baseline.ready or sum(part.seconds for part in self._settled) >= _LEARN_SECONDS:
            self._keep_packets()

    def _keep_packets(self) -> None:
        """Learn the packets of settled ticks; beside what is in quarantine, the others keep their share."""
        baseline = self.baseline
        whole = [tick.packets for tick in self._settled if not tick.above.any() and not len(tick.held)]
        parts = [tick.packets for tick in self._settled if tick.above.any() or len(tick.held)]
        held = np.unique(np.concatenate([tick.held for tick in self._settled]))
        above = np.logical_or.reduce([tick.above for tick in self._settled])
        self._settled.clear()
        if whole:
            baseline.keep_rows(*whole)
        if parts:
            waits = with_alike(above)[classes(baseline.rows)]
            waits |= among(baseline.doors.numbers(baseline.rows), held)
            baseline.renew(PacketBatch.concat(parts), ~waits)
        self._young.drop_outliers(baseline)

    def _wait(self, tick: _Tick) -> None:
        """Put in quarantine what is above; learn a step towards what has outlasted it."""
        above = {CLASSES[kind]: float(tick.rates[kind]) for kind in np.flatnonzero(tick.above).tolist()}
        for name, one in self._quarantine.keep(tick.end, tick.seconds, above, tick.swollen, self._usual):
            usual = self._usual(name)
            step = min(one.pps, usual * self.config.learn_factor)
            self._set(name, step, step)
            self.told = (
                f"{name} of {one.pps:,.0f}/s outlasted {self.config.quarantine_seconds / 60:.0f} minutes "
                f"at {utc(tick.end)}: normal is {self.baseline.rate(name):,.0f}/s, before {usual:,.0f}/s"
            )

    def _usual(self, name: str) -> float:
        """Return a class's normal rate, at least what matters to anybody."""
        return max(self.baseline.rate(name) or 0.0, self._floor)

    def _set(self, name: str, pps: float, ceiling: float) -> None:
        self.baseline.mean[name], self.baseline.square[name] = pps, pps * pps
        self.baseline.ceiling[name] = ceiling

    def _mature(self, tick: _Tick) -> None:
        """Learn from the moments of a short baseline that most others agree with."""
        baseline, config = self.baseline, self.config
        if not len(self._young.rates) and baseline.seconds > 0:
            self._young = Moments.of(baseline)
        usual = np.array([baseline.mean.get(name, 0.0) for name in CLASSES])
        self._young.add(np.where(tick.above, usual, tick.rates), tick.seconds, tick.last_ns)
        mean, square = self._young.agreed(config.baseline_factor, self._floor)
        baseline.mean, baseline.square = dict(_by_class(mean)), dict(_by_class(square))
        baseline.seconds += tick.seconds
        if baseline.seconds >= MEMORY_SECONDS:
            self._raise(tick.end)

    def _raise(self, end: float) -> None:
        """Set the ceilings by what is normal now; a short baseline sets none."""
        self._raised, self._young = end, Moments()
        factor, baseline = self.config.learn_factor, self.baseline
        for name in CLASSES:
            if name not in self._quarantine.waiting:
                baseline.ceiling[name] = factor * self._usual(name)


def _by_class(rates: F64) -> list[tuple[str, float]]:
    return list(zip(CLASSES, rates.tolist(), strict=True))


def _names(kinds: U8) -> set[str]:
    return {CLASSES[number] for number in np.unique(kinds).tolist()}


def _listed(rates: Mapping[str, float | None]) -> str:
    return ", ".join(name if pps is None else f"{name} {pps:,.0f}/s" for name, pps in rates.items())
