"""Capture files and streams: pcap and pcapng, possibly gzipped, recognised by their contents."""

from __future__ import annotations

import math
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from os import PathLike
from typing import BinaryIO, Protocol

import numpy as np
from msgspec.structs import replace

from fwtop.capture.mirrors import with_mirrored
from fwtop.capture.pcap import MAGIC, MAGICS, PcapngReader, PcapReader
from fwtop.capture.records import LINK_TYPES, ROWS, Gunzip, GzipError, Source, Stream
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.packets import PacketBatch

STDIN = "-"
_NOTHING = "nothing was read"
_WAIT_MS = 200  # between two looks whether to go on waiting
_BLOCK_BYTES = 512  # of st_blocks
_REFUSED = {
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a block device",
}


class CaptureSource:
    """An open capture, unread. One thread reads; another may end it."""

    def __init__(self, descriptor: int, name: str) -> None:
        found = os.fstat(descriptor)
        self.name = name  # safe to print
        self.position = 0  # bytes read
        self.is_stream = not stat.S_ISREG(found.st_mode)
        self.size = 0 if self.is_stream else found.st_size
        # What a byte takes on the disk: less than one in a file with holes, which is as cheap to make as gzip
        self.density = min(1.0, found.st_blocks * _BLOCK_BYTES / self.size) if self.size else 1.0
        self.while_waiting: Callable[[], None] = lambda: None
        self._descriptor = descriptor
        self._ended = False

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes; none at the end. Raises OSError."""
        if self.is_stream and not self._wait():
            return b""
        data = os.read(self._descriptor, size)
        self.position += len(data)
        return data

    def _wait(self) -> bool:
        """Wait for data, or the writer's end; False once reading was ended."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        while not self._ended:
            if poll.poll(_WAIT_MS):
                return True
            self.while_waiting()
        return False

    def end(self) -> None:
        """Have what is read of a stream end here."""
        self._ended = True

    def close(self) -> None:
        """Close it; a thread that still waits for a stream stops."""
        self._ended = True
        if self._descriptor > 2:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> CaptureSource:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        if self._descriptor >= 0:
            self.close()


def open_source(path: str | PathLike[str]) -> CaptureSource:
    """Open a file, a named pipe, or `-` for standard input, without waiting; raises FwtopError."""
    if os.fspath(path) == STDIN:
        if sys.stdin.isatty():
            raise FwtopError(f"standard input is a terminal; {_NOTHING}; try: tcpdump -w - | fwtop read -")
        descriptor, name = sys.stdin.fileno(), "standard input"
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISSOCK(mode):  # what sshd may give
            _check_kind(mode, name)
        return CaptureSource(descriptor, name)
    name = safe_text(path)
    try:
        _check_kind(os.stat(path).st_mode, name)  # to open a device may do something
        # A pipe without a writer is waited for when it is read
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise FwtopError(f"{name}: {error.strerror}; {_NOTHING}") from None
    return CaptureSource(descriptor, name)


def _check_kind(mode: int, name: str) -> None:
    """Raise FwtopError for what can't hold a capture."""
    what = _REFUSED.get(stat.S_IFMT(mode))
    if what is not None:
        raise FwtopError(f"{name} is {what}, not a capture; {_NOTHING}; record one with: tcpdump -w FILE")


Opened = BinaryIO | CaptureSource
_GZIP = b"\x1f\x8b"
_PEEK = 65_536
_LEAST = 24  # bytes by which a capture is known
_YEAR_NS = 366 * 86_400 * 1_000_000_000
_LIFETIME_NS = 50 * _YEAR_NS  # larger differences would overflow 64 bits when added up
_CONVERT = "convert it with: editcap -F pcap FILE NEW"
_FOREIGN = {
    b"snoop\0\0\0": ("is a snoop file (RFC 1761), not pcap", _CONVERT),
    b"GMBU": ("is a Network Monitor file, not pcap", _CONVERT),
    b"RTSS": ("is a Network Monitor file, not pcap", _CONVERT),
    bytes.fromhex("34cdb2a1"): ("is a modified pcap file", _CONVERT),
    bytes.fromhex("a1b2cd34"): ("is a modified pcap file", _CONVERT),
    _GZIP: ("is gzip within gzip", "unpack it once: gunzip FILE"),
    b"\xfd7zXZ\0": ("is compressed with xz", "unpack it first: unxz FILE"),
    b"\x28\xb5\x2f\xfd": ("is compressed with zstd", "unpack it first: unzstd FILE"),
    b"\x04\x22\x4d\x18": ("is compressed with lz4", "unpack it first: unlz4 FILE"),
    b"BZh": ("is compressed with bzip2", "unpack it first: bunzip2 FILE"),
    b"PK\3\4": ("is a zip archive", "unpack it first: unzip FILE"),
}


class _Reader(Protocol):
    kind: str

    @property
    def link_types(self) -> list[int]: ...

    def batches(self) -> Iterator[PacketBatch]: ...


