"""Packet throughput of the console's pipeline: parse, aggregate, judge, read a capture (P3 and P9).

Traffic is generated from fixed seeds. Figures are packets per second of this process's CPU time, and for a
judgement milliseconds of it; tshark is measured for comparison where it is installed.
"""

from __future__ import annotations

import gzip
import math
import resource
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import asdict, replace
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from benches.corpus.arrivals import CAPTURED, Frames
from benches.corpus.cases import batch_of, window_of
from benches.corpus.copies import copies
from benches.corpus.profiles import methods
from benches.tables.bulk import seconds_of
from fwtop.analysis.classify import find_attacks
from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.context import make_context
from fwtop.analysis.memory import Baseline
from fwtop.bench.frame import Document, Options, Row, measure
from fwtop.capture.reader import read_capture
from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.packets import U8, U16, Hook, NoOrigin, PacketBatch, Window
from fwtop.parse.packets import parse_packets
from fwtop.stats.engine import Engine

_TICK_ROWS = 5000  # 20,000 samples a second at 4 Hz
_TICKS = 24
_TSHARK_SECONDS = 120
_MANY = 40  # attacks at once
_SAMPLES, _ONE_IN, _SECONDS = 60_000, 500.0, 3.0  # of a window that is judged
_FLOODS = ("udp_flood_random", "syn_flood")


def run(options: Options, *, captured: int | None = None) -> Document:
    """Measure the table; `captured` is the number of packets in the captures."""
    rounds = options.choose(5, 1)
    size = captured or (40_000 if options.quick else 300_000)
    with tempfile.TemporaryDirectory(prefix="fwtop-bench-") as directory:
        rows = [*_live_rows(), *_judging_rows(), *_capture_rows(Path(directory), size)]
        # Warm up, so that caches, imports and the allocator are in the same state in every measured round.
        return Document("pipeline", rounds, measure(rows, rounds, warm=True))


def _row(
    name: str, packets: int, work: Callable[[], object], *, versus: str | None = None, is_child: bool = False
) -> Row:
    """Return a row for work on `packets` packets; `is_child`: a child process does the work."""
    return Row(name, "packets/s and core", lambda: packets / _seconds(work, is_child=is_child), versus)


def _seconds(work: Callable[[], object], *, is_child: bool) -> float:
    who = resource.RUSAGE_CHILDREN if is_child else resource.RUSAGE_SELF
    before = resource.getrusage(who)
    work()
    after = resource.getrusage(who)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _live_rows() -> list[Row]:
    count = _TICKS * _TICK_ROWS
    rows = []
    for name, (data, captured) in _floods().items():
        parse = partial(_parse, data, captured)
        parsed = parse()
        rows += [
            _row(f"parse {name}", count, partial(_ticks, parse)),
            _row(f"aggregate {name}", count, partial(_observe, partial(_identity, parsed))),
            _row(f"parse and aggregate {name}", count, partial(_observe, parse)),
        ]
    return rows


def _judging_rows() -> list[Row]:
    """Name the attacks of a window, as the screen does every two seconds."""
    windows = (
        ("one UDP flood", _FLOODS[:1]),
        ("one SYN flood", _FLOODS[1:]),
        ("both", _FLOODS),
        (f"{_MANY} attacks", at_once(_MANY)),
    )
    return [
        Row(f"judge {_SAMPLES:,} samples: {name}", "ms CPU", partial(_judging_ms, crowded(names)))
        for name, names in windows
    ] + [
        Row(
            "known clients and habits, after a million forged sources and 100,000 handshakes",
            "KiB",
            _clients_kib,
        )
    ]


def _clients_kib() -> float:
    """Return the memory of what is known of services and clients, which attackers fill as they can."""
    baseline, empty = Baseline(), PacketBatch.empty()
    for part in range(11):  # each of 100,000 sources; those of the last part have connections
        numbers = np.repeat(np.arange(100_000, dtype=np.uint64), 1 if part < 10 else 3)
        batch = PacketBatch.zeros(len(numbers), 0)
        batch.weight[:], batch.family[:], batch.protocol[:], batch.dport[:], batch.sport[:] = (
            1,
            4,
            6,
            80,
            40_000,
        )
        batch.src_lo[:] = numbers + np.uint64(part << 20)
        batch.tcp_flags[:] = 2 if part < 10 else 16
        batch.tcp_seq[:] = batch.time_ns[:] = np.arange(len(batch)) % 3 * 100 + 1
        window = Window(float(part), 1.0, batch, empty, empty, Counters(1.0, len(batch), 0))
        context = make_context(window, AdviseConfig(max_rows=len(batch)), baseline)
        baseline.clients = baseline.clients.met(
            context.traffic, np.flatnonzero(context.proven), baseline.doors, quiet=True
        )
        baseline.habits = baseline.habits.learned(context.services, 1.0, float(part), math.inf, 2.0)
    kept = [*asdict(baseline.clients).values(), *asdict(baseline.habits).values()]
    return float(sum(column.nbytes for column in kept) / 1024)


def _judging_ms(window: Window) -> float:
    def judge() -> None:
        find_attacks(make_context(window, AdviseConfig(), Baseline()))

    return 1_000 * _seconds(judge, is_child=False)


