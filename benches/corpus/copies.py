"""Copies of a vector's template packets, as bpf/flood.c sends them, but as arrays and without a kernel."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from benches.corpus.arrivals import CAPTURED, LIVED_IN, Frames
from fwtop.lab.network import Wire
from fwtop.lab.scenario import Pool, Vector
from fwtop.lab.traffic.craft import templates
from fwtop.lab.traffic.frames import (
    CONTINUES,
    DPORT,
    HALF_8,
    ID,
    IPV6,
    LETTERS,
    SPORT,
    TARGET,
    WINDOW,
    WORD_4,
    WORD_8,
    Template,
)
from fwtop.lab.traffic.pools import PUBLIC_OCTETS
from fwtop.model.addresses.address import Prefix

_WIRE = Wire(bytes.fromhex("020000000001"), bytes.fromhex("020000000002"))
_OCTETS = np.array(PUBLIC_OCTETS, np.uint8)
_PUBLIC_6 = np.array([[0x24, 0], [0x26, 0], [0x26, 7], [0x2A, 0], [0x2A, 1], [0x2A, 2]], np.uint8)
_NEIGHBOURS = 4  # attacking hosts of one network
_PROVIDERS_6 = 2_000  # whose customers nearly all hosts with IPv6 are: a /32 each
Bytes = NDArray[np.uint8]


def copies(vector: Vector, count: int, one_in: float, rng: np.random.Generator, hosts: int) -> Frames:
    """Return about `count` samples of a vector, one packet in `one_in`, spread over one second.

    `hosts` is the seed of the source addresses: vectors with the same pool and seed share their hosts.
    """
    chance = random.Random(int(rng.integers(1 << 62)))  # noqa: S311
    any_source = Prefix.parse("192.0.2.1" if vector.family == 4 else "2001:db8::1")
    made = templates(vector, _WIRE, any_source, chance)
    first = [number for number, item in enumerate(made) if not item.rewrite & CONTINUES]
    pieces = np.diff([*first, len(made)])
    mean, thick = float(pieces.mean()), min(one_in, 4.0)
    # Of a thin sample the pieces of one datagram are rarely both sampled
    datagrams = max(1, round(count * thick / mean)) if one_in <= 4 else max(1, round(count * 4 / mean))
    group = rng.integers(len(first), size=datagrams)
    datagram = np.repeat(np.arange(datagrams), pieces[group])
    begin = np.cumsum(pieces[group]) - pieces[group]
    item = np.array(first)[group][datagram] + np.arange(len(datagram)) - begin[datagram]
    kept = np.sort(rng.permutation(len(item))[: max(1, min(len(item), count))])
    item, datagram = item[kept], datagram[kept]
    sources, ttl = _sources(vector, datagrams, rng, hosts)
    frames = _filled(made, item, rng)
    number = rng.integers(1 << 32, size=datagrams, dtype=np.uint32)
    ends = _Ends(sources[datagram], ttl[datagram], number[datagram])
    _address(frames, made, item, ends, rng)
    at = np.sort(rng.random(datagrams))[datagram] + item * 1e-9
    return Frames(np.minimum(at, 0.999999), frames, *_sizes(made, item), np.zeros(len(item), np.int16))


def mixed(
    vectors: Sequence[Vector], count: float, one_in: float, rng: np.random.Generator, hosts: int
) -> Frames:
    """Return about `count` samples of vectors, by their weights."""
    total = sum(vector.weight for vector in vectors)
    sizes = [max(1, round(count * vector.weight / total)) for vector in vectors]
    return Frames.joined(
        [copies(vector, size, one_in, rng, hosts) for vector, size in zip(vectors, sizes, strict=True)]
    )


def _sizes(made: list[Template], item: NDArray[np.intp]) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
    sizes = np.array([len(one.data) for one in made], np.uint32)[item]
    return sizes, np.minimum(sizes, CAPTURED).astype(np.uint16)


def _filled(made: list[Template], item: NDArray[np.intp], rng: np.random.Generator) -> Bytes:
    """Return the templates' bytes with everything drawn that each copy draws in its segment."""
    table = np.zeros((len(made), CAPTURED), np.uint8)
    for row, one in zip(table, made, strict=True):
        part = one.data[:CAPTURED]
        row[: len(part)] = np.frombuffer(part, np.uint8)
    frames = table[item]
    for number, one in enumerate(made):
        rows = np.flatnonzero(item == number)
        if len(rows):
            _draw(frames, rows, one, rng)
    return frames


