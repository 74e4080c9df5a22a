"""Builds windows of packets for tests of the judgement, from descriptions such as the scenarios hold."""

from __future__ import annotations

import functools
import itertools
import json
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
from analysis_payloads import payload
from msgspec import Struct, field

from fwtop.model.traffic.counters import ConntrackSample, Counters
from fwtop.model.traffic.packets import Hook, PacketBatch, Window
from fwtop.model.traffic.snapshot import Sampling, Tables, Totals
from fwtop.parse.packets import parse_packets

FLAGS = {"F": 1, "S": 2, "R": 4, "P": 8, "A": 16, "U": 32, "E": 64, "C": 128}
PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1, "icmp6": 58, "gre": 47, "esp": 50}
STARTED = 1_700_000_000.0
_RARE = (21, 22, 25, 26, 28, 29, 30, 33, 55, 56, 100, 127, 169, 172, 192, 198, 203, 214, 215)
_USUAL = [first for first in range(13, 220) if first not in _RARE]  # networks that send on the Internet


class Frames(Struct):
    """Frames with their times in seconds."""

    rng: Random
    frames: list[tuple[float, bytes]] = field(default_factory=list)

    def add(self, at: float, frame: bytes) -> None:
        self.frames.append((at, frame))


def address(text: str) -> bytes:
    import ipaddress

    return ipaddress.ip_address(text).packed


def ethernet(packet: bytes, vlan: int | None = None) -> bytes:
    kind = b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\0"
    tag = struct.pack("!HH", 0x8100, vlan) if vlan is not None else b""
    return b"\x02\0\0\0\0\x01\x02\0\0\0\0\x02" + tag + kind + packet


def ip(
    src: bytes,
    dst: bytes,
    protocol: int,
    body: bytes,
    *,
    ttl: int,
    ip_id: int = 0,
    offset: int = 0,
    more: bool = False,
) -> bytes:
    """Build an IPv4 or IPv6 packet; `offset` in bytes makes it a fragment."""
    if len(src) == 4:
        field_ = (offset // 8) | (0x2000 if more else 0)
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), ip_id & 0xFFFF, field_, ttl, protocol, 0)
        return head + src + dst + body
    if offset or more:
        body = struct.pack("!BBHI", protocol, 0, (offset & 0xFFF8) | int(more), ip_id) + body
        protocol = 44
    return struct.pack("!IHBB", 0x60000000, len(body), protocol, ttl) + src + dst + body


def udp(sport: int, dport: int, data: bytes) -> bytes:
    return struct.pack("!HHHH", sport, dport, 8 + len(data), 0) + data


def tcp(
    sport: int,
    dport: int,
    flags: int,
    *,
    seq: int,
    ack: int,
    window: int = 64240,
    options: bytes = b"",
    data: bytes = b"",
) -> bytes:
    words = 5 + len(options) // 4
    return struct.pack("!HHIIBBHHH", sport, dport, seq, ack, words << 4, flags, window, 0, 0) + options + data


def icmp(kind: int, code: int, data: bytes) -> bytes:
    return struct.pack("!BBHI", kind, code, 0, 0) + data


