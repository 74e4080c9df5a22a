"""The way of all packets in stages, from the NIC to the services: what drops and works at each.

Pure functions of a snapshot. Each stage passes on what the one before it passed less what it drops, so that
the figures add up by construction.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.rule import Kind
from fwtop.model.service import Service
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.session import STOPPED, end_of, flow_of, is_lost
from fwtop.model.traffic.snapshot import Core, FilterChain, LedgerRow, Queue, Ring, Snapshot
from fwtop.render.drop_words import help_words
from fwtop.render.verdict import Badge, verdict_of
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of
from fwtop.ui.format import about, number, percent

CONNTRACK_ALARM = 0.8  # fill of the connection-tracking table from which it is no longer normal
FULL = 0.995  # of the connection-tracking table: new connections are dropped or evict others
UNEXPLAINED_SHARE = 0.001  # below it the difference between counters read at different times is noise


class Figure(Struct, frozen=True):
    """A figure of the connection-tracking table."""

    name: str
    value: str
    alarm: bool
    meaning: str


def conntrack_figures(snapshot: Snapshot) -> tuple[Figure, ...]:
    """List the table's figures with what they mean; rates are means of the window."""
    sample = snapshot.conntrack
    if sample is None or not sample.max:
        return ()
    tracked = f"{number(sample.count)} of {number(sample.max)}"
    failed_pps, drop_pps, early_pps = (
        count / max(snapshot.seconds, 1e-3)
        for count in (sample.insert_failed, sample.drop, sample.early_drop)
    )
    holds = "connections in the table; a full one drops new ones"
    new = "connections entered a second; a flood of forged sources enters one a packet"
    failed = "packets that another of their connection was ahead of, or whose bucket was full"
    return (
        Figure("tracked", tracked, sample.fill >= CONNTRACK_ALARM, holds),
        _fills_up(sample, attack=bool(snapshot.judgement.on)),
        Figure("new", f"{number(sample.new_per_s)}/s", False, new),
        Figure("insert failed", f"{number(failed_pps)}/s", failed_pps > 0, failed),
        Figure(
            "dropped", f"{number(drop_pps)}/s", drop_pps > 0, "packets dropped because the table was full"
        ),
        Figure("early drop", f"{number(early_pps)}/s", early_pps > 0, "entries evicted to make room"),
    )


_SOON = 60.0  # seconds


def soon_full(snapshot: Snapshot) -> float | None:
    """Return in how many seconds an attack fills the connection table, if that is soon.

    What grows in calm doesn't go on growing: it is told as a figure of the table at most.
    """
    sample = snapshot.conntrack
    left = sample.seconds_to_full if sample is not None and snapshot.judgement.on else None
    return left if left is not None and left < _SOON else None


def _fills_up(sample: ConntrackSample, *, attack: bool) -> Figure:
    left = sample.seconds_to_full if attack or sample.fill >= CONNTRACK_ALARM else None
    if sample.fill >= FULL or (left is not None and left < 1):
        return Figure("fills up", "FULL", True, "new connections evict others or are dropped")
    normal = sample.seconds_to_fill(CONNTRACK_ALARM)
    if normal is not None:
        meaning = f"it drains: below {percent(CONNTRACK_ALARM)} then, at the present rate"
        return Figure("normal", f"in {about(normal)}", False, meaning)
    if left is None:
        return Figure("fills up", "not soon", False, "not within ten minutes at the present growth")
    return Figure("fills up", f"in {about(left)}", left < 300.0, "at the present growth")


UNEXPLAINED = "unexplained"  # the layer of what is neither delivered nor dropped


def shown_ledger(snapshot: Snapshot) -> tuple[LedgerRow, ...]:
    """Return the rows of the ledger that tell of drops and are worth a line."""
    return tuple(
        row
        for row in snapshot.tables.ledger
        if row.layer != "delivered"
        and (row.layer != UNEXPLAINED or abs(share_of_all(row, snapshot)) >= UNEXPLAINED_SHARE)
    )


def loses_most(snapshot: Snapshot) -> str:
    """Name what is so full that it loses the most packets; "" if nothing is."""
    lost = [row for row in snapshot.tables.ledger if is_lost(row)]
    if not lost:
        return ""
    layer = max(lost, key=lambda row: row.pps).layer
    return {"nic": "the NIC", "backlog": "the CPU queue", "socket": "the socket"}.get(layer, layer)


def share_of_all(row: LedgerRow, snapshot: Snapshot) -> float:
    """Relate a row of the ledger to all packets."""
    return row.packets / max(snapshot.tables.totals.packets, 1)