class CaptureFile:
    """An open capture; `notes` (what could not be read) is complete once `batches` is exhausted."""

    def __init__(self, file: Opened, name: str, reader: _Reader, notes: list[str]) -> None:
        self.name = name
        self.notes = notes
        self._reader = reader
        read = with_mirrored(_joined(_closing(file, name, reader.batches())), notes)
        self._rest = _with_plausible_times(read, notes)
        first = next(self._rest, None)
        self._first = [] if first is None else [first]
        # Unix seconds of the first packet; 0 without packets
        self.started = float(first.time_ns[0]) / 1e9 if first is not None else 0.0

    @property
    def kind(self) -> str:
        """Return `pcap` or `pcapng`."""
        return self._reader.kind

    @property
    def link_types(self) -> list[str]:
        """Names of the link types seen so far."""
        numbers = self._reader.link_types
        return list(dict.fromkeys(LINK_TYPES.get(number, str(number)) for number in numbers))

    def batches(self) -> Iterator[PacketBatch]:
        """Yield the packets in file order, once; raises FwtopError if the file turns out to be unreadable."""
        first, self._first = self._first, []
        return chain(first, self._rest)


def read_capture(file: str | PathLike[str] | Opened, name: str | None = None) -> CaptureFile:
    """Open a capture: a path, or what is open already, with a name for messages.

    Raises FwtopError (code 1) if it can't be opened or is no capture. Memory use is bounded, and so is the
    time that a small file takes. The file is closed when its batches are exhausted or dropped.
    """
    opened = open_source(file) if isinstance(file, str | PathLike) else file
    default = opened.name if isinstance(opened, CaptureSource) else "the capture"
    shown = safe_text(name or default)
    try:
        return _open(opened, shown)
    except (FwtopError, OSError) as error:
        opened.close()
        if isinstance(error, FwtopError):
            raise
        raise FwtopError(f"cannot read {shown}: {error.strerror or error}") from None


def _first_bytes(file: Source) -> bytes:
    """Read enough to tell what it is: a stream may bring less at once."""
    first = b""
    while len(first) < _LEAST and (more := file.read(_PEEK)):
        first += more
    return first


def _open(file: Opened, name: str) -> CaptureFile:
    source: Source = file
    first = _first_bytes(file)
    if isinstance(file, CaptureSource) and file.density < 1:
        packed: Callable[[], float] = partial(_on_disk, file)
    else:
        packed = partial(float, math.inf)
    if first[:2] == _GZIP:
        source = unpacked = Gunzip(file, first)
        packed = partial(_consumed, unpacked)
        try:
            first = _first_bytes(source)
        except (EOFError, GzipError) as error:
            raise FwtopError(f"{name} is broken gzip ({error}); nothing was read") from None
    notes: list[str] = []
    stream = Stream(source, first, packed)
    try:
        if first[:4] in MAGICS:
            return CaptureFile(file, name, PcapReader(stream, notes), notes)
        if first[:4] == MAGIC:
            return CaptureFile(file, name, PcapngReader(stream, notes), notes)
    except FwtopError as error:
        raise FwtopError(f"{name}: {error}", error.code) from None
    raise FwtopError(f"{name} {_foreign(first)}")


def _on_disk(file: CaptureSource) -> float:
    return file.position * file.density


def _consumed(file: Gunzip) -> float:
    return file.packed


def _foreign(first: bytes) -> str:
    """Describe a file in another format, and how to convert it."""
    for magic, (what, remedy) in _FOREIGN.items():
        if first.startswith(magic):
            return f"{what}; nothing was read; {remedy}"
    what = "is neither pcap nor pcapng" if first else "is empty"
    return f"{what}; nothing was read; record one with: tcpdump -w FILE"


def _closing(file: Opened, name: str, batches: Iterator[PacketBatch]) -> Iterator[PacketBatch]:
    with file:
        try:
            yield from batches
        except FwtopError as error:
            raise FwtopError(f"{name}: {error}", error.code) from None


def _joined(batches: Iterator[PacketBatch]) -> Iterator[PacketBatch]:
    """Join small batches, which other blocks between packets and new sections leave.

    What becomes of a batch costs milliseconds, however few packets it has.
    """
    held: list[PacketBatch] = []
    rows = 0
    for batch in batches:
        if held and rows + len(batch) > ROWS:
            yield PacketBatch.concat(held)
            held, rows = [], 0
        held.append(batch)
        rows += len(batch)
    if held:
        yield PacketBatch.concat(held)


def _with_plausible_times(batches: Iterator[PacketBatch], notes: list[str]) -> Iterator[PacketBatch]:
    """Yield the batches with implausible times replaced, so that one doesn't stretch a capture over decades.

    Those are more than a year from the median of their batch (an unset clock, a flipped bit), or 50 years
    from that of the first batch. Appends a note with their number.
    """
    first: int | None = None
    replaced = 0
    for batch in batches:
        time = batch.time_ns
        if not len(time):
            yield batch
            continue
        wide = int(time.max()) - int(time.min()) > _YEAR_NS
        middle = int(np.partition(time, len(time) // 2)[len(time) // 2]) if wide else int(time[0])
        first = middle if first is None else first
        if abs(middle - first) > _LIFETIME_NS:
            middle = first
        low, high = middle - _YEAR_NS, middle + _YEAR_NS
        stray = (time < max(low, -(1 << 63))) | (time > min(high, (1 << 63) - 1))
        if stray.any():
            replaced += int(stray.sum())
            batch = replace(batch, time_ns=np.where(stray, middle, time))  # noqa: PLW2901
        yield batch
    if replaced:
        packets = (
            "1 packet has an impossible time"
            if replaced == 1
            else f"{replaced:,} packets have impossible times"
        )
        notes.append(f"{packets}; replaced by those of neighbouring packets")
