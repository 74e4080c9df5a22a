"""Stored sessions, where a window's packets went, and traffic over days: from the store to reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from fwtop.model.rule import Rule
from fwtop.model.traffic.counters import FIREWALLS, DropCount, lacks_room
from fwtop.model.traffic.snapshot import LedgerRow, PartTraffic, Snapshot


class EventKind(StrEnum):
    """The kind of an event between two snapshots."""

    ATTACK_BEGAN = "attack_began"
    ATTACK_CHANGED = "attack_changed"  # another vector joined or took over
    ATTACK_ENDED = "attack_ended"
    RULE_PROPOSED = "rule_proposed"
    RULE_APPLIED = "rule_applied"
    RULE_CONFIRMED = "rule_confirmed"
    RULE_UNDONE = "rule_undone"
    RULE_EXPIRED = "rule_expired"
    RULE_HARMS = "rule_harms"  # clients lose to it what they got before
    GUARDIAN_LOST = "guardian_lost"
    GUARDIAN_BACK = "guardian_back"
    RECORDS_LOST = "records_lost"
    NOT_JUDGED = "not_judged"  # from here on judging fails
    JUDGED_AGAIN = "judged_again"
    BASELINE_CHANGED = "baseline_changed"  # by the operator's word, or because quarantine was outlasted
    STORING_STOPPED = "storing_stopped"  # the disk was full or failing: a gap begins
    STORING_RESUMED = "storing_resumed"  # it ends


class Event(Struct, frozen=True):
    """An event; `subject` is an attack's kind, a rule's id or a proposal's command."""

    at: float  # Unix seconds
    kind: EventKind
    subject: str
    text: str  # one sanitised sentence
    incident: int = 0  # id of the one that it is about


class PastAttack(Struct, frozen=True):
    """An attack of an earlier session that is over."""

    began: float  # Unix seconds
    ended: float
    kind: str
    text: str  # what it was, how long it lasted, how much it was; sanitised
    rules: tuple[str, ...] = ()  # ids of those that were installed while it was on
    elsewhere: bool = False  # another firewall stopped it


class Unstored(Struct, frozen=True):
    """A time within a session of which nothing was stored but what began and ended."""

    since: float  # Unix seconds
    until: float
    why: str


def unstored(events: Iterable[Event]) -> tuple[Unstored, ...]:
    """Return the times of which nothing was stored, as a session's events tell."""
    found, stopped = [], None
    for event in events:
        if event.kind is EventKind.STORING_STOPPED:
            stopped = event
        elif event.kind is EventKind.STORING_RESUMED and stopped is not None:
            found.append(Unstored(stopped.at, event.at, stopped.text))
            stopped = None
    return tuple(found)


class Mark(Struct, frozen=True):
    """An event of a recording, and the time of the snapshot that first shows it."""

    at: float  # Unix seconds
    event: Event


class AttackTick(Struct, frozen=True):
    """An attack at one time."""

    at: float
    kind: str
    pps: float
    share: float
    confidence: float
    peak_pps: float = 0.0  # within the time that a rolled-up point stands for
    target: str = ""
    mine_share: float = 0.0  # of its packets, by whom they were dropped
    other_share: float = 0.0
    kernel_share: float = 0.0
    incident: int = 0  # its id


class RuleTick(Struct, frozen=True):
    """The counters of a rule at one time."""

    at: float
    rule_id: str
    state: str  # rule.State
    packets: int
    bytes: int
    pps: float


class Tick(Struct, frozen=True):
    """One point of the timeline; rates are averages over a snapshot's window."""

    at: float  # Unix seconds: the end of the window
    pps: float
    bps: float
    dropped_pps: float
    accepted_pps: float
    one_in: float
    lost_per_s: float  # samples that did not fit the buffers
    conntrack: int | None = None  # entries
    conntrack_max: int | None = None
    conntrack_new_per_s: float | None = None
    softirq_share: float | None = None
    tcp_handshakes_per_s: float | None = None
    tcp_acknowledged_per_s: float | None = None
    seconds: float | None = None  # of a rolled-up point: the observed time before `at` that it averages
    peak_pps: float = 0.0
    peak_bps: float = 0.0
    mine_pps: float = 0.0  # of the dropped: by fwtop's rules
    other_pps: float = 0.0  # by other firewalls
    kernel_pps: float = 0.0  # by NIC, kernel or sockets

    @property
    def conntrack_fill(self) -> float | None:
        """How full connection tracking was (0 to 1), where that was measured."""
        return (
            self.conntrack / self.conntrack_max if self.conntrack is not None and self.conntrack_max else None
        )


class SamplePacket(Struct, frozen=True):
    """A packet of an attack, as far as captured; `is_ethernet`: it begins with that header, else with IP."""

    at: float
    kind: str  # of the attack
    length: int  # bytes on the wire
    is_ethernet: bool
    data: bytes
    incident: int = 0  # id of the attack


