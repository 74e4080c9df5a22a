"""Client hellos of TLS, and headers of QUIC. Never raises on bytes.

Sources: RFC 8446 4.1.2, RFC 6066 3 and FoxIO JA4 (server name and fingerprint), RFC 8999 and 9000 17 (version
and lengths of connection ids).
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from fwtop.analysis.window.counting import among, distinct_values, part_marked
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Rows, Traffic, payload, payload_texts
from fwtop.model.traffic.packets import I64, U8, Mask, PacketBatch
from fwtop.render.numbers import percent

HTTPS = (443, 8443)  # where HTTP is spoken inside TLS; databases have records as many, and as alike
_VERSIONS = {0x0304: "13", 0x0303: "12", 0x0302: "11", 0x0301: "10", 0x0300: "s3"}
_PORT = 443
_MOST = 0.9
_QUIC_VERSIONS = {0: "negotiation", 1: "1", 0x6B3343CF: "2"}  # RFC 8999, 9000, 9369
_LONG_HEADER = 7  # bytes, at least
_DRAFTS = 0xFF0000  # the upper three bytes of a draft's version; the last is its number


class Hello(Struct, frozen=True):
    """The captured part of a client hello; `ja4` is empty if truncated."""

    server_name: bytes
    ja4: str


class _Cut(Exception):
    """The captured bytes end here."""


class _Reader:
    """Reads big-endian fields; raises _Cut where the bytes end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise _Cut
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")


def starts_hello(packets: PacketBatch, rows: Rows) -> Mask:
    """Mark the rows whose payload starts with a client hello."""
    matrix, length = payload(packets, rows, 6)
    record = (matrix[:, 0] == 0x16) & (matrix[:, 1] == 3) & (matrix[:, 2] <= 4)
    return np.asarray(record & (matrix[:, 5] == 1) & (length == 6))


def record_mask(traffic: Traffic, rows: Rows) -> Mask:
    """Mark the rows whose payload starts with a TLS record (RFC 8446 5.1)."""
    matrix, length = payload(traffic.packets, rows, 3)
    known = (matrix[:, 0] >= 0x14) & (matrix[:, 0] <= 0x18) & (matrix[:, 1] == 3) & (matrix[:, 2] <= 4)
    return np.asarray(known & (length == 3))


def application_data(packets: PacketBatch, rows: Rows) -> tuple[I64, Mask]:
    """Return the size of the record that each payload starts with, and whether it is application data."""
    head, length = payload(packets, rows, 5)
    size = (head[:, 3].astype(np.int64) << 8) | head[:, 4]
    return size, np.asarray((head[:, 0] == 23) & (head[:, 1] == 3) & (length == 5))


def parse_hello(data: bytes) -> Hello | None:
    """Parse a client hello; None if it isn't one."""
    if len(data) < 11 or data[0] != 0x16 or data[5] != 1:
        return None
    reader = _Reader(data[9:])
    name: bytes = b""
    try:
        version = reader.number(2)
        reader.take(32)
        reader.take(reader.number(1))
        raw = reader.take(reader.number(2))
        ciphers = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw) - 1, 2)]
        reader.take(reader.number(1))
        end = reader.number(2)
        extensions: list[tuple[int, bytes]] = []
        stop = reader.at + end
        while reader.at < stop:
            kind = reader.number(2)
            size = reader.number(2)
            if kind == 0:
                name = _server_name(reader.data[reader.at : reader.at + size])
            extensions.append((kind, reader.take(size)))
    except _Cut:
        return Hello(name, "")
    return Hello(name, _ja4(version, ciphers, extensions))


def hellos(traffic: Traffic, rows: Rows) -> list[Hello]:
    """Parse the given rows' hellos."""
    return [*filter(None, map(parse_hello, payload_texts(traffic.packets, rows)))]


def _server_name(data: bytes) -> bytes:
    if len(data) < 5 or data[2] != 0:
        return b""
    return data[5 : 5 + int.from_bytes(data[3:5], "big")]


def _grease(value: int) -> bool:
    return (value & 0x0F0F) == 0x0A0A and value >> 8 == value & 0xFF


