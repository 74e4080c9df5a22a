"""What payloads commonly begin with, and which DNS names are asked for or answered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fwtop.aggregate.dns_names import DnsNames, find_names, labels_of
from fwtop.aggregate.payload_bytes import window
from fwtop.aggregate.shares import Scale
from fwtop.aggregate.tally import SAMPLES, WEIGHT, Tally, mixed
from fwtop.model.packets import F64, I64, U8, Fragment, PacketBatch
from fwtop.model.snapshot import Payload
from fwtop.model.text import dns_name_text, payload_text

LENGTHS = (4, 8, 16, 32, 64)  # bytes of the beginnings that are compared
_MOST_IN_BATCH = 512  # keys kept of one batch and length; what is rarer in it is not common
_MOST = 4096
_PART = 0.2  # a longer beginning with this part of the shorter one's packets is listed
_SAME = 0.9  # where the longer ones make up this part they say it all, and take the shorter one's place
_RARE = 0.001  # of all packets: below this a beginning is not common
_FEW_ROWS = 20  # with so few samples each counts


@dataclass(frozen=True, slots=True)
class PayloadTallies:
    """Beginnings of each of LENGTHS (tags: data, size), and DNS names (tags: data, size)."""

    beginnings: tuple[Tally, ...]
    names: Tally
    samples: int  # packets with payload

    @staticmethod
    def join(tallies: list[PayloadTallies]) -> PayloadTallies:
        """Add up."""
        return PayloadTallies(
            tuple(
                Tally.join(list(same)) for same in zip(*(tally.beginnings for tally in tallies), strict=True)
            ),
            Tally.join([tally.names for tally in tallies]),
            sum(tally.samples for tally in tallies),
        )

    def bounded(self) -> PayloadTallies:
        """Keep the commonest only."""
        cut = tuple(tally.cut(_MOST) for tally in self.beginnings)
        return PayloadTallies(cut, self.names.cut(_MOST), self.samples)


def tally(batch: PacketBatch, sums: F64) -> PayloadTallies:
    """Count the beginnings of all payloads that were sampled, DNS messages by their names instead.

    (A DNS message begins with a random number, so its first bytes are never common.)
    """
    rows = np.flatnonzero(
        (batch.payload_length > 0)
        & (batch.captured > batch.payload_offset)
        & (batch.fragment != Fragment.LATER)
    )
    names = find_names(batch, rows)
    rows = np.setdiff1d(rows, names.rows, assume_unique=True) if len(names.rows) else rows
    data, size = window(batch, rows, LENGTHS[-1])
    return PayloadTallies(
        _beginnings(data, size, sums[:, rows]), _name_tally(names, sums), len(rows) + len(names.rows)
    )


def _beginnings(data: U8, size: I64, sums: F64) -> tuple[Tally, ...]:
    """Group by the first 64 bytes, and the groups by ever fewer: who shares many bytes shares few, too."""
    running = _prefix_hashes(data)
    longest = Tally.of(_keyed(running[-1], size, LENGTHS[-1]), sums, {"row": np.arange(len(data))})
    row = longest.tags["row"]
    out = []
    for length, hashed in zip(LENGTHS, running, strict=True):
        keys = _keyed(hashed[row], size[row], length)
        tags = {"data": data, "size": np.minimum(size, length).astype(np.uint8)}
        out.append(_top(keys, longest.sums, row, tags))
    return tuple(out)


def _top(
    keys: NDArray[np.uint64], sums: F64, rows: NDArray[np.int64], tags: dict[str, NDArray[np.uint8]]
) -> Tally:
    """Group and keep the most common; only theirs are the tags that are copied, from `rows`."""
    counted = Tally.of(keys, sums, {"row": rows}).cut(_MOST_IN_BATCH)
    chosen = counted.tags["row"]
    return Tally(counted.keys, counted.sums, {name: tag[chosen] for name, tag in tags.items()})


def _name_tally(names: DnsNames, sums: F64) -> Tally:
    words = names.data.view(np.uint64)
    keys = names.size.astype(np.uint64)
    for column in range(-(-int(names.size.max(initial=0)) // 8)):
        keys = np.where(names.size > column * 8, mixed(words[:, column], keys), keys)
    tags = {"data": names.data, "size": names.size.astype(np.uint8)}
    return _top(keys, sums[:, names.rows], np.arange(len(keys)), tags)


def _prefix_hashes(data: U8) -> list[NDArray[np.uint64]]:
    """Return hashes of the first 4, 8, 16, 32, 64 bytes."""
    words = data.view(np.uint64)
    four = np.frombuffer(b"\xff" * 4 + b"\0" * 4, np.uint64)[0]
    running = words[:, 0]
    out = [running & four]
    done = 1
    for length in LENGTHS[1:]:
        while done * 8 < length:
            running = mixed(words[:, done], running)
            done += 1
        out.append(running)
    return out


def _keyed(hashed: NDArray[np.uint64], size: I64, length: int) -> NDArray[np.uint64]:
    """Make keys of hashes that also tell how many of the bytes are there."""
    return mixed(hashed, np.minimum(size, length).astype(np.uint64))


def table(counted: PayloadTallies, scale: Scale, top: int) -> tuple[Payload, ...]:
    """Return the commonest beginnings and DNS names, most packets first."""
    least = _RARE * float(scale.total[WEIGHT])
    picks = _pick_names(counted.names, least, counted.samples) + _pick_beginnings(counted, least)
    picks.sort(key=lambda pick: (-pick.sums[WEIGHT], pick.data))
    picks = picks[:top]
    if not picks:
        return ()
    shares = scale.shares(np.stack([pick.sums for pick in picks], axis=1))
    return tuple(
        Payload(pick.data, payload_text(pick.data), pick.offset, pick.dns_name, share, 0.0)
        for pick, share in zip(picks, shares, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Pick:
    data: bytes
    offset: int
    dns_name: str | None
    sums: F64


def _common(counted: Tally, least: float, samples: int) -> list[int]:
    rows = counted.largest(_MOST_IN_BATCH)
    seen, weight = counted.sums[SAMPLES, rows], counted.sums[WEIGHT, rows]
    enough = (weight >= least) & ((seen >= 2) | (samples <= _FEW_ROWS))
    return [int(row) for row in rows[enough]]


def _pick_names(names: Tally, least: float, samples: int) -> list[_Pick]:
    out = []
    for row in _common(names, least, samples):
        data = names.tags["data"][row, : int(names.tags["size"][row])].tobytes()
        out.append(_Pick(data, 12, dns_name_text(labels_of(data)), names.sums[:, row]))
    return out


def _pick_beginnings(counted: PayloadTallies, least: float) -> list[_Pick]:
    """Choose of each family of beginnings those that say most: see _PART and _SAME."""
    levels = [
        {_bytes(level, row): level.sums[:, row] for row in _common(level, least, counted.samples)}
        for level in counted.beginnings
    ]
    out: list[_Pick] = []
    for data, sums in levels[0].items():
        _descend(levels, 0, data, sums, out)
    return out


def _bytes(level: Tally, row: int) -> bytes:
    return level.tags["data"][row, : int(level.tags["size"][row])].tobytes()


def _descend(levels: list[dict[bytes, F64]], depth: int, data: bytes, sums: F64, out: list[_Pick]) -> None:
    longer = levels[depth + 1] if depth + 1 < len(levels) else {}
    children = {key: value for key, value in longer.items() if key.startswith(data)}
    parts = {key: float(value[WEIGHT]) / float(sums[WEIGHT]) for key, value in children.items()}
    listed = [key for key, part in parts.items() if part >= _PART]
    if sum(parts[key] for key in listed) < _SAME:
        out.append(_Pick(data, 0, None, sums))
    for key in listed:
        _descend(levels, depth + 1, key, children[key], out)