def crowded(names: tuple[str, ...], *, samples: int = _SAMPLES, seed: int = 1) -> Window:
    """Return a live window of these scenarios' attacks, each with as many samples."""
    numbers = np.random.default_rng(seed)
    vectors = [vector for name in names for vector in methods()[name].vectors]
    made = [copies(vector, samples // len(vectors), _ONE_IN, numbers, seed) for vector in vectors]
    frames = Frames.joined(made)
    frames = replace(frames, at=frames.at * _SECONDS)
    return window_of(batch_of(frames, _ONE_IN), _SECONDS, live=True)


def at_once(attacks: int) -> tuple[str, ...]:
    """Return the names of so many scenarios, evenly spaced among all that hold one attack."""
    names = sorted(methods())
    return tuple(names[len(names) * number // attacks] for number in range(attacks))


def _identity(batch: PacketBatch) -> PacketBatch:
    return batch


def _ticks(step: Callable[[], object]) -> None:
    for _ in range(_TICKS):
        step()


def _observe(batch: Callable[[], PacketBatch]) -> None:
    """Feed a three-second window and read its tables once a second, as the screen does."""
    engine = Engine(NoOrigin(), window_seconds=3.0, live=True)
    for tick in range(_TICKS):
        counters = Counters(0.25, _TICK_ROWS * 500, _TICK_ROWS * 50_000, one_in=500.0)
        engine.feed(batch(), counters, tick * 0.25)
        if tick % 4 == 3:
            engine.tables()


def _parse(data: U8, captured: U16) -> PacketBatch:
    n = len(captured)
    return parse_packets(
        data,
        captured,
        link=1,
        length=captured.astype(np.uint32),
        time_ns=np.arange(n, dtype=np.int64),
        weight=np.full(n, 500.0),
        hook=Hook.INGRESS,
    )


def _floods() -> dict[str, tuple[U8, U16]]:
    """Return one tick of ring-buffer records for each flood, with forged sources."""
    chance = np.random.default_rng(20261121)
    text = b"ATTACK" * 16
    answer = (
        bytes.fromhex("000081800001000f00000000") + b"\x08pizzaseo\x03com\x00\x00\xff\x00\x01" + bytes(300)
    )
    out = {}
    nobody = "00:00:00:00:00:00"
    link = Ether(src=nobody, dst=nobody)
    four, six = link / IP(src="0.0.0.0", dst="198.51.100.1", ttl=60), link / IPv6(src="2001::", dst="::")  # noqa: S104
    for name, frame, source, port in (
        ("SYN", four / TCP(sport=1, dport=80, seq=1, flags="S", window=8192), 26, 34),
        ("UDP", four / UDP(sport=4000, dport=9999) / text, 26, 34),
        ("DNS", four / UDP(sport=53, dport=9999) / answer, 26, 42),
        ("UDP over IPv6", six / UDP(sport=4000, dport=9999) / text, 30, 54),
    ):
        data = np.zeros((_TICK_ROWS, CAPTURED), np.uint8)
        kept = bytes(frame)[:CAPTURED]
        data[:, : len(kept)] = np.frombuffer(kept, np.uint8)
        data[:, source : source + 4] = chance.integers(0, 256, (_TICK_ROWS, 4))
        data[:, port : port + 2] = chance.integers(0, 256, (_TICK_ROWS, 2))
        out[name] = data, np.full(_TICK_ROWS, len(kept), np.uint16)
    return out


def _capture_rows(directory: Path, packets: int) -> list[Row]:
    """Write a capture of mixed floods; return the rows that read it."""
    plain = directory / "floods.pcap"
    count = _write_pcap(plain, packets)
    packed = directory / "floods.pcap.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes(), 1))
    rows = [
        _row("read pcap", count, lambda: _count(plain), versus="tshark fields"),
        _row("read pcap, gzip", count, lambda: _count(packed), versus="tshark fields"),
        # gzip is inflated by a separate thread
        Row("read pcap, gzip, elapsed", "packets/s", lambda: count / seconds_of(lambda: _count(packed))),
    ]
    if shutil.which("tshark"):
        rows.append(_row("tshark fields", count, lambda: _tshark(plain), is_child=True))
    return rows


def _count(path: Path) -> None:
    capture = read_capture(path)
    engine = Engine(NoOrigin(), window_seconds=None, live=False)
    for batch in capture.batches():
        engine.feed(batch, None, capture.started)
    engine.tables()
    engine.window()


def _tshark(path: Path) -> None:
    command = ["tshark", "-n", "-r", str(path), "-T", "fields"]
    for name in ("ip.src", "ip.proto", "udp.dstport", "tcp.dstport", "frame.len"):
        command += ["-e", name]
    subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_TSHARK_SECONDS, check=True
    )


def _write_pcap(path: Path, packets: int) -> int:
    chance = np.random.default_rng(7)
    records = []
    for number, (data, captured) in enumerate(_floods().values()):
        for row in range(_TICK_ROWS):
            size = int(captured[row])
            records.append(
                struct.pack("<IIII", 1_700_000_000 + number, row, size, size) + data[row, :size].tobytes()
            )
    order = chance.integers(0, len(records), packets)
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        file.write(b"".join(records[index] for index in order.tolist()))
    return packets
