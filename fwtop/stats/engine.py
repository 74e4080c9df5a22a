"""Turn batches and exact counters into a Window and Tables; the entry point of this package.

A batch is reduced to sums as it arrives; ticks only add the sums.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import F64, Hook, Interval, OriginLookup, PacketBatch, Window
from fwtop.model.traffic.snapshot import Sampling, Share, Tables, Totals
from fwtop.stats import destinations, ledger, payloads, sources
from fwtop.stats.sums import BYTES, DROPPED, SAMPLES, SUMS, VARIANCE, WEIGHT, XDP_DROPPED, KeyedSums, Scale
from fwtop.stats.window import Reservoir, SlidingRows, add_counters, part_of

_JOIN_ROWS = 200_000  # packets that wait to be joined: a join costs as much as the whole
_JOIN_FEEDINGS = 256
_EARLY_SECONDS = 0.05  # ticks are never exactly on time: the window must not gain and lose one by turns
_AFTER_SECONDS, _AFTER_ROWS = 1.0, 2_000  # that tell what became of traffic by now, without the time before
_OVER_SECONDS = 0.5  # by which the oldest poll may begin before the window
_KEPT_DROPPED = 20_000  # rows of the other hooks that are kept if the window is unlimited


class _Fed(Struct, frozen=True):
    """One `feed` of a sliding window."""

    now: float
    counters: Counters | None
    digest: Digest
    rows: tuple[int, int, int]  # arrived, dropped, accepted
    last_ns: int | None  # of the newest packet that arrived


class Engine:
    """Counts batches over the last `window_seconds`, or since the start if None.

    `live`: packets arrive now and exact counters accompany the samples; otherwise the batches are a
    capture of every packet. Memory is bounded either way, whatever arrives. `own` are the addresses of this
    host; `top` limits the rows of a table. A capture lasts from its first packet to its last, and at least
    for `span_ns` (begin and end): a part of it may begin and end with silence.
    """

    def __init__(
        self,
        lookup: OriginLookup,
        *,
        window_seconds: float | None,
        top: int = 50,
        live: bool,
        own: tuple[Prefix, ...] = (),
        span_ns: tuple[int, int] | None = None,
    ) -> None:
        self._lookup = lookup
        self._window_seconds = window_seconds
        self._top = top
        self._live = live
        self._own = own
        self._answers = destinations.Answers()
        self._fed: deque[_Fed] = deque()
        self._digest: Digest | None = None  # unlimited window only: what was joined
        self._counters: Counters | None = None
        self._waiting_rows = 0
        self._first_ns, self._last_ns = span_ns or (1 << 63, -(1 << 63))
        self._started: float | None = None
        self._now = 0.0
        self._changed: float | None = None  # when other rules came into force, until that begins the window
        self._stores: tuple[SlidingRows | Reservoir, ...]
        if window_seconds is None:
            self._stores = (Reservoir(), Reservoir(_KEPT_DROPPED), Reservoir(_KEPT_DROPPED))
        else:
            self._stores = (SlidingRows(), SlidingRows(), SlidingRows())
        self._sum: tuple[Digest, Counters] | None = None

    def feed(self, batch: PacketBatch, counters: Counters | None, now: float) -> None:
        """Add a batch, with the exact counters of the interval in which it was sampled.

        `now` is the end of that interval in Unix seconds (a capture's own times count instead).
        """
        batch, lost_scale = _with_losses(batch, counters)
        arrived, dropped, accepted = _by_hook(batch)
        if len(arrived) and not self._live:
            self._first_ns = min(self._first_ns, int(arrived.time_ns.min()))
            self._last_ns = max(self._last_ns, int(arrived.time_ns.max()))
        if self._started is None:
            self._started = now - (counters.seconds if counters else 0.0)
        self._now = now
        one_in = counters.one_in * lost_scale if counters else 1.0
        digest = Digest.of(arrived, dropped, one_in, self._lookup)
        parts = (arrived, dropped, accepted)
        if self._window_seconds is not None:  # before these come, so that what is gone isn't copied with them
            self._forget(now - self._window_seconds, keep=0)
            self._cut(now - self._window_seconds)
        for store, part in zip(self._stores, parts, strict=True):
            store.append(part)
        last_ns = int(arrived.time_ns.max()) if len(arrived) else None
        rows = (len(arrived), len(dropped), len(accepted))
        self._fed.append(_Fed(now, counters, digest, rows, last_ns))
        self._waiting_rows += len(batch)
        if self._live:  # a capture file's interfaces are not this machine's
            self._answers.feed(arrived)
        if self._window_seconds is not None:
            self._begin_after_change()
        elif self._waiting_rows >= _JOIN_ROWS or len(self._fed) >= _JOIN_FEEDINGS:
            self._join()
        self._sum = None

    def rules_changed(self) -> None:
        """Begin the window here as soon as what follows is enough: other rules are in force than before.

        A window from before and after would tell a rule's effect too small until all of it is newer.
        """
        self._changed = self._now if self._window_seconds is not None else None

    def _begin_after_change(self) -> None:
        if self._changed is None or self._now - self._changed < _AFTER_SECONDS - _EARLY_SECONDS:
            return
        rows = sum(fed.rows[0] for fed in self._fed if fed.now > self._changed)
        if rows >= _AFTER_ROWS:
            self._forget(self._changed - _EARLY_SECONDS, keep=1)
        if rows >= _AFTER_ROWS or self._fed[0].now > self._changed:
            self._changed = None

    def _forget(self, before: float, *, keep: int) -> None:
        """Drop older feeds, but keep the last `keep`."""
        while len(self._fed) > keep and self._fed[0].now <= before + _EARLY_SECONDS:
            gone = self._fed.popleft()
            for store, count in zip(self._stores, gone.rows, strict=True):
                assert isinstance(store, SlidingRows)  # noqa: S101 - window_seconds is given
                store.forget(count)

    def _cut(self, before: float) -> None:
        """Let the oldest poll begin here: in calm one is longer than the window, and thins an attack out.

        Of its counters the part stays that is left of its samples.
        """
        first = self._fed[0] if self._fed else None
        if first is None or first.counters is None:
            return
        left = first.now - before
        if first.counters.seconds - left < _OVER_SECONDS:
            return
        clock, kept, weights = self._clock(), [], []
        for store, count in zip(self._stores, first.rows, strict=True):
            assert isinstance(store, SlidingRows)  # noqa: S101 - window_seconds is given
            rows = store.rows().select(slice(0, count))
            gone = 0 if clock is None else int(np.count_nonzero(rows.time_ns < (before - clock) * 1e9))
            store.forget(gone)
            kept.append(rows.select(slice(gone, None)))
            weights.append((float(kept[-1].weight.sum()), float(rows.weight.sum())))
        some, whole = weights[0]  # of what arrived
        counters = part_of(first.counters, left, some / whole if whole else left / first.counters.seconds)
        digest = Digest.of(kept[0], kept[1], counters.one_in, self._lookup)
        rows_left = (len(kept[0]), len(kept[1]), len(kept[2]))
        self._fed[0] = replace(first, counters=counters, digest=digest, rows=rows_left)

    def _join(self) -> None:
        """Join waiting feeds with everything counted since the start."""
        digests = [fed.digest for fed in self._fed]
        counters = [fed.counters for fed in self._fed if fed.counters is not None]
        if self._digest is not None:
            digests.insert(0, self._digest)
        if self._counters is not None:
            counters.insert(0, self._counters)
        self._digest = Digest.join(digests).bounded() if digests else None
        self._counters = add_counters(counters) if counters else None
        self._fed.clear()
        self._waiting_rows = 0

    def _summed(self) -> tuple[Digest, Counters]:
        """Return the sums and counters of the window."""
        if self._sum is None:
            digests = [fed.digest for fed in self._fed]
            counters = [fed.counters for fed in self._fed if fed.counters is not None]
            if self._window_seconds is None:
                self._join()
                digests = [self._digest] if self._digest is not None else []
                counters = [self._counters] if self._counters is not None else []
            if not digests:
                empty = PacketBatch.empty()
                digests = [Digest.of(empty, empty, 1.0, self._lookup)]
            digest = Digest.join(digests)
            self._sum = digest, self._exact(digest, counters)
        return self._sum

    def _exact(self, digest: Digest, counters: list[Counters]) -> Counters:
        """Return the counters of the window, or totals of the packets if there are none."""
        if counters:
            return add_counters(counters)
        packets, size = round(digest.total[WEIGHT]), round(digest.total[BYTES])
        seconds = max(self._last_ns - self._first_ns, 0) / 1e9
        if self._live:
            seconds = self._now - (self._started or self._now)
        return Counters(seconds, packets, size)

    def window(self) -> Window:
        """Return the packets and exact counts of the window."""
        _, counters = self._summed()
        arrived, dropped, accepted = (store.rows() for store in self._stores)
        if self._live:
            started = self._now - counters.seconds
        else:
            started = self._first_ns / 1e9 if self._last_ns >= self._first_ns else self._now
        return Window(
            started,
            counters.seconds,
            arrived,
            dropped,
            accepted,
            counters,
            self._live,
            self._own,
            intervals=self._intervals(),
            clock=self._clock(),
        )

    def _intervals(self) -> tuple[Interval, ...]:
        """Return the polls of a live window; they tell pauses of the traffic from gaps of the observation."""
        return tuple(
            Interval(
                fed.now - fed.counters.seconds,
                fed.counters.seconds,
                fed.counters.arrived_packets,
                fed.rows[0],
            )
            for fed in self._fed
            if self._live and fed.counters is not None
        )

    def _clock(self) -> float | None:
        """Estimate Unix time minus packet time: no packet arrives after the poll that returned it."""
        offsets = [fed.now - fed.last_ns / 1e9 for fed in self._fed if fed.last_ns is not None]
        return min(offsets) if self._live and offsets else None

    def tables(self, also: Sequence[Prefix] = ()) -> Tables:
        """Return all tables of the window; `also` are addresses to list even if they send little.

        Frees the sums, several MB in a flood: they are made anew from the next batch on.
        """
        digest, counters = self._summed()
        known = any(fed.counters is not None for fed in self._fed) or self._counters is not None
        seconds = counters.seconds
        scale = Scale(digest.total, counters.arrived_packets, counters.arrived_bytes, seconds)
        if known:
            book = ledger.balance(counters, self._stores[1].rows(), self._stores[2].rows())
        else:
            book = ledger.recorded(counters.arrived_packets, seconds)
        drops = sources.Drops.of(float(digest.total[DROPPED]), counters, self._stores[1].rows())
        targets = destinations.destination_table(digest.destinations, scale, drops, self._top)
        self._sum = None
        return Tables(
            totals=_totals(counters, book),
            sampling=_sampling(digest, counters),
            ledger=book.rows,
            sources=sources.tables(digest.sources, scale, drops, self._lookup, self._top, also=also),
            destinations=self._answers.marked(targets, self._stores[0].rows(), self._own),
            ports=destinations.port_table(digest.ports, scale, self._top),
            payloads=payloads.table(digest.payloads, scale, self._top),
            protocols=_protocols(digest, counters, scale),
        )


def _by_hook(batch: PacketBatch) -> tuple[PacketBatch, PacketBatch, PacketBatch]:
    """Split into arrived, dropped and accepted."""
    arrived = (batch.hook == Hook.INGRESS) | (batch.hook == Hook.XDP)
    if arrived.all():
        none = batch.select(slice(0, 0))
        return batch, none, none
    return (
        batch.select(arrived),
        batch.select(batch.hook == Hook.DROP),
        batch.select(batch.hook == Hook.ACCEPTED),
    )


def _with_losses(batch: PacketBatch, counters: Counters | None) -> tuple[PacketBatch, float]:
    """Scale the samples up for those that were lost in the same interval.

    Returns the factor, too.
    """
    if counters is None or not counters.records_lost or not len(batch):
        return batch, 1.0
    scale = 1.0 + counters.records_lost / len(batch)
    return replace(batch, weight=batch.weight * scale), scale


def _totals(counters: Counters, book: ledger.Ledger) -> Totals:
    seconds = counters.seconds
    packets = counters.arrived_packets + book.unseen
    size = counters.arrived_bytes + book.unseen_bytes
    pps, bps = (packets / seconds, size * 8 / seconds) if seconds > 0 else (float(packets), size * 8.0)
    return Totals(packets, size, pps, bps, book.delivered, book.dropped)


def _sampling(digest: Digest, counters: Counters) -> Sampling:
    samples = int(digest.total[SAMPLES])
    one_in = counters.arrived_packets / samples if samples else counters.one_in
    return Sampling(max(one_in, 1.0), samples, counters.records_lost, counters.watched)


def _protocols(digest: Digest, counters: Counters, scale: Scale) -> dict[str, Share]:
    """Return the share of each protocol: exact where the kernel counted them."""
    if not counters.protocols:
        return destinations.protocols(digest.protocols, scale)
    packets = max(counters.arrived_packets, 1)
    out = {}
    for name, (count, size) in sorted(counters.protocols.items(), key=lambda item: -item[1][0]):
        part = float(np.clip(count / packets, 0.0, 1.0))
        pps = count / counters.seconds if counters.seconds > 0 else float(count)
        out[name] = Share(count, size, pps, part, part, part)
    return out


class Digest(Struct, frozen=True):
    """Everything that the tables need from a set of packets; digests can be added."""

    total: F64  # (SUMS,)
    sources: sources.SourceSums
    destinations: KeyedSums
    ports: KeyedSums
    payloads: payloads.PayloadSums
    protocols: KeyedSums

    @staticmethod
    def of(arrived: PacketBatch, dropped: PacketBatch, one_in: float, lookup: OriginLookup) -> Digest:
        """Count a batch; `one_in` is the interval's sampling rate at ingress."""
        sums = arrived_sums(arrived, one_in)
        lost = np.zeros((SUMS, len(dropped)))
        lost[DROPPED] = dropped.weight
        return Digest(
            total=sums.sum(axis=1) + lost.sum(axis=1),
            sources=sources.with_origins(sources.sum_addresses("src", arrived, sums, dropped, lost), lookup),
            destinations=sources.sum_addresses("dst", arrived, sums, dropped, lost),
            ports=destinations.sum_ports(arrived, sums),
            payloads=payloads.sum_payloads(arrived, sums),
            protocols=destinations.sum_protocols(arrived, sums),
        )

    @staticmethod
    def join(digests: list[Digest]) -> Digest:
        """Add one or more digests."""
        if len(digests) == 1:
            return digests[0]
        total, *parts = map(list, zip(*map(astuple, digests), strict=True))
        return Digest(np.sum(total, axis=0), *(type(same[0]).join(same) for same in parts))

    def bounded(self) -> Digest:
        """Return a digest of bounded size, its lightest keys folded together."""
        return replace(
            self,
            sources=self.sources.bounded(),
            destinations=self.destinations.cut(destinations.MOST),
            payloads=self.payloads.bounded(),
        )


def arrived_sums(batch: PacketBatch, one_in: float) -> F64:
    """Return the contribution of each packet to `KeyedSums.sums`, shape (SUMS, n).

    A record taken with probability 1/N stands for N × s packets, s the packets joined in it (GRO). The
    variance of such a sum is estimated by Σ (N s)² (1 − 1/N) (Horvitz and Thompson 1952): none at N = 1.
    """
    weight = batch.weight
    joined = np.where(batch.hook == Hook.INGRESS, np.maximum(weight / max(one_in, 1.0), 1.0), 1.0)
    sums = np.zeros((SUMS, len(batch)))
    sums[SAMPLES] = 1.0
    sums[WEIGHT] = weight
    sums[VARIANCE] = np.maximum(weight * (weight - joined), 0.0)
    sums[BYTES] = weight * batch.length
    sums[XDP_DROPPED] = np.where(batch.hook == Hook.XDP, weight, 0.0)
    return sums