def _ja4(version: int, ciphers: list[int], extensions: list[tuple[int, bytes]]) -> str:
    """Build the JA4 fingerprint as FoxIO specifies it."""
    ciphers = [cipher for cipher in ciphers if not _grease(cipher)]
    extensions = [(kind, data) for kind, data in extensions if not _grease(kind)]
    content = dict(extensions)
    offered = content.get(43, b"")[1:]
    versions = [int.from_bytes(offered[i : i + 2], "big") for i in range(0, len(offered) - 1, 2)]
    version = max([v for v in versions if not _grease(v)], default=version)
    alpn = content.get(16, b"")
    first = alpn[3 : 3 + alpn[2]] if len(alpn) > 3 else b""
    if first and first[:1].isalnum() and first[-1:].isalnum():
        protocol = chr(first[0]) + chr(first[-1])
    else:
        protocol = first.hex()[:1] + first.hex()[-1:] if first else "00"
    domain = "d" if 0 in content else "i"
    counts = f"{min(len(ciphers), 99):02d}{min(len(extensions), 99):02d}"
    head = f"t{_VERSIONS.get(version, '00')}{domain}{counts}{protocol}"
    algorithms = content.get(13, b"")[2:]
    signed = ",".join(algorithms[i : i + 2].hex() for i in range(0, len(algorithms) - 1, 2))
    kinds = ",".join(sorted(f"{kind:04x}" for kind, _ in extensions if kind not in (0, 16)))
    suites = ",".join(sorted(f"{cipher:04x}" for cipher in ciphers))
    return f"{head}_{_hash(suites)}_{_hash(f'{kinds}_{signed}' if signed else kinds)}"


def _hash(text: str) -> str:
    import hashlib  # loads OpenSSL, 4 MiB, which a console without TLS to look at does without

    return hashlib.sha256(text.encode()).hexdigest()[:12] if text else "0" * 12


class QuicHeader(Struct, frozen=True):
    """The invariant part of a long header."""

    version: int
    dcid_length: int
    scid_length: int
    initial: bool


def parse_long_header(data: bytes) -> QuicHeader | None:
    """Parse a long header; None if it isn't a valid one (connection IDs have at most 20 bytes)."""
    if len(data) < _LONG_HEADER or data[0] & 0xC0 != 0xC0:
        return None
    version, dcid = int.from_bytes(data[1:5], "big"), data[5]
    if dcid > 20 or 6 + dcid >= len(data) or data[6 + dcid] > 20:
        return None
    return QuicHeader(version, dcid, data[6 + dcid], (data[0] >> 4) & 3 == 0)


def quic_evidence(features: Features) -> list[str]:
    """Describe the version and connection ID lengths that nearly all share; empty if it isn't QUIC."""
    matrix, length = features.head
    if not len(matrix) or (
        part_marked(plausible_quic(matrix, length)) < _MOST and features.top("dport").value != _PORT
    ):
        return []
    if part_marked((length >= _LONG_HEADER) & (matrix[:, 0] >= 0xC0)) < _MOST:  # before each is parsed
        return []
    parsed = [parse_long_header(row[:held].tobytes()) for row, held in zip(matrix, length, strict=True)]
    headers = Counter((h.version, h.dcid_length, h.scid_length) for h in parsed if h is not None)
    if headers.total() < _MOST * len(parsed):
        return []
    (version, dcid, scid), most = headers.most_common(1)[0]
    shown = f"version {_QUIC_VERSIONS.get(version, f'0x{version:08x}')}"
    ids = f"connection ids of {dcid} (destination) and {scid} bytes (source)"
    return [f"{percent(most / len(parsed))} have long headers of QUIC {shown} and {ids}"]


def looks_like_quic(matrix: U8, length: I64) -> bool:
    """Check whether payloads are QUIC: nearly all are valid, and their first bytes vary.

    Header protection makes the lower five bits of short headers random (RFC 9001 5.4).
    """
    return bool(part_marked(plausible_quic(matrix, length)) > 0.9 and len(distinct_values(matrix[:, 0])) >= 8)


def plausible_quic(matrix: U8, length: I64) -> Mask:
    """Mark payloads that may be QUIC: fixed bit set, and a known version in long headers."""
    long = matrix[:, 0] >= 0x80
    fixed = (matrix[:, 0] & 0x40) != 0
    version = np.zeros(len(matrix), np.uint32)
    for column in range(1, 5):
        version = (version << np.uint32(8)) | matrix[:, column]
    known = among(version, _QUIC_VERSIONS) | (version >> np.uint32(8) == _DRAFTS)
    return np.asarray((length >= 20) & np.where(long, known, fixed))
