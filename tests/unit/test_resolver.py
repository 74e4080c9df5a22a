"""What is read from questions and answers, what protects the server, and that hostile bytes do no harm."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benches.resolver_lab import query
from fwtop.model.rule import Kind
from fwtop.model.wire import of_json, to_json
from fwtop.resolver.advice import Advice, Machine, advise
from fwtop.resolver.servers import Server, snippets
from fwtop.resolver.view import DnsCounters, View, view_of

VICTIM = "198.51.100.53"
UNBOUND = Server("unbound", "unbound", udp=True, tcp=True)


End = tuple[str, int]


def datagram(from_: End, to: End, message: bytes, length: int = 0) -> bytes:
    (source, sport), (target, dport) = from_, to
    size = length or 8 + len(message)
    udp = struct.pack(">4H", sport, dport, size, 0) + message
    if ":" in source:
        ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target)
        return struct.pack(">IHBB", 6 << 28, size, 17, 64) + ends + udp
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    return struct.pack(">BBHHHBBH", 0x45, 0, 20 + size, 0, 0, 64, 17, 0) + ends + udp


def answer(message: bytes, code: int = 0, *, truncated: bool = False) -> bytes:
    flags = 0x8180 | code | (0x0200 if truncated else 0)
    return message[:2] + struct.pack(">2H", flags, 1) + message[6:]


def asked(
    counts: DnsCounters, source: str, name: str, kind: int = 1, *, sport: int = 4000, size: int = 60
) -> None:
    message = query(name, kind)
    server = VICTIM if "." in source else "2001:db8::53"
    counts.packet(datagram((source, sport), (server, 53), message), incoming=True)
    reply = datagram((server, 53), (source, sport), answer(message), size)
    counts.packet(reply, incoming=False)


def normal() -> DnsCounters:
    counts = DnsCounters()
    for client in range(40):
        for number in range(10):
            asked(counts, f"198.19.{client}.10", f"www{number}.shop.example")
    return counts


def viewed(counts: DnsCounters) -> View:
    return of_json(View, to_json(view_of(counts, 2.0, 1)))


def advice(counts: DnsCounters) -> Advice:
    return advise(viewed(counts), Machine((UNBOUND,)), 600, "cli")


def test_a_calm_server_gets_a_limit_that_its_clients_do_not_reach() -> None:
    found = advice(normal())
    (limit,) = found.steps
    assert limit.rule.kind is Kind.HASHLIMIT
    assert limit.rule.limit is not None
    assert limit.rule.limit.per_second == 15  # three times 5 a second
    assert any("TCP 53: stays open" in line for line in found.kept)


def test_a_large_resolver_among_the_clients_sets_the_limit_and_a_reflection_does_not() -> None:
    counts = normal()
    for number in range(400):
        asked(counts, "203.0.113.9", f"www{number % 50}.shop.example")
        asked(counts, "192.0.2.7", "big.example")
    (limit,) = (step.rule.limit for step in advice(counts).steps if step.rule.limit is not None)
    assert limit.per_second == 3 * 400 / 2


def test_a_reflection_that_nobody_asks_beside_does_not_set_its_own_limit() -> None:
    counts = DnsCounters()
    for _ in range(500):
        asked(counts, "192.0.2.7", "big.example", size=3000)
    (limit,) = (step.rule.limit for step in advice(counts).steps if step.rule.limit is not None)
    assert limit.per_second == 10
    assert advice(counts).steps[-1].text.endswith(": nobody asks as real clients do")


def test_a_flood_from_everywhere_gets_no_limit_that_would_shut_out_new_clients() -> None:
    counts = normal()
    for number in range(40_000):
        counts.prefixes[f"197.{number >> 8}.{number & 255}.0/24"] += 1
    found = advice(counts)
    assert not any(step.rule.kind is Kind.HASHLIMIT for step in found.steps)
    assert any("no limit, as 40,040 asked" in line for line in found.kept)


def test_a_server_that_nobody_asks_gets_no_limit() -> None:
    found = advice(DnsCounters())
    assert found.steps == ()
    assert any("too few questions" in line for line in found.kept)


def test_a_reflection_is_dropped_by_type_and_name_and_fragments_count_whole() -> None:
    counts = normal()
    for number in range(2000):
        asked(counts, "192.0.2.7", "BIG.example", 255 if number % 2 else 16, size=3000)
    view = viewed(counts)
    (name, *_) = view.names
    assert (name.name, name.prefixes) == ("big.example", 1)
    assert name.factor == pytest.approx((20 + 3000) / (28 + 29), 0.1)
    assert view.types["ANY"] == 1000
    drops = [
        step.rule.match.payload[0].data for step in advice(counts).steps if step.rule.kind is Kind.STRING
    ]
    assert drops == [b"\0\0\xff\0\1", b"\3big\7example\0"]
    assert query("big.example", 255).find(drops[0]) > 0


def test_random_names_are_told_by_their_length_so_that_real_ones_pass() -> None:
    counts = normal()
    for number in range(2000):
        asked(counts, f"203.0.{number % 200}.9", f"{number:012d}.hunted.example")
    step = advice(counts).steps[0]
    first, zone = step.rule.match.payload
    assert (first.data, first.offset) == (b"\x0c", 12)
    assert (zone.data, zone.offset) == (b"\6hunted\7example\0", 25)
    assert "names of 12 letters directly below hunted.example" in step.text


@pytest.mark.parametrize("port", [0, 53])
def test_questions_from_ports_of_servers_are_dropped_where_they_come(port: int) -> None:
    counts = normal()
    for number in range(20):
        asked(counts, "2001:db8:1::7", f"www{number}.shop.example", sport=port)
    (step, *_) = advice(counts).steps
    assert (step.rule.kind, step.rule.match.sport, step.rule.match.dport) == (Kind.STRING, port, 53)


def test_a_server_without_tcp_is_named() -> None:
    deaf = Server("named", "BIND", udp=True, tcp=False)
    assert any(
        "does not listen on TCP 53" in line
        for line in advise(viewed(normal()), Machine((deaf,)), 60, "").kept
    )


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.booleans(), st.booleans())
def test_no_bytes_make_it_fail(data: bytes, incoming: bool, wrapped: bool) -> None:
    counts = DnsCounters()
    packet = datagram(("192.0.2.1", 9), (VICTIM, 53), data) if wrapped else data
    counts.packet(packet, incoming=incoming)
    viewed(counts).lines()


@pytest.mark.parametrize(
    "damage",
    [
        {"totals": {"questions": "many"}}, {"names": [["zz", 1, 1, 1, 1, 1]]}, {"by_type": 7}, {"asking": -1},
        {"by_code": [[1, -1]]}, {"by_code": [[1, 1]] * 21}, {"prefixes": [["\x1b[31m", 1]]},
    ],
)  # fmt: skip
def test_what_the_reader_of_hostile_bytes_writes_is_checked(damage: dict[str, object]) -> None:
    told = json.loads(to_json(view_of(normal(), 2.0, 1)))
    assert of_json(View, json.dumps(told)) == view_of(normal(), 2.0, 1)
    with pytest.raises(ValueError, match=r"must be|expected|is not an"):
        of_json(View, json.dumps(told | damage))


def test_the_snippet_for_unbound_is_one_that_unbound_takes(tmp_path: Path) -> None:
    checker = shutil.which("unbound-checkconf", path=f"{os.environ['PATH']}:/usr/sbin")
    assert checker is not None, "unbound is not installed: make setup-dev"
    text = "\n".join(snippets((UNBOUND,), 20))
    config = tmp_path / "unbound.conf"
    config.write_text(f'{text}\n    chroot: ""\n    directory: "{tmp_path}"\n    username: ""\n')
    done = subprocess.run([checker, str(config)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
