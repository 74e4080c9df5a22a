"""Packets taken apart in a process that may die of them, while the caller doesn't notice."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import sys
from pathlib import Path

import pytest

from fwtop.dissect import client as dissect_client
from fwtop.dissect.client import Dissector
from fwtop.dissect.wire import MAX_FIELDS, MAX_LAYERS, MAX_VALUE, parse_answer, request
from fwtop.model.dissection import Dissection

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
async def dissector():  # type: ignore[no-untyped-def]
    made = Dissector()
    yield made
    await made.close()


async def test_a_packet_is_taken_apart(dissector: Dissector) -> None:
    found = await dissector.dissect(MAC + b"\x08\x00" + udp(53, DNS), 1)
    assert found.problem == ""
    assert [layer.name for layer in found.layers] == ["Ethernet", "IP", "UDP", "DNS"]
    assert named(found, "IP")["dst"] == "203.0.113.1"
    assert named(found, "UDP")["dport"] == "4444"
    answers = named(found, "DNS")
    assert "isc.org" in answers["qd[0].qname"]
    assert "evil" in answers["an[0].rdata"]
    assert "\x1b" not in str(found)


async def test_packets_that_begin_with_ip_and_plain_bytes(dissector: Dissector) -> None:
    found = await dissector.dissect(udp(9, b"hello \x00\xff"), 0)
    assert [layer.name for layer in found.layers] == ["IP", "UDP", "Payload"]
    assert named(found, "Payload") == {"length": "8 bytes", "text": "hello ··", "hex": "68656c6c6f2000ff"}
    six = bytes.fromhex("60000000000011ff") + bytes(15) + b"\x01" + bytes(15) + b"\x02"
    assert (await dissector.dissect(six, 0)).layers[0].name == "IPv6"
    assert (await dissector.dissect(b"\x00" * 9, 0)).layers[0].name == "Payload"
    assert (await dissector.dissect(b"", 0)).problem == "the packet is empty"


async def test_mutated_packets_never_reach_the_caller_as_an_error(dissector: Dissector) -> None:
    rng = random.Random(20261121)
    seeds = [udp(port, DNS) for port in (53, 67, 69, 123, 137, 161, 389, 500, 1701, 4789, 5353)]
    seeds += [ipv4(6, bytes(20)), ipv4(132, bytes(60)), ipv4(47, bytes(30)), ipv4(1, bytes(64))]
    for _ in range(250):
        packet = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 12)):
            packet[rng.randrange(len(packet))] = rng.randrange(256)
        found = await dissector.dissect(bytes(packet[: rng.randint(1, len(packet))]), 0)
        assert found.layers or found.problem
        assert len(found.layers) <= MAX_LAYERS
        for layer in found.layers:
            assert len(layer.fields) <= MAX_FIELDS
            for key, value in layer.fields:
                assert (key + value).isprintable()
                assert len(value) <= MAX_VALUE + 1


async def test_layers_within_layers_end(dissector: Dissector) -> None:
    packet = b""
    for _ in range(60):
        packet = ipv4(4, packet)
    found = await dissector.dissect(packet, 0)
    assert len(found.layers) <= MAX_LAYERS
    assert found.problem


async def test_a_killed_process_is_started_again(dissector: Dissector) -> None:
    await dissector.dissect(udp(53, DNS), 0)
    first = dissector._process
    assert first is not None
    first.kill()
    await first.wait()
    assert (await dissector.dissect(udp(53, DNS), 0)).problem == ""
    assert dissector._process is not first


FAKE = {
    "hangs": "import time; time.sleep(60)",
    "dies": "raise SystemExit(3)",
    "lies": "print('[' * 200000, flush=True); import sys; sys.stdin.read()",
    "floods": "import sys\nwhile True: sys.stdout.write('x' * 65536)",
}


@pytest.mark.parametrize("how", FAKE)
async def test_a_process_gone_bad_does_not_block_the_loop(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dissect_client, "START_SECONDS", 0.4)
    dissector = Dissector((sys.executable, "-I", "-c", FAKE[how]))
    asked = asyncio.create_task(dissector.dissect(udp(53, DNS), 0))
    turns = 0  # of others in the loop
    while not asked.done():
        await asyncio.sleep(0.01)
        turns += 1
    found = await asked
    assert found.layers == ()
    assert found.problem.startswith(("the dissecting process failed", "taking this packet apart took"))
    assert turns > 5 or how != "hangs"
    await dissector.close()


async def test_a_cancelled_question_does_not_answer_the_next(dissector: Dissector) -> None:
    asked = asyncio.create_task(dissector.dissect(udp(53, DNS), 0))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    found = await dissector.dissect(udp(9, b"second"), 0)
    assert named(found, "Payload")["text"] == "second"


async def test_the_process_can_do_nothing_else(dissector: Dissector) -> None:
    await dissector.dissect(udp(53, DNS), 0)
    assert dissector._process is not None
    proc = Path(f"/proc/{dissector._process.pid}")
    limits = {
        line[:25].strip(): line[26:].split()[0] for line in (proc / "limits").read_text().splitlines()[1:]
    }
    assert limits["Max file size"] == "0"
    assert limits["Max processes"] == "0"
    assert limits["Max open files"] == "3"
    assert int(limits["Max address space"]) == 512 << 20
    assert "NoNewPrivs:\t1" in (proc / "status").read_text()
    assert {os.readlink(link).split(":")[0] for link in (proc / "fd").iterdir()} <= {
        "pipe",
        "socket",
        "/dev/null",
    }


def test_an_answer_is_sanitised_anew() -> None:
    found = parse_answer(b'{"layers": [["\\u001b[2J", [["a\\u202e", "b\\n"]]]], "problem": "\\u0000"}')
    assert found.layers[0].name == "·[2J"
    assert found.layers[0].fields == (("a·", "b·"),)
    assert found.problem == "·"
    for bad in (b"", b"[]", b"{}", b"1", b'{"layers": [1], "problem": ""}', b"[" * 100_000):
        with pytest.raises(ValueError, match=r".*"):
            parse_answer(bad)
    assert len(request(bytes(100_000), 0)) == 5 + 65_535
