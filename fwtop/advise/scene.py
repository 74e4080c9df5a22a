"""What every rule reads, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from fwtop.advise.baseline import Baseline
from fwtop.advise.config import AdviseConfig
from fwtop.advise.distances import Distances
from fwtop.advise.facts import Facts
from fwtop.advise.icmp import errors
from fwtop.advise.sampling import looks_sampled
from fwtop.advise.scanmemory import ScanMemory
from fwtop.advise.spoof import Spoof, spoof_estimate
from fwtop.advise.tcpview import TcpView, view_tcp
from fwtop.advise.traffic import TCP, UDP, Rows, Traffic, flow_key
from fwtop.model.address import Prefix
from fwtop.model.counters import Counters
from fwtop.model.packets import I64, U64, Mask
from fwtop.model.rule import Match

_LONG_SECONDS, _CRAWL_PPS = 8.0, 2.0  # a capture that long, at a rate that even 1 in 1,000 shows of floods
NO_SPOOF = Spoof(0.0, ())
ANY = Match()


@dataclass(frozen=True)
class Finding:
    """An attack found: its rows in the traffic, and what the rule knows about it."""

    kind: str
    title: str
    rows: Rows
    confidence: float
    evidence: tuple[str, ...]
    spoof: Spoof = NO_SPOOF
    match: Match = ANY  # header fields that all of it shares
    state: bool = False  # about state (conntrack, carpet), not a vector of its own
    pps: float | None = None  # where it isn't counted in packets (new conntrack entries a second)
    dns_name: bytes | None = None  # wire form of the name that it asks for

    @property
    def requests(self) -> bool:
        """Whether it is made of requests over real connections."""
        return self.kind in ("http_flood", "tls_flood")

    @property
    def key(self) -> str:
        """What stays the same from one judgement to the next while the vector lasts."""
        match = self.match
        return f"{self.kind} {match.family} {match.protocol} {match.sport} {match.dport}"


@dataclass
class Scene:
    """One window under judgement. `free` shrinks as rules claim rows."""

    traffic: Traffic
    config: AdviseConfig
    baseline: Baseline
    counters: Counters
    own: tuple[Prefix, ...]
    free: Mask
    scans: ScanMemory = field(default_factory=ScanMemory)
    findings: list[Finding] = field(default_factory=list)

    @cached_property
    def tcp(self) -> TcpView:
        """TCP sorted by flags and behaviour."""
        return view_tcp(self.traffic)

    @cached_property
    def udp(self) -> Mask:
        """UDP packets with ports to hosts; what goes to groups is a network's own discovery."""
        packets, traffic = self.traffic.packets, self.traffic
        return np.asarray((packets.protocol == UDP) & ~traffic.later & (packets.family != 0) & ~traffic.group)

    @cached_property
    def ordinary(self) -> Mask:
        """UDP that a rule found to be normal, such as a resolver's answers; rules add to it."""
        return self.solicited.copy()

    @cached_property
    def solicited(self) -> Mask:
        """Answers to what this host was seen to send first (two-way captures only).

        A flow whose first packet came from outside was not asked for, whatever this host answered; nor is
        one asked for by a RST or a SYN-ACK.
        """
        traffic = self.traffic
        sent, packets = traffic.outbound, traffic.packets
        six = sent.tcp_flags & 63
        sent = sent.select((sent.protocol != TCP) | ((six & 4) == 0) & ((six & 18) != 18))
        if len(sent) == 0:
            return np.zeros(len(traffic), np.bool_)
        asked, when = _first_times(flow_key(sent, reverse=True), sent.time_ns)
        came, first = _first_times(traffic.flow_key, packets.time_ns)
        place = np.minimum(np.searchsorted(asked, came), len(asked) - 1)
        good = (asked[place] == came) & (when[place] <= first)
        return np.isin(traffic.flow_key, came[good])

    def facts(self, rows: Rows | Mask) -> Facts:
        """Return statistics of rows or of a mask."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.intp)
        return Facts(self.traffic, numbers, self.config.feature_rows)

    def significant(self, facts: Facts, *, floor_pps: float, normal: str, shaped: bool = False) -> bool:
        """Tell whether a vector is large enough to be called an attack.

        `normal` is the traffic class whose baseline rate it is compared with; `shaped` says that the
        packets themselves prove the kind, so that less of it is enough.
        """
        config = self.config
        share = config.live_share if self.traffic.live else config.capture_share
        if shaped:
            share = min(share, config.shaped_share)
        by_bytes = self.traffic.byte_share(facts.rows)
        if facts.n < config.min_samples or max(facts.share, by_bytes if shaped else 0.0) < share:
            return False
        if not self.traffic.live:
            crawls = self.traffic.seconds >= _LONG_SECONDS and facts.pps < _CRAWL_PPS
            return shaped or not (crawls or self.scattered(facts))
        usual = self.baseline.rate(normal)
        if usual is not None:
            floor_pps = max(floor_pps, config.baseline_factor * usual)
        return facts.peak_pps >= floor_pps

    def spoof(self, rows: Rows, *, prior: float = 0.0, completed: float = 0.0) -> Spoof:
        """Estimate whether the rows' sources are forged."""
        before = self.distances if self.baseline.ready else None
        return spoof_estimate(
            self.traffic, rows, prior=prior, own=self.own, completed=completed, before=before
        )

    @cached_property
    def distances(self) -> Distances:
        """How far off the networks of the baseline are."""
        return Distances.of(self.baseline.rows)

    @cached_property
    def strangers(self) -> Mask:
        """Packets of sources without any real TCP connection; at a thin sample that says nothing."""
        return ~self.traffic.of_sources(self.tcp.real)

    @cached_property
    def echo(self) -> Mask:
        """Unclaimed ICMP errors and stray RSTs: in an attack its echo, not normal traffic."""
        stray = self.tcp.rst & ~self.tcp.real
        return np.asarray((errors(self.traffic) | stray) & self.free)

    def scattered(self, facts: Facts) -> bool:
        """Whether hardly two packets go to the same address: what reaches any network (a telescope's view).

        Source: Moore et al., "Network Telescopes" (CAIDA 2004).
        """
        spread = facts.destinations.distinct > max(64, 0.25 * facts.n)
        return facts.n >= 30 and spread and facts.pps < 10 * self.config.flood_pps

    @property
    def acquaintances(self) -> Mask:
        """Packets that an attack explains, but of sources that have connections which none explains.

        What is like the attack, such as a query for the same name, may be theirs all the same; unless they
        send more of it than of anything else.
        """
        traffic, weight = self.traffic, self.traffic.weight
        sources, inverse = np.unique(traffic.source_key, return_inverse=True)
        free = np.bincount(inverse, weight * self.free, len(sources))
        claimed = np.bincount(inverse, weight * ~self.free, len(sources))
        talks = np.bincount(inverse, self.tcp.real & self.free, len(sources)) > 0
        caught = np.bincount(inverse, self.tcp.real & ~self.free, len(sources)) > 0
        return np.asarray((talks & ~caught & (claimed <= free))[inverse] & ~self.free)

    @cached_property
    def few(self) -> tuple[Traffic, Rows]:
        """Some of the packets as traffic of its own, for what costs much a packet, and their rows in all."""
        traffic = self.traffic
        if len(traffic) <= self.config.feature_rows:
            return traffic, np.arange(len(traffic))
        rows = np.linspace(0, len(traffic) - 1, self.config.feature_rows).astype(np.intp)
        weight = traffic.weight[rows] * (len(traffic) / len(rows))
        return replace(traffic, packets=traffic.packets.select(rows), weight=weight), rows

    @property
    def thin(self) -> bool:
        """Whether sampling is so thin that packets of one connection are rarely seen together."""
        return self.traffic.one_in > 8 or self.sampled

    @cached_property
    def sampled(self) -> bool:
        """Whether a capture holds one packet in many without saying so (sFlow, NetFlow, a thinned mirror)."""
        return not self.traffic.live and looks_sampled(self.traffic, self.tcp)

    def claim(self, finding: Finding) -> None:
        """Keep a finding; its rows are explained."""
        self.findings.append(finding)
        self.free[finding.rows] = False


def _first_times(keys: U64, time_ns: I64) -> tuple[U64, I64]:
    """Return the distinct keys in order, and the earliest time of each."""
    order = np.lexsort((time_ns, keys))
    distinct, first = np.unique(keys[order], return_index=True)
    return distinct, time_ns[order][first]


def sure(base: float, samples: int) -> float:
    """Lower a rule's own probability of being right when few packets were seen (Laplace's rule)."""
    return round(base * (samples + 1) / (samples + 3) if samples < 200 else base, 3)


def plural(number: int, what: str) -> str:
    """Write a number of things: 1 source, 2,000 sources."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def count(number: float) -> str:
    """Write a number with thousands separators."""
    return f"{number:,.0f}"
