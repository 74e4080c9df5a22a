"""Separate drop reasons that share one kernel counter, without double counting; infer uncounted drops.

Drivers count packets before an XDP program runs (veth, virtio_net, i40e, ixgbe, ice and others; with those
that count later, nothing can be inferred). Packets that neither reached tc ingress nor were dropped by
fwtop's own rules must have been dropped or redirected by another XDP program.

Fragments that are never completed wait in the reassembly queue; the kernel drops them 30 s later, when their
interface is no longer known. So the ledger shows them as waiting. Known are the fragments that entered
reassembly and the packets that left it (SNMP counters, RFC 4293), and how many fragments those packets
consisted of (counted at the end of the netfilter hooks). nf_defrag_ipv6, which reassembles for connection
tracking, counts nothing (net/ipv6/netfilter/nf_conntrack_reasm.c): there the programs count arriving
fragments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from fwtop.kernel.drop_reasons import layer_of_function
from fwtop.kernel.links import LinkStats
from fwtop.kernel.procfs import parse_paired, parse_single, read_text
from fwtop.model.traffic.counters import NETFILTER_DROP, ConntrackSample, DropCount


def grown(now: dict[int, LinkStats], before: dict[int, LinkStats], field: str) -> int:
    """Return the growth of a counter, summed over all interfaces; a counter that was reset grows by 0."""
    return sum(
        max(0, getattr(stats, field) - getattr(before[index], field))
        for index, stats in now.items()
        if index in before
    )


def driver_drops(
    now: dict[int, LinkStats], before: dict[int, LinkStats], drops: list[DropCount], by_xdp: int = 0
) -> list[DropCount]:
    """Return the drivers' drops, without those that also appear in `drops`.

    `by_xdp` packets were dropped by XDP programs, which some drivers (virtio_net) count as dropped, too.
    """
    totals = {name: grown(now, before, name) for name in ("missed", "fifo", "errors", "dropped")}
    twice = sum(drop.packets for drop in drops if drop.reason in ("CPU_BACKLOG", "UNHANDLED_PROTO"))
    totals["dropped"] = max(0, totals["dropped"] - twice - by_xdp)
    totals["errors"] = max(0, totals["errors"] - totals["fifo"] - totals["missed"])
    if totals["missed"]:  # drivers that count both count the same packets twice
        totals["fifo"] = 0
    return [DropCount("nic", f"RX_{name.upper()}", packets) for name, packets in totals.items() if packets]


def split_conntrack(drops: Iterable[DropCount], conntrack: ConntrackSample | None) -> list[DropCount]:
    """Separate connection tracking's drops from those by netfilter rules.

    They have the rules' drop reason, or none where a packet came back from a queue (NFQUEUE). Conntrack's own
    statistics say how many are its. Packets clash mostly because they waited in one, so those are told first.
    """
    if conntrack is None:
        return list(drops)
    failed, full = conntrack.insert_failed, conntrack.drop
    parts: list[DropCount] = []
    for drop in sorted(drops, key=lambda drop: drop.reason == NETFILTER_DROP):
        by_rules = drop.reason == NETFILTER_DROP
        early = min(full, drop.packets) if by_rules else 0
        clashed = min(failed, drop.packets - early) if by_rules or _came_back(drop) else 0
        failed, full = failed - clashed, full - early
        # Entries are confirmed behind all rules
        parts += _without(drop, [("TABLE_FULL", early, True), ("INSERT_FAILED", clashed, False)])
    return parts


def _came_back(drop: DropCount) -> bool:
    """Return whether packets were dropped as they came back from a queue (nfqnl_reinject, nf_reinject)."""
    return drop.reason.endswith("_reinject)")


def _without(drop: DropCount, taken: Iterable[tuple[str, int, bool]]) -> list[DropCount]:
    """Take packets out of a count; of each kind its name, how many, and whether before delivery."""
    parts = [
        DropCount("conntrack", name, packets, drop.bytes * packets // drop.packets, before_delivery=before)
        for name, packets, before in taken
        if packets
    ]
    rest = drop.packets - sum(part.packets for part in parts)
    if rest:
        left = drop.bytes - sum(part.bytes for part in parts)
        late = sum(part.packets for part in parts if not part.before_delivery)
        filtered = min(max(drop.filtered - late, 0), rest)
        parts.append(replace(drop, packets=rest, bytes=left, filtered=filtered))
    return parts


def split_locations(drop: DropCount, locations: dict[int, int], names: dict[int, str]) -> list[DropCount]:
    """Split drops without a reason by the kernel function that dropped, where its name is known."""
    parts: dict[str, int] = {}
    rest = drop.packets
    for index, packets in locations.items():
        taken = min(rest, packets)
        rest -= taken
        parts[names[index]] = parts.get(names[index], 0) + taken
    parts[""] = parts.get("", 0) + rest
    found = []
    for name, packets in parts.items():
        layer, before = layer_of_function(name, outbound=False)
        if packets and layer:
            reason = f"{drop.reason} ({name})" if name else drop.reason
            size = drop.bytes * packets // drop.packets
            found.append(DropCount(layer, reason, packets, size, before_delivery=before, code=drop.code))
    return found


# Packets between the driver's counter and tc, or received between reading the two counters
_IN_FLIGHT_SECONDS = 0.005
_IN_FLIGHT = 20  # at least
_LASTING = 2  # earlier readings in which packets were missing already


class ForeignXdp:
    """Infers drops by other XDP programs from the driver's lead over our counters.

    The counters are read one after the other. If this process is scheduled out in between, or while a driver
    changes its receive path because an XDP program was attached, the lead is great in one reading and gone in
    the next ones. So only a lead that has lasted counts.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._leads: deque[float] = deque([0.0] * _LASTING, _LASTING)  # beyond packets in flight

    def sample(self, received: int, seen: int, seconds: float) -> int:
        """Return how many packets went missing in this interval or just before it.

        `received` counts packets at drivers with native XDP, `seen` those at tc ingress or dropped by us.
        """
        self._ahead += received - seen
        in_flight = received / seconds * _IN_FLIGHT_SECONDS if seconds > 0 else float(received)
        in_flight = max(in_flight, _IN_FLIGHT)
        lead = max(0.0, self._ahead - in_flight)
        missing = int(min(lead, *self._leads))
        self._ahead -= missing
        self._leads = deque((before - missing for before in (*self._leads, lead)), _LASTING)
        return missing

    def forget(self) -> None:
        """Reset: no XDP program is attached, or observing pauses."""
        self._ahead = 0.0
        self._leads = deque([0.0] * _LASTING, _LASTING)


