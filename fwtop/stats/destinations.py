"""Where packets go: the addresses of this host, or of those behind it, and who of them answers.

An answer counts only if it comes in by another interface than the packets to its sender: nobody outside can
forge that. Where one interface is watched, as on most servers, no answers are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.packets import F64, U64, Mask, PacketBatch
from fwtop.model.traffic.protocols import TCP, UDP
from fwtop.model.traffic.snapshot import Destination
from fwtop.stats.sources import Drops, address_keys
from fwtop.stats.sums import SAMPLES, WEIGHT, KeyedSums, Scale, mixed

MOST = 20_000  # a scan of a large network reaches any number of addresses: keep the heaviest


def sum_destinations(arrived: PacketBatch, sums: F64, dropped: PacketBatch, lost: F64) -> KeyedSums:
    """Sum arrived packets by destination, and what the drop hook sampled of each; tags: family, hi, lo."""
    family, hi, lo, both = arrived.family, arrived.dst_hi, arrived.dst_lo, sums
    if len(dropped):
        family = np.concatenate((family, dropped.family))
        hi = np.concatenate((hi, dropped.dst_hi))
        lo = np.concatenate((lo, dropped.dst_lo))
        both = np.concatenate((sums, lost), axis=1)
    known = family != 0
    if not known.all():
        family, hi, lo, both = family[known], hi[known], lo[known], both[:, known]
    length = np.where(family == 4, np.uint8(32), np.uint8(128))
    return KeyedSums.of(address_keys(family, length, hi, lo), both, {"family": family, "hi": hi, "lo": lo})


def table(counted: KeyedSums, scale: Scale, drops: Drops, top: int) -> tuple[Destination, ...]:
    """Return the destinations in descending order of packets."""
    seen = counted.rows(counted.sums[SAMPLES] > 0)
    total = float(scale.total[WEIGHT])
    found = scale.top(seen, top)
    dropped = drops.share(
        seen.sums[:, [row for row, _ in found]], scale.packets / total if total > 0 else 0.0
    )
    out = []
    for (row, share), lost in zip(found, dropped, strict=True):
        prefix = Prefix.of_columns(*(int(seen.tags[name][row]) for name in ("family", "hi", "lo")))
        out.append(Destination(str(prefix), share, lost, prefix))
    return tuple(out)


_SYN_ACK, _HANDSHAKE = 0x12, 0x17  # FIN and RST are not set
_MOST_ADDRESSES, _MOST_PORTS = 4096, 8
_MOST_NEW = 256  # of one batch

Address = tuple[int, int, int]  # family, high and low half


class Answers:
    """The services heard so far, and the interfaces that they are behind. Bounded, whatever arrives."""

    def __init__(self) -> None:
        self._services: dict[Address, dict[str, None]] = {}
        self._inside: set[int] = set()

    def feed(self, arrived: PacketBatch) -> None:
        """Take note of the answers in a batch."""
        if not len(arrived) or arrived.ifindex.min() == arrived.ifindex.max():
            return
        rows = np.flatnonzero(_answers(arrived))
        if not len(rows):
            return
        came_in = _interfaces_to(arrived, rows)
        rows = rows[(came_in != 0) & (came_in != arrived.ifindex[rows])]
        columns = (arrived.family, arrived.src_hi, arrived.src_lo, arrived.protocol, arrived.sport)
        keys = np.stack([column[rows].astype(np.uint64) for column in columns], axis=1)
        for row in np.unique(keys, axis=0)[:_MOST_NEW].tolist():
            self._note((row[0], row[1], row[2]), f"{'tcp' if row[3] == TCP else 'udp'}/{row[4]}")
        self._inside |= set(np.unique(arrived.ifindex[rows]).tolist())

    def _note(self, address: Address, service: str) -> None:
        if address not in self._services and len(self._services) >= _MOST_ADDRESSES:
            return
        services = self._services.setdefault(address, {})
        if len(services) < _MOST_PORTS:
            services[service] = None

    def marked(
        self, rows: Sequence[Destination], arrived: PacketBatch, own: Sequence[Prefix]
    ) -> tuple[Destination, ...]:
        """Return the destinations with their part: own, service or dark; "" where it can't be told."""
        if not self._services:
            return tuple(rows)
        outside = ~np.isin(arrived.ifindex, np.array(sorted(self._inside), np.uint32))
        six = arrived.family == 6
        from_outside = {
            4: set(np.unique(arrived.dst_lo[outside & (arrived.family == 4)]).tolist()),
            6: {
                high << 64 | low
                for high, low in np.unique(
                    np.stack((arrived.dst_hi[outside & six], arrived.dst_lo[outside & six]), axis=1), axis=0
                ).tolist()
            },
        }
        return tuple(self._marked(row, from_outside, own) for row in rows)

    def _marked(self, row: Destination, outside: dict[int, set[int]], own: Sequence[Prefix]) -> Destination:
        value, family = row.prefix.value, row.prefix.family
        services = self._services.get((family, value >> 64, value & (1 << 64) - 1))
        if row.prefix in own:
            return replace(row, part="own")
        if services is not None:
            return replace(row, part="service", serves=tuple(sorted(services)))
        return replace(row, part="dark") if value in outside[family] else row


def _answers(batch: PacketBatch) -> Mask:
    """Tell second packets of handshakes, and datagrams from a service to one who asked there."""
    tcp: Mask = (batch.protocol == TCP) & (batch.tcp_flags & _HANDSHAKE == _SYN_ACK)
    udp = (batch.protocol == UDP) & (batch.sport != 0) & (batch.dport != 0)
    if udp.any():
        asked = np.unique(_flow(batch, back=False)[udp])
        udp[udp] = np.isin(_flow(batch, back=True)[udp], asked) & (batch.sport[udp] < batch.dport[udp])
    answers: Mask = tcp | udp
    return answers


def _flow(batch: PacketBatch, *, back: bool) -> U64:
    """Return a number for the flow of each packet, or for that of the packets that it may answer."""
    ends = ((batch.src_hi, batch.src_lo, batch.sport), (batch.dst_hi, batch.dst_lo, batch.dport))
    first, second = ends[::-1] if back else ends
    flow = np.zeros(len(batch), np.uint64)
    for column in (*first, *second):
        flow = mixed(column.astype(np.uint64), flow)
    return flow


def _interfaces_to(batch: PacketBatch, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> U64:
    """Return the interface by which packets to the sender of each row come in, 0 if none did."""
    to = mixed(batch.dst_lo, mixed(batch.dst_hi))
    order = np.argsort(to, kind="stable")
    sender = mixed(batch.src_lo[rows], mixed(batch.src_hi[rows]))
    place = np.minimum(np.searchsorted(to[order], sender), len(order) - 1)
    found = to[order][place] == sender
    return np.where(found, batch.ifindex[order][place].astype(np.uint64), np.uint64(0))