class Sources:
    """Source addresses by description: random (forged), N (real ones, clustered), N in NETWORK …, or one."""

    def __init__(self, spec: str, rng: Random) -> None:
        self.rng = rng
        self.pool: list[bytes] = []
        self.six = spec.endswith("6")
        words = spec.removesuffix("6").split()
        self.random = words[0] == "random"
        if "in" in words:
            import ipaddress

            within = [ipaddress.ip_network(text) for text in words[2:]]
            drawn = (rng.choice(within) for _ in range(int(words[0])))
            self.pool = [one[rng.randrange(one.num_addresses)].packed for one in drawn]
        elif not self.random and words[0].isdigit():
            networks = [self._network() for _ in range(max(1, int(words[0]) // 4))]
            for _ in range(int(words[0])):
                base = rng.choice(networks)
                self.pool.append(
                    base + rng.randbytes(1) if not self.six else base + bytes(7) + rng.randbytes(1)
                )
        elif not self.random:
            self.pool = [address(spec)]
        self.ttls = {source: rng.choice((64, 128, 255)) - rng.randrange(6, 25) for source in self.pool}
        # A few heavy ones and a long tail, as in reality
        self.weights = list(itertools.accumulate(1 / (1 + i % 50) for i in range(len(self.pool))))

    def _network(self) -> bytes:
        if self.six:
            return b"\x2a" + bytes([self.rng.randrange(16)]) + self.rng.randbytes(6)
        return bytes([self.rng.choice(_USUAL)]) + self.rng.randbytes(2)

    def pick(self) -> tuple[bytes, int | None]:
        """Return an address and its TTL (None: the description's)."""
        if self.random:
            return self.rng.randbytes(16 if self.six else 4), None
        source = (
            self.rng.choices(self.pool, cum_weights=self.weights)[0]
            if len(self.pool) < 500
            else self.rng.choice(self.pool)
        )
        return source, self.ttls[source]


def below(count: int, rng: Random) -> Callable[[], int]:
    """Return what draws a number below `count`, as `rng.randrange` does in four times the time."""
    bits, draw = count.bit_length(), rng.getrandbits

    def drawn() -> int:
        while (value := draw(bits)) >= count:
            pass
        return value

    return drawn


def numbers(spec: int | str | list[int], rng: Random) -> Callable[[], int]:
    """Return what draws a number, one of a list, or `random`/`low-high`."""
    if isinstance(spec, int):
        return lambda: spec
    if isinstance(spec, list):
        place = below(len(spec), rng)
        return lambda: spec[place()]
    low, high = (1024, 65535) if spec == "random" else map(int, spec.split("-"))
    offset = below(high - low + 1, rng)
    return lambda: low + offset()


def number(spec: int | str | list[int], rng: Random) -> int:
    """Draw one of the numbers."""
    return numbers(spec, rng)()


def flood(item: dict[str, Any], rng: Random, seconds: float) -> Iterator[tuple[float, bytes]]:
    """Yield packets of one shape."""
    sources = Sources(str(item.get("src", "random")), rng)
    content = payload(item.get("payload", "empty"))
    protocol = item.get("protocol", "udp")
    number_of = PROTOCOLS.get(protocol, protocol if isinstance(protocol, int) else 0)
    dsts = [address(text) for text in _targets(item.get("dst", "10.10.10.10"))]
    start, stop = item.get("start", 0.0), item.get("stop", seconds)
    place, ttls = below(len(dsts), rng), numbers(item.get("ttl", 52), rng)
    ip_ids, transport = numbers(item.get("ip_id", "0-65535"), rng), _transport(item, number_of, rng)
    fragment = item.get("fragment", 0)
    for i in range(item["count"]):
        src, ttl = sources.pick()
        dst = dsts[place()]
        if ttl is None or "ttl" in item:
            ttl = ttls()
        ip_id = ip_ids()
        data = content(rng)
        at = start + (stop - start) * (i + rng.random()) / item["count"]
        body = transport(data)
        if not fragment:
            yield at, ip(src, dst, number_of, body, ttl=ttl, ip_id=ip_id)
            continue
        for offset in range(0, len(body), fragment):
            if offset == 0 and item.get("headless"):
                continue
            piece = body[offset : offset + fragment]
            more = offset + fragment < len(body)
            yield (
                at + offset * 1e-8,
                ip(src, dst, number_of, piece, ttl=ttl, ip_id=ip_id, offset=offset, more=more),
            )


def _transport(item: dict[str, Any], protocol: int, rng: Random) -> Callable[[bytes], bytes]:
    """Return what puts data into a packet of the transport protocol."""
    sports, dports = numbers(item.get("sport", "random"), rng), numbers(item.get("dport", "random"), rng)
    if protocol == 17:
        return lambda data: udp(sports(), dports(), data)
    if protocol == 6:
        flags = sum(FLAGS[letter] for letter in item.get("flags", "S"))
        options = bytes.fromhex(item.get("options", ""))
        counts = [numbers(item.get(name, "0-4294967295"), rng) for name in ("seq", "ack")]
        windows = numbers(item.get("window", [1024, 8192, 64240, 65535]), rng)

        def segment(data: bytes) -> bytes:
            sport, dport, seq, ack, window = (draw() for draw in (sports, dports, *counts, windows))
            return tcp(sport, dport, flags, seq=seq, ack=ack, window=window, options=options, data=data)

        return segment
    sized = protocol in (1, 58)
    kind, code = item.get("icmp_type", 8), item.get("icmp_code", 0)

    def message(data: bytes) -> bytes:
        sports(), dports()  # drawn for each packet, so that a seed gives the same packets as ever
        return icmp(kind, code, data) if sized else data

    return message


def _targets(spec: str | list[str]) -> list[str]:
    if isinstance(spec, list):
        return spec
    if "/" not in spec:
        return [spec]
    import ipaddress

    return [str(host) for host in ipaddress.ip_network(spec)]


SYN_OPTIONS = "020405b40402080a0000000100000000010303" + "07"
STAMPS = "0101080a00000001" + "00000002"


def connections(item: dict[str, Any], rng: Random, seconds: float) -> Iterator[tuple[float, bytes]]:
    """Yield the arriving side of whole TCP connections: SYN, ACK, requests, ACKs, FIN."""
    sources = Sources(str(item.get("src", "100")), rng)
    content = payload(item.get("payload", "page"))
    dst = address(item.get("dst", "10.10.10.10"))
    start, stop = item.get("start", 0.0), item.get("stop", seconds)
    for _ in range(item["count"]):
        src, ttl = sources.pick()
        sport, dport, seq, ack = (
            rng.randrange(1024, 65536),
            item.get("dport", 80),
            rng.getrandbits(32),
            rng.getrandbits(32),
        )
        at = start + rng.random() * (stop - start) * 0.9
        step = 0.01 + rng.random() * 0.05
        window = rng.randrange(500, 65_536)
        packets = [(2, 0, bytes.fromhex(SYN_OPTIONS), b""), (16, 1, b"", b"")]
        for _ in range(item.get("requests", 1)):
            packets.append((24, 0, bytes.fromhex(STAMPS), content(rng)))
            packets += [
                (16, -1, bytes.fromhex(STAMPS), b"") for _ in range(rng.randrange(1, 1 + item.get("acks", 5)))
            ]
        packets.append((17, 0, bytes.fromhex(STAMPS), b""))
        for flags, advance, options, data in packets:
            if advance == -1:
                ack = (ack + 1448) % (1 << 32)
            if advance == 1:
                seq = (seq + 1) % (1 << 32)
            acked = ack if flags & 16 else 0
            body = tcp(sport, dport, flags, seq=seq, ack=acked, window=window, options=options, data=data)
            seq = (seq + len(data)) % (1 << 32)
            yield at, ip(src, dst, 6, body, ttl=ttl or 52, ip_id=rng.getrandbits(16))
            at += step


def udp_conversations(item: dict[str, Any], rng: Random, seconds: float) -> Iterator[tuple[float, bytes]]:
    """Yield UDP conversations: a few peers, each with one flow of many packets."""
    sources = Sources(str(item.get("src", "3")), rng)
    content = payload(item.get("payload", "game"))
    dst = address(item.get("dst", "10.10.10.10"))
    each = item["count"] // len(sources.pool)
    for source in sources.pool:
        sport, dport = number(item.get("sport", "random"), rng), number(item.get("dport", "random"), rng)
        for i in range(each):
            at = seconds * (i + rng.random()) / each
            yield (
                at,
                ip(
                    source,
                    dst,
                    17,
                    udp(sport, dport, content(rng)),
                    ttl=sources.ttls[source],
                    ip_id=rng.getrandbits(16),
                ),
            )


def scan(item: dict[str, Any], rng: Random, seconds: float) -> Iterator[tuple[float, bytes]]:
    """Yield one source's probes of one port after the other."""
    source, dst = address(item["src"]), address(item.get("dst", "10.10.10.10"))
    for i, port in enumerate(rng.sample(range(1, 10_000), item["count"])):
        body = tcp(54_321, port, 2, seq=rng.getrandbits(32), ack=0, window=1024, options=b"\x02\x04\x05\xb4")
        yield seconds * i / item["count"], ip(source, dst, 6, body, ttl=47, ip_id=rng.getrandbits(16))


MAKERS = {"flood": flood, "connections": connections, "udp_conversations": udp_conversations, "scan": scan}


def make_frames(items: list[dict[str, Any]], seconds: float, seed: int = 1) -> list[tuple[float, bytes]]:
    """Build all frames of a scenario, in order of time."""
    parts = (_made(json.dumps(item), seconds, seed * 1000 + place) for place, item in enumerate(items))
    return sorted(itertools.chain.from_iterable(parts), key=lambda frame: frame[0])


@functools.lru_cache(64)
def _made(text: str, seconds: float, seed: int) -> list[tuple[float, bytes]]:
    """Build the frames of an item once for all tests that ask for the same."""
    item = json.loads(text)
    made = MAKERS[item.get("make", "flood")](item, Random(seed), seconds)
    return [(at, ethernet(packet, item.get("vlan"))) for at, packet in made]


def make_batch(
    frames: list[tuple[float, bytes]], *, snap: int = 216, weight: float = 1.0, start_ns: int = 10**12
) -> PacketBatch:
    """Parse frames as the collector does, cut to `snap` bytes."""
    n = len(frames)
    length = np.array([len(frame) for _, frame in frames], np.uint32)
    rows = bytearray().join(frame[:snap].ljust(snap, b"\0") for _, frame in frames)
    return parse_packets(
        np.frombuffer(rows, np.uint8).reshape(n, snap),
        np.minimum(length, snap).astype(np.uint16),
        link=1,
        length=length,
        time_ns=np.array([start_ns + int(at * 1e9) for at, _ in frames], np.int64),
        weight=np.full(n, weight),
        hook=int(Hook.INGRESS),
    )


def make_window(
    batch: PacketBatch,
    seconds: float,
    *,
    live: bool = False,
    started: float = STARTED,
    conntrack: ConntrackSample | None = None,
) -> Window:
    """Wrap a batch as the engine does."""
    nothing = PacketBatch.empty(batch.data.shape[1])
    packets = int(batch.weight.sum())
    counters = Counters(seconds, packets, int((batch.weight * batch.length).sum()), conntrack=conntrack)
    return Window(started, seconds, batch, nothing, nothing, counters, live=live)


def make_tables(window: Window) -> Tables:
    packets = window.counters.arrived_packets
    pps = packets / window.seconds
    totals = Totals(packets, window.counters.arrived_bytes, pps, 0.0, packets, 0)
    return Tables(totals, Sampling(window.counters.one_in, len(window.arrived), 0))
