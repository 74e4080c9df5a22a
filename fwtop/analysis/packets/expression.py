"""A packet filter as a tree of tests, evaluated on whole batches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fwtop.analysis.packets.fields import Field, Found, Headers, Type
from fwtop.model.traffic.packets import Mask, PacketBatch

_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Network(Struct, frozen=True):
    """An address or prefix: its upper and lower 64 bits, and the masks of both."""

    hi: int
    lo: int
    mask_hi: int
    mask_lo: int


class Span(Struct, frozen=True):
    """An inclusive range of numbers; a single one has equal ends."""

    low: int
    high: int


Value = Network | Span | bytes | str


class Present(Struct, frozen=True):
    """The packet has the field."""

    field: Field


class Compare(Struct, frozen=True):
    """Any value of the field is in this relation to one of `values`; "!=": none equals the value."""

    field: Field
    relation: str  # ==, !=, <, <=, >, >=, in, contains; "&": any of the bits is set
    values: tuple[Value, ...] = ()
    bits: int | None = None  # compares only these bits


class Not(Struct, frozen=True):
    """The opposite."""

    part: Node


class All(Struct, frozen=True):
    """All parts hold."""

    parts: tuple[Node, ...]


class AnyOf(Struct, frozen=True):
    """At least one part holds."""

    parts: tuple[Node, ...]


Node = Present | Compare | Not | All | AnyOf


def evaluate(node: Node, headers: Sequence[Headers]) -> Mask:
    """Mark the packets that the filter selects; the depth is bounded by the parser."""
    if isinstance(node, Not):
        return np.logical_not(evaluate(node.part, headers))
    if isinstance(node, All):
        return np.asarray(np.logical_and.reduce([evaluate(part, headers) for part in node.parts]))
    if isinstance(node, AnyOf):
        return np.asarray(np.logical_or.reduce([evaluate(part, headers) for part in node.parts]))
    if isinstance(node, Present):
        return _any(node.field, headers, lambda found, _: found[0])
    if node.relation == "!=":
        there = _any(node.field, headers, lambda found, _: found[0])
        return there & ~_any(node.field, headers, lambda found, part: _holds(node, "==", found, part))
    return _any(node.field, headers, lambda found, part: _holds(node, node.relation, found, part))


def _any(field: Field, headers: Sequence[Headers], test: Callable[[Found, PacketBatch], Mask]) -> Mask:
    """Mark the rows in which the test holds for any value of the field."""
    marked = np.zeros(len(headers[0].rows), np.bool_)
    for part in headers:
        if part.quoted and not field.quoted:
            continue
        for found in field.read(part):
            marked[part.rows[test(found, part.packets)]] = True
    return marked


def _holds(node: Compare, relation: str, found: Found, packets: PacketBatch) -> Mask:
    present, values = found
    hit = np.zeros(len(present), np.bool_)
    if not present.any():
        return hit
    if relation == "contains" and node.field.type is Type.BYTES:
        return _contains(node.values[0], packets, values, present)
    if relation == "contains":
        return np.asarray(present & (np.char.find(values, str(node.values[0])) >= 0))
    if node.bits is not None:
        values = values & values.dtype.type(node.bits & int(np.iinfo(values.dtype).max))
    if relation == "&":
        return np.asarray(present & (values != 0))
    for value in node.values:
        hit |= _relates(relation, values, value)
    return present & hit


def _relates(relation: str, values: NDArray[Any], value: Value) -> Mask:
    if isinstance(value, Network):
        hi = (values[:, 0] & np.uint64(value.mask_hi)) == np.uint64(value.hi)
        return np.asarray(hi & ((values[:, 1] & np.uint64(value.mask_lo)) == np.uint64(value.lo)))
    if isinstance(value, Span):
        if relation == "in":
            return np.asarray((values >= value.low) & (values <= value.high))
        return np.asarray(_ORDER[relation](values.astype(np.int64), value.low))
    return np.asarray(values == value)


def _contains(needle: Value, packets: PacketBatch, spans: NDArray[np.int64], rows: Mask) -> Mask:
    """Search each row's bytes between the two offsets of its span."""
    hit = np.zeros(len(packets), np.bool_)
    for row in np.flatnonzero(rows).tolist():
        start, end = spans[row].tolist()
        hit[row] = isinstance(needle, bytes) and needle in packets.data[row, start:end].tobytes()
    return hit
