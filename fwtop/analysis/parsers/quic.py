"""QUIC headers (RFC 8999, 9000 17): version and connection-id lengths. Never raises on bytes."""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct

from fwtop.analysis.window.counting import among, distinct_values, part_marked
from fwtop.analysis.window.features import Features
from fwtop.model.traffic.packets import I64, U8, Mask
from fwtop.render.numbers import percent

_PORT = 443
_MOST = 0.9
_VERSIONS = {0: "negotiation", 1: "1", 0x6B3343CF: "2"}  # RFC 8999, 9000, 9369
_DRAFTS = 0xFF0000  # the upper three bytes of a draft's version; the last is its number


class QuicHeader(Struct, frozen=True):
    """The invariant part of a long header."""

    version: int
    dcid_length: int
    scid_length: int
    initial: bool


def parse_long_header(data: bytes) -> QuicHeader | None:
    """Parse a long header; None if it isn't a valid one (connection IDs have at most 20 bytes)."""
    if len(data) < 7 or data[0] & 0xC0 != 0xC0:
        return None
    version, dcid = int.from_bytes(data[1:5], "big"), data[5]
    if dcid > 20 or 6 + dcid >= len(data) or data[6 + dcid] > 20:
        return None
    return QuicHeader(version, dcid, data[6 + dcid], (data[0] >> 4) & 3 == 0)


def header_evidence(features: Features) -> list[str]:
    """Describe the version and connection ID lengths that nearly all share; empty if it isn't QUIC."""
    matrix, length = features.head
    if not len(matrix) or (
        part_marked(plausible(matrix, length)) < _MOST and features.top("dport").value != _PORT
    ):
        return []
    parsed = [parse_long_header(row[:held].tobytes()) for row, held in zip(matrix, length, strict=True)]
    headers = Counter((h.version, h.dcid_length, h.scid_length) for h in parsed if h is not None)
    if headers.total() < _MOST * len(parsed):
        return []
    (version, dcid, scid), most = headers.most_common(1)[0]
    shown = f"version {_VERSIONS.get(version, f'0x{version:08x}')}"
    ids = f"connection ids of {dcid} (destination) and {scid} bytes (source)"
    return [f"{percent(most / len(parsed))} have long headers of QUIC {shown} and {ids}"]


def looks_like_quic(matrix: U8, length: I64) -> bool:
    """Check whether payloads are QUIC: nearly all are valid, and their first bytes vary.

    Header protection makes the lower five bits of short headers random (RFC 9001 5.4).
    """
    return bool(part_marked(plausible(matrix, length)) > 0.9 and len(distinct_values(matrix[:, 0])) >= 8)


def plausible(matrix: U8, length: I64) -> Mask:
    """Mark payloads that may be QUIC: fixed bit set, and a known version in long headers."""
    long = matrix[:, 0] >= 0x80
    fixed = (matrix[:, 0] & 0x40) != 0
    version = np.zeros(len(matrix), np.uint32)
    for column in range(1, 5):
        version = (version << np.uint32(8)) | matrix[:, column]
    known = among(version, _VERSIONS) | (version >> np.uint32(8) == _DRAFTS)
    return np.asarray((length >= 20) & np.where(long, known, fixed))
