"""Packets are decoded in a process that may die of them; the client never waits long."""

from __future__ import annotations

import os
import pwd
import random
import re
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fwtop.dissect import client as dissect_client
from fwtop.dissect.client import (
    MAX_FIELDS,
    MAX_LAYERS,
    MAX_VALUE,
    Dissection,
    Dissector,
    answer,
    bounded,
    parse_answer,
    request,
)
from fwtop.dissect.supervisor import start_dissector

MAC = bytes.fromhex("020000000001020000000002")
DNS = (
    bytes.fromhex("123481800001000100000000") + b"\x03isc\x03org\x00\x00\xff\x00\x01"
    b"\xc0\x0c\x00\x10\x00\x01\x00\x00\x00\x3c\x00\x08\x07evil\x1b[2"
)


def ipv4(protocol: int, payload: bytes) -> bytes:
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 7, 0, 64, protocol, 0, bytes(4), b"\xcb\x00\x71\x01"
    )
    return header + payload


def udp(sport: int, payload: bytes) -> bytes:
    return ipv4(17, struct.pack("!HHHH", sport, 4444, 8 + len(payload), 0) + payload)


def named(found: Dissection, layer: str) -> dict[str, str]:
    return dict(next(item.fields for item in found.layers if item.name == layer))


@pytest.fixture
def dissector() -> Iterator[Dissector]:
    connected = start_dissector()
    assert connected is not None, "make setup"
    made = Dissector(connected)
    yield made
    made.close()


def process() -> int | None:
    """Find the dissector that this test started: its newest instance."""
    found = [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if b"\0fwtop.dissect\0" in _command_line(entry) + b"\0"
    ]
    return max(found, default=None)


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def test_decodes_a_packet(dissector: Dissector) -> None:
    found = dissector.dissect(MAC + b"\x08\x00" + udp(53, DNS), 1)
    assert found.problem == ""
    assert [layer.name for layer in found.layers] == ["Ethernet", "IP", "UDP", "DNS"]
    assert named(found, "IP")["dst"] == "203.0.113.1"
    assert named(found, "UDP")["dport"] == "4444"
    answers = named(found, "DNS")
    assert "isc.org" in answers["qd[0].qname"]
    assert "evil" in answers["an[0].rdata"]
    assert "\x1b" not in str(found)


def test_packets_without_a_link_header_and_plain_bytes(dissector: Dissector) -> None:
    found = dissector.dissect(udp(9, b"hello \x00\xff"), 0)
    assert [layer.name for layer in found.layers] == ["IP", "UDP", "Payload"]
    assert named(found, "Payload") == {"length": "8 bytes", "text": "hello ··", "hex": "68656c6c6f2000ff"}
    six = bytes.fromhex("60000000000011ff") + bytes(15) + b"\x01" + bytes(15) + b"\x02"
    assert dissector.dissect(six, 0).layers[0].name == "IPv6"
    assert dissector.dissect(b"\x00" * 9, 0).layers[0].name == "Payload"
    assert dissector.dissect(b"", 0).problem == "the packet is empty"


def test_mutated_packets_raise_nothing_in_the_client(dissector: Dissector) -> None:
    rng = random.Random(20261121)
    seeds = [udp(port, DNS) for port in (53, 67, 69, 123, 137, 161, 389, 500, 1701, 4789, 5353)]
    seeds += [ipv4(6, bytes(20)), ipv4(132, bytes(60)), ipv4(47, bytes(30)), ipv4(1, bytes(64))]
    for _ in range(250):
        packet = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 12)):
            packet[rng.randrange(len(packet))] = rng.randrange(256)
        found = dissector.dissect(bytes(packet[: rng.randint(1, len(packet))]), 0)
        assert found.layers or found.problem
        assert len(found.layers) <= MAX_LAYERS
        for layer in found.layers:
            assert len(layer.fields) <= MAX_FIELDS
            for key, value in layer.fields:
                assert (key + value).isprintable()
                assert len(value) <= MAX_VALUE + 1