def _draw(frames: Bytes, rows: NDArray[np.intp], one: Template, rng: np.random.Generator) -> None:
    for bit, at, size in ((WORD_4, 4, 4), (WORD_8, 8, 4), (WINDOW, 14, 2), (HALF_8, 8, 2)):
        if one.rewrite & bit:
            _put(frames, rows, one.l4 + at, rng.integers(256, size=(len(rows), size), dtype=np.uint8))
    for bit, at, span in ((SPORT, 0, one.sport), (DPORT, 2, one.dport)):
        if one.rewrite & bit:
            ports = (span[0] + rng.integers(span[1], size=len(rows))).astype(">u2")
            _put(frames, rows, one.l4 + at, ports.view(np.uint8).reshape(-1, 2))
    if one.random_size:
        drawn = rng.integers(256, size=(len(rows), one.random_size), dtype=np.uint8)
        _put(frames, rows, one.random_at, drawn % 16 + ord("a") if one.rewrite & LETTERS else drawn)


def _put(frames: Bytes, rows: NDArray[np.intp], at: int, values: Bytes) -> None:
    room = max(0, min(values.shape[1], CAPTURED - at))
    frames[rows[:, None], at + np.arange(room)] = values[:, :room]


class _Ends(Struct, frozen=True):
    """What each copy takes from its datagram: source address, TTL and identification."""

    source: Bytes
    ttl: Bytes
    number: NDArray[np.uint32]


def _address(
    frames: Bytes, made: list[Template], item: NDArray[np.intp], ends: _Ends, rng: np.random.Generator
) -> None:
    """Write what belongs to the IP header: source, TTL, identification and drawn destination."""
    for place, one in enumerate(made):
        rows = np.flatnonzero(item == place)
        six = bool(one.rewrite & IPV6)
        _put(frames, rows, one.l3 + (7 if six else 8), ends.ttl[rows, None])
        _put(frames, rows, one.l3 + (8 if six else 12), ends.source[rows])
        digits = ends.number[rows].astype(">u4").view(np.uint8).reshape(-1, 4)
        if one.rewrite & ID:
            _put(frames, rows, one.l3 + 4, digits[:, 2:])
        if one.id_at:
            _put(frames, rows, one.id_at, digits)
        if one.rewrite & TARGET:
            _put(frames, rows, one.l3 + (24 if six else 16), _targets(one, len(rows), rng))


def _targets(one: Template, count: int, rng: np.random.Generator) -> Bytes:
    """Draw destinations within the template's network."""
    size = one.target.bits // 8
    offsets = rng.integers(1 << min(one.target.bits - one.target.length, 16), size=count).tolist()
    joined = b"".join((one.target.value + offset).to_bytes(size, "big") for offset in offsets)
    return np.frombuffer(joined, np.uint8).reshape(-1, size)


def _sources(vector: Vector, count: int, rng: np.random.Generator, hosts: int) -> tuple[Bytes, Bytes]:
    """Draw the source address and the TTL of each datagram."""
    pool, family = vector.source, vector.family
    if pool.prefixes:
        size = 4 if family == 4 else 16
        listed = np.array([list(one.value.to_bytes(size, "big")) for one in pool.prefixes], np.uint8)
        place = rng.integers(len(listed), size=count)
        return listed[place], rng.integers(vector.ttl[0], vector.ttl[1] + 1, size=count).astype(np.uint8)
    if not pool.count:
        public, (low, high) = _public(count, family, rng), vector.ttl
        return public, rng.integers(low, high + 1, size=count).astype(np.uint8)
    every, ttl = _hosts(pool, family, np.random.default_rng(hosts))
    weights = 1 / np.arange(1, pool.count + 1) ** pool.skew
    place = rng.choice(pool.count, size=count, p=weights / weights.sum())
    return every[place], ttl[place]


def _public(count: int, family: int, rng: np.random.Generator) -> Bytes:
    if family == 4:
        made = rng.integers(256, size=(count, 4), dtype=np.uint8)
        made[:, 0] = rng.choice(_OCTETS, size=count)
        return made
    made = rng.integers(256, size=(count, 16), dtype=np.uint8)
    made[:, :2] = rng.choice(_PUBLIC_6, size=count)
    return made


def _hosts(pool: Pool, family: int, rng: np.random.Generator) -> tuple[Bytes, Bytes]:
    """Draw real hosts, some in the same network, with the TTL of each."""
    networks = max(1, pool.count // _NEIGHBOURS)
    place = rng.integers(networks, size=pool.count)
    drawn = _public(networks, family, rng)
    if family == 4:
        drawn[:, 0] = rng.choice(np.array(LIVED_IN, np.uint8), size=networks)
    else:
        drawn[:, :4] = drawn[rng.integers(min(networks, _PROVIDERS_6), size=networks), :4]
    every = drawn[place]
    every[:, -1] = rng.integers(1, 255, size=pool.count)
    if family == 6:
        every[:, 8:15] = 0
    hops = rng.integers(6, 25, size=networks)[place]
    ttl = rng.choice(np.array([64, 64, 128, 255]), size=pool.count) - hops
    return every, ttl.astype(np.uint8)
