"""The formats of captures, read as arrays of records: pcap and pcapng (draft-ietf-opsawg-pcap, -pcapng)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from msgspec import Struct, field

from fwtop.capture.records import (
    LINK_TYPES,
    MAX_RECORD,
    ROWS,
    Records,
    Stream,
    check_link_type,
    link_type_name,
    stopped_note,
    to_batch,
    words,
    words16,
)
from fwtop.model.errors import FwtopError
from fwtop.model.traffic.packets import I64, PacketBatch

MAGICS = {
    bytes.fromhex("d4c3b2a1"): ("<", 1000),
    bytes.fromhex("a1b2c3d4"): (">", 1000),
    bytes.fromhex("4d3cb2a1"): ("<", 1),
    bytes.fromhex("a1b23c4d"): (">", 1),
}
_FILE_HEADER, _RECORD_HEADER = 24, 16
_STEP_BYTES = 1 << 18  # before checking for a run of equal sizes
_RUN = 6  # after so many records of one size, the next ones are expected to have it too


class PcapReader:
    """The packets of a classic pcap file."""

    kind = "pcap"

    def __init__(self, stream: Stream, notes: list[str]) -> None:
        if not stream.have(_FILE_HEADER):
            raise FwtopError("the capture ends within its file header; it holds no packets")
        self._stream = stream
        self._notes = notes
        head = stream.data[stream.pos : stream.pos + _FILE_HEADER].tobytes()
        self._order, self._tick_ns = MAGICS[head[:4]]
        # The upper bits describe the frame check sequence
        self._link_type = check_link_type(struct.unpack(f"{self._order}I", head[20:24])[0] & 0xFFFF)
        stream.pos += _FILE_HEADER

    @property
    def link_types(self) -> list[int]:
        """Link types seen so far."""
        return [self._link_type]

    def batches(self) -> Iterator[PacketBatch]:
        """Yield the packets in file order."""
        stream, broken, count = self._stream, False, 0
        while not broken:
            places, broken = self._find()
            for first in range(0, len(places), ROWS):
                count += len(places[first : first + ROWS])
                stream.records = count
                yield self._batch(places[first : first + ROWS])
            if not broken and not stream.more():
                break
        if broken:
            self._notes.append(f"record {count + 1} is broken (impossible length); read up to there")
        elif stream.stopped:
            self._notes.append(stopped_note(count))
        elif stream.pos < stream.end:
            self._notes.append(f"record {count + 1} is cut off; read up to there")
        if stream.note:
            self._notes.append(stream.note)

    def _batch(self, places: I64) -> PacketBatch:
        head = words(self._stream, places, 4, self._order)
        time_ns = head[:, 0] * 1_000_000_000 + head[:, 1] * self._tick_ns
        return to_batch(
            self._stream, Records(self._link_type, places + _RECORD_HEADER, head[:, 2], head[:, 3], time_ns)
        )

    def _find(self) -> tuple[I64, bool]:
        """Return the offsets of the complete records in the buffer, and whether a broken one follows."""
        stream, broken = self._stream, False
        pos, end = stream.pos, stream.end
        found: list[I64] = []
        while pos + _RECORD_HEADER <= end and not broken:
            starts, after, broken = self._steps(pos, end)
            found.append(starts)
            if after == pos:  # the next record is incomplete
                break
            pos = after
            if len(starts) >= _RUN and pos - int(starts[-_RUN]) == _RUN * (pos - int(starts[-1])):
                stride = pos - int(starts[-1])
                found.append(self._equal_sized(pos, end, stride - _RECORD_HEADER))
                pos += len(found[-1]) * stride
        stream.pos = pos
        return np.concatenate([np.zeros(0, np.int64), *found]), broken

    def _steps(self, pos: int, end: int) -> tuple[I64, int, bool]:
        """Step from record to record, for at most _STEP_BYTES: the only Python loop over packets.

        Returns their offsets, the offset behind them, and whether the record there is broken.
        """
        memory = self._stream.data.data
        size_of = struct.Struct(f"{self._order}I").unpack_from
        starts: list[int] = []
        add = starts.append
        last = end - _RECORD_HEADER
        most = min(last, pos + _STEP_BYTES)
        while pos <= most:
            add(pos)
            pos += 16 + size_of(memory, pos + 8)[0]
        add(pos)
        places = np.array(starts, np.int64)
        large = places[1:] - places[:-1] > _RECORD_HEADER + MAX_RECORD
        if large.any():
            first = int(large.argmax())
            return places[:first], starts[first], True
        if pos > end:
            return places[:-2], starts[-2], False
        return places[:-1], pos, False

    def _equal_sized(self, pos: int, end: int, size: int) -> I64:
        """Return the offsets of consecutive records of this size from `pos` on.

        Checks four times as many in each step, so that short and long runs are both cheap.
        """
        stride = _RECORD_HEADER + size
        most = (end - pos) // stride
        count = 0
        guess = 4 * _RUN
        while count < most:
            guess = min(4 * guess, most - count)
            first = pos + count * stride + 8
            sizes = np.ndarray(guess, f"{self._order}u4", self._stream.data, first, (stride,))
            same = sizes == size
            if not same.all():
                count += int(same.argmin())
                break
            count += guess
        return pos + np.arange(count, dtype=np.int64) * stride


MAGIC = bytes.fromhex("0a0d0d0a")
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_PACKETS = (_OLD_PACKET, _SIMPLE_PACKET, _PACKET)
_LEAST = {_SECTION: 28, _INTERFACE: 20, _OLD_PACKET: 32, _SIMPLE_PACKET: 16, _PACKET: 32}
_SECOND = 1_000_000_000
_MAX_INTERFACES = 4096  # per section: bounds the memory that a hostile file takes
_MAX_SECTIONS = 10_000  # each takes some milliseconds: bounds the time of a small file of nothing else
_MAX_UNREAD_NOTED = 8  # unsupported link types listed by name
_RESOLUTION, _OFFSET = 9, 14  # if_tsresol, if_tsoffset


class _Interfaces:
    """The interface description blocks of a section, as arrays by interface number."""

    def __init__(self) -> None:
        self.count = 0
        self.link_type = np.zeros(_MAX_INTERFACES, np.int64)
        self.snap_length = np.zeros(_MAX_INTERFACES, np.int64)  # 0: none
        self.resolution = np.zeros(_MAX_INTERFACES, np.int64)  # if_tsresol
        self.offset_ns = np.zeros(_MAX_INTERFACES, np.int64)  # if_tsoffset

    def add(self, link_type: int, snap_length: int, resolution: int, offset_s: int) -> None:
        """Append an interface; there must be room."""
        at = self.count
        self.link_type[at], self.snap_length[at], self.resolution[at] = link_type, snap_length, resolution
        self.offset_ns[at] = offset_s * _SECOND
        self.count += 1

    def times(self, number: I64, ticks: I64) -> I64:
        """Convert timestamps to nanoseconds, each in the unit of its interface."""
        resolution = self.resolution[number]
        time_ns = self.offset_ns[number]
        for one in np.unique(resolution).tolist():
            rows = resolution == one
            time_ns[rows] += nanoseconds(ticks[rows], one)
        return time_ns


def nanoseconds(ticks: I64, resolution: int) -> I64:
    """Convert timestamps to nanoseconds; `resolution` is an if_tsresol."""
    power = min(resolution & 0x7F, 62 if resolution & 0x80 else 18)  # what 64 bits can hold
    if resolution & 0x80:
        seconds, part = ticks >> power, ticks & ((1 << power) - 1)
        fine = max(power - 30, 0)  # more than 30 bits would overflow
        return np.asarray(seconds * _SECOND + ((part >> fine) * _SECOND >> (power - fine)))
    return np.asarray(ticks * 10 ** (9 - power) if power <= 9 else ticks // 10 ** (power - 9))


class _Run(Struct):
    """Consecutive packet blocks of one type."""

    kind: int = _PACKET
    places: list[int] = field(default_factory=list)


class PcapngReader:
    """The packets of a pcapng file."""

    kind = "pcapng"

    def __init__(self, stream: Stream, notes: list[str]) -> None:
        self._stream = stream
        self._notes = notes
        self._order = "<"
        self._interfaces = _Interfaces()
        self._sections = 0
        self._link_types: dict[int, None] = {}
        self._last_time_ns = 0
        self._without_interface = 0
        self._count = 0
        self._ended = ""  # why reading stopped

    @property
    def link_types(self) -> list[int]:
        """Link types seen so far."""
        return list(self._link_types)

    def batches(self) -> Iterator[PacketBatch]:
        """Yield the packets in file order, without those of unsupported link types, which are noted."""
        stream = self._stream
        while not self._ended:
            yield from self._buffered()
            if not self._ended and not stream.more():
                break
        if stream.stopped:
            self._notes.append(stopped_note(self._count))
        elif not self._ended and stream.pos < stream.end:
            self._ended = "the last block is cut off"
        if self._ended:
            self._notes.append(f"{self._ended} (after packet {self._count}); read up to there")
        if stream.note:
            self._notes.append(stream.note)
        if self._without_interface:
            self._notes.append(f"{self._without_interface} packets of an unknown interface were left out")
        unread = [kind for kind in self._link_types if kind not in LINK_TYPES]
        if unread and len(unread) == len(self._link_types):
            check_link_type(unread[0])
        self._notes.extend(
            f"packets of link type {link_type_name(kind)} were left out: not supported"
            for kind in unread[:_MAX_UNREAD_NOTED]
        )
        if len(unread) > _MAX_UNREAD_NOTED:
            self._notes.append(f"and those of {len(unread) - _MAX_UNREAD_NOTED:,} more link types")

    def _buffered(self) -> Iterator[PacketBatch]:
        """Read the complete blocks in the buffer."""
        stream = self._stream
        memory = stream.data.data
        run, blocks = _Run(), 0
        head = struct.Struct(f"{self._order}II").unpack_from
        pos, end = stream.pos, stream.end
        while pos + 12 <= end:
            kind, size = head(memory, pos)
            if kind == _SECTION:
                yield from self._flush(run)
                run = _Run()
                self._order = self._byte_order(memory, pos)
                head = struct.Struct(f"{self._order}II").unpack_from
                kind, size = head(memory, pos)
            if size < _LEAST.get(kind, 12) or size % 4 or size > MAX_RECORD:
                self._ended = "a block has an impossible length"
                break
            if pos + size > end:
                break
            if kind == run.kind and len(run.places) < ROWS:
                run.places.append(pos)
            else:
                # A new interface must not affect the packets before it
                yield from self._flush(run)
                run = _Run(kind, [pos]) if kind in _PACKETS else _Run()
                self._describe(memory, kind, pos, size)
                if self._ended:
                    break
            pos += size
            blocks += 1
            stream.pos = pos
        stream.pos = pos
        stream.records += blocks
        yield from self._flush(run)

    def _byte_order(self, memory: memoryview, pos: int) -> str:
        magic = bytes(memory[pos + 8 : pos + 12])
        if magic not in (b"\x1a\x2b\x3c\x4d", b"\x4d\x3c\x2b\x1a"):
            raise FwtopError("the capture is broken: a pcapng section has no byte order")
        return ">" if magic == b"\x1a\x2b\x3c\x4d" else "<"

    def _describe(self, memory: memoryview, kind: int, pos: int, size: int) -> None:
        if kind == _SECTION and self._sections == _MAX_SECTIONS:
            self._ended = f"there are more than {_MAX_SECTIONS:,} sections"
        elif kind == _SECTION:
            self._interfaces.count = 0
            self._sections += 1
        elif kind == _INTERFACE and self._interfaces.count == _MAX_INTERFACES:
            self._ended = f"a section describes more than {_MAX_INTERFACES:,} interfaces"
        elif kind == _INTERFACE:
            link_type, _, snap_length = struct.unpack_from(f"{self._order}HHI", memory, pos + 8)
            options = self._options(bytes(memory[pos + 16 : pos + size - 4]))
            resolution = options.get(_RESOLUTION, b"\6")[:1] or b"\6"
            (offset,) = struct.unpack(f"{self._order}q", options.get(_OFFSET, b"").ljust(8, b"\0")[:8])
            offset = offset if abs(offset) < 1 << 33 else 0  # more would overflow in nanoseconds
            self._interfaces.add(link_type, snap_length, resolution[0], offset)
            self._link_types[link_type] = None

    def _options(self, data: bytes) -> dict[int, bytes]:
        """Return the options that are used here by code, in one pass."""
        found: dict[int, bytes] = {}
        pos = 0
        while pos + 4 <= len(data):
            code, size = struct.unpack_from(f"{self._order}HH", data, pos)
            if code == 0:
                break
            if code in (_RESOLUTION, _OFFSET):
                found[code] = data[pos + 4 : pos + 4 + min(size, 8)]
            pos += 4 + size + -size % 4
        return found

    def _flush(self, run: _Run) -> Iterator[PacketBatch]:
        if not run.places:
            return
        places = np.array(run.places, np.int64)
        number, start, captured, length, ticks = self._fields(run.kind, places)
        known = number < self._interfaces.count
        self._without_interface += int((~known).sum())
        if not known.any():
            return
        rows = np.flatnonzero(known)
        if ticks is None:  # simple packets have no time: take that of the previous one
            time_ns = np.full(len(rows), self._last_time_ns, np.int64)
        else:
            time_ns = self._interfaces.times(number[rows], ticks[rows])
        # By link type, of which there are few, not by interface
        link_types = self._interfaces.link_type[number[rows]]
        for link_type in [kind for kind in LINK_TYPES if (link_types == kind).any()]:
            chosen = link_types == link_type
            taken = rows[chosen]
            self._last_time_ns = int(time_ns[chosen][-1])
            self._count += len(taken)
            records = Records(link_type, start[taken], captured[taken], length[taken], time_ns[chosen])
            yield to_batch(self._stream, records)

    def _fields(self, kind: int, places: I64) -> tuple[I64, I64, I64, I64, I64 | None]:
        """Return interface number, start, captured length, length and timestamp of packet blocks."""
        stream, order = self._stream, self._order
        size = words(stream, places + 4, 1, order)[:, 0]
        if kind == _SIMPLE_PACKET:
            length = words(stream, places + 8, 1, order)[:, 0]
            snap = int(self._interfaces.snap_length[0]) if self._interfaces.count else 0
            captured = np.minimum(length, size - 16)
            captured = np.minimum(captured, snap) if snap else captured
            return np.zeros(len(places), np.int64), places + 12, captured, length, None
        head = words(stream, places + 8, 5, order)
        number = words16(stream, places + 8, order).astype(np.int64) if kind == _OLD_PACKET else head[:, 0]
        ticks = head[:, 1] << 32 | head[:, 2]
        return number, places + 28, np.minimum(head[:, 3], size - 32), head[:, 4], ticks
