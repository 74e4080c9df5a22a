"""How severe an attack is: which resource it exhausts, how near that is to its end, and the class from it.

What an attack exhausts, its own file declares as rooms. Near its end is what was measured of this host: CPU
time in softirq, packets that the NIC lost, the connection table, the listen queue of the port, the uplink if
its speed is configured. What isn't measured, and everything in a capture, is compared with a modest host:
one core that takes 100,000 packets a second through a firewall, 100 Mb/s, 1,024 half-open connections
(tcp_max_syn_backlog), 256 workers (Apache's MaxRequestWorkers). The rates of a capture are what was kept of
it: a sampled one, or one whose packets prove by their contents what they are, tells of an attack at any rate.
What few programs send in long flows exhausts nothing before a resource is near its end, or packets are lost.
"""

from __future__ import annotations

import math

from msgspec import Struct

from fwtop.model.traffic.counters import ConntrackSample, Counters, lacks_room
from fwtop.model.traffic.packets import ListenQueue
from fwtop.model.traffic.severity import NEAR, Harm, Resource, Severity

_NOTICED, _TENTH = 0.01, 0.1  # of a resource: who takes less exhausts nothing; abuse must take more
_LOST = 0.02  # of the arriving packets: as where the core doesn't fetch them from the NIC in time
_CAUSE = 0.1  # of the packets, from which an attack is why the NIC loses some
_MOST = 0.5  # of the new entries, from which an attack is why a table fills
_FULL = 0.8  # of the table, from which lost entries are its own loss
_BURST = 0.5  # seconds for half of it: what asks for no longer, and no more than
_WORKED_OFF = 5.0  # seconds of a service's capacity, exhausts nothing, as a test run or a page's pictures do
_BEHIND = frozenset({Resource.BACKLOG, Resource.ACCEPT, Resource.WORKERS, Resource.UPLINK, Resource.SERVICE})


class Room(Struct, frozen=True):
    """A resource that an attack takes, and what a modest host has of it, in the unit that it is taken in."""

    resource: Resource
    size: float = 0.0  # 0: only a measurement tells
    unit: str = "pps"  # of Load: pps, bps, asked, connections


CORE = Room(Resource.SOFTIRQ, 100_000)
LINK = Room(Resource.LINK, 100e6, "bps")
TABLE = Room(Resource.TABLE)
BACKLOG = Room(Resource.BACKLOG, 1_024 / 63)  # SYNs/s: each is kept for 63 s (tcp_synack_retries 5)
ACCEPT = Room(Resource.ACCEPT)
WORKERS = Room(Resource.WORKERS, 256, "connections")


def service(per_second: float) -> Room:
    """Return the capacity of a service: requests, handshakes or connections a second."""
    return Room(Resource.SERVICE, per_second, "asked")


class Load(Struct, frozen=True):
    """What an attack sends and holds."""

    pps: float
    bps: float = 0.0
    asked: float = 0.0  # requests a second, without the packets that belong to them
    connections: float = 0.0  # that it keeps open
    share: float = 1.0  # of all arriving packets
    reaching: float = 1.0  # share of its packets that nothing drops
    bearable: bool = False  # of few programs or people: it exhausts only what it brings near its end
    least: bool = False  # it sends more than this: a capture was thinned, or is all that shows of it
    half: float = math.inf  # seconds that hold the middle half of its packets
    window: float = 1.0  # seconds that the rates are means of


class Surroundings(Struct, frozen=True):
    """What was measured of the host; None: it wasn't."""

    link_bps: float | None = None
    softirq: float | None = None  # share of CPU time
    losing: bool = False  # the NIC loses packets
    lacking: bool | None = None  # packets are lost because something is full: the NIC, a socket, a table
    table: ConntrackSample | None = None
    queue: ListenQueue | None = None  # of the attacked port
    overflows: bool = False  # handshakes are lost because a listen queue is full

    @staticmethod
    def of(counters: Counters, link_bps: float | None = None) -> Surroundings:
        """Return what the counters of a live window tell."""
        lost = sum(drop.packets for drop in counters.drops if lacks_room(drop.layer, drop.reason))
        return Surroundings(
            link_bps,
            counters.softirq_share,
            losing=lost_in_nic(counters) > 0,
            lacking=lost > _LOST * max(1, counters.arrived_packets),
            table=counters.conntrack,
        )


def lost_in_nic(counters: Counters) -> int:
    """Return how many packets the NIC lost, 0 if so few that neither link nor core is saturated."""
    lost = sum(drop.packets for drop in counters.drops if drop.layer == "nic")
    return lost if lost > _LOST * max(1, counters.arrived_packets) else 0


def severity_of(rooms: tuple[Room, ...], otherwise: Harm, load: Load, around: Surroundings) -> Severity:
    """Return the class of an attack, and the resource that it brings nearest to its end.

    The class goes by what the attack sends, whether or not something drops it, so that a rule against it
    doesn't make it harmless; the nearness is of what is left. `otherwise` is its class if it exhausts
    nothing.
    """
    levels = [_level(room, load, around) for room in rooms]
    if not levels:
        return Severity(Harm.ATTACK if load.least else otherwise)
    sent = max(level.sent for level in levels)
    least = _TENTH if otherwise is Harm.ABUSE else _NOTICED
    if not load.least and sent < (NEAR if load.bearable and not around.lacking else least):
        return Severity(otherwise)
    worst = max(levels, key=lambda level: (level.now, level.sent))
    nearness = worst.now if worst.measured or sent >= _NOTICED else None
    assumed = nearness is not None and not worst.measured
    return Severity(Harm.ATTACK, worst.resource, nearness, assumed)


class _Level(Struct, frozen=True):
    resource: Resource
    sent: float  # what the attack would take if all arrived, 0 to 1
    now: float  # what it takes: as measured, else of a modest host
    measured: bool


def _level(room: Room, load: Load, around: Surroundings) -> _Level:
    configured = room.resource is Resource.LINK and around.link_bps is not None
    size = around.link_bps if configured else room.size
    taken = getattr(load, room.unit)
    burst = room.unit == "asked" and load.half < _BURST and taken * load.window < _WORKED_OFF * room.size
    copes = load.bearable and around.lacking is False and room.resource in _BEHIND  # its queue never fills
    sent = min(taken / size, 1.0) if size and not (burst or copes) else 0.0
    measured = sent if configured else _measured(room.resource, load, around)
    if measured is not None:
        return _Level(room.resource, max(sent, measured), measured, measured=True)
    left = sent * (load.reaching if room.resource in _BEHIND else 1.0)
    return _Level(room.resource, sent, left, measured=False)


def _measured(resource: Resource, load: Load, around: Surroundings) -> float | None:
    """Return how near its end a resource is through an attack; None if that isn't measured."""
    if resource is Resource.SOFTIRQ:
        if around.losing and load.share >= _CAUSE:
            return 1.0
        return around.softirq * load.share if around.softirq is not None else None
    table = around.table
    if resource is Resource.TABLE and table is not None and table.max:
        if load.pps * load.reaching < _MOST * table.new_per_s:
            return None
        losing = table.fill > _FULL and table.drop + table.early_drop > 0
        return 1.0 if losing else min(table.fill, 1.0)
    if resource in (Resource.ACCEPT, Resource.WORKERS) and around.queue is not None:
        waiting = around.queue.waiting / max(around.queue.limit, 1)
        full = around.overflows and waiting > _MOST
        least = _MOST if resource is Resource.WORKERS else _NOTICED  # all may be busy, and nobody waits
        return 1.0 if full else waiting if waiting > least else None
    return None