WAITING = "FRAGMENTS_WAITING"
_SNMP, _SNMP6 = "/proc/net/snmp", "/proc/net/snmp6"
_REASONS = ("DUP_FRAG", "FRAG_")  # of drops in reassembly
_FUNCTIONS = ("(ip_defrag", "(ip_frag", "(ipv6_frag", "(ip6_frag", "(inet_frag")


class Sums(Struct, frozen=True):
    """Fragments that entered reassembly, and packets that left it."""

    entered: int
    left: int

    @property
    def waiting(self) -> int:
        """Waiting fragments, plus all but the first of each packet that left."""
        return self.entered - self.left

    def since(self, before: Sums) -> Sums:
        """Return the growth since an earlier reading."""
        return Sums(self.entered - before.entered, self.left - before.left)


class FragmentMeter:
    """Counts the fragments that wait for longer than an interval."""

    def __init__(self) -> None:
        self._v4, self._v6 = self._read()
        self._waiting = 0  # since the last interval
        self._unexplained = 0
        self._layer = "ip"  # of the waiting fragments

    def _read(self) -> tuple[Sums, Sums]:
        v4 = parse_paired(read_text(_SNMP)).get("Ip", {})
        v6 = parse_single(read_text(_SNMP6))
        return (
            Sums(v4.get("ReasmReqds", 0), v4.get("ReasmOKs", 0)),
            Sums(v6.get("Ip6ReasmReqds", 0), v6.get("Ip6ReasmOKs", 0)),
        )

    def sample(
        self, beyond_first: int, unexplained: int, drops: list[DropCount], counted: Sums
    ) -> list[DropCount]:
        """Return a row for the waiting fragments, if any.

        `beyond_first`: fragments of reassembled packets that were accepted or dropped, without each first
        one. `unexplained`: packets that arrived and were neither dropped before delivery nor accepted; as
        the counters are those of the whole namespace, they explain at most that many. `counted`: the IPv6
        fragments and packets that the programs saw.
        """
        v4, v6 = self._read()
        four, six = v4.since(self._v4), v6.since(self._v6)
        self._v4, self._v6 = v4, v6
        # Connection tracking reassembles IPv6 without counting
        tracked = six.entered == 0 and counted.entered > 0
        six = counted if tracked else six
        dropped = sum(drop.packets for drop in drops if _in_reassembly(drop.reason))
        grown = four.waiting + six.waiting - beyond_first - dropped
        self._unexplained = max(0, self._unexplained + unexplained)
        kept = max(0, min(self._waiting + min(grown, 0), self._unexplained))
        self._waiting = max(0, grown)
        self._unexplained -= kept
        layer, self._layer = self._layer, "conntrack" if tracked else "ip"
        return [DropCount(layer, WAITING, kept)] if kept else []


def _in_reassembly(reason: str) -> bool:
    return reason.startswith(_REASONS) or any(name in reason for name in _FUNCTIONS)
