"""The connection table: its size, its timeouts, and who fills it, from a sample of its entries."""

from __future__ import annotations

import ipaddress
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, field

from fwtop.kernel.links import list_addresses
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.counters import seconds_to_full
from fwtop.model.traffic.protocols import protocol_name
from fwtop.netfilter.ctnetlink import ASSURED, TCP_STATES, Entry, sample

# Entries, of which each takes 6 to 10 us of CPU time: a share of a half is known to 2.2 points (95 %).
SAMPLED = 2_048
# What the kernel takes to pass an entry of whatever namespace, and an empty bucket (measured, Linux 6.18);
# and what one look may take of that.
_ENTRY_SECONDS, _BUCKET_SECONDS, _MOST_SECONDS = 0.55e-6, 16e-9, 0.05
_AHEAD = 280  # entries that the kernel has packed when the reader stops: two buffers of 32 KiB
_MOST_SHARE = 0.05  # of a core, that a look may take
ENTRY_BYTES = 320  # of a tracked connection: struct nf_conn and its extensions, Linux 6.x
BUCKET_BYTES = 8  # of a hash bucket: struct hlist_nulls_head
FULL = 0.99  # fill from which new clients are refused now and then
_FORECAST_SECONDS = 1.0
_FOLDER = Path("/proc/sys/net/netfilter")
_SLABS = Path("/proc/slabinfo")
_NOT_FORWARDED = ""
# The timeout that an entry gets in each state (net/netfilter/nf_conntrack_proto_tcp.c, _udp.c).
_TCP_TIMEOUTS = {
    name: f"tcp_timeout_{name.lower()}"
    for name in TCP_STATES[1:9]  # SYN_SENT to CLOSE
} | {"SYN_SENT2": "tcp_timeout_syn_sent"}
_OTHER_TIMEOUTS = {1: "icmp_timeout", 58: "icmpv6_timeout"}
_ALL_TIMEOUTS = (
    *dict.fromkeys(_TCP_TIMEOUTS.values()),
    *("udp_timeout", "udp_timeout_stream", "generic_timeout"),
    *_OTHER_TIMEOUTS.values(),
)
_PREFIXES = {4: 24, 6: 56}


class Table(Struct, frozen=True):
    """The state of the connection table at one moment."""

    count: int
    most: int
    buckets: int
    growth: float  # entries a second; below 0: it drains
    sampled: tuple[Entry, ...]
    timeouts: dict[str, int] = field(default_factory=dict)  # short name → seconds
    everywhere: int = 0  # entries of all namespaces, which share one hash; 0: unknown
    own: frozenset[bytes] = frozenset()  # this machine's addresses, packed; empty: unknown

    @property
    def fill(self) -> float:
        """The share of its size in use."""
        return self.count / self.most if self.most else 0.0

    @property
    def seconds_to_full(self) -> float | None:
        """When new connections are refused at this rate; None: not within ten minutes."""
        return seconds_to_full(self.most - self.count, self.growth)

    def share(self, matches: Callable[[Entry], bool]) -> float:
        """Return the share of the entries that match."""
        return sum(map(matches, self.sampled)) / len(self.sampled) if self.sampled else 0.0

    @property
    def error(self) -> float:
        """How far a share may be from the truth: half of the widest 95 % interval, from 0 to 1."""
        seen = len(self.sampled)
        if not seen or seen >= self.count:
            return 0.0
        return 0.98 / math.sqrt(seen) * math.sqrt(1 - seen / self.count)

    def is_forwarded(self, entry: Entry) -> bool:
        """Whether a connection passes through: neither opened by this machine nor to it."""
        return bool(self.own) and not {entry.source, entry.destination} & self.own

    def top(self, key: Callable[[Entry], str], most: int = 5) -> list[tuple[str, float]]:
        """Return the most frequent values and their shares."""
        total = len(self.sampled)
        return [(name, count / total) for name, count in Counter(map(key, self.sampled)).most_common(most)]


