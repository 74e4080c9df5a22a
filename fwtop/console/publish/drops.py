"""A share of the dropped packets for other programs, in frames (docs/DROPS.md) or as pcapng.

The observing thread only picks samples and puts them into a short queue; what doesn't fit is counted and told
to the reader. A frame begins with a mark and carries its length and checksum, so that a reader goes on after
damage. Of two files one is written until it is full, then the other is emptied and written; a socket's reader
that is slow misses whole frames.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import socket
import struct
import threading
import time
import zlib
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from fwtop.capture.writing import ETHERNET, pcapng_head, pcapng_lost, pcapng_packet
from fwtop.kernel.descriptors import close_all
from fwtop.model.text import safe_text
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import Hook, PacketBatch

MARK = b"\xf7DRP"
_HEAD = struct.Struct("<4sII")  # mark, length of the body, its CRC-32
_BODY = struct.Struct("<QIIH")  # Unix time in ns, packets it stands for, length on the wire, length of text
_WAITING = 16  # polls
_READERS = 8
_READER_BYTES = 1 << 20  # that wait for a slow reader
_LINK_HEADER = 14  # bytes; of zeros, where the hook sees packets without one
_BURST_SECONDS = 1.0
_FLUSH_SECONDS = 0.5  # until a slow reader gets what waits, and a new one its beginning
_END_SECONDS = 2.0


class DroppedPacket(Struct, frozen=True):
    """A sample; without `data`: so many (`weight`) were left out so far, as the reader was too slow."""

    time_ns: int  # Unix
    weight: int  # dropped packets that it stands for
    length: int  # bytes on the wire
    why: str  # "rule 38", "netfilter NETFILTER_DROP"; sanitised
    data: bytes


def frame_of(packet: DroppedPacket) -> bytes:
    """Encode a frame."""
    why = packet.why.encode()
    body = _BODY.pack(packet.time_ns, packet.weight, packet.length, len(why)) + why + packet.data
    return _HEAD.pack(MARK, len(body), zlib.crc32(body)) + body


class _Pcapng:
    """The other format. It can't be entered in its middle, so each reader gets its head."""

    head = pcapng_head(ETHERNET)

    @staticmethod
    def encode(packet: DroppedPacket) -> bytes:
        if not packet.data:
            return pcapng_lost(packet.time_ns, packet.weight)
        comment = f"{packet.why}; stands for {packet.weight:,}"
        return pcapng_packet(packet.time_ns, packet.length, packet.data, comment)


class _Frames:
    head = b""
    encode = staticmethod(frame_of)


class DropPicker:
    """Picks samples of dropped packets, so many a second, and says why each was dropped."""

    def __init__(self, per_second: int, *, payload: bool) -> None:
        self._rate = per_second
        self._payload = payload
        self._last = time.monotonic()
        self._left = float(per_second)  # that may be picked now: polls come at no even pace
        self._owed = 0.0  # packets that no sample stands for yet: each stands for a whole number

    def pick(self, batch: PacketBatch, counters: Counters) -> list[DroppedPacket]:
        """Return some of a poll's dropped packets; those picked stand for all."""
        now = time.monotonic()
        self._left = min(self._left + self._rate * (now - self._last), self._rate * _BURST_SECONDS)
        self._last = now
        rows = np.flatnonzero((batch.hook == Hook.DROP) | ((batch.hook == Hook.XDP) & (batch.rule != 0)))
        most = int(self._left)
        if not len(rows) or not most:
            self._owed += float(batch.weight[rows].sum())
            return []
        times = max(len(rows) / most, 1.0)
        if times > 1:
            rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.intp)]
        self._left -= len(rows)
        reasons = {drop.code: f"{drop.layer} {drop.reason}" for drop in counters.drops}
        clock_ns = time.time_ns() - time.monotonic_ns()
        return [self._packet(batch, row, reasons, times, clock_ns) for row in rows.tolist()]

    def _packet(
        self, batch: PacketBatch, row: int, reasons: dict[int | None, str], times: float, clock_ns: int
    ) -> DroppedPacket:
        rule, code = int(batch.rule[row]), int(batch.reason[row])
        why = f"rule {rule}" if rule else reasons.get(code, f"reason {code}")
        self._owed += float(batch.weight[row]) * times
        stands_for = max(round(self._owed), 1)
        self._owed -= stands_for
        captured = int(batch.captured[row])
        if not self._payload:  # where the headers were not understood, all but the first is payload
            captured = min(captured, max(int(batch.payload_offset[row]), _LINK_HEADER))
        return DroppedPacket(
            int(batch.time_ns[row]) + clock_ns,
            stands_for,
            int(batch.length[row]),
            safe_text(why, limit=80),
            batch.data[row, :captured].tobytes(),
        )


class _Sink:
    """Where frames go, in one of the formats. Of the writer's thread."""

    def __init__(self, form: type[_Frames] | type[_Pcapng]) -> None:
        self._form = form
        self.problem = ""

    def _lost(self, total: int) -> bytes:
        return self._form.encode(DroppedPacket(time.time_ns(), total, 0, "left out", b""))

    def write(self, packets: Sequence[DroppedPacket], missed: int) -> None:
        """Write packets, before which so many more could not be taken."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what this was given."""
        raise NotImplementedError


