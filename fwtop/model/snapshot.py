"""What was observed, as one frozen value: the screen, the store, the reports and the JSON all take this."""

from __future__ import annotations

from dataclasses import dataclass, field

from fwtop.model.address import Prefix
from fwtop.model.counters import ConntrackSample, TcpService
from fwtop.model.rule import Match, Rule, RuleStatus


@dataclass(frozen=True, slots=True)
class Share:
    """An estimated part of the arrived traffic, with the 95 % interval of its share."""

    packets: int
    bytes: int
    pps: float
    share: float  # of all arrived packets, 0 to 1
    share_low: float
    share_high: float


@dataclass(frozen=True, slots=True)
class Source:
    """An address, prefix, AS or country and what came from it.

    In `Sources.prefix` the share is that of the prefix after the prefixes below it are taken out.
    """

    key: str  # "203.0.113.7", "198.51.100.0/24", "AS64500", "NL"
    share: Share
    dropped_share: float  # of its own packets, 0 to 1
    country: str | None = None
    asn: int | None = None
    as_name: str | None = None  # sanitised
    prefix: Prefix | None = None  # for addresses and prefixes
    active_rule: str | None = None  # id of an fwtop rule that covers it


@dataclass(frozen=True, slots=True)
class Sources:
    """The same traffic cut four ways."""

    address: tuple[Source, ...] = ()
    prefix: tuple[Source, ...] = ()
    asn: tuple[Source, ...] = ()
    country: tuple[Source, ...] = ()


@dataclass(frozen=True, slots=True)
class Port:
    """A transport port on one side."""

    protocol: str  # "udp", "tcp"
    side: str  # "src", "dst"
    port: int
    service: str | None
    share: Share


@dataclass(frozen=True, slots=True)
class Payload:
    """A byte string that many packets have in common."""

    data: bytes
    text: str  # sanitised
    offset: int | None  # from the start of the transport payload; None: anywhere
    dns_name: str | None  # sanitised
    share: Share
    baseline_share: float  # of the baseline's packets that have it too


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Where packets ended: a layer and the reason it gave, or delivered, or unexplained.

    `mostly` is what most of them have in common (by the samples), `mostly_share` how many of them, 0 to 1.
    """

    layer: str
    reason: str
    packets: int
    pps: float
    rule: str | None = None
    mostly: Match | None = None
    mostly_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Exact where the kernel counts, for the whole observation.

    All that reached the interfaces is in it, what the NIC, its driver or another's XDP program dropped
    included; shares are of the packets whose contents could be seen.
    """

    packets: int
    bytes: int
    pps: float
    bps: float
    accepted: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the contents were sampled."""

    one_in: float
    samples: int
    lost: int
    watched: float = 1.0  # below 1: this share of the packets was counted, and drops were scaled up from it


@dataclass(frozen=True, slots=True)
class Attack:
    """A named attack with the evidence that an expert would give."""

    kind: str  # one of INTERFACE.md's
    title: str
    share: float
    pps: float
    confidence: float
    spoofed: bool
    evidence: tuple[str, ...]
    since: float  # Unix seconds
    peak_pps: float = 0.0  # over a second of a capture, over the window live; 0: written before it was kept
    ended: float | None = None  # Unix seconds; None: it was still on when the observation ended


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mitigation with its measured effect; `rule` is None where nothing on this machine helps."""

    number: int
    kind: str
    summary: str
    attack_share: float  # of the attack's packets stopped, 0 to 1
    collateral_share: float  # of normal traffic hit, 0 to 1
    collateral_examples: tuple[str, ...] = ()
    cost_ns: float | None = None
    commands: tuple[str, ...] = ()
    fwtop: str = ""  # the same as an fwtop command line
    rule: Rule | None = None
    guess: bool = False  # True: no baseline from before the attack, collateral is estimated
    stopped_pps: float = 0.0
    cost_measured: bool = False  # on this machine (model/costs.py); else a default


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an observation comes from."""

    kind: str  # live, capture, session
    interfaces: tuple[str, ...] = ()
    netns: str | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """Everything counted in one window."""

    totals: Totals
    sampling: Sampling
    ledger: tuple[LedgerRow, ...] = ()
    sources: Sources = field(default_factory=Sources)
    ports: tuple[Port, ...] = ()
    payloads: tuple[Payload, ...] = ()
    protocols: dict[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What it means. `payloads`, where given, replace those of the tables (with baseline shares)."""

    attacks: tuple[Attack, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    payloads: tuple[Payload, ...] = ()
    baseline: str = ""  # one sentence on what normal was measured on
    baseline_packets: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One observation, complete and immutable."""

    host: str
    origin: Origin
    started: float  # Unix seconds
    seconds: float
    tables: Tables
    judgement: Judgement = field(default_factory=Judgement)
    conntrack: ConntrackSample | None = None
    mitigations: tuple[RuleStatus, ...] = ()
    guardian: str = ""  # "", "ready", "lost: …"
    softirq_share: float | None = None
    tcp: TcpService | None = None
    notes: tuple[str, ...] = ()  # what the operator should know about this observation
