"""Snapshots: all that was observed, as one frozen value for the screen, the store, reports and JSON."""

from __future__ import annotations

from msgspec import Struct, field

from fwtop.model.addresses.address import Prefix
from fwtop.model.harm import ClientHarm, ClientLoss, Reach
from fwtop.model.rule import Match, Rule, RuleStatus
from fwtop.model.service import Service
from fwtop.model.traffic.counters import ConntrackSample, TcpService
from fwtop.model.traffic.severity import Severity


class Share(Struct, frozen=True):
    """An estimated share of the arrived traffic, with its 95 % interval."""

    packets: int
    bytes: int
    pps: float
    share: float  # of all arrived packets, 0 to 1
    share_low: float
    share_high: float


class Source(Struct, frozen=True):
    """The traffic from an address, prefix, AS or country.

    In `Sources.prefix` the share excludes more specific prefixes in the table.
    """

    key: str  # "203.0.113.7", "198.51.100.0/24", "AS64500", "NL"
    share: Share
    dropped_share: float  # of its own packets, 0 to 1
    country: str | None = None
    asn: int | None = None
    as_name: str | None = None  # sanitised
    prefix: Prefix | None = None  # for addresses and prefixes
    active_rule: str | None = None  # id of an fwtop rule that covers it
    # What this host knows about it: you, allowed, resolver, time server, gateway, this host; else what its
    # packets tell: attack, client; "": not known
    who: str = ""
    dropped_low: float = 0.0  # 95 % interval of `dropped_share`: wide where few of its packets were sampled
    dropped_high: float = 1.0


class Sources(Struct, frozen=True):
    """The same traffic by address, prefix, AS and country."""

    address: tuple[Source, ...] = ()
    prefix: tuple[Source, ...] = ()
    asn: tuple[Source, ...] = ()
    country: tuple[Source, ...] = ()
    stale: str = ""  # the day of the data on countries and networks, if that is long ago


class Destination(Struct, frozen=True):
    """The traffic to an address."""

    key: str
    share: Share
    dropped_share: float  # of its own packets, 0 to 1
    prefix: Prefix
    part: str = ""  # of a machine that forwards: "own", "service" (it answers), "dark" (it never did)
    serves: tuple[str, ...] = ()  # the services that answered: tcp/80


class Port(Struct, frozen=True):
    """The traffic of a source or destination port."""

    protocol: str  # "udp", "tcp"
    side: str  # "src", "dst"
    port: int
    service: str | None
    share: Share


class Payload(Struct, frozen=True):
    """A byte string that many payloads have in common."""

    data: bytes
    text: str  # sanitised
    offset: int | None  # from the start of the transport payload; None: anywhere
    dns_name: str | None  # sanitised
    share: Share
    baseline_share: float  # share of the baseline's packets with it


class PacketSignature(Struct, frozen=True):
    """Header fields and first payload bytes that many packets have in common."""

    match: Match
    share: Share
    dropped_share: float  # of its own packets, 0 to 1
    baseline_share: float  # of normal packets, 0 to 1
    attack_share: float = 0.0  # of its own packets, 0 to 1, that attacks explain
    attack: str = ""  # title of the attack that explains most of them


class LedgerRow(Struct, frozen=True):
    """Packets accepted, dropped by a layer for a reason, or unexplained.

    `mostly` is what most of them have in common, by their samples; `mostly_share` is the share that does.
    """

    layer: str
    reason: str
    packets: int
    pps: float
    rule: str | None = None
    mostly: Match | None = None
    mostly_share: float = 0.0
    filtered: int = 0  # of the packets, those that netfilter dropped behind routing (input, forward)


class Totals(Struct, frozen=True):
    """Exact counts of the whole observation.

    Includes what the NIC, its driver or a foreign XDP program dropped; shares refer to the packets whose
    contents could be seen.
    """

    packets: int
    bytes: int
    pps: float
    bps: float
    accepted: int
    dropped: int


class Sampling(Struct, frozen=True):
    """How the contents were sampled."""

    one_in: float
    samples: int
    lost: int
    watched: float = 1.0  # below 1: this share of the packets was counted, and drops are scaled up


