"""The way of all packets in stages, from the NIC to the services, the drops, and the connection table.

Pure functions of a snapshot. Each stage passes on what the one before it passed less what it drops, so that
the figures add up by construction.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.rule import Kind
from fwtop.model.traffic.counters import ConntrackSample
from fwtop.model.traffic.flow import STOPPED, end_of, flow_of
from fwtop.model.traffic.snapshot import FilterChain, LedgerRow, Listener, Ring, Snapshot
from fwtop.rules.kind import Layer
from fwtop.rules.kinds import of
from fwtop.ui.format import about, duration, number, percent
from fwtop.ui.lists.history import Badge, verdict_of

CONNTRACK_ALARM = 0.8  # fill of the connection-tracking table from which it is no longer normal
FULL = 0.995  # of the connection-tracking table: new connections are dropped or evict others
UNEXPLAINED_SHARE = 0.001  # below it the difference between counters read at different times is noise


class Figure(Struct, frozen=True):
    """A figure of the connection-tracking table."""

    name: str
    value: str
    alarm: bool
    meaning: str


def conntrack_figures(sample: ConntrackSample | None) -> tuple[Figure, ...]:
    """List the table's figures with what they mean; counts are of the window."""
    if sample is None or not sample.max:
        return ()
    tracked = f"{number(sample.count)} of {number(sample.max)}"
    new = "connections entered a second; a flood of forged sources enters one a packet"
    failed = "packets that another of their connection was ahead of, or whose bucket was full"
    return (
        Figure(
            "tracked",
            tracked,
            sample.fill >= CONNTRACK_ALARM,
            "connections in the table; a full one drops new ones",
        ),
        _fills_up(sample),
        Figure("new", f"{number(sample.new_per_s)}/s", False, new),
        Figure("insert failed", number(sample.insert_failed), sample.insert_failed > 0, failed),
        Figure("dropped", number(sample.drop), sample.drop > 0, "packets dropped because the table was full"),
        Figure(
            "early drop", number(sample.early_drop), sample.early_drop > 0, "entries evicted to make room"
        ),
    )


def _fills_up(sample: ConntrackSample) -> Figure:
    left = sample.seconds_to_full
    if sample.fill >= FULL or (left is not None and left < 1):
        return Figure("fills up", "FULL", True, "new connections evict others or are dropped")
    normal = sample.seconds_to_fill(CONNTRACK_ALARM)
    if normal is not None:
        meaning = f"it drains: below {percent(CONNTRACK_ALARM)} then, at the present rate"
        return Figure("normal", f"in {about(normal)}", False, meaning)
    if left is None:
        return Figure("fills up", "not growing", False, "as many connections end as begin")
    return Figure("fills up", f"in {duration(left)}", left < 300.0, "at the present growth")


UNEXPLAINED = "unexplained"  # the layer of what is neither delivered nor dropped


def shown_ledger(snapshot: Snapshot) -> tuple[LedgerRow, ...]:
    """Return the rows of the ledger that are worth a line."""
    return tuple(
        row
        for row in snapshot.tables.ledger
        if row.layer != UNEXPLAINED or abs(share_of_all(row, snapshot)) >= UNEXPLAINED_SHARE
    )


def share_of_all(row: LedgerRow, snapshot: Snapshot) -> float:
    """Relate a row of the ledger to all packets."""
    return row.packets / max(snapshot.tables.totals.packets, 1)


NIC, XDP, BACKLOG, TC, RAW = "NIC", "XDP", "backlog", "tc", "raw"
CONNTRACK, IP, FILTER, SOCKET, ACCEPTED = "conntrack", "IP", "filter", "socket", "accepted"
UNACCOUNTED = "unaccounted"
_ORDER = (NIC, XDP, BACKLOG, TC, RAW, CONNTRACK, IP, FILTER, SOCKET)
_STAGES = {"nic": NIC, "xdp": XDP, "backlog": BACKLOG, "tc": TC, "conntrack": CONNTRACK, "socket": SOCKET}
_ELSEWHERE = {XDP: "another XDP program", TC: "another tc filter"}


class Drop(Struct, frozen=True):
    """What one row of the ledger dropped at a stage."""

    row: LedgerRow
    end: str  # "mine", "other", "kernel"
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
    listeners: tuple[Listener, ...] = ()  # of the last one
    estimated: bool = False  # the listeners' rates
    chains: tuple[FilterChain, ...] = ()  # of other firewalls, that may drop here

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
        if here or name not in (BACKLOG, TC, IP):
            chains = _chains(name, snapshot)
            stages.append(Stage(name, left, passes, here, note, alarm, reached, flow.arrives, chains=chains))
        left = passes
    accepted = Stage(ACCEPTED, flow.reaches, flow.reaches, reached=reached, whole=flow.arrives)
    listeners = tuple(item for item in snapshot.surroundings.listeners if item.pps >= 0.05)
    estimated = snapshot.tables.sampling.one_in > 1
    stages.append(replace(accepted, listeners=listeners, estimated=estimated))
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
                drop = Drop(part, end_of(row), _by(row, stage, snapshot), part.pps)
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
    if name == NIC:
        full = any(drop.row.reason in ("RX_MISSED", "RX_FIFO") for drop in drops)
        return ", ".join(_ring(ring, full=full) for ring in snapshot.surroundings.rings), full
    if name == CONNTRACK:
        return _conntrack(snapshot.conntrack, snapshot.seconds)
    return "", False


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
    evicted = sample.early_drop / seconds if seconds > 0 else 0.0
    is_full = sample.fill >= 0.95 or evicted > 0  # of the connection table
    words = [f"{percent(sample.fill)} full"]
    if evicted or not sample.insert_failed:
        words.append(f"evicting {number(evicted)}" + ("/s" if evicted else ""))
    if sample.insert_failed:
        words.append(f"{number(sample.insert_failed)} clashed")
    return ", ".join(words), is_full
