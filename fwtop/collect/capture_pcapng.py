"""pcapng (draft-ietf-opsawg-pcapng): sections, interfaces and the three kinds of packet blocks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fwtop.collect.capture_records import (
    LINK_TYPES,
    MAX_RECORD,
    ROWS,
    Records,
    Stream,
    check_link_type,
    link_type_name,
    to_batch,
    words,
    words16,
)
from fwtop.model.errors import FwtopError
from fwtop.model.packets import I64, PacketBatch

MAGIC = bytes.fromhex("0a0d0d0a")
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_PACKETS = (_OLD_PACKET, _SIMPLE_PACKET, _PACKET)
_LEAST = {_SECTION: 28, _INTERFACE: 20, _OLD_PACKET: 32, _SIMPLE_PACKET: 16, _PACKET: 32}
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface description block."""

    link_type: int
    snap_length: int  # 0: none
    resolution: int = 6  # if_tsresol: a power of ten, or of two with the upper bit set
    offset_s: int = 0  # if_tsoffset

    def nanoseconds(self, ticks: I64) -> I64:
        """Turn time stamps of this interface into nanoseconds."""
        power = min(self.resolution & 0x7F, 62 if self.resolution & 0x80 else 18)  # what 64 bits can hold
        if self.resolution & 0x80:
            seconds, part = ticks >> power, ticks & ((1 << power) - 1)
            fine = max(power - 30, 0)  # more than 30 bits would not fit when multiplied
            scaled = seconds * _SECOND + ((part >> fine) * _SECOND >> (power - fine))
        else:
            scaled = ticks * 10 ** (9 - power) if power <= 9 else ticks // 10 ** (power - 9)
        return np.asarray(scaled + self.offset_s * _SECOND)


@dataclass(slots=True)
class _Run:
    """Packet blocks of one kind that follow each other in one section."""

    kind: int = _PACKET
    places: list[int] = field(default_factory=list)


class PcapngReader:
    """The packets of a pcapng file."""

    kind = "pcapng"

    def __init__(self, stream: Stream, notes: list[str]) -> None:
        self._stream = stream
        self._notes = notes
        self._order = "<"
        self._interfaces: list[Interface] = []
        self._link_types: dict[int, None] = {}
        self._last_time_ns = 0
        self._without_interface = 0
        self._count = 0
        self._ended = ""  # why the file cannot be read on

    @property
    def link_types(self) -> list[int]:
        """Link types seen so far."""
        return list(self._link_types)

    def batches(self) -> Iterator[PacketBatch]:
        """Yield the packets in file order, those of interfaces that cannot be read left out and noted."""
        stream = self._stream
        while not self._ended:
            yield from self._present()
            if not self._ended and not stream.more():
                break
        if not self._ended and stream.pos < stream.end:
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
            f"packets of link type {link_type_name(kind)} were left out: not supported" for kind in unread
        )

    def _present(self) -> Iterator[PacketBatch]:
        """Read the whole blocks of the stream's present part."""
        stream = self._stream
        memory = stream.data.data
        run = _Run()
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
                # An interface changes what the packets before it must not see
                yield from self._flush(run)
                run = _Run(kind, [pos]) if kind in _PACKETS else _Run()
                self._describe(memory, kind, pos, size)
            pos += size
            stream.pos = pos
        stream.pos = pos
        yield from self._flush(run)

    def _byte_order(self, memory: memoryview, pos: int) -> str:
        magic = bytes(memory[pos + 8 : pos + 12])
        if magic not in (b"\x1a\x2b\x3c\x4d", b"\x4d\x3c\x2b\x1a"):
            raise FwtopError("the capture is broken: a pcapng section has no byte order")
        return ">" if magic == b"\x1a\x2b\x3c\x4d" else "<"

    def _describe(self, memory: memoryview, kind: int, pos: int, size: int) -> None:
        if kind == _SECTION:
            self._interfaces = []
        elif kind == _INTERFACE:
            link_type, _, snap_length = struct.unpack_from(f"{self._order}HHI", memory, pos + 8)
            options = self._options(bytes(memory[pos + 16 : pos + size - 4]))
            resolution = options.get(9, b"\6")[:1] or b"\6"
            (offset,) = struct.unpack(f"{self._order}q", options.get(14, b"").ljust(8, b"\0")[:8])
            offset = offset if abs(offset) < 1 << 33 else 0  # no time in nanoseconds could hold more
            self._interfaces.append(Interface(link_type, snap_length, resolution[0], offset))
            self._link_types[link_type] = None

    def _options(self, data: bytes) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        while len(data) >= 4:
            code, size = struct.unpack_from(f"{self._order}HH", data)
            if code == 0:
                break
            found[code] = data[4 : 4 + size]
            data = data[4 + size + -size % 4 :]
        return found

    def _flush(self, run: _Run) -> Iterator[PacketBatch]:
        if not run.places:
            return
        places = np.array(run.places, np.int64)
        number, start, captured, length, ticks = self._fields(run.kind, places)
        known = number < len(self._interfaces)
        self._without_interface += int((~known).sum())
        for one in np.unique(number[known]).tolist():
            interface = self._interfaces[one]
            if interface.link_type not in LINK_TYPES:
                continue
            rows = np.flatnonzero(number == one)
            if ticks is None:  # a simple packet has no time: that of the packet before it
                time_ns = np.full(len(rows), self._last_time_ns, np.int64)
            else:
                time_ns = interface.nanoseconds(ticks[rows])
            self._last_time_ns = int(time_ns[-1])
            self._count += len(rows)
            yield to_batch(
                self._stream, Records(interface.link_type, start[rows], captured[rows], length[rows], time_ns)
            )

    def _fields(self, kind: int, places: I64) -> tuple[I64, I64, I64, I64, I64 | None]:
        """Return interface number, start, captured, length and time stamp of packet blocks."""
        stream, order = self._stream, self._order
        size = words(stream, places + 4, 1, order)[:, 0]
        if kind == _SIMPLE_PACKET:
            length = words(stream, places + 8, 1, order)[:, 0]
            snap = self._interfaces[0].snap_length if self._interfaces else 0
            captured = np.minimum(length, size - 16)
            captured = np.minimum(captured, snap) if snap else captured
            return np.zeros(len(places), np.int64), places + 12, captured, length, None
        head = words(stream, places + 8, 5, order)
        number = words16(stream, places + 8, order).astype(np.int64) if kind == _OLD_PACKET else head[:, 0]
        ticks = head[:, 1] << 32 | head[:, 2]
        return number, places + 28, np.minimum(head[:, 3], size - 32), head[:, 4], ticks
