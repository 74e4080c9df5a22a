"""Ordinary traffic of machines by the hundred: logs, metrics, devices, and connections that are kept open.

Nobody answers most of it, much of it is alike, and all of it comes back at once when a collector or a
broker restarts. Sources: RFC 3164 and 5424 (syslog), RFC 7011 (IPFIX), RFC 6455 (WebSocket), MQTT 3.1.1.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from random import Random

from benches.corpus.arrivals import FULL, Arrivals, Connection, Sender, connection, senders
from benches.corpus.contents import AGENTS, RECORD, WORDS, drawn_word

_LOG_PORTS = (514, 514, 1514, 5140, 10_514, 5514)
_RESTART = 0.3  # of windows begin when a collector, a server or a broker has restarted


def collectors(to: Arrivals, count: int) -> None:
    """Machines, up to a thousand, that report to this collector over UDP and are never answered."""
    ports, write = to.rng.choice(_REPORTS)
    port, shared = to.rng.choice(ports), to.rng.random() < 0.1
    for machine, share in _machines(to, count, most=3.0):
        sport = port if shared else to.rng.randrange(1024, 65_536)
        for number, at in enumerate(_paced(to, share)):
            report = write(to.rng, number)
            to.datagram(at, machine, (sport, port), report[:160], len(report))


def log_shippers(to: Arrivals, count: int) -> None:
    """Machines that ship logs over connections of their own, one to four each; the collector only reads."""
    port = to.rng.choice((514, 601, 5044, 24_224, 2003, 1514, 12_201, 9000))
    each, restarted = to.rng.choice((1, 1, 1, 2, 4)), to.rng.random() < _RESTART
    write = to.rng.choice((_syslog, _structured, _graphite, _binary))
    for machine, share in _machines(to, count, most=2.8):
        for _ in range(each):
            begin = to.rng.uniform(0, 0.5 * to.seconds) if restarted else 0.0
            way = connection(to, machine, port, begin)
            if restarted:
                way.open(to.rng.uniform(0.0005, 0.05))
            for number in _turns(way, max(1, share // each)):
                piece = b"".join(write(to.rng, number) for _ in range(to.rng.choice((1, 1, 1, 2, 8))))
                way.send(piece[:160], min(len(piece), FULL))


def polled_devices(to: Arrivals, count: int) -> None:
    """Devices by the hundred that answer this host, which polls them over SNMP as fast as they answer."""
    devices = senders(to.peers, round(10 ** to.peers.uniform(1.5, 2.9)))
    ports = [to.rng.randrange(32_768, 61_000) for _ in range(to.rng.choice((1, 1, 4, 16)))]
    walks = to.rng.random() < 0.4  # of tables: many values an answer
    for number in range(count):
        values = to.rng.randrange(10, 26) if walks else to.rng.randrange(1, 5)
        answer = _snmp_answer(to.rng, values)
        at = to.seconds * (number + to.rng.random()) / count
        ends = (161, ports[number % len(ports)])
        to.datagram(at, devices[number % len(devices)], ends, answer[:160], len(answer))


def websockets(to: Arrivals, count: int) -> None:
    """Pages that keep a WebSocket open: all upgrade alike, then send small frames and are answered."""
    restarted, port = to.rng.random() < _RESTART, to.rng.choice((80, 80, 8080, 3000))
    agents = AGENTS if to.rng.random() < 0.7 else (to.rng.choice((AGENTS[0], "chat-app/4.2 (Android 14)")),)
    for client, share in _machines(to, count, most=2.9):
        upgrades = restarted or to.rng.random() < 0.2
        way = connection(to, client, port, to.rng.uniform(0, 0.4 * to.seconds) if upgrades else 0.0)
        if upgrades:
            way.open(to.rng.uniform(0.01, 0.12))
            way.send(_upgrade(to.rng, to.rng.choice(agents)))
            way.acknowledge(129)
        for _ in _turns(way, max(1, share // 2)):
            size = to.rng.choice((0, to.rng.randrange(8, 60), to.rng.randrange(20, 300)))
            length = bytes([0x80 | size]) if size < 126 else b"\xfe" + struct.pack("!H", size)
            head = b"\x81" + length if size else b"\x8a\x80"
            way.send(head + to.rng.randbytes(4 + min(size, 120)), len(head) + 4 + size)
            if to.rng.random() < 0.8:
                way.at += 0.02
                way.acknowledge(to.rng.randrange(20, 2000))


def things(to: Arrivals, count: int) -> None:
    """Sensors that keep a connection to this MQTT broker: keep-alives that are answered, and readings."""
    restarted = to.rng.random() < _RESTART
    keepalives = to.rng.choice((0.2, 0.6, 0.98))  # of what they send
    for sensor, share in _machines(to, count, most=3.0):
        way = connection(to, sensor, 1883, to.rng.uniform(0, 0.4 * to.seconds) if restarted else 0.0)
        name = drawn_word(to.rng, 12).encode()
        if restarted:
            way.open(to.rng.uniform(0.01, 0.2))
            body = b"\0\x04MQTT\x04\x02\0\x3c\0" + bytes([len(name)]) + name
            way.send(b"\x10" + bytes([len(body)]) + body)
            way.acknowledge(4)
        for _ in _turns(way, max(1, share // 2)):
            if to.rng.random() < keepalives:
                way.send(b"\xc0\0")
                way.at += 0.01
                way.acknowledge(2)
            else:
                topic = b"home/" + name + b"/temperature"
                body = struct.pack("!H", len(topic)) + topic + b"%.2f" % to.rng.uniform(-20, 90)
                way.send(b"\x30" + bytes([len(body)]) + body)


def services(to: Arrivals, count: int) -> None:
    """Services that call each other over HTTP/2 inside TLS: few connections, many requests of many sizes."""
    peers = senders(to.peers, to.peers.randrange(1, 12))
    flows = to.rng.choice((1, 2, 8))
    for peer in peers:
        for _ in range(flows):
            way = connection(to, peer, 443, to.rng.uniform(0, 0.2))
            for at in _paced(to, max(2, count // len(peers) // flows // 2)):
                way.at = max(way.at, at)
                size = int(min(1300, 30 * to.rng.paretovariate(0.9)))
                way.send(RECORD + size.to_bytes(2) + to.rng.randbytes(min(size, 120)), size + 5)
                way.acknowledge(to.rng.randrange(80, 6000))


def tickers(to: Arrivals, count: int) -> None:
    """Games and tickers over WebSockets inside TLS: small frames of one or few sizes at an even pace."""
    pace = to.rng.choice((10, 30, 60, 100))
    sizes = [to.rng.randrange(24, 120) for _ in range(to.rng.choice((1, 2, 6)))]
    for client in senders(to.rng, max(1, round(count / pace / to.seconds / 1.5))):
        way = connection(to, client, 443, 0.0)
        for number in range(int(pace * to.seconds)):
            way.at = max(way.at, (number + to.rng.random()) / pace)
            size = to.rng.choice(sizes)
            way.send(RECORD + size.to_bytes(2) + to.rng.randbytes(size), size + 5)
            if to.rng.random() < 0.5:
                way.acknowledge(to.rng.randrange(40, 600))


def _machines(to: Arrivals, count: int, *, most: float) -> list[tuple[Sender, int]]:
    """Draw machines, and how many packets each sends: some are much busier than others."""
    hosts = senders(to.peers, max(2, min(count, round(10 ** to.peers.uniform(1.0, most)))))
    busy = [to.peers.paretovariate(1.2) for _ in hosts]
    return [(host, max(1, round(count * one / sum(busy)))) for host, one in zip(hosts, busy, strict=True)]


def _paced(to: Arrivals, count: int) -> list[float]:
    """Return times at an even pace, or in bursts as buffers are flushed."""
    if to.rng.random() < 0.7:
        return [to.seconds * (k + to.rng.random()) / count for k in range(count)]
    flushes = [to.when() for _ in range(max(1, count // 8))]
    return sorted(min(to.rng.choice(flushes) + 0.0002 * k % 0.01, to.seconds * 0.9999) for k in range(count))


def _turns(way: Connection, count: int) -> Iterator[int]:
    """Yield numbers of the paced times at which a connection is free to send, and let it be that time."""
    for number, at in enumerate(_paced(way.to, count)):
        if at > way.at:
            way.at = at
            yield number


def _syslog(rng: Random, number: int) -> bytes:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(3, 20)))
    return b"<%d>Nov 22 18:%02d:%02d %s-%d nginx[%d]: %s\n" % (
        rng.choice((13, 30, 38, 134, 165)), number // 60 % 60, number % 60, rng.choice(WORDS).encode(),
        rng.randrange(90), rng.randrange(300, 60_000), words.encode(),
    )  # fmt: skip


def _structured(rng: Random, number: int) -> bytes:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(2, 16)))
    return (
        f'{{"@timestamp":"2026-11-22T18:00:{number % 60:02}.{rng.randrange(1000):03}Z","level":'
        f'"{rng.choice(("info", "warn", "debug"))}","logger":"{rng.choice(WORDS)}","message":"{words}"}}\n'
    ).encode()


def _graphite(rng: Random, number: int) -> bytes:
    return b"servers.%s-%d.cpu.%s %.3f %d\n" % (
        rng.choice(WORDS).encode(), rng.randrange(90), rng.choice(WORDS).encode(), rng.uniform(0, 100),
        1_795_000_000 + number,
    )  # fmt: skip


def _statsd(rng: Random, _: int) -> bytes:
    lines = (f"{rng.choice(WORDS)}.{rng.choice(WORDS)}:{rng.randrange(900)}|{rng.choice(('c', 'ms', 'g'))}"
             for _ in range(rng.choice((1, 1, 5, 20))))  # fmt: skip
    return "\n".join(lines).encode()


def _binary(rng: Random, number: int) -> bytes:
    """Beats' frames: version, window, and compressed events."""
    body = zlib.compress(b"".join(_structured(rng, number) for _ in range(3)))
    return b"2W\0\0\0\x03" + b"2C" + struct.pack("!I", len(body)) + body