NIC, XDP, BACKLOG, TC, RAW = "NIC", "XDP", "backlog", "tc", "raw"
CONNTRACK, IP, FILTER, SOCKET, ACCEPTED = "conntrack", "IP", "filter", "socket", "accepted"
UNACCOUNTED = "unaccounted"
_ORDER = (NIC, XDP, BACKLOG, TC, RAW, CONNTRACK, IP, FILTER, SOCKET)
_STAGES = {"nic": NIC, "xdp": XDP, "backlog": BACKLOG, "tc": TC, "conntrack": CONNTRACK, "socket": SOCKET}
_FULL_CORE = 0.9  # of a core in softirq: there is no time for programs, and soon none for packets
_ELSEWHERE = {XDP: "another XDP program", TC: "another tc filter"}


class Drop(Struct, frozen=True):
    """What one row of the ledger dropped at a stage."""

    row: LedgerRow
    end: str  # "mine", "other", "kernel", "lost"
    by: str  # "rule 118", "inet filter input (policy drop)", "TCP_OLD_DATA"
    pps: float


class Stage(Struct, frozen=True):
    """One stage, in packets a second."""

    name: str
    enters: float
    passes: float
    drops: tuple[Drop, ...] = ()  # the most first
    note: str = ""
    alarm: bool = False  # the note tells of a resource that is full
    reached: bool = False  # packets of an attack get as far as the services
    whole: float = 0.0  # what arrives at the first stage
    listeners: tuple[Service, ...] = ()  # of the last one
    asks: tuple[Service, ...] = ()  # what this host asks others: their answers get there, too
    estimated: bool = False  # the listeners' rates
    chains: tuple[FilterChain, ...] = ()  # of other firewalls, that may drop here
    works: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what works here: a label, and a line for each

    @property
    def dropped(self) -> float:
        """What it drops."""
        return self.enters - self.passes


def stages_of(snapshot: Snapshot) -> tuple[Stage, ...]:
    """Divide the ledger into stages; none where the fate of the packets isn't known."""
    flow = flow_of(snapshot)
    if flow is None:
        return ()
    reached = _reached(snapshot)
    drops = _drops(snapshot)
    left, stages = flow.arrives, []
    for name in _ORDER:
        here = tuple(sorted(drops.get(name, ()), key=lambda drop: -drop.pps))
        passes = max(left - sum(drop.pps for drop in here), 0.0)
        note, alarm = _note(name, snapshot, here)
        if here or note or name not in (BACKLOG, TC, IP):
            stage = Stage(name, left, passes, here, note, alarm, reached, flow.arrives)
            stages.append(replace(stage, chains=_chains(name, snapshot), works=_works(name, snapshot)))
        left = passes
    accepted = Stage(ACCEPTED, flow.reaches, flow.reaches, reached=reached, whole=flow.arrives)
    listeners = tuple(item for item in snapshot.surroundings.listeners if item.pps >= 0.05)
    estimated = snapshot.tables.sampling.one_in > 1
    asks = snapshot.surroundings.asks
    stages.append(replace(accepted, listeners=listeners, asks=asks, estimated=estimated))
    lost = left - flow.reaches
    if abs(lost) >= 0.001 * max(flow.arrives, 1.0):  # less is hidden
        note = "neither dropped nor accepted" if lost > 0 else "more accepted and dropped than arrived"
        stages.append(Stage(UNACCOUNTED, abs(lost), abs(lost), note=note, whole=flow.arrives))
    return tuple(stages)


def _reached(snapshot: Snapshot) -> bool:
    verdict = verdict_of(snapshot, snapshot.at)
    if verdict.badge is Badge.TRIAL:
        return verdict.stopped < STOPPED
    return verdict.badge in (Badge.UNPROTECTED, Badge.PARTLY)


def _drops(snapshot: Snapshot) -> dict[str, list[Drop]]:
    """Sort the ledger's drops into stages; netfilter's may belong to two."""
    kinds = {status.rule.id: status.rule.kind for status in snapshot.mitigations}
    found: dict[str, list[Drop]] = {}
    for row in snapshot.tables.ledger:
        if row.layer in ("delivered", "unexplained") or row.pps <= 0:
            continue
        late = row.filtered / row.packets if row.filtered else 0.0
        for stage, share in ((_stage(row, kinds), 1.0 - late), (FILTER, late)):
            if share > 0:
                part = replace(row, packets=round(row.packets * share), pps=row.pps * share)
                drop = Drop(
                    part, "lost" if is_lost(row) else end_of(row), _by(row, stage, snapshot), part.pps
                )
                found.setdefault(stage, []).append(drop)
    return found


def _stage(row: LedgerRow, kinds: dict[str, Kind]) -> str:
    if row.layer == "netfilter":
        at_ingress = row.rule in kinds and of(kinds[row.rule]).layer is Layer.NETDEV
        return TC if at_ingress else RAW
    return _STAGES.get(row.layer, IP)


