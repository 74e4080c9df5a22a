"""Capture files: pcap and pcapng, also gzipped, told by what is in them and not by their names."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import chain
from os import PathLike
from typing import BinaryIO, Protocol

from fwtop.collect.capture_mirrors import with_mirrored
from fwtop.collect.capture_pcap import MAGICS, PcapReader
from fwtop.collect.capture_pcapng import MAGIC, PcapngReader
from fwtop.collect.capture_records import LINK_TYPES, Gunzip, Source, Stream
from fwtop.collect.capture_times import with_possible_times
from fwtop.model.errors import FwtopError
from fwtop.model.packets import PacketBatch
from fwtop.model.text import safe_text

_GZIP = b"\x1f\x8b"
_PEEK = 65_536
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
    """An open capture. `notes` (what could not be read) is complete when `batches` has ended."""

    def __init__(self, file: BinaryIO, name: str, reader: _Reader, notes: list[str]) -> None:
        self.name = name
        self.notes = notes
        self._reader = reader
        read = with_mirrored(_closing(file, name, reader.batches()), notes)
        self._rest = with_possible_times(read, notes)
        first = next(self._rest, None)
        self._first = [] if first is None else [first]
        # Unix seconds of the first packet; 0 where there is none
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
        """Yield the packets in file order, once; raises FwtopError on a file that turns out foreign."""
        first, self._first = self._first, []
        return chain(first, self._rest)


def read_capture(file: str | PathLike[str] | BinaryIO, name: str | None = None) -> CaptureFile:
    """Open a capture by path, or take an open binary file (a pipe will do) with a name for messages.

    Raises FwtopError (code 1) with one line when there is no such file or it is no capture. Memory is
    bounded whatever the size of the file. The file is closed when its batches are read or given up.
    """
    if isinstance(file, str | PathLike):
        shown = safe_text(name or file)
        try:
            opened: BinaryIO = open(file, "rb")  # noqa: SIM115
        except OSError as error:
            raise FwtopError(f"cannot open {shown}: {error.strerror}") from None
    else:
        opened, shown = file, safe_text(name or "the capture")
    try:
        return _open(opened, shown)
    except (FwtopError, OSError) as error:
        opened.close()
        if isinstance(error, FwtopError):
            raise
        raise FwtopError(f"cannot read {shown}: {error.strerror or error}") from None


def _open(file: BinaryIO, name: str) -> CaptureFile:
    source: Source = file
    first = file.read(_PEEK)
    if first[:2] == _GZIP:
        source = Gunzip(file, first)
        try:
            first = source.read(_PEEK)
        except (EOFError, zlib.error) as error:
            raise FwtopError(f"{name} is broken gzip ({error}); nothing was read") from None
    notes: list[str] = []
    stream = Stream(source, first)
    try:
        if first[:4] in MAGICS:
            return CaptureFile(file, name, PcapReader(stream, notes), notes)
        if first[:4] == MAGIC:
            return CaptureFile(file, name, PcapngReader(stream, notes), notes)
    except FwtopError as error:
        raise FwtopError(f"{name}: {error}", error.code) from None
    raise FwtopError(f"{name} {_foreign(first)}")


def _foreign(first: bytes) -> str:
    """Say what a file is that can't be read, and what to do."""
    for magic, (what, remedy) in _FOREIGN.items():
        if first.startswith(magic):
            return f"{what}; nothing was read; {remedy}"
    what = "is neither pcap nor pcapng" if first else "is empty"
    return f"{what}; nothing was read; record one with: tcpdump -w FILE"


def _closing(file: BinaryIO, name: str, batches: Iterator[PacketBatch]) -> Iterator[PacketBatch]:
    with file:
        try:
            yield from batches
        except FwtopError as error:
            raise FwtopError(f"{name}: {error}", error.code) from None