def test_nested_layers_are_bounded(dissector: Dissector) -> None:
    packet = b""
    for _ in range(60):
        packet = ipv4(4, packet)
    found = dissector.dissect(packet, 0)
    assert len(found.layers) <= MAX_LAYERS
    assert found.problem


def test_a_killed_dissector_is_restarted(dissector: Dissector) -> None:
    dissector.dissect(udp(53, DNS), 0)
    first = process()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for_end(first)
    assert dissector.dissect(udp(53, DNS), 0).problem == ""
    assert process() != first


def test_the_dissector_ends_with_its_client() -> None:
    connected = start_dissector()
    assert connected is not None
    made = Dissector(connected)
    made.dissect(udp(53, DNS), 0)
    running = process()
    assert running is not None
    made.close()
    wait_for_end(running)


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Dissector, socket.socket]]:
    """A client, and the other end for the test to play the dissector."""
    monkeypatch.setattr(dissect_client, "ANSWER_SECONDS", 0.3)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = Dissector(mine)
    with theirs:
        yield made, theirs
    made.close()


def test_silence_costs_no_more_than_the_time_limit(peer: tuple[Dissector, socket.socket]) -> None:
    started = time.monotonic()
    assert peer[0].dissect(b"x", 0).problem == "decoding this packet took too long"
    assert time.monotonic() - started < 60


def test_a_late_answer_is_not_taken_for_the_next(peer: tuple[Dissector, socket.socket]) -> None:
    made, theirs = peer
    assert made.dissect(b"first", 0).problem
    theirs.send(answer(1, Dissection((), "first")))
    theirs.send(answer(2, Dissection((), "second")))
    assert made.dissect(b"second", 0).problem == "second"


def test_nonsense_and_a_closed_socket_are_told_in_a_line(peer: tuple[Dissector, socket.socket]) -> None:
    made, theirs = peer
    theirs.send(b"[" * 100_000)
    assert made.dissect(b"x", 0).problem == "the dissector failed (FieldError)"
    theirs.close()
    assert made.dissect(b"x", 0).problem == "the dissector is not running"


def test_many_fields_fit_one_message() -> None:
    layer = bounded("x", [(f"{number}", "y" * MAX_VALUE) for number in range(MAX_FIELDS)])
    _, found = parse_answer(answer(1, Dissection((layer,) * MAX_LAYERS)))
    assert 0 < len(found.layers) < MAX_LAYERS
    assert found.problem


def test_the_dissector_can_do_nothing_else(dissector: Dissector) -> None:
    dissector.dissect(udp(53, DNS), 0)
    running = process()
    assert running is not None
    proc = Path(f"/proc/{running}")
    limits = {
        line[:25].strip(): line[26:].split()[0] for line in (proc / "limits").read_text().splitlines()[1:]
    }
    assert limits["Max file size"] == "0"
    assert limits["Max processes"] == "0"
    assert limits["Max open files"] == "3"
    assert int(limits["Max address space"]) == 512 << 20
    status = (proc / "status").read_text()
    assert "NoNewPrivs:\t1" in status
    if os.geteuid() == 0:
        uid = int(re.search(r"^Uid:\t(\d+)", status, re.M)[1])  # type: ignore[index]
        assert uid not in {0, pwd.getpwnam("fwtop").pw_uid}
        opened = {os.readlink(link).split(":")[0] for link in (proc / "fd").iterdir()}
        assert opened <= {"socket", "/dev/null"}


def test_an_answer_is_sanitised_anew() -> None:
    layer = b'{"name": "\\u001b[2J", "fields": [["a\\u202e", "b\\n"]]}'
    _, found = parse_answer(b'\0\0\0\1{"layers": [%s], "problem": "\\u0000"}' % layer)
    assert found.layers[0].name == "·[2J"
    assert found.layers[0].fields == (("a·", "b·"),)
    assert found.problem == "·"
    for bad in (b"", b"[]", b"1", b'{"layers": [1], "problem": ""}', b"[" * 100_000):
        with pytest.raises(ValueError, match=r".*"):
            parse_answer(b"\0\0\0\1" + bad)
    assert len(request(1, bytes(100_000), 0)) == 5 + 65_535