def _by(row: LedgerRow, stage: str, snapshot: Snapshot) -> str:
    if row.rule is not None:
        return f"rule {row.rule}"
    if end_of(row) != "other":
        return row.reason
    if stage in _ELSEWHERE:
        return _ELSEWHERE[stage]
    names = {_chain_name(chain) for chain in _chains(stage, snapshot)}
    return names.pop() if len(names) == 1 else "other firewall"


def _chains(stage: str, snapshot: Snapshot) -> tuple[FilterChain, ...]:
    return tuple(chain for chain in snapshot.surroundings.chains if chain.stage == stage)


def _chain_name(chain: FilterChain) -> str:
    """Name a chain; iptables has one for each family, with the same name."""
    name = chain.name
    for family in ("ip ", "ip6 "):
        if name.startswith(family):
            name = f"ip/ip6 {name.removeprefix(family)}"
    return f"{name} (policy drop)" if chain.drops_by_policy else name


def _note(name: str, snapshot: Snapshot, drops: tuple[Drop, ...]) -> tuple[str, bool]:
    """Return what else there is to say of a stage, and whether it is an alarm."""
    around = snapshot.surroundings
    if name == NIC:
        full = any(drop.row.reason in ("RX_MISSED", "RX_FIFO") for drop in drops)
        rings = [_ring(ring, full=full) for ring in around.rings]
        return ", ".join([*rings, *_busiest_queue(around.queues)]), full
    if name == BACKLOG and around.cores:
        core = max(around.cores, key=lambda core: core.softirq)
        full = core.softirq >= _FULL_CORE
        return (f"core {core.number} spends {percent(core.softirq)} in softirq" if full else ""), full
    if name == TC:
        words = [f"{item.process} ({item.pid}) copies every packet" for item in around.copying]
        return ", ".join(words), bool(words)
    if name == CONNTRACK:
        return _conntrack(snapshot.conntrack, snapshot.seconds)
    if name == SOCKET:
        words = [f"helps: {help_words(drop.row.reason)}" for drop in drops if drop.end == "lost"]
        return (words or [""])[0], bool(words)
    return "", False


def _busiest_queue(queues: Sequence[Queue]) -> list[str]:
    """Say how much of all packets the busiest of several queues takes."""
    rates = {queue.number: queue.pps for queue in queues if queue.pps}
    if len(queues) < 2 or not rates:
        return []
    busiest = max(rates, key=lambda number: rates[number])
    return [f"queue {busiest} of {len(queues)} takes {percent(rates[busiest] / sum(rates.values()))}"]


def _works(name: str, snapshot: Snapshot) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return what the details of a stage list: queues, cores, packet sockets."""
    around = snapshot.surroundings
    if name == NIC:
        return (("queues", tuple(map(_queue_words, around.queues))),)
    if name == BACKLOG:
        return (("cores", tuple(map(_core_words, around.cores))),)
    if name == TC:
        texts = (
            f"{item.process}, process {item.pid}, {item.interface or 'all interfaces'}"
            + (", filtered" if item.filtered else "")
            for item in around.packet_sockets
        )
        return (("packet sockets", tuple(texts)),)
    return ()


def _queue_words(queue: Queue) -> str:
    pps = "not counted" if queue.pps is None else f"{number(queue.pps)} pps"
    lost = f", drops {number(queue.drops)}/s" if queue.drops else ""
    return f"{queue.interface} {queue.number}: {pps}{lost}"


def _core_words(core: Core) -> str:
    rates = f"{number(core.pps)} pps, {number(core.runs)} runs/s"
    words = f"{core.number}: {percent(core.softirq)} in softirq, {rates}"
    squeezed = f", stopped early {number(core.squeezed)}/s" if core.squeezed else ""
    return words + squeezed + (f", backlog full {number(core.dropped)}/s" if core.dropped else "")


def _ring(ring: Ring, *, full: bool) -> str:
    sizes = f"ring {ring.size}/{ring.most}"
    if not full:
        return f"{sizes} ok"
    if ring.size < ring.most:
        return f"{sizes} overflows: ethtool -G {ring.interface} rx {ring.most}"
    return f"{sizes} overflows"


def _conntrack(sample: ConntrackSample | None, seconds: float) -> tuple[str, bool]:
    if sample is None or not sample.max:
        return "not in use", False
    evicted, clashed = (count / max(seconds, 1e-3) for count in (sample.early_drop, sample.insert_failed))
    is_full = sample.fill >= 0.95 or evicted > 0  # of the connection table
    words = [f"{percent(sample.fill)} full"]
    if evicted or not clashed:
        words.append(f"evicting {number(evicted)}" + ("/s" if evicted else ""))
    if clashed:
        words.append(f"{number(clashed)}/s clashed")
    return ", ".join(words), is_full
