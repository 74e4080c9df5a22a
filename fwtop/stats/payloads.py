"""Common payload prefixes, and the DNS names of queries and answers."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.model.text import dns_name_text, payload_text
from fwtop.model.traffic.packets import F64, I64, U8, Fragment, PacketBatch
from fwtop.model.traffic.snapshot import Payload
from fwtop.stats.sums import SAMPLES, WEIGHT, KeyedSums, Scale, mixed


def window(batch: PacketBatch, rows: NDArray[np.intp], size: int) -> tuple[U8, I64]:
    """Return the first `size` payload bytes of the rows (zero-padded) and how many of each exist."""
    offset = batch.payload_offset[rows].astype(np.int64)
    there = np.minimum(batch.captured[rows].astype(np.int64) - offset, batch.payload_length[rows])
    there = np.minimum(there, size)
    width = batch.data.shape[1]
    first = int(offset[0]) if len(offset) else 0
    if len(rows) and first + size <= width and bool((offset == first).all()):
        data = batch.data[:, first : first + size]
        data = data.copy() if len(rows) == len(batch) else data.take(rows, axis=0)
    else:
        data = _gathered(batch.data, rows, offset, there, size)
    short = there < size
    if short.any():
        data[short] *= np.arange(size) < there[short, None]
    return data, there


def _gathered(data: U8, rows: NDArray[np.intp], offset: I64, there: I64, size: int) -> U8:
    flat = np.ascontiguousarray(data).reshape(-1)
    places = rows * data.shape[1] + offset
    out = np.zeros((len(rows), size), np.uint8)
    inside = places + size <= len(flat)
    if inside.any():
        windows = np.ndarray(len(flat) - size + 1, f"V{size}", flat, strides=(1,))
        out[inside] = windows[places[inside]].view(np.uint8).reshape(-1, size)
    for row in np.flatnonzero(~inside).tolist():  # the last rows, whose window exceeds the array
        taken = flat[places[row] : places[row] + there[row]]
        out[row, : len(taken)] = taken
    return out


NAME_BYTES = 96  # of the wire form that are kept
_HEADER = 12
_PORTS = (53, 5353, 5355)
_MOST_LABELS = 40


class DnsNames(Struct, frozen=True):
    """Rows that are DNS messages, the query name in wire form (n, NAME_BYTES) and its size."""

    rows: NDArray[np.intp]
    data: U8
    size: I64  # at most NAME_BYTES


def find_names(batch: PacketBatch, rows: NDArray[np.intp]) -> DnsNames:
    """Find DNS messages with one question among rows with payload.

    On DNS ports the header must be valid; on other ports also the name and the class of the question.
    """
    rows = rows[(batch.protocol[rows] == 17) & (batch.fragment[rows] != Fragment.LATER)]
    offset = batch.payload_offset[rows].astype(np.int64)
    there = np.minimum(batch.captured[rows].astype(np.int64) - offset, batch.payload_length[rows])
    long = there >= _HEADER + 5
    rows, offset, there = rows[long], offset[long], there[long]
    data = batch.data
    # One question, a usual opcode, no reserved flag (byte, bits, their value): what mostly fails goes first
    for at, mask, value in ((5, 0xFF, 1), (4, 0xFF, 0), (2, 0x70, 0), (3, 0x40, 0)):
        plausible = data[rows, offset + at] & mask == value
        if not plausible.all():
            rows, offset = rows[plausible], offset[plausible]
    bytes_, there = window(batch, rows, _HEADER + NAME_BYTES)
    size, complete = _walk(bytes_[:, _HEADER:], there - _HEADER)
    known = np.isin(batch.sport[rows], _PORTS) | np.isin(batch.dport[rows], _PORTS)
    good = (size > 0) & known
    other = np.flatnonzero((size > 0) & complete & ~known)
    good[other] = _is_internet(batch, rows[other], _HEADER + size[other] + 2)
    names, size = bytes_[good, _HEADER:], size[good]
    names *= np.arange(NAME_BYTES) < size[:, None]
    return DnsNames(rows[good], names, size)


def _walk(data: U8, there: I64) -> tuple[I64, NDArray[np.bool_]]:
    """Walk the labels; return the size of the name (0: no name) and whether it is complete."""
    size = np.zeros(len(data), np.int64)
    complete = np.zeros(len(data), np.bool_)
    walking = np.arange(len(data))
    at = np.zeros(len(data), np.int64)
    for _ in range(_MOST_LABELS):
        if not len(walking):
            break
        label = data[walking, at[walking]].astype(np.int64)
        done = walking[label == 0]
        size[done] = at[done] + 1
        complete[done] = True
        going = (label > 0) & (label < 64)
        walking, label = walking[going], label[going]
        at[walking] += 1 + label
        cut = at[walking] >= there[walking]  # truncated name: keep what was captured
        size[walking[cut]] = there[walking[cut]]
        walking = walking[~cut]
    return size, complete


def _is_internet(batch: PacketBatch, rows: NDArray[np.intp], at: I64) -> NDArray[np.bool_]:
    """Check for class IN or ANY, `at` bytes into the payload."""
    place = batch.payload_offset[rows] + at
    inside = place + 2 <= batch.captured[rows]
    place = np.where(inside, place, 0)
    low = batch.data[rows, place + 1]
    return np.asarray(inside & (batch.data[rows, place] == 0) & ((low == 1) | (low == 255)))


def labels_of(wire: bytes) -> list[bytes]:
    """Split a name in wire form into labels; a truncated name gives those captured."""
    labels, at = [], 0
    while at < len(wire) and 0 < wire[at] < 64:
        labels.append(wire[at + 1 : at + 1 + wire[at]])
        at += 1 + wire[at]
    return labels


LENGTHS = (4, 8, 16, 32, 64)  # bytes of the beginnings that are compared
_MOST_IN_BATCH = 512  # keys kept per batch and length
_MOST = 4096
_PART = 0.2  # a longer prefix with this share of the packets of a shorter one is listed
_SAME = 0.9  # where longer prefixes cover this share, they replace the shorter one
_RARE = 0.001  # of all packets: a rarer prefix is not common
_FEW_ROWS = 20  # with so few samples, list all


class PayloadSums(Struct, frozen=True):
    """Beginnings of each of LENGTHS (tags: data, size), and DNS names (tags: data, size)."""

    beginnings: tuple[KeyedSums, ...]
    names: KeyedSums
    samples: int  # packets with payload

    @staticmethod
    def join(parts: list[PayloadSums]) -> PayloadSums:
        """Add up."""
        return PayloadSums(
            tuple(
                KeyedSums.join(list(same)) for same in zip(*(part.beginnings for part in parts), strict=True)
            ),
            KeyedSums.join([part.names for part in parts]),
            sum(part.samples for part in parts),
        )

    def bounded(self) -> PayloadSums:
        """Keep only the most common."""
        cut = tuple(part.cut(_MOST) for part in self.beginnings)
        return PayloadSums(cut, self.names.cut(_MOST), self.samples)


def sum_payloads(batch: PacketBatch, sums: F64) -> PayloadSums:
    """Count the prefixes of all sampled payloads; count DNS messages by name instead.

    (A DNS message begins with a random ID, so its first bytes are never common.)
    """
    rows = np.flatnonzero(
        (batch.payload_length > 0)
        & (batch.captured > batch.payload_offset)
        & (batch.fragment != Fragment.LATER)
    )
    names = find_names(batch, rows)
    rows = np.setdiff1d(rows, names.rows, assume_unique=True) if len(names.rows) else rows
    data, size = window(batch, rows, LENGTHS[-1])
    beginnings = _beginnings(data, size, sums.take(rows, axis=1))
    return PayloadSums(beginnings, _name_tally(names, sums), len(rows) + len(names.rows))


def _beginnings(data: U8, size: I64, sums: F64) -> tuple[KeyedSums, ...]:
    """Group by the first 64 bytes, then those groups by ever shorter prefixes."""
    running = _prefix_hashes(data)
    longest = KeyedSums.of(_keyed(running[-1], size, LENGTHS[-1]), sums, {"row": np.arange(len(data))})
    row = longest.tags["row"]
    out = []
    for length, hashed in zip(LENGTHS, running, strict=True):
        keys = _keyed(hashed[row], size[row], length)
        tags = {"data": data, "size": np.minimum(size, length).astype(np.uint8)}
        out.append(_top(keys, longest.sums, row, tags))
    return tuple(out)


def _top(
    keys: NDArray[np.uint64], sums: F64, rows: NDArray[np.int64], tags: dict[str, NDArray[np.uint8]]
) -> KeyedSums:
    """Group and keep the most common; copy only their tags, from `rows`."""
    counted = KeyedSums.of(keys, sums, {"row": rows}).cut(_MOST_IN_BATCH)
    chosen = counted.tags["row"]
    kept = {name: tag.take(chosen, axis=0) for name, tag in tags.items()}
    return KeyedSums(counted.keys, counted.sums, kept)


def _name_tally(names: DnsNames, sums: F64) -> KeyedSums:
    words = names.data.view(np.uint64)
    keys = names.size.astype(np.uint64)
    for column in range(-(-int(names.size.max(initial=0)) // 8)):
        keys = np.where(names.size > column * 8, mixed(words[:, column], keys), keys)
    tags = {"data": names.data, "size": names.size.astype(np.uint8)}
    return _top(keys, sums.take(names.rows, axis=1), np.arange(len(keys)), tags)


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
    """Mix the number of captured bytes into the hashes."""
    return mixed(hashed, np.minimum(size, length).astype(np.uint64))


def table(counted: PayloadSums, scale: Scale, top: int) -> tuple[Payload, ...]:
    """Return the most common prefixes and DNS names, in descending order of packets."""
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


class _Pick(Struct, frozen=True):
    data: bytes
    offset: int
    dns_name: str | None
    sums: F64


def _common(counted: KeyedSums, least: float, samples: int) -> list[int]:
    rows = counted.largest(_MOST_IN_BATCH)
    seen, weight = counted.sums[SAMPLES, rows], counted.sums[WEIGHT, rows]
    enough = (weight >= least) & ((seen >= 2) | (samples <= _FEW_ROWS))
    return [int(row) for row in rows[enough]]


def _pick_names(names: KeyedSums, least: float, samples: int) -> list[_Pick]:
    out = []
    for row in _common(names, least, samples):
        data = _bytes(names, row)
        out.append(_Pick(data, 12, dns_name_text(labels_of(data)), names.sums[:, row]))
    return out


def _pick_beginnings(counted: PayloadSums, least: float) -> list[_Pick]:
    """Choose the most specific of nested prefixes: see _PART and _SAME."""
    levels = [
        {_bytes(level, row): level.sums[:, row] for row in _common(level, least, counted.samples)}
        for level in counted.beginnings
    ]
    out: list[_Pick] = []
    for data, sums in levels[0].items():
        _descend(levels, 0, data, sums, out)
    return out


def _bytes(level: KeyedSums, row: int) -> bytes:
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
