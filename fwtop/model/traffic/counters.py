"""Exact kernel counters of one interval, against which samples are scaled."""

from __future__ import annotations

from msgspec import Struct, field

FIREWALLS = ("xdp", "tc", "netfilter")  # layers where somebody's rules drop
TC_INGRESS, NETFILTER_DROP = "TC_INGRESS", "NETFILTER_DROP"  # the kernel's reasons for what rules drop
# What the kernel's programs count packets in: enum fwtop_class of bpf/counters.h
TRAFFIC_CLASSES = ("tcp", "udp", "icmp", "icmpv6", "gre", "esp", "other", "non_ip")


class DropCount(Struct, frozen=True):
    """Packets dropped for one reason in the interval."""

    layer: str  # nic, xdp, tc, backlog, netfilter, conntrack, ip, socket
    reason: str  # kernel's name without SKB_DROP_REASON_, or a counter's name
    packets: int
    bytes: int = 0
    rule: str | None = None  # id of the fwtop rule that did it
    before_delivery: bool = True  # False: after the input hook counted it as accepted
    code: int | None = None  # the reason's number in samples of the drop hook, if any
    filtered: int = 0  # of the packets, those that netfilter dropped behind routing (input, forward)


_NO_ROOM = frozenset({
    "CPU_BACKLOG", "FULL_RING", "NEIGH_QUEUEFULL", "NOMEM", "PROTO_MEM", "QUEUE_PURGE",
    "SOCKET_BACKLOG", "SOCKET_RCVBUFF", "TCP_LISTEN_OVERFLOW", "TCP_OFO_DROP",
})  # fmt: skip


def lacks_room(layer: str, reason: str) -> bool:
    """Whether packets are dropped that somebody waits for, because a queue, table or memory is full."""
    return layer in ("nic", "backlog", "conntrack") or reason.partition(" (")[0] in _NO_ROOM


_FAR_SECONDS = 600.0  # of growth averaged over seconds: what it says of later is noise, and entries expire


def seconds_to_full(free: int, growth_per_s: float) -> float | None:
    """Return when `free` entries will be used up at this growth; None if not within ten minutes."""
    if free <= 0:
        return 0.0
    if growth_per_s <= 0 or free / growth_per_s > _FAR_SECONDS:
        return None
    return free / growth_per_s


class ConntrackSample(Struct, frozen=True):
    """The connection-tracking table of one namespace, rates over the interval."""

    count: int
    max: int
    new_per_s: float = 0.0
    insert_failed: int = 0  # in the interval
    drop: int = 0
    early_drop: int = 0
    seconds_to_full: float | None = None  # at the current growth; None: not growing
    growth_per_s: float = 0.0  # entries, smoothed; negative: the table drains

    def seconds_to_fill(self, fill: float) -> float | None:
        """Return when a table that drains will be down to a fill of 0 to 1; None if it isn't on its way."""
        above = self.count - fill * self.max
        return above / -self.growth_per_s if above > 0 > self.growth_per_s else None

    @property
    def fill(self) -> float:
        """Share of the table in use, 0 to 1."""
        return self.count / self.max if self.max else 0.0


class TcpService(Struct, frozen=True):
    """Health of this machine's own TCP connections, by counters that forged packets don't affect.

    Of one network namespace and both families; all zero on a machine that only forwards.
    """

    established: int  # connections now
    handshakes_per_s: float  # completed, by bots too if `bots`
    acknowledged_per_s: float  # segments acknowledged by peers of established connections
    bots: bool = False  # an attack completes handshakes
    known_per_s: float | None = None  # then: begun by clients known long before; None: nobody is known

    @property
    def clients_per_s(self) -> float | None:
        """Handshakes of clients alone; None if nobody can tell them from bots."""
        return self.known_per_s if self.bots else self.handshakes_per_s


class RuleCount(Struct, frozen=True):
    """What an installed rule matched in the interval, by its kernel counter."""

    rule_id: str
    packets: int
    bytes: int
    answers: bool = False  # a SYN proxy's: its packets are answered, and so neither dropped nor accepted
    early: bool = True  # it drops before routing; a SYN proxy drops behind it what it doesn't answer


class Counters(Struct, frozen=True):
    """Everything exact about one interval.

    `arrived` counts packets at tc ingress plus those that fwtop's XDP program dropped, GSO segments
    counted singly. `accepted` is None where no counter could be placed at the end of the input hook.
    """

    seconds: float
    arrived_packets: int
    arrived_bytes: int
    accepted_packets: int | None = None
    accepted_bytes: int | None = None
    protocols: dict[str, tuple[int, int]] = field(default_factory=dict)  # name → packets, bytes
    drops: tuple[DropCount, ...] = ()
    rules: tuple[RuleCount, ...] = ()
    conntrack: ConntrackSample | None = None
    records_lost: int = 0  # samples that did not fit the ring buffer or the netlink socket
    one_in: float = 1.0  # the current 1-in-N at ingress
    softirq_share: float | None = None  # share of CPU time in softirq over all cores, 0 to 1
    cores: int = 0  # that are online; 0: not known
    watched: float = 1.0  # below 1: this share of the time was observed, and counts are scaled up
