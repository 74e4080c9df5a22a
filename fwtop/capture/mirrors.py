"""Decapsulate packets mirrored by a switch or cloud in ERSPAN or VXLAN.

Other GRE and IP tunnels are left as they are: a flood of them is named after them.
Sources: draft-foschiano-erspan-03, RFC 2784 and 2890; RFC 7348 (VXLAN).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import fields, replace
from numpy.typing import NDArray

from fwtop.model.traffic.packets import FLAG_OUTBOUND, I64, U8, Fragment, Hook, PacketBatch
from fwtop.parse.general import be16, be32
from fwtop.parse.packets import parse_packets

_GRE, _UDP = 47, 17
_VXLAN_PORT = 4789
_WITH_NETWORK = 0x08000000  # flags: only the one for a network identifier
_MAX_ENDPOINTS = 64
_ERSPAN, _ERSPAN_III = 0x88BE, 0x22EB  # GRE's protocol type of ERSPAN I and II; of III
_OPTIONAL = (0x8000, 0x2000, 0x1000)  # GRE flags that each add 4 bytes: checksum, key, sequence
_SEQUENCE = 0x1000  # set for ERSPAN II, not for I, which has no header of its own
_ETHERTYPES = (0x0800, 0x86DD, 0x0806, 0x8100, 0x88A8, 0x8864, 0x8847)
_LEAST = 14 + 20  # required bytes of the mirrored packet
_READ = 16 + 20  # the longest GRE header and ERSPAN header


def with_mirrored(batches: Iterator[PacketBatch], notes: list[str]) -> Iterator[PacketBatch]:
    """Yield the batches with mirrored packets decapsulated; appends a note with their number."""
    count = 0
    for batch in batches:
        found = [part for part in (_erspan(batch), _vxlan(batch)) if len(part[0])]
        count += sum(len(rows) for rows, _ in found)
        yield _decapsulated(batch, *map(np.concatenate, zip(*found, strict=True))) if found else batch
    if count:
        notes.append(f"{count:,} mirrored packets were decapsulated (ERSPAN or VXLAN)")


def _erspan(batch: PacketBatch) -> tuple[NDArray[np.intp], I64]:
    """Return the rows with a packet in ERSPAN, and its offset."""
    rows = np.flatnonzero((batch.protocol == _GRE) & (batch.fragment != Fragment.LATER))
    if not len(rows):
        return rows, np.zeros(0, np.int64)
    at = batch.payload_offset[rows].astype(np.int64)
    head = _bytes(batch, rows, at)
    flags, kind = be16(head, 0), be16(head, 2)
    size = 4 + 4 * np.isin(flags[:, None] & np.array(_OPTIONAL, np.uint16), _OPTIONAL).sum(1)
    own = head[np.arange(len(rows))[:, None], size[:, None] + np.arange(12)]
    version, frame_type = own[:, 0] >> 4, own[:, 10] >> 2 & 31
    two = (kind == _ERSPAN) & (flags & _SEQUENCE != 0) & (version == 1)
    three = (kind == _ERSPAN_III) & (version == 2) & (frame_type == 0)
    one = (kind == _ERSPAN) & (flags & _SEQUENCE == 0)
    start = at + size + np.where(two, 8, np.where(three, 12 + 8 * (own[:, 11] & 1).astype(np.int64), 0))
    known = np.isin(be16(_bytes(batch, rows, start), 12), _ETHERTYPES)
    good = (two | three | (one & known)) & (start + _LEAST <= batch.captured[rows]) & (at > 0)
    return rows[good], start[good]


def _vxlan(batch: PacketBatch) -> tuple[NDArray[np.intp], I64]:
    """Return the rows with a packet in VXLAN, and its offset; none if it comes from many sources.

    Clouds and overlays have few endpoints: anything else is a flood to that port.
    """
    rows = np.flatnonzero((batch.protocol == _UDP) & (batch.dport == _VXLAN_PORT))
    rows = rows[batch.fragment[rows] != Fragment.LATER]
    ends = np.unique(np.stack([batch.src_hi[rows], batch.src_lo[rows]], 1), axis=0)
    if not 0 < len(ends) <= _MAX_ENDPOINTS:
        return rows[:0], np.zeros(0, np.int64)
    at = batch.payload_offset[rows].astype(np.int64)
    head = _bytes(batch, rows, at)
    valid = (be32(head, 0) == _WITH_NETWORK) & (head[:, 7] == 0)
    known = np.isin(be16(head, 8 + 12), _ETHERTYPES)
    good = valid & known & (at + 8 + _LEAST <= batch.captured[rows]) & (at > 0)
    return rows[good], at[good] + 8


def _bytes(batch: PacketBatch, rows: NDArray[np.intp], at: I64) -> U8:
    """Return _READ bytes of each row from its offset, zero where nothing was captured."""
    width = batch.data.shape[1]
    places = at[:, None] + np.arange(_READ)
    held = batch.data[rows[:, None], np.minimum(places, width - 1)]
    return np.where(places < np.minimum(batch.captured[rows], width)[:, None], held, np.uint8(0))


def _decapsulated(batch: PacketBatch, rows: NDArray[np.intp], start: I64) -> PacketBatch:
    data = np.zeros((len(rows), batch.data.shape[1]), np.uint8)
    for place in np.unique(start).tolist():  # few: they depend on the configuration of switches
        these = np.flatnonzero(start == place)
        data[these, : data.shape[1] - place] = batch.data[rows[these], place:]
    inner = parse_packets(
        data,
        (batch.captured[rows] - start).astype(np.uint16),
        link=1,
        length=np.maximum(batch.length[rows].astype(np.int64) - start, 0).astype(np.uint32),
        time_ns=batch.time_ns[rows],
        weight=batch.weight[rows],
        hook=Hook.INGRESS,
        ifindex=batch.ifindex[rows],
    )
    inner = replace(inner, flags=inner.flags | (batch.flags[rows] & np.uint8(FLAG_OUTBOUND)))
    columns = []
    for item in fields(PacketBatch):
        column = getattr(batch, item.name).copy()
        column[rows] = getattr(inner, item.name)
        columns.append(column)
    return PacketBatch(*columns)