class DropLog:
    """Writes the picked packets to files or to a socket's readers, from a thread of its own."""

    def __init__(
        self, picker: DropPicker, *, files: Sequence[int] = (), listener: int | None = None,
        pcapng: bool = False, most_bytes: int = 64 << 20,
    ) -> None:  # fmt: skip
        """Take descriptors of two files, `most_bytes` together, or of a listening socket."""
        form = _Pcapng if pcapng else _Frames
        self._picker = picker
        self._sink: _Sink = (
            _TwoFiles(form, files, most_bytes // 2) if listener is None else _Readers(form, listener)
        )
        self._waiting: queue.Queue[tuple[list[DroppedPacket], int] | None] = queue.Queue(_WAITING)
        self._missed = 0  # since the last that were taken
        self._thread = threading.Thread(target=self._write_all, name="drops", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str:
        """Why packets are missing, in one line; "" while they are written."""
        return self._sink.problem

    def add(self, batch: PacketBatch, counters: Counters) -> None:
        """Take a poll; returns at once."""
        found = self._picker.pick(batch, counters)
        if not found:
            return
        try:
            self._waiting.put_nowait((found, self._missed))
            self._missed = 0
        except queue.Full:
            self._missed += len(found)

    def close(self) -> None:
        """Write what waits, within a limit, and end."""
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=_END_SECONDS)
        self._thread.join(_END_SECONDS)

    def _write_all(self) -> None:
        item: tuple[list[DroppedPacket], int] | None = ([], 0)
        while item is not None:
            self._sink.write(*item)
            try:
                item = self._waiting.get(timeout=_FLUSH_SECONDS)
            except queue.Empty:
                item = [], 0
        self._sink.close()


class _TwoFiles(_Sink):
    """Writes into one of two files in turn; what doesn't fit the disk is taken back whole."""

    def __init__(self, form: type[_Frames] | type[_Pcapng], files: Sequence[int], most: int) -> None:
        super().__init__(form)
        self._files = files
        self._most = most
        self._at = 0
        self._begun = False
        self._missed = 0

    def write(self, packets: Sequence[DroppedPacket], missed: int) -> None:
        self._missed += missed
        frames = [self._lost(self._missed)] if missed else []
        frames += [self._form.encode(packet) for packet in packets]
        for frame in frames:
            try:
                self._write(frame)
                self.problem = ""
            except OSError as error:
                self._missed += 1
                why = os.strerror(error.errno or errno.EIO)
                self.problem = f"no dropped packets are written ({why}); watching goes on"

    def _write(self, frame: bytes) -> None:
        now = self._files[self._at]
        before = os.fstat(now).st_size
        if before + len(self._form.head) + len(frame) > self._most:
            self._at = 1 - self._at
            now, before, self._begun = self._files[self._at], 0, False
            os.ftruncate(now, 0)
        data = frame if self._begun else self._form.head + frame
        if os.write(now, data) < len(data):
            os.ftruncate(now, before)
            raise OSError(errno.ENOSPC, "")
        self._begun = True

    def close(self) -> None:
        close_all(self._files)


class _Reader(Struct):
    waiting: bytearray
    missed: int = 0
    told: int = 0  # of these


class _Readers(_Sink):
    """Sends to whoever is connected, without waiting for anybody."""

    def __init__(self, form: type[_Frames] | type[_Pcapng], listener: int) -> None:
        super().__init__(form)
        self._listener = socket.socket(fileno=listener)
        self._listener.setblocking(False)
        self._readers: dict[socket.socket, _Reader] = {}

    def write(self, packets: Sequence[DroppedPacket], missed: int) -> None:
        with contextlib.suppress(OSError):  # nobody is waiting
            while True:
                self._take(self._listener.accept()[0])
        frames = [self._form.encode(packet) for packet in packets]
        for sock, reader in list(self._readers.items()):
            reader.missed += missed
            try:
                self._send(sock, reader)
                for frame in frames:
                    self._add(reader, frame)
                self._send(sock, reader)
            except OSError:
                del self._readers[sock]
                sock.close()
        slow = sum(reader.missed > reader.told for reader in self._readers.values())
        self.problem = f"dropped packets are left out for {slow} slow readers" if slow else ""

    def close(self) -> None:
        for sock in (self._listener, *self._readers):
            sock.close()

    def _take(self, sock: socket.socket) -> None:
        if len(self._readers) >= _READERS:
            sock.close()
            return
        sock.setblocking(False)
        self._readers[sock] = _Reader(bytearray(self._form.head))

    def _add(self, reader: _Reader, frame: bytes) -> None:
        if len(reader.waiting) + len(frame) > _READER_BYTES:
            reader.missed += 1
            return
        if reader.missed > reader.told:
            reader.waiting += self._lost(reader.missed)
            reader.told = reader.missed
        reader.waiting += frame

    @staticmethod
    def _send(sock: socket.socket, reader: _Reader) -> None:
        with contextlib.suppress(BlockingIOError):
            while reader.waiting:
                del reader.waiting[: sock.send(reader.waiting)]