def read_table() -> Table:
    """Look at the table of this network namespace, for a second; raises FwtopError (code 3) without one.

    It takes longer if the look would else take more than a twentieth of a core. A full table can't grow:
    new clients wait outside, and so nobody waits for its growth.
    """
    before, most = _number("nf_conntrack_count"), _number("nf_conntrack_max")
    if before is None or most is None:
        raise FwtopError("this namespace has no connection tracking; there is nothing to harden", 3)
    began, used = time.monotonic(), time.thread_time()
    everywhere, sampled = _everywhere(), tuple(sampled_entries(SAMPLED))
    after, growth = _number("nf_conntrack_count") or 0, 0.0
    if after < FULL * most:
        seconds = max(_FORECAST_SECONDS, (time.thread_time() - used) / _MOST_SHARE)
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
        after = _number("nf_conntrack_count") or 0
        growth = (after - before) / (time.monotonic() - began)
    timeouts = {
        name: value for name in _ALL_TIMEOUTS if (value := _number(f"nf_conntrack_{name}")) is not None
    }
    buckets = _number("nf_conntrack_buckets") or 0
    return Table(after, most, buckets, growth, sampled, timeouts, everywhere, own_addresses())


def sampled_entries(most: int) -> list[Entry]:
    """Return a uniform sample of this namespace's entries, fewer or none where others' stand in the way.

    All namespaces share one hash, and the kernel goes through it in one go until it has found enough of ours:
    2 million entries of others cost it a second of a core. Raises FwtopError (code 3).
    """
    own, buckets = _number("nf_conntrack_count") or 0, _number("nf_conntrack_buckets") or 0
    chosen = affordable(most, own, max(_everywhere(), own), buckets)
    try:
        return sample(chosen) if chosen else []
    except OSError as error:
        raise FwtopError(f"the connection table can't be read: {error.strerror}; try it as root", 3) from None


def affordable(most: int, own: int, everywhere: int, buckets: int) -> int:
    """Return how many of `own` entries a look may ask for, at most `most`; 0: it would cost too much."""
    whole = everywhere * _ENTRY_SECONDS + buckets * _BUCKET_SECONDS
    if whole <= _MOST_SECONDS:
        return most
    return max(0, min(most, int(own * _MOST_SECONDS / whole) - _AHEAD))


def timeout_of(entry: Entry) -> str:
    """Return the name of the timeout that an entry's state gives it."""
    if entry.protocol == 6:
        return _TCP_TIMEOUTS.get(state_of(entry), "tcp_timeout_syn_sent")
    if entry.protocol == 17:
        return "udp_timeout_stream" if entry.status & ASSURED else "udp_timeout"
    return _OTHER_TIMEOUTS.get(entry.protocol, "generic_timeout")


def state_of(entry: Entry) -> str:
    """Return an entry's state in the kernel's words."""
    if entry.protocol == 6:
        return TCP_STATES[entry.tcp_state] if entry.tcp_state < len(TCP_STATES) else "?"
    return "ASSURED" if entry.status & ASSURED else "UNREPLIED"


def service_of(entry: Entry) -> str:
    """Return what a connection was opened to: udp/27015, or the protocol alone."""
    name = protocol_name(entry.protocol)
    return f"{name}/{entry.dport}" if entry.protocol in (6, 17) else name


def prefix_of(entry: Entry) -> str:
    """Return the prefix that opened a connection: a /24, or an IPv6 /56."""
    length = _PREFIXES[entry.family]
    return str(ipaddress.ip_network((entry.source, length), strict=False))


def occupants(table: Table, lines: int = 3) -> list[tuple[str, Sequence[tuple[str, float]]]]:
    """Return who fills the table: service, source prefix, state; on a forwarding machine, whom behind it."""
    behind = [row for row in table.top(partial(_behind, table), lines + 1) if row[0] != _NOT_FORWARDED]
    return [
        ("services", table.top(service_of, lines)),
        ("source prefixes", table.top(prefix_of, lines)),
        ("destinations behind this machine", behind[:lines]),
        ("states", table.top(lambda entry: f"{protocol_name(entry.protocol)} {state_of(entry)}", lines)),
    ]


def own_addresses() -> frozenset[bytes]:
    """Return this machine's addresses, packed, those of loopback too; empty if they can't be read."""
    try:
        return frozenset(ipaddress.ip_address(text).packed for text in list_addresses(every_scope=True))
    except OSError:
        return frozenset()


def _everywhere() -> int:
    """Return the entries of all namespaces, 0 where only root may know."""
    try:
        lines = _SLABS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("nf_conntrack ")), 0)


def _behind(table: Table, entry: Entry) -> str:
    return str(ipaddress.ip_address(entry.destination)) if table.is_forwarded(entry) else _NOT_FORWARDED


def _number(name: str) -> int | None:
    try:
        return int((_FOLDER / name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