def _gelf(rng: Random, number: int) -> bytes:
    return zlib.compress(_structured(rng, number))


def _netflow(rng: Random, number: int) -> bytes:
    records = rng.randrange(1, 31)
    head = struct.pack(
        "!HHIIIIBBH", 5, records, 8_000_000 + number * 900, 1_795_000_000, 0, number * 30, 0, 1, 0
    )
    return head + b"".join(rng.randbytes(8) + bytes(8) + rng.randbytes(24) + bytes(8) for _ in range(records))


def _ipfix(rng: Random, number: int) -> bytes:
    records = rng.randrange(1, 24)
    size = 20 + 52 * records
    head = struct.pack("!HHIIIHH", 10, size, 1_795_000_000, number * records, 1, 256, size - 16)
    return head + b"".join(rng.randbytes(12) + bytes(20) + rng.randbytes(20) for _ in range(records))


def _snmp_answer(rng: Random, values: int) -> bytes:
    """Write a response of SNMPv2c with this many values (RFC 3416)."""
    bindings = b"".join(
        b"\x30\x11\x06\x0a\x2b\x06\x01\x02\x01\x02\x02\x01\x0a" + bytes([rng.randrange(1, 60)])
        + b"\x41\x03" + rng.randbytes(3)
        for _ in range(values)
    )  # fmt: skip
    inner = b"\x02\x04" + rng.randbytes(4) + b"\x02\x01\0\x02\x01\0" + _ber(0x30, bindings)
    return _ber(0x30, b"\x02\x01\x01\x04\x06public" + _ber(0xA2, inner))


def _ber(tag: int, body: bytes) -> bytes:
    size = len(body)
    length = bytes([size]) if size < 128 else b"\x82" + struct.pack("!H", size)
    return bytes([tag]) + length + body


def _upgrade(rng: Random, agent: str) -> bytes:
    key = b64encode(rng.randbytes(16)).decode()
    return (
        f"GET /live HTTP/1.1\r\nHost: www.shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"User-Agent: {agent}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    ).encode()


_REPORTS: tuple[tuple[tuple[int, ...], Callable[[Random, int], bytes]], ...] = (
    (_LOG_PORTS, _syslog), ((12_201, 5555, 9999), _structured), ((8125, 8126), _statsd),
    ((2003, 8089), _graphite), ((12_201,), _gelf), ((2055, 9995, 2056), _netflow), ((4739, 2055), _ipfix),
)  # fmt: skip
