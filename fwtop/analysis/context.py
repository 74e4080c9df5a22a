"""The input and output of the judgement: AnalysisContext and Finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Flag, auto
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.connections import Held, flows_of, flows_of_packets
from fwtop.analysis.habits import Reading, read
from fwtop.analysis.memory import CLASSES, Baseline, Memory, classes
from fwtop.analysis.severity import Room
from fwtop.analysis.spoofing import Distances, Spoof, from_this_host, spoof_estimate
from fwtop.analysis.window.counting import among
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.tcp_view import TcpView, answers_to_probes, looks_sampled, view_tcp
from fwtop.analysis.window.traffic import TCP, UDP, Rows, Traffic, flow_key, mix, weighted_top
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Match
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import (
    I64,
    U8,
    U16,
    U32,
    U64,
    Interval,
    Mask,
    PacketBatch,
    SocketTable,
    TrackedFlows,
    Window,
)
from fwtop.model.traffic.severity import Harm
from fwtop.rehearsal.host import KnownPeers

Normal = str | float | Callable[[PacketBatch, Rows], Mask] | None  # what a rate is compared with
NEW = "new"  # with nothing: the baseline has none of this
_NOISE_PPS = 0.2  # an address: a hundred times what Wustrow et al. (2010) saw; a flood is denser
_BY_SERVICE = ("udp", "tcp.syn", "tcp.ack")  # classes that services differ in
_SERVICE, _ACQUAINTED = 0.1, 64  # part of a group from one port; sources that are few
_SHORT = 100  # packets: in a shorter capture only an attack that is nearly all of it shows
_PORTS = 1024  # below are services, whatever the peer's port
NO_SPOOF = Spoof(0.0, ())
ANY = Match()


class Trait(Flag):
    """What the rest of the judgement and the proposals have to know of an attack."""

    NONE = 0
    REQUESTS = auto()  # over real connections: header fields don't tell it from clients
    REFLECTED = auto()  # answers of other hosts, proven by what they are
    AMPLIFIED = auto()  # those of one service from several ports are one attack, and many come in fragments
    APART = auto()  # on two targets or by two tools at once it is two attacks
    NAMELESS = auto()  # spread over many addresses it is carpet bombing, and nothing more special
    UNKNOWN = auto()  # the corpus can't tell how often it is right
    SCAN = auto()  # of few hosts, which are blocked by their addresses; no flood
    ODD_FLAGS = auto()  # rules for flags that no stack sends stop it
    OPENINGS = auto()  # a SYN proxy may stop it
    QUESTIONS = auto()  # the resolver's playbook may stop it
    RANDOM_NAMES = auto()  # of its names only the zone stays the same
    FULL_TABLE = auto()  # an effect of others: room in the connection table helps


class Finding(Struct, frozen=True):
    """An attack: its rows in the traffic, and what the rule found out about it."""

    kind: str
    title: str
    rows: Rows
    confidence: float
    evidence: tuple[str, ...]
    spoof: Spoof = NO_SPOOF
    match: Match = ANY  # header fields that all its packets share
    state: bool = False  # about state (conntrack, carpet), not a vector
    pps: float | None = None  # if not measured in packets (new conntrack entries per second)
    dns_name: bytes | None = None  # queried name, wire form
    part: str = ""  # what it hits, where several attacks of its kind hit different targets
    held: Held | None = None  # the connections that it holds
    settings: tuple[str, ...] = ()  # of servers, that stop it
    traits: Trait = Trait.NONE
    exhausts: tuple[Room, ...] = ()  # what it takes of the host
    otherwise: Harm = Harm.UNUSUAL  # its class if it exhausts nothing
    bearable: bool = False  # ordinary programs send such: only near its end a resource is exhausted
    asked: float = 0.0  # packets a second that ask for something, without what belongs to them
    connections: float = 0.0  # that it keeps open
    retries: bool = False  # of senders that fwtop's rules cut off

    @property
    def requests(self) -> bool:
        """Whether it consists of requests over real connections."""
        return Trait.REQUESTS in self.traits

    @property
    def key(self) -> str:
        """Identifies the vector across judgements."""
        match = self.match
        fields = f"{match.family} {match.protocol} {match.sport} {match.dport}"
        return f"{self.kind} {fields} {self.said_part}".rstrip()

    @property
    def said_part(self) -> str:
        """What tells it from another of its kind at the same time."""
        return "retries" if self.retries else self.part


class AnalysisContext(Struct, weakref=True, dict=True):
    """The state of classifying one window. `unclaimed` shrinks as attacks claim rows."""

    traffic: Traffic
    config: AdviseConfig
    baseline: Baseline
    counters: Counters
    own: tuple[Prefix, ...]
    unclaimed: Mask
    memory: Memory = field(default_factory=Memory)
    findings: list[Finding] = field(default_factory=list)
    intervals: tuple[Interval, ...] = ()  # the polls of a live window
    clock: float | None = None  # Unix seconds minus packet time, where known
    sockets: SocketTable | None = None  # live: the connections that this host serves
    notes: dict[str, Any] = field(default_factory=dict)  # what several cuts or proposals ask of one window
    explains: bool = False  # weigh also what can't be an attack, for `fwtop read --explain`
    explained: list[Any] = field(default_factory=list)  # the groups (engine.compete.Explained), if `explains`
    dropped: PacketBatch = field(default_factory=PacketBatch.empty)  # live: samples of what was dropped
    handshakes_per_s: float | None = None  # live: completed by clients, as the kernel counts them
    tracked: TrackedFlows | None = None  # live: connections that pass through this host, too
    known: KnownPeers = KnownPeers()  # who operates this host: rules are rehearsed on them
    attackers: Sequence[U64] = ()  # the senders of attacks so far, sorted keys as of `host_key`

    @cached_property
    def tcp(self) -> TcpView:
        """TCP packets by flags and behaviour, and as the host's sockets show its connections."""
        if self.sockets is None:
            return view_tcp(self.traffic)
        flows = flows_of_packets(self.traffic.packets)
        return view_tcp(self.traffic, among(flows, flows_of(self.sockets.connections)) & ~self.traffic.later)

    @property
    def data_rows(self) -> Rows:
        """Unclaimed TCP packets with data that neither open nor end a connection; none if these are few."""
        data = self.tcp.ack & self.unclaimed & (self.traffic.packets.payload_length > 0)
        rows = self.traffic.rows(data)
        return rows if len(rows) >= self.config.min_samples else rows[:0]

    @cached_property
    def udp(self) -> Mask:
        """UDP packets with ports, to unicast addresses; multicast is local discovery."""
        packets, traffic = self.traffic.packets, self.traffic
        return np.asarray((packets.protocol == UDP) & ~traffic.later & (packets.family != 0) & ~traffic.group)

    @cached_property
    def benign(self) -> Mask:
        """UDP packets that are settled as ordinary, such as answers to a resolver."""
        return self.solicited.copy()

    @cached_property
    def solicited(self) -> Mask:
        """Answers to packets that this host sent first: to a scan, and whatever a two-way capture shows.

        A flow whose first packet came from outside is unsolicited, whatever this host answered; so are
        answers to its RSTs and SYN-ACKs.
        """
        probed = answers_to_probes(self.traffic)
        traffic = self.traffic
        sent, packets = traffic.outbound, traffic.packets
        six = sent.tcp_flags & 63
        sent = sent.select((sent.protocol != TCP) | ((six & 4) == 0) & ((six & 18) != 18))
        if len(sent) == 0:
            return probed
        asked, when = _first_times(flow_key(sent, reverse=True), sent.time_ns)
        came, first = _first_times(traffic.flow_key, packets.time_ns)
        place = np.minimum(np.searchsorted(asked, came), len(asked) - 1)
        good = (asked[place] == came) & (when[place] <= first)
        return among(traffic.flow_key, came[good]) | probed

    def features(self, rows: Rows | Mask) -> Features:
        """Return the features of rows or of a mask."""
        numbers = rows.nonzero()[0] if rows.dtype == np.bool_ else rows.astype(np.intp, copy=False)
        return Features(self.traffic, numbers, self.config.feature_rows)

    def prominence(
        self, features: Features, *, floor_pps: float, normal: Normal, shaped: bool = False
    ) -> float:
        """Return how many times a vector is as large as the least that is called an attack.

        `normal` names the part of the baseline to compare with: a traffic class (to the same ports only), TCP
        packets with such a payload, NEW, or None for UDP answers, which are compared with what usually comes
        from their ports; or it is the rate that a service has usually. `shaped` says that the packets
        themselves prove the kind, which lowers the threshold.
        """
        config = self.config
        share = config.live_share if self.traffic.live else config.capture_share
        if shaped:
            share = min(share, config.shaped_share)
        times = features.n / config.min_samples
        if times < 1:
            return times
        by_bytes = features.byte_share if shaped else 0.0
        times = min(times, max(features.share, by_bytes) / share)
        if times < 1:
            return times
        if not self.traffic.live:
            return times if shaped or not self.scattered(features) else 0.0
        usual = self._usual(features, normal)
        if usual is not None:
            floor_pps = max(floor_pps, config.baseline_factor * usual)
        return min(times, features.peak_pps / floor_pps)

    def usual_of(self, features: Features, normal: str) -> float | None:
        """Return the normal rate of what a class usually holds like these packets; None if unknown.

        Alike are packets to the same services, from the same ports and, of few sources, from these if about
        as long: a flood of one service is no smaller for what others usually receive, nor is one by a host
        that measured the line before.
        """
        usual = self.baseline.rate(normal)
        if not usual or normal not in _BY_SERVICE:
            return usual
        alike = self._normal_rows(normal)
        if not alike.any():
            return usual
        traffic, before, rows = self.traffic, self.baseline.rows, features.rows
        sports, _ = weighted_top(traffic.packets.sport[rows], features.weight, _SERVICE * features.packets)
        reached = np.unique(self.baseline.doors.numbers(traffic.packets, rows))
        mine = among(self._normal_services, reached) | among(before.sport, sports)
        if features.sources <= _ACQUAINTED:
            mine |= among(
                mix(mix(before.src_hi, before.src_lo), _size_class(before.ip_length)),
                mix(traffic.source_key[rows], _size_class(traffic.packets.ip_length[rows])),
            )
        whole = max(float(before.weight[alike].sum()), 1e-9)
        return usual * float(before.weight[alike & mine].sum()) / whole

    def _normal_rows(self, normal: str) -> Mask:
        """Mark the baseline's packets of a class."""
        return np.asarray(self._normal_classes == CLASSES.index(normal))

    def baseline_sources(self, normal: str) -> U64:
        """Return the distinct sources (as `Traffic.source_key`) of a class in the baseline."""
        before = self.baseline.rows
        alike = self._normal_rows(normal)
        return np.unique(mix(before.src_hi[alike], before.src_lo[alike]))

    @cached_property
    def _normal_services(self) -> U32:
        return self.baseline.doors.numbers(self.baseline.rows)

    @cached_property
    def _normal_classes(self) -> U8:
        return classes(self.baseline.rows)

    def _usual(self, features: Features, normal: Normal) -> float | None:
        """Return the normal rate of what these packets are compared with; None without a baseline."""
        before = self.baseline.rows
        if normal == NEW:
            return None
        if isinstance(normal, str):
            return self.usual_of(features, normal)
        if isinstance(normal, float):
            return normal
        if normal is not None:
            return self.baseline.rate_of_payloads(normal)
        if not len(before):
            return None
        ports = self.traffic.packets.sport[features.rows]
        return self.baseline.rate_of((before.protocol == UDP) & among(before.sport, ports))

    def beyond_usual(self, features: Features, normal: str) -> float:
        """Return by what factor a rate exceeds the normal one of what is alike; 0 without a baseline.

        A quiet class may well begin to talk: the normal rate counts as that of the least flood, at least.
        """
        usual = self.usual_of(features, normal)
        if usual is None or not self.traffic.live:
            return 0.0
        return features.peak_pps / max(usual, self.config.flood_pps)

    def spoof(self, rows: Rows | Features, *, prior: float = 0.0, completed: float = 0.0) -> Spoof:
        """Estimate the probability that the sources of the rows are spoofed."""
        features = rows if isinstance(rows, Features) else Features(self.traffic, rows)
        before = self._distances if self.baseline.ready else None
        return spoof_estimate(features, self._from_this_host, prior=prior, completed=completed, before=before)

    @cached_property
    def _from_this_host(self) -> Mask:
        return from_this_host(self.traffic.packets, self.own)

    @cached_property
    def acquainted(self) -> Mask:
        """Packets of sources with real TCP connections, now or in the last minutes."""
        return self.traffic.of_sources(self.tcp.real) | self.baseline.clients.acquainted(self.traffic)

    @cached_property
    def proven(self) -> Mask:
        """Packets of clients of this host: of real TCP connections, and of UDP that it answered unasked.

        Where its answers aren't seen, datagrams to a service from senders whom the baseline has.
        """
        packets, sent = self.traffic.packets, self.traffic.outbound
        doors = self.baseline.doors
        listens = doors.places(packets) < len(doors)
        served = listens | (packets.dport < packets.sport) | (packets.dport < _PORTS)
        answered = np.zeros(len(packets), np.bool_)
        if len(sent) and (sent.protocol == UDP).any():
            answered = among(self.traffic.flow_key, flow_key(sent, reverse=True))
        elif self.traffic.live:
            calm = self.baseline.rows
            rows = np.flatnonzero(calm.protocol == UDP)
            again = among(self.traffic.source_key, mix(calm.src_hi[rows], calm.src_lo[rows]))
            answered = again & listens
        return np.asarray((self.tcp.real | self.udp & answered & ~self.solicited) & served)

    @cached_property
    def services(self) -> Reading:
        """What each service gets in this window."""
        return read(self.traffic, self.tcp, self.baseline.doors)

    @cached_property
    def _distances(self) -> Distances:
        return Distances.of(self.baseline.rows)

    @cached_property
    def unestablished(self) -> Mask:
        """Packets of sources without real TCP connections to speak of; meaningless in a thin sample."""
        return ~self.tcp.hosts

    @cached_property
    def backscatter(self) -> Mask:
        """Unclaimed ICMP errors and stray RSTs: backscatter of an attack, not normal traffic."""
        stray = self.tcp.rst & ~self.tcp.real
        return np.asarray((self.traffic.icmp_errors | stray) & self.unclaimed)

    def scattered(self, features: Features) -> bool:
        """Whether hardly two packets share a destination, as in the view of a network telescope.

        Source: Moore et al., "Network Telescopes" (CAIDA 2004).
        """
        spread = features.n >= 30 and features.destinations.distinct > max(64, 0.25 * features.n)
        noise = min(10 * self.config.flood_pps, _NOISE_PPS * features.likely_destinations)
        return spread and features.pps < noise

    @property
    def mixed_sources(self) -> Mask:
        """Claimed packets of sources that also have real, unclaimed connections.

        Packets that resemble the attack, such as queries for the same name, may be legitimate if their source
        sends mostly other packets.
        """
        traffic, weight = self.traffic, self.traffic.weight
        sources, inverse = np.unique(traffic.source_key, return_inverse=True)
        unclaimed = np.bincount(inverse, weight * self.unclaimed, len(sources))
        claimed = np.bincount(inverse, weight * ~self.unclaimed, len(sources))
        connected = np.bincount(inverse, self.tcp.real & self.unclaimed, len(sources)) > 0
        caught = np.bincount(inverse, self.tcp.real & ~self.unclaimed, len(sources)) > 0
        return np.asarray((connected & ~caught & (claimed <= unclaimed))[inverse] & ~self.unclaimed)

    @cached_property
    def subset(self) -> tuple[Traffic, Rows]:
        """A subset of the traffic for costly operations, and its row numbers in the full traffic."""
        traffic = self.traffic
        if len(traffic) <= self.config.feature_rows:
            return traffic, np.arange(len(traffic))
        rows = np.linspace(0, len(traffic) - 1, self.config.feature_rows).astype(np.intp)
        weight = traffic.weight[rows] * (len(traffic) / len(rows))
        return replace(traffic, packets=traffic.packets.select(rows), weight=weight), rows

    @property
    def sparse(self) -> bool:
        """Whether sampling is so thin that packets of one connection are rarely sampled together."""
        return self.traffic.one_in > 8 or self.sampled

    @cached_property
    def sampled(self) -> bool:
        """Whether a capture is sampled without saying so (sFlow, NetFlow, a thinned mirror)."""
        return not self.traffic.live and looks_sampled(self.traffic, self.tcp)


def make_context(
    window: Window, config: AdviseConfig, baseline: Baseline, memory: Memory | None = None
) -> AnalysisContext:
    """Prepare a window for classification."""
    traffic = Traffic.of(window, config)
    if not window.live and len(traffic) < _SHORT:
        config = replace(config, min_samples=config.min_samples * 2 // 3)
    return AnalysisContext(
        traffic,
        config,
        baseline,
        window.counters,
        window.own,
        np.ones(len(traffic), np.bool_),
        memory or Memory(),
        intervals=window.intervals,
        clock=window.clock,
        sockets=window.sockets,
        dropped=window.dropped,
        handshakes_per_s=window.handshakes_per_s,
        tracked=window.tracked,
    )


def _first_times(keys: U64, time_ns: I64) -> tuple[U64, I64]:
    """Return the sorted distinct keys, and the earliest time of each."""
    order = np.lexsort((time_ns, keys))
    distinct, first = np.unique(keys[order], return_index=True)
    return distinct, time_ns[order][first]


def count(number: float) -> str:
    """Format a number with thousands separators."""
    return f"{number:,.0f}"


def _size_class(length: U16) -> U64:
    """Return the power of two below each length in bytes."""
    return np.log2(np.maximum(length, 1)).astype(np.uint64)
