"""Common to both capture formats: decompression, the read buffer, and records to packets."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, cast

import numpy as np
from isal import isal_zlib
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from fwtop.model.errors import FwtopError
from fwtop.model.traffic.packets import FLAG_OUTBOUND, I64, U8, U16, Hook, Mask, PacketBatch
from fwtop.parse.packets import parse_packets

GzipError: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # a class, whatever its stub says
MAX_WIDTH = 640  # bytes kept per packet: enough for a TLS ClientHello
MAX_RECORD = 1 << 20  # longer ones are broken: the largest snap length in use is 256 KiB
ROWS = 8192  # packets per batch, which then fits the CPU's cache
_BLOCK = 4 << 20
_PACKED = 1 << 18  # compressed bytes read at once; usually fit a block decompressed
_FIRST_PIECE = 1 << 9  # of a gzip member; small at first, as what follows its end is copied
_LEAST_BLOCK = 1 << 18  # decompressed at once if available: each block costs a copy of the unread rest
# A decompression bomb becomes a thousand times as large. Time stamps alone keep a packet of a capture from
# being less than a quarter of a byte, even where ten equal ones arrive in a microsecond. What a small file
# may hold besides takes a second.
_FREE_RECORDS, _RECORDS_A_BYTE = 1_000_000, 4
_FREE_BYTES, _BYTES_A_BYTE = 1 << 30, 256
_EMPTY_MEMBERS = 1000  # in a row; BGZF ends with one, many are an attack

ETHERNET, NULL, LOOP, SLL, SLL2, PFLOG, PPPOE, NFLOG = 1, 0, 108, 113, 276, 117, 51, 239
PPP = (9, 50)  # with and without HDLC framing (RFC 1662)
RAW = (12, 14, 101, 228, 229)  # DLT_RAW of several systems, LINKTYPE_RAW, _IPV4, _IPV6
LINK_TYPES = {ETHERNET: "Ethernet", NULL: "null", LOOP: "loop", SLL: "Linux SLL", SLL2: "Linux SLL2"}
LINK_TYPES |= dict.fromkeys(RAW, "raw IP") | dict.fromkeys(PPP, "PPP") | {PPPOE: "PPPoE", PFLOG: "pflog"}
LINK_TYPES[NFLOG] = "NFLOG"
# Unsupported ones, for messages (www.tcpdump.org/linktypes.html)
_OTHER_LINK_TYPES = {
    **{6: "Token Ring", 7: "ARCNET", 10: "FDDI"},
    **{104: "Cisco HDLC", 105: "802.11", 107: "Frame Relay", 119: "802.11 with Prism header", 123: "ATM"},
    **{127: "802.11 with radiotap", 163: "802.11 with AVS header", 187: "Bluetooth", 189: "USB"},
    **{192: "PPI", 195: "802.15.4", 197: "ERF", 201: "Bluetooth", 220: "USB", 226: "Solaris ipnet"},
    **{249: "USB", 251: "Bluetooth LE", 253: "netlink"},
}
# Bytes to skip at the start; the rest of SLL then resembles Ethernet: 12 bytes and the ethertype.
_STRIP = {ETHERNET: 0, NULL: 4, LOOP: 4, SLL: 2, SLL2: 6, PPPOE: 8} | dict.fromkeys(RAW, 0)
_ONLY_IP = (NULL, LOOP, PPPOE, PFLOG, NFLOG, *PPP, *RAW)  # the rest then starts with the IP header


_NFLOG_HEADER, _NFULA_PAYLOAD = (
    4,
    9,
)  # tcpdump.org/linktypes/LINKTYPE_NFLOG.html; linux/netfilter/nfnetlink_log.h
_ATTRIBUTES = 32  # of an NFLOG record at most; the kernel knows 20


def stopped_note(packets: int) -> str:
    """Say that reading ended at a bound."""
    return (
        f"the file holds far more than a capture of its size can: reading stopped early, after {packets:,} "
        "packets; to read all of it, unpack it (gunzip) or copy it without holes (cp --sparse=never)"
    )


class Source(Protocol):
    """A source of bytes; a short read means nothing, an empty one the end."""

    def read(self, size: int, /) -> bytes:
        """Read up to `size` bytes."""
        ...


class Gunzip:
    """A gzip stream of any number of members; a truncated one yields all that it contains.

    (The standard library's GzipFile discards the data before the truncation.) A thread decompresses the next
    block while the current one is parsed: isal, several times as fast as zlib, releases the GIL.
    """

    def __init__(self, file: Source, first: bytes) -> None:
        self._file = file
        self._packed = memoryview(first)
        self._inflate = isal_zlib.decompressobj(31)
        self._piece = _FIRST_PIECE
        self._empty = 0  # empty members in a row
        self._held = False  # whether the current member has contents
        self.packed = 0  # bytes decompressed so far
        self._failure: Exception | None = None
        self._worker = ThreadPoolExecutor(1, "fwtop-gunzip")
        self._coming = self._worker.submit(self._block)
        self._ready = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; raises EOFError or GzipError once no more can be decompressed."""
        if not self._ready:
            self._ready = memoryview(self._coming.result())
            if self._ready:
                self._coming = self._worker.submit(self._block)
        taken = bytes(self._ready[:size])
        self._ready = self._ready[size:]
        return taken

    def _block(self) -> bytes:
        """Decompress up to _BLOCK bytes across members; an error is raised after the data before it."""
        parts: list[bytes] = []
        total = 0
        while total < _LEAST_BLOCK and self._failure is None:
            try:
                data = self._inflate_piece(_BLOCK - total)
            except (EOFError, GzipError) as error:
                self._failure = error
                break
            if data is None:
                break
            parts.append(data)
            total += len(data)
        if not total and self._failure is not None:
            raise self._failure
        return b"".join(parts)

    def _inflate_piece(self, most: int) -> bytes | None:
        """Decompress one piece of a member; None at the end. Raises EOFError or GzipError."""
        if self._inflate.eof and not self._next_member():
            return None
        if not self._packed:
            self._packed = memoryview(self._file.read(_PACKED))
        if not self._packed:
            raise EOFError("its gzip stream is cut off")
        piece = self._packed[: self._piece]
        data = self._inflate.decompress(piece, most)
        left = len(self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail)
        self._packed = self._packed[len(piece) - left :]
        self.packed += len(piece) - left
        self._piece = min(self._piece * 2, _PACKED)
        self._held = self._held or bool(data)
        return data

    def _next_member(self) -> bool:
        """Start the next member; False if there is none, or only zero padding."""
        self._empty = 0 if self._held else self._empty + 1
        if self._empty > _EMPTY_MEMBERS:
            raise GzipError(f"more than {_EMPTY_MEMBERS:,} empty gzip members in a row")
        packed = self._packed or memoryview(self._file.read(_PACKED))
        if not packed or (packed[0] == 0 and not bytes(packed).strip(b"\0")):
            return False
        self._packed, self._inflate, self._piece = packed, isal_zlib.decompressobj(31), _FIRST_PIECE
        self._held = False
        return True


class Stream:
    """The read buffer: unread bytes are `data[pos:end]`, with MAX_WIDTH spare bytes behind `end`."""

    def __init__(self, file: Source, first: bytes, packed: Callable[[], float] = lambda: math.inf) -> None:
        """Take the source and its first bytes; `packed` tells how many bytes on the disk were read."""
        self._file = file
        self._first = first
        self._packed = packed
        self._total = 0  # bytes read
        self.records = 0  # of the file, counted by its reader
        self._store = np.zeros(_BLOCK + MAX_RECORD + MAX_WIDTH, np.uint8)
        self.data: U8 = self._store
        self.pos = 0
        self.end = 0
        self.note = ""  # why reading ended early, if it did
        self.stopped = False  # likewise, at a bound of ours

    def more(self) -> bool:
        """Move the unread bytes to the front and read more; False at the end of the file.

        Overwrites arrays that are views of `data`.
        """
        if self._is_bomb():
            return False
        rest = self.end - self.pos
        self._store[:rest] = self._store[self.pos : self.end].copy()
        self.pos, self.end = 0, rest
        wanted = min(_BLOCK, len(self._store) - MAX_WIDTH - rest)
        chunk = self._first or self._read(wanted)
        self._first = b""
        self._store[rest : rest + len(chunk)] = np.frombuffer(chunk, np.uint8)
        self.end += len(chunk)
        self._total += len(chunk)
        return bool(chunk)

    def _is_bomb(self) -> bool:
        """Whether so much came out of so little that no capture is like it."""
        packed = self._packed()
        records, size = _FREE_RECORDS + _RECORDS_A_BYTE * packed, _FREE_BYTES + _BYTES_A_BYTE * packed
        self.stopped = self.records > records or self._total > size
        return self.stopped

    def _read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except (OSError, EOFError, GzipError) as error:
            self.note = f"the file cannot be read further ({error}); read up to there"
            return b""

    def have(self, size: int) -> bool:
        """Make `size` bytes available at `pos`; False if the file ends before."""
        while self.end - self.pos < size:
            if not self.more():
                return False
        return True

    def gather(self, places: I64, size: int) -> U8:
        """Return (n, size): the bytes at each offset."""
        windows = np.ndarray(len(self.data) - size + 1, f"V{size}", self.data, strides=(1,))
        return cast(U8, windows[places].view(np.uint8).reshape(len(places), size))


class Records(Struct, frozen=True):
    """Packets of one link type in a Stream: where they are and what their record said."""

    link_type: int
    start: I64
    captured: I64
    length: I64
    time_ns: I64


def check_link_type(link_type: int) -> int:
    """Return the link type; raises FwtopError when packets of it cannot be read."""
    if link_type not in LINK_TYPES:
        known = ", ".join(dict.fromkeys(LINK_TYPES.values()))
        name = link_type_name(link_type)
        raise FwtopError(f"the capture's link type {name} is not supported; supported: {known}")
    return link_type


def link_type_name(link_type: int) -> str:
    """Return the number of a link type, and its name if known."""
    name = LINK_TYPES.get(link_type) or _OTHER_LINK_TYPES.get(link_type)
    return f"{link_type} ({name})" if name else str(link_type)


def to_batch(stream: Stream, records: Records) -> PacketBatch:
    """Copy records out of the buffer and parse them."""
    strip = np.minimum(_strip(stream, records), records.captured)
    captured = records.captured - strip
    width = int(min(MAX_WIDTH, captured.max(initial=0)))
    width += -width % 8  # whole words: faster to copy
    data = stream.gather(records.start + strip, width) if width else np.zeros((len(captured), 0), np.uint8)
    captured = np.minimum(captured, width)
    _clear_behind(data, captured)
    outbound = _cooked(stream, records, data)
    n = len(captured)
    batch = parse_packets(
        data,
        captured.astype(np.uint16),
        link=0 if records.link_type in _ONLY_IP else 1,
        length=np.maximum(records.length - strip, 0).astype(np.uint32),
        time_ns=records.time_ns,
        weight=np.ones(n),
        hook=Hook.INGRESS,
        whole=True,
    )
    # Don't trust the size on the wire: at least what was captured, and bounded
    wire = np.where(
        records.length > MAX_RECORD, records.captured, np.maximum(records.length, records.captured)
    )
    flags = batch.flags | np.where(outbound, np.uint8(FLAG_OUTBOUND), np.uint8(0))
    return replace(batch, length=wire.astype(np.uint32), flags=flags)


def _strip(stream: Stream, records: Records) -> I64 | int:
    """Return the number of bytes to skip at the start of each packet, or of all."""
    if records.link_type == NFLOG:
        return _logged(stream, records)
    if records.link_type not in (*PPP, PFLOG):
        return _STRIP[records.link_type]
    head = stream.gather(records.start, 4).astype(np.int64)
    if records.link_type == PFLOG:  # its header has a length, which some versions don't pad
        return head[:, 0] + -head[:, 0] % 4
    # Optional address and control, then a protocol of two bytes, or of one if odd
    framing = np.where(np.isin(head[:, 0] << 8 | head[:, 1], (0xFF03, 0x0F00)), 2, 0)
    first = np.where(framing > 0, head[:, 2], head[:, 0])
    return framing + np.where(first & 1, 1, 2)


def _logged(stream: Stream, records: Records) -> I64:
    """Return where the packets of NFLOG records begin: behind the head of the payload attribute.

    Length and type of an attribute are in the byte order of the machine that recorded; types are below 256.
    """
    at = np.full(len(records.start), _NFLOG_HEADER, np.int64)
    searched = np.arange(len(at))
    for _ in range(_ATTRIBUTES):
        searched = searched[at[searched] + 4 <= records.captured[searched]]
        head = stream.gather(records.start[searched] + at[searched], 4).astype(np.int64)
        little = head[:, 3] == 0
        size = np.where(little, head[:, 0] | head[:, 1] << 8, head[:, 0] << 8 | head[:, 1])
        kind = np.where(little, head[:, 2], head[:, 3])
        found = kind == _NFULA_PAYLOAD
        at[searched[found]] += 4
        at[searched[~found]] += np.maximum(4, size + -size % 4)[~found]
        searched = searched[~found]
        if not len(searched):
            return at
    at[searched] = records.captured[searched]
    return at


def _clear_behind(data: U8, captured: I64) -> None:
    shortest = int(captured.min(initial=0))
    if shortest < data.shape[1]:
        keep = np.arange(shortest, data.shape[1], dtype=np.uint16) < captured.astype(np.uint16)[:, None]
        np.multiply(data[:, shortest:], keep, out=data[:, shortest:], casting="unsafe")


def _cooked(stream: Stream, records: Records, data: U8) -> Mask:
    """Move the ethertype of Linux cooked captures to its place in Ethernet; marks outbound packets."""
    if records.link_type == SLL:
        kind = stream.gather(records.start, 2)
        return np.asarray((kind[:, 1] == 4) & (records.captured >= 2))
    if records.link_type == SLL2:
        head = stream.gather(records.start, 12)
        if data.shape[1] >= 14:
            data[:, 12:14] = head[:, :2]
        return np.asarray((head[:, 10] == 4) & (records.captured >= 11))
    return np.zeros(len(data), np.bool_)


def words(stream: Stream, places: NDArray[np.int64], count: int, order: str) -> NDArray[np.int64]:
    """Return (n, count) 32-bit words in the given byte order ("<" or ">")."""
    return stream.gather(places, count * 4).view(f"{order}u4").astype(np.int64)


def words16(stream: Stream, places: NDArray[np.int64], order: str) -> U16:
    """Return n 16-bit words in the given byte order."""
    return stream.gather(places, 2).view(f"{order}u2")[:, 0].astype(np.uint16)