class AttackEvidence(Struct, frozen=True):
    """What one attack's own packets were at one time, by its largest senders, ports and payloads."""

    at: float
    kind: str
    pps: float
    part: PartTraffic
    packets: tuple[SamplePacket, ...] = ()
    incident: int = 0  # its id


class SessionInfo(Struct, frozen=True):
    """One line of the list of sessions."""

    id: str
    path: Path
    host: str
    interfaces: tuple[str, ...]
    netns: str | None
    version: str  # of the fwtop that wrote it
    started: float  # Unix seconds
    ended: float  # the last snapshot if it crashed
    state: str  # "running", "clean", "crashed"
    peak_pps: float
    attacks: tuple[str, ...]  # kinds by first appearance
    rules: int
    size_bytes: int
    geoip: str = ""  # the databases that countries and networks are from, with their age then

    @property
    def seconds(self) -> float:
        """Length up to now or the last snapshot."""
        return max(self.ended - self.started, 0.0)


class SessionRecord(Struct, frozen=True):
    """A whole session; snapshots are read on demand, as there can be thousands.

    `snapshots(limit)` yields about `limit` of them at most, evenly spaced in time, always including those
    with an event and the peak.
    """

    info: SessionInfo
    ticks: tuple[Tick, ...]
    events: tuple[Event, ...]
    attacks: tuple[AttackTick, ...]
    rule_ticks: tuple[RuleTick, ...]
    rules: tuple[Rule, ...]
    evidence: tuple[AttackEvidence, ...]
    packets: tuple[SamplePacket, ...]
    snapshots: Callable[[int], Iterator[Snapshot]]


STOPPED = 0.95  # from this share of the attacks' packets they count as stopped; estimates err by some percent
NOTICED = 0.05  # below this share drops don't count as protection
FULL_TABLE = "conntrack_exhaustion"  # the effect of other attacks: it has no packets of its own
_UNKNOWN = ("capture",)  # recorded packets, whose fate isn't


class Flow(Struct, frozen=True):
    """Where the packets of a window went, in packets a second; the parts add up to `arrives`."""

    arrives: float = 0.0
    mine: float = 0.0  # dropped by fwtop's rules
    other: float = 0.0  # dropped by other firewalls
    kernel: float = 0.0  # dropped by NIC, kernel or sockets
    reaches: float = 0.0  # accepted
    unaccounted: float = 0.0  # neither dropped nor accepted; negative: more than arrived
    bps: float = 0.0
    lost: float = 0.0  # of `kernel`, because a queue, buffer or table was full: nothing is protected by that


def forged_share(snapshot: Snapshot) -> float:
    """Return the share of all packets whose sources are forged, 0 to 1."""
    return sum(one.share for one in snapshot.judgement.on if one.spoofed)


def flow_of(snapshot: Snapshot) -> Flow | None:
    """Sum up the ledger; None where the fate of the packets isn't known."""
    ledger, totals = snapshot.tables.ledger, snapshot.tables.totals
    if any(row.layer in _UNKNOWN for row in ledger):
        return None
    sums = dict.fromkeys(("mine", "other", "kernel", "reaches"), 0.0)
    for row in ledger:
        if row.layer != "unexplained":
            sums[end_of(row)] += row.pps
    return Flow(
        arrives=totals.pps,
        mine=sums["mine"],
        other=sums["other"],
        kernel=sums["kernel"],
        reaches=sums["reaches"],
        unaccounted=totals.pps - sum(sums.values()),
        bps=totals.bps,
        lost=sum(row.pps for row in ledger if is_lost(row)),
    )


def end_of(row: LedgerRow | DropCount) -> str:
    """Say who took a row's packets: reaches, mine, other or kernel."""
    if row.layer == "delivered":
        return "reaches"
    if row.rule is not None:
        return "mine"
    return "other" if row.layer in FIREWALLS else "kernel"


def is_lost(row: LedgerRow | DropCount) -> bool:
    """Whether a row's packets were wanted, but what should take them was full."""
    return end_of(row) == "kernel" and lacks_room(row.layer, row.reason)


PARTED = ("country", "network", "city", "port")  # also counted by where the packets went:
PLACES = ("service", "dark")  # to an address from which something ever answered, or to another
KINDS = (*PARTED, "target", "place", *(f"{place} {kind}" for place in PLACES for kind in PARTED))
ANSWERS = 4_096  # addresses and ports that are known to have answered
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
    answered: tuple[str, ...] = ()  # addresses and ports ("tcp/80") of ours that ever did

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
    answers: bool | None = None  # whether something ever answered there; of addresses and ports, if known
    packets: int | None = None  # of the last 60 minutes, as far as these were observed


class TrendGroup(Struct, frozen=True):
    """Rows of one kind, the largest of the last hour first.

    The kinds are traffic, those of PARTED for all packets and, after a word of PLACES, for those that went
    there, and service and dark for the addresses themselves.
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
