"""Which rules cost clients what they got before: counts before a rule against those since, beyond chance.

Handshakes are counted by the kernel, and forged packets make none. But bots may: in an attack that completes
handshakes only those of clients count that were known long before, by the packets that get past every
firewall. A rule by contents passes the handshake and drops what follows, so the data of those are counted,
too, in whose name the rule drops packets. Over UDP nobody is known by a handshake, and forged packets pass
until a rule is in: what senders of calm times get through is compared with calm.

Each count goes with the seconds in which it was counted: where the console waits for its turn, the kernel's
counters are read some time after the packets, and what was not looked at is no silence.

Whoever is counted, before and since are of one kind, and of one state: what the attack itself had taken from
clients by then is not the rule's doing. Counts of few clients say nothing, and what comes in
bursts says less: a loss is told where the counts, as spread as they are, leave no doubt (rates.py). What a
sum hides, since busy clients get on, shows in who falls silent of those in whose name the rule drops.

Counts are as rare as their spread from interval to interval says: bursts, and packets that stand for others
that were not sampled, count for less.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import dropwhile

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from fwtop.analysis.clients import client_key
from fwtop.analysis.memory import Baseline
from fwtop.analysis.proposals.matching import match_rows
from fwtop.analysis.window.counting import among, distinct_values
from fwtop.analysis.window.tcp_view import ACK, SYN
from fwtop.analysis.window.traffic import TCP, UDP, Rows, mix
from fwtop.model.harm import ClientLoss
from fwtop.model.rule import ACTIVE_STATES, Match, Rule, RuleStatus
from fwtop.model.traffic.packets import U32, U64, Mask, PacketBatch, Window
from fwtop.model.traffic.protocols import NAMES
from fwtop.model.traffic.snapshot import Judgement
from fwtop.rules.kinds import of
from fwtop.stats.ledger import number_of
from fwtop.stats.services import plain_numbers

_SURE = 4.0  # standard deviations
_CHANCE = 1 / 30_000  # as rare as these
_HALF = 0.5  # of the usual: who gets less has fallen silent
_SMALL = 0.05  # a chance that tells something
_TESTED = 64  # clients

Counts = list[tuple[float, float]]  # (seconds, count) of each interval


def rate(counts: Counts) -> float:
    """Return the mean a second."""
    return sum(count for _, count in counts) / max(_seconds(counts), 1e-9)


def surely_lost(before: Counts, since: Counts) -> float:
    """Return the least share of a rate that is lost, 0 to 1, unless chance deceives in one of 30,000 tests.

    A variance-stabilised test of two Poisson rates: Gu, Ng, Tang, Schucany, Biometrical Journal 50, 2008.
    """
    time, span = _seconds(before), _seconds(since)
    if rate(before) <= 0 or span <= 0:
        return 0.0
    scale = _spread(before)
    had, have = (sum(count for _, count in part) / scale + 0.375 for part in (before, since))
    square = _SURE**2
    if 4 * had <= square:
        return 0.0
    inside = 64 * had * have - 4 * (4 * had - square) * (4 * have - square)
    root = (8 * math.sqrt(had * have) + math.sqrt(max(inside, 0.0))) / (2 * (4 * had - square))
    return max(1.0 - root**2 * time / span, 0.0)


def silent(usual: Mapping[int, Counts], since: Mapping[int, Counts]) -> tuple[int, ...]:
    """Return the clients that get less than half of the usual; nobody if chance may explain their silence.

    One client's counts are few, and chance could explain each alone, but not all of them together.
    """
    tested = sorted(usual)[:_TESTED]
    if not tested or _combined([_chance(usual[who], since[who]) for who in tested]) > _CHANCE:
        return ()
    return tuple(who for who in tested if rate(since[who]) < _HALF * rate(usual[who]))


def _combined(chances: Sequence[float]) -> float:
    """Return how likely it is that the small ones among so many independent tests are as small as these.

    The truncated product of Zaykin, Zhivotovsky, Westfall and Weir, Genetic Epidemiology 22 (2002): clients
    that get on tell nothing of others that don't.
    """
    small = [one for one in chances if one <= _SMALL]
    count, product = len(chances), math.fsum(map(math.log, small))
    found = 0.0
    for k in range(1, count + 1):
        over = k * math.log(_SMALL) - product
        least = 1.0 if over <= 0 else math.exp(-over) * sum(over**s / math.factorial(s) for s in range(k))
        found += math.comb(count, k) * (1 - _SMALL) ** (count - k) * _SMALL**k * least
    return found if small else 1.0


def _chance(usual: Counts, since: Counts) -> float:
    """Return how likely it is that somebody so usual gets no more than this."""
    scale = _spread(usual)
    expected = rate(usual) * _seconds(since) / scale
    got = int(sum(count for _, count in since) / scale)
    if got >= expected:
        return 1.0
    logs = (k * math.log(expected) - expected - math.lgamma(k + 1) for k in range(got + 1))
    return max(min(sum(map(math.exp, logs)), 1.0), 1e-9)


def _spread(counts: Counts) -> float:
    """Return by how much intervals vary more than those of a Poisson process, at least 1."""
    mean = rate(counts)
    if mean <= 0:
        return 1.0
    varied = sum((count - mean * seconds) ** 2 / (mean * seconds) for seconds, count in counts if seconds)
    return max(varied / max(len(counts) - 1, 1), 1.0)


def _seconds(counts: Counts) -> float:
    return sum(seconds for seconds, _ in counts)


_BEFORE_SECONDS = 60.0
_NOW_SECONDS = 15.0  # of which the rate since a rule is
_WATCHED_SECONDS = 60.0  # after it went in, a loss that begins is no longer its doing
_CALM_SECONDS = 5.0  # are needed to know what clients get in calm
_NAMED_SECONDS = 2.0  # before an attack is named, its bots make handshakes already
_RULES = 32  # are compared, the newest; each costs a quarter of a millisecond
_LEAST = 0.05  # less is not worth telling
_SERVICE = np.uint64((1 << 24) - 1)
_MOST = 0.5  # of the handshakes are of the services that a rule touches: a loss of all is theirs


class Calls(Struct, frozen=True):
    """What was begun in one interval; the others by service, as far as they got past every firewall."""

    at: float
    seconds: float  # in which packets were seen
    handshakes: tuple[float, float]  # in so many seconds
    known: dict[int, float]  # begun by clients who are long known
    sent: dict[int, float]  # by sender at a service: their TCP packets with data, others' datagrams
    bots: bool  # an attack completes handshakes, too
    calm: bool
    forged: (
        bool  # an attack forges datagrams: no client is known by them, and `known` has no service over UDP
    )


Count = Callable[[Calls], tuple[float, float]]  # (seconds, count)


class _Watched(Struct):
    since: float
    before: list[Calls]
    harms: bool = False


class LossWatch:
    """Remembers a minute of counts, and those from before each new rule."""

    def __init__(self) -> None:
        self._past: deque[Calls] = deque()
        self._calm: deque[Calls] = deque(maxlen=120)
        self._rules: dict[str, _Watched] = {}
        self._last_at: float | None = None
        self._shaken: tuple[float, int] | None = None  # when, and the handshakes since boot
        self._last_ns = 0
        self._senders: tuple[PacketBatch, U64] = PacketBatch.empty(), np.zeros(0, np.uint64)

    def take(
        self, window: Window, learned: Baseline, judgement: Judgement, statuses: Iterable[RuleStatus]
    ) -> tuple[ClientLoss, ...]:
        """Return what clients have surely lost to each rule that is in."""
        now = window.started + window.seconds
        active = [one for one in statuses if one.state in ACTIVE_STATES and not one.rule.counts_only]
        active = sorted(active, key=lambda one: -one.rule.created)[:_RULES]
        calls = self._calls(window, learned, judgement, now)
        before = {status.rule.id: _Watched(now, self._before(judgement)) for status in active}
        self._rules = {name: self._rules.get(name, new) for name, new in before.items()}
        if calls.seconds:  # else it is the first: whatever is in by then can't be compared
            self._past.append(calls)
        while self._past and self._past[0].at <= now - _BEFORE_SECONDS:
            self._past.popleft()
        began = min((one.since for one in judgement.harmful), default=math.inf) - _NAMED_SECONDS
        while self._calm and self._calm[-1].at > began:
            self._calm.pop()
        if calls.calm and calls.seconds and not active:
            self._calm.append(calls)
        cut = self._cut(window, learned, [one.rule for one in active])
        found = (self._loss(one.rule, self._rules[one.rule.id], now, cut[one.rule.id]) for one in active)
        return tuple(loss for loss in found if loss is not None)

    def lately(self, seconds: float) -> tuple[bool, float | None]:
        """Return whether bots completed handshakes, and how many the long known did a second.

        None: none of them was seen.
        """
        recent = [one for one in self._past if one.at > self._past[-1].at - seconds]
        whole = sum(count for one in recent for door, count in one.known.items() if door >> 16 == TCP)
        known = any(one.known for one in self._past)
        rate = whole / max(sum(one.seconds for one in recent), 1e-9) if known else None
        return any(one.bots for one in recent), rate

    def _calls(self, window: Window, learned: Baseline, judgement: Judgement, now: float) -> Calls:
        packets, clients = window.accepted, learned.clients.key[learned.clients.long_known]
        new = packets.time_ns > self._last_ns
        self._last_ns = max(self._last_ns, int(packets.time_ns.max(initial=0)))
        rows = np.flatnonzero(new & ((packets.protocol == TCP) | (packets.protocol == UDP)))
        source = mix(packets.src_hi[rows], packets.src_lo[rows])
        met = rows[(packets.protocol[rows] == UDP) & among(source, self._met(learned))]
        rows = rows[among(client_key(source, learned.doors.numbers(packets, rows)), clients)]
        opens = (packets.protocol[rows] == TCP) & (packets.tcp_flags[rows] & (SYN | ACK) == SYN)
        forged = any(one.spoofed and one.match and one.match.protocol == UDP for one in judgement.on)
        if not forged:
            opens |= packets.protocol[rows] == UDP
        data = (packets.protocol[rows] == TCP) & (packets.payload_length[rows] > 0) & ~opens
        known = _sums(_service_of(packets, rows[opens]), packets, rows[opens])
        sending = np.concatenate([rows[data], met])
        sent = _sums(_sender_of(packets, sending), packets, sending)
        before, self._last_at = now if self._last_at is None else self._last_at, now
        seconds = max(min(now - before, window.seconds), 0.0)  # a tick may be longer than the window
        bots = any(one.completes for one in judgement.on)
        calm = not (judgement.harmful or judgement.not_judged)
        return Calls(now, seconds, self._handshakes(window), known, sent, bots, calm, forged)

    def _handshakes(self, window: Window) -> tuple[float, float]:
        """Return in how many seconds since the last reading so many were completed."""
        before, self._shaken = self._shaken, window.handshakes
        if before is None or self._shaken is None:
            return 0.0, 0.0
        return self._shaken[0] - before[0], float(max(self._shaken[1] - before[1], 0))

    def _met(self, learned: Baseline) -> U64:
        """Return who sent datagrams in calm times, as far as the baseline has drawn them."""
        if self._senders[0] is not learned.rows:
            rows = learned.rows.select(np.flatnonzero(learned.rows.protocol == UDP))
            self._senders = learned.rows, distinct_values(mix(rows.src_hi, rows.src_lo))
        return self._senders[1]

    def _cut(self, window: Window, learned: Baseline, active: Iterable[Rule]) -> dict[str, set[int]]:
        """Return the senders in whose name each rule dropped packets.

        That is long-known clients over TCP, and senders of calm times over UDP. Samples of netfilter's drops
        name no rule and have no payload: they are of any rule that fits otherwise.
        """
        found: dict[str, set[int]] = {one.id: set() for one in active}
        codes = [drop.code for drop in window.counters.drops if drop.layer == "netfilter" and drop.code]
        clients = learned.clients.key[learned.clients.long_known]
        for packets in (window.arrived, window.dropped) if found else ():
            rows = np.flatnonzero((packets.rule > 0) | np.isin(packets.reason, codes))
            source = mix(packets.src_hi[rows], packets.src_lo[rows])
            met = (packets.protocol[rows] == UDP) & among(source, self._met(learned))
            known = among(client_key(source, learned.doors.numbers(packets, rows)), clients)
            rows = rows[met | (known & (packets.protocol[rows] == TCP))]
            theirs, senders = packets.select(rows), _sender_of(packets, rows)
            for rule in active:
                fits = np.any([_fits(one.match, theirs) for one in rule.parts or (rule,)], axis=0)
                mine = (theirs.rule == number_of(rule.id)) | ((theirs.rule == 0) & fits)
                found[rule.id].update(senders[mine].tolist())
        return found

    def _before(self, judgement: Judgement) -> list[Calls]:
        """Return what was counted so far in this attack, or in calm."""
        since = min((one.since for one in judgement.harmful if one.is_on), default=0.0)
        found = [one for one in self._past if one.at - one.seconds >= since]
        return found or list(self._past)  # it has only begun

    def _loss(self, rule: Rule, watched: _Watched, now: float, cut: AbstractSet[int]) -> ClientLoss | None:
        if not watched.before or (now - watched.since > _WATCHED_SECONDS and not watched.harms):
            return None
        since = [one for one in self._past if one.at > max(watched.since, now - _NOW_SECONDS)]
        bots = any(one.bots for one in (*watched.before, *self._past))  # whenever they were, they linger
        forged = any(one.forged for one in since)  # by another attack than the rule's, perhaps
        seen = {n for one in watched.before for n in one.known if not (forged and n >> 16 == UDP)}
        doors = [number for number in seen if _touches(rule, number)]

        def begun(one: Calls) -> tuple[float, float]:
            return one.seconds, sum(one.known.get(door, 0.0) for door in doors)

        def by(protocol: int) -> Count:
            senders = [who for who in cut if _service(who) >> 16 == protocol]
            return lambda one: (one.seconds, sum(one.sent.get(who, 0.0) for who in senders))

        ways: list[tuple[Sequence[Calls], Sequence[Calls], Count]] = []
        if not any(of(kind).answers for kind in rule.kinds):  # it would answer what is counted here
            ways += [(watched.before, _from_first(self._calm, count), count) for count in (begun, by(TCP))]
        if not bots and self._are_theirs(rule, watched.before, doors):
            ways.append((watched.before, self._calm, lambda one: one.handshakes))
        if sum(one.seconds for one in self._calm) >= _CALM_SECONDS:
            ways.append((self._calm, (), by(UDP)))
        losses = [_compared(before, since, usual, count) for before, usual, count in ways]
        before, after, sure = max(losses, key=lambda loss: loss[2], default=(0.0, 0.0, 0.0))
        doors = doors or sorted({_service(who) for who in cut})
        match = rule.match
        port = match.dport if match.dport is not None else doors[0] & 0xFFFF if len(doors) == 1 else None
        protocol = NAMES.get(match.protocol or (doors[0] >> 16 if doors else TCP), "")
        loss = ClientLoss(rule.id, "" if port is None else f"{port}/{protocol}", before, after, sure)
        if not loss.is_harm and not any(of(kind).answers for kind in rule.kinds):
            loss = self._of_single(loss, watched, since, cut)
        watched.harms = loss.is_harm
        return loss if loss.sure >= _LEAST else None

    def _of_single(
        self, loss: ClientLoss, watched: _Watched, since: Sequence[Calls], cut: AbstractSet[int]
    ) -> ClientLoss:
        """Return the loss of those that fell silent, if single clients surely did: a sum may hide it."""
        cut = {who for who in cut if _service(who) >> 16 == TCP}
        if sum(one.seconds for one in self._calm) < _CALM_SECONDS or not since or not cut:
            return loss

        def of_each(calls: Sequence[Calls]) -> dict[int, Counts]:
            return {who: [(one.seconds, one.sent.get(who, 0.0)) for one in calls] for who in cut}

        usual, now = of_each(self._calm), of_each(since)
        if sum(one.seconds for one in watched.before) >= _CALM_SECONDS:
            before = of_each(watched.before)
            usual = {who: min(usual[who], before[who], key=rate) for who in cut}
        lost = silent(usual, now)
        services = {_service(who) for who in cut}
        clients = cut.union(who for one in since for who in one.sent if _service(who) in services)
        share = len(lost) / len(clients)
        if share <= loss.sure:
            return loss
        had, have = (sum(rate(counts[who]) for who in lost) for counts in (usual, now))
        return ClientLoss(loss.rule, loss.service, had, have, share, len(lost), len(clients))

    @staticmethod
    def _are_theirs(rule: Rule, before: Sequence[Calls], doors: Iterable[int]) -> bool:
        """Whether a loss of handshakes is one of the services that a rule touches."""
        if rule.match.protocol not in (None, TCP):
            return False
        whole = sum(weight for one in before for door, weight in one.known.items() if door >> 16 == TCP)
        theirs = sum(one.known.get(door, 0.0) for one in before for door in doors if door >> 16 == TCP)
        return theirs >= _MOST * whole


def _from_first(calm: Iterable[Calls], count: Count) -> Sequence[Calls]:
    """Return the intervals of calm since the first client was long known.

    What is usual there counts even beside bots, of which some may be behind the address of a client.
    """
    return [*dropwhile(lambda one: not count(one)[1], calm)]


def _compared(
    before: Sequence[Calls], since: Sequence[Calls], calm: Sequence[Calls], count: Count
) -> tuple[float, float, float]:
    """Return both rates and what is surely lost; of calm, if less was usual then."""
    was, now, usual = ([count(one) for one in part] for part in (before, since, calm))
    if sum(seconds for seconds, _ in usual) >= _CALM_SECONDS and rate(usual) < rate(was):
        was = usual
    return rate(was), rate(now), surely_lost(was, now)


def _fits(match: Match, packets: PacketBatch) -> Mask:
    """Mark the packets that a rule may have dropped, as far as their headers tell."""
    fits = match_rows(replace(match, payload=()), packets)
    return fits & (packets.payload_length > 0) if match.payload else fits


def _service_of(packets: PacketBatch, rows: Rows) -> U32:
    return plain_numbers(packets.protocol[rows], packets.dport[rows])


def _sender_of(packets: PacketBatch, rows: Rows) -> U64:
    """Return a hash of each sender at a service, whose lowest 24 bits are the service."""
    service = _service_of(packets, rows)
    return client_key(mix(packets.src_hi[rows], packets.src_lo[rows]), service) & ~_SERVICE | service


def _service(sender: int) -> int:
    return sender & int(_SERVICE)


def _sums(keys: U32 | U64, packets: PacketBatch, rows: Rows) -> dict[int, float]:
    found = dict.fromkeys(keys.tolist(), 0.0)
    for key, weight in zip(keys.tolist(), packets.weight[rows].tolist(), strict=True):
        found[key] += weight
    return found


def _touches(rule: Rule, number: int) -> bool:
    def fits(match: Match) -> bool:
        return match.protocol in (None, number >> 16) and match.dport in (None, number & 0xFFFF)

    return any(fits(one.match) for one in rule.parts or (rule,))