class Incident(Struct, frozen=True):
    """An attack from its beginning to its end: as a window shows it, with what was seen of it before.

    Its id is unique in an observation. One that pauses stays, without a rate, until it goes on or has ended.
    """

    kind: str  # one of docs/JSON.md's
    title: str
    share: float
    pps: float
    confidence: float
    spoofed: bool
    evidence: tuple[str, ...]
    since: float  # Unix seconds
    peak_pps: float = 0.0  # over a second (capture) or the window (live)
    ended: float | None = None  # Unix seconds; None: not within the observation
    bps: float = 0.0
    target: str = ""  # "tcp/80"; "" where it has none
    mine_share: float = 0.0  # of its own packets, 0 to 1, dropped by fwtop's rules
    other_share: float = 0.0  # dropped by other firewalls
    kernel_share: float = 0.0  # dropped by NIC, kernel or sockets; the rest reaches services
    sources: str = ""  # "spoofed", "12 sources"
    effect_of: str = ""  # kind and target of what causes this state, such as a full connection table
    match: Match | None = None  # header fields that all its packets share
    uncertain: bool = False  # whether its sources are forged can't be told
    severity: Severity = Severity()
    id: int = 0
    letter: str = ""
    paused: float | None = None  # Unix seconds: its last packet; None: it is on, or has ended
    last: float = 0.0  # Unix seconds: its last packet so far
    cause: int = 0  # id of the one that `effect_of` names; 0: it has none
    undeliverable_share: float = 0.0  # of kernel_share, what it drops for lack of a receiver, not of room
    completes: bool = False  # handshakes: bots are among those that are counted
    holds: int = 0  # connections that it keeps open, the measure of a slow attack; 0: it sends packets
    holds_of: int = 0  # of so many of the port
    held_pps: float | None = (
        None  # it pauses as rules drop so much of what its senders send; None: they don't
    )

    @property
    def is_on(self) -> bool:
        """Whether it sends packets now."""
        return self.paused is None and self.ended is None

    @property
    def reaching_share(self) -> float:
        """Share of its own packets that nothing drops, 0 to 1."""
        return min(max(1.0 - self.mine_share - self.other_share - self.kernel_share, 0.0), 1.0)


class Proposal(Struct, frozen=True):
    """A mitigation and its predicted effect; `rule` is None if nothing on this machine helps."""

    number: int
    kind: str
    summary: str
    attack_share: float  # of the attack's packets stopped, 0 to 1
    collateral_share: float  # of normal traffic dropped, 0 to 1
    collateral_examples: tuple[str, ...] = ()
    cost_ns: float | None = None
    commands: tuple[str, ...] = ()
    fwtop: str = ""  # as an fwtop command line
    rule: Rule | None = None
    guess: bool = False  # True: no baseline from before the attack, collateral is estimated
    attack: str = ""  # title of the attack that `attack_share` is a share of
    incident: int = 0  # its id
    key: str = ""  # identifies the same rule against the same incident across judgements
    stopped_pps: float = 0.0
    cost_measured: bool = False  # on this machine (rules/costs.py); else a default
    already_share: float = 0.0  # the part of `attack_share` that active rules stop
    needs_force: str = ""  # why the guard would not install its rule without; "" if it would
    bystanders: str = ""  # who may be cut by its rule though nobody there attacks; "" if nobody
    return_path: bool = False  # whether the attack's packets come over connections that the kernel completed
    reach: Reach = Reach()  # of its rule, beyond the attack

    @property
    def clients(self) -> ClientHarm | None:
        """The known clients that its rule hits."""
        return self.rule.predicted_clients if self.rule is not None else None

    @property
    def harm(self) -> float:
        """The share (0 to 1) that it costs clients: of all normal traffic, or of the attacked service's."""
        closes = 1.0 if self.reach.closes else 0.0
        return max(self.collateral_share, self.clients.worst_share if self.clients else 0.0, closes)

    @property
    def is_last_resort(self) -> bool:
        """Whether no operator should take it while there is another: never the first of a list."""
        clients, rule = self.clients, self.rule
        forged = rule is not None and bool(rule.match.sources) and bool(self.bystanders)
        cuts_forged = forged and clients is not None and bool(clients.hit or clients.others_hit)
        return bool(self.needs_force or self.reach.closes or cuts_forged)


class Origin(Struct, frozen=True):
    """The source of an observation."""

    kind: str  # live, capture, session
    interfaces: tuple[str, ...] = ()
    netns: str | None = None
    file: str | None = None


class Tables(Struct, frozen=True):
    """All tables of one window."""

    totals: Totals
    sampling: Sampling
    ledger: tuple[LedgerRow, ...] = ()
    sources: Sources = field(default_factory=Sources)
    ports: tuple[Port, ...] = ()
    payloads: tuple[Payload, ...] = ()
    protocols: dict[str, Share] = field(default_factory=dict)
    destinations: tuple[Destination, ...] = ()


# What services get, a second each: in sum, the most of one address, and in sum of sources without a pause
_USES = ("packets", "connections", "requests", "failures")
USES = (*_USES, *(f"one address's {name}" for name in _USES), "steady connections", "steady requests")


class ServiceUse(Struct, frozen=True):
    """What a service of this host gets now and usually, by USES, and how many clients it has."""

    service: Service
    now: tuple[float, ...] = ()  # (): nobody asked
    usual: tuple[float, ...] = ()  # (): not known yet
    seconds: float = 0.0  # of calm in which it was asked
    waits: float | None = None  # seconds in which it gets far more than usual, which isn't learned yet
    clients: int = 0  # seen within the last minute
    long_known: int = 0

    def rate(self, name: str, *, usual: bool = False) -> float | None:
        """Return one of USES; None if that isn't known."""
        rates = self.usual if usual else self.now
        return rates[USES.index(name)] if rates else None if usual else 0.0


class Judgement(Struct, frozen=True):
    """Attacks and proposals. `payloads`, if any, replace those of the tables."""

    attacks: tuple[Incident, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    payloads: tuple[Payload, ...] = ()
    baseline: str = ""  # a sentence on the baseline
    baseline_packets: int = 0
    signatures: tuple[PacketSignature, ...] = ()
    learning: str = ""  # what last changed the baseline by the operator's word or after quarantine
    not_judged: str = ""  # why this window was not judged: all else is as of the last one that was
    normal_pps: tuple[float, float] | None = None  # of all packets, least and most; None: not known yet
    services: tuple[ServiceUse, ...] = ()  # those with most clients first

    @property
    def harmful(self) -> tuple[Incident, ...]:
        """Attacks and abuse, without what is only unusual."""
        return tuple(attack for attack in self.attacks if attack.severity.is_harmful)

    @property
    def on(self) -> tuple[Incident, ...]:
        """The incidents that send packets now."""
        return tuple(one for one in self.attacks if one.is_on)

    def incident(self, number: int) -> Incident | None:
        """Return the incident with an id; None: it isn't listed."""
        return next((one for one in self.attacks if one.id == number), None)


class TrafficPart(Struct, frozen=True):
    """A part of the traffic, to which all conditions that are given apply."""

    attack: int = 0  # id of the attack that claims it; 0: of all
    prefix: Prefix | None = None  # of the sources
    asn: int | None = None
    country: str = ""


class PartTraffic(Struct, frozen=True):
    """The tables of a part of the traffic; shares are of its own packets."""

    part: TrafficPart
    tables: Tables
    payloads: tuple[Payload, ...] = ()
    signatures: tuple[PacketSignature, ...] = ()


class Ring(Struct, frozen=True):
    """The receive ring of a network interface, in packets."""

    interface: str  # sanitised
    size: int
    most: int


class Core(Struct, frozen=True):
    """What a core receives, per second."""

    number: int
    softirq: float  # share of its time, 0 to 1
    pps: float  # packets that it took into the stack, of all interfaces and namespaces
    dropped: float  # because its backlog was full
    squeezed: float  # times that it stopped with packets left, for its budget was spent
    runs: float  # of NET_RX


class Queue(Struct, frozen=True):
    """A receive queue, as its driver counts."""

    interface: str  # sanitised
    number: int
    pps: float | None  # None: its driver doesn't count by queue
    drops: float  # per second


class PacketSocket(Struct, frozen=True):
    """A packet socket that gets every packet of an interface, and a process that holds it."""

    process: str  # sanitised
    pid: int
    interface: str  # "": all; sanitised
    filtered: bool  # a filter chooses which packets are copied


class FilterChain(Struct, frozen=True):
    """A base chain of another firewall that may drop packets on their way in."""

    stage: str  # "tc" (netdev ingress), "raw" (before routing), "filter" (input and forward)
    name: str  # "inet filter input", sanitised
    drops_by_policy: bool


class Surroundings(Struct, frozen=True):
    """What root knows of the watched network namespace, besides its rules."""

    listeners: tuple[Service, ...] = ()
    rings: tuple[Ring, ...] = ()
    chains: tuple[FilterChain, ...] = ()
    asks: tuple[Service, ...] = ()  # the services in the other direction: of others, that this host uses
    cores: tuple[Core, ...] = ()  # the one that receives most first
    queues: tuple[Queue, ...] = ()
    packet_sockets: tuple[PacketSocket, ...] = ()  # of others, that get every packet

    @property
    def copying(self) -> tuple[PacketSocket, ...]:
        """The packet sockets for which each packet is copied, whatever becomes of it."""
        return tuple(item for item in self.packet_sockets if not item.filtered)


class Want(Struct, frozen=True):
    """Something that would help in an attack and isn't set up here."""

    name: str
    lacks: str
    mend: str  # a command, or where to read on


class Snapshot(Struct, frozen=True):
    """One complete observation."""

    host: str
    origin: Origin
    started: float  # Unix seconds
    seconds: float
    tables: Tables
    judgement: Judgement = field(default_factory=Judgement)
    conntrack: ConntrackSample | None = None
    mitigations: tuple[RuleStatus, ...] = ()
    guardian: str = ""  # "", "ready", "lost: …"
    softirq_share: float | None = None  # over all cores, 0 to 1
    tcp: TcpService | None = None
    notes: tuple[str, ...] = ()  # for the operator
    surroundings: Surroundings = field(default_factory=Surroundings)
    cores: int = 0  # of the machine; 0: not known
    losses: tuple[ClientLoss, ...] = ()  # what clients have surely lost to rules
    wants: tuple[Want, ...] = ()  # for the screen

    @property
    def at(self) -> float:
        """The time that it tells of, the end of its window."""
        return self.started + self.seconds


# What stands for a snapshot before the first
NOTHING = Snapshot("", Origin("live"), 0.0, 0.0, Tables(Totals(0, 0, 0.0, 0.0, 0, 0), Sampling(1.0, 0, 0)))
