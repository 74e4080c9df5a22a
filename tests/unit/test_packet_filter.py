"""The packet filter: its examples, its errors, a naive reference, and tshark's answers."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from capture_files import CAPTURES, pcap
from frames import batch_of, ethernet, extension, fragment6, ipv4, ipv6, tcp, udp
from hypothesis import given, settings
from hypothesis import strategies as st

from fwtop.analysis.packets.fields import FIELDS
from fwtop.analysis.packets.language import MAX_DEPTH, MAX_LENGTH, FilterError, parse_filter
from fwtop.capture.reader import read_capture
from fwtop.model.traffic.packets import FLAG_TUNNEL, PacketBatch

DOCUMENT = (Path(__file__).parents[2] / "docs/FILTER.md").read_text(encoding="utf-8")
SHARED = sorted(CAPTURES.glob("*.pcap*"))
OPTIONS = bytes.fromhex("020405b40402080a00000001000000000103030a")[:20]


def examples(fence: str) -> list[str]:
    blocks = re.findall(rf"```{fence}\n(.*?)```", DOCUMENT, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def icmp(kind: int, code: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">BBHI", kind, code, 0, 0) + body


QUOTED = ipv4(udp(4444, 53, b"\0" * 12), 17, "198.51.100.2", "192.0.2.99")
FRAMES = [
    ethernet(ipv4(tcp(4000, 80, 2, seq=77, window=512), 6, "203.0.113.9"), 0x0800),
    ethernet(ipv4(tcp(4001, 80, 2, options=OPTIONS, window=64240), 6, "203.0.113.10", ttl=128), 0x0800),
    ethernet(ipv4(tcp(80, 4001, 0x12, seq=1 << 31), 6), 0x0800),
    ethernet(ipv4(tcp(4001, 80, 0x18, b"GET / HTTP/1.1\r\n"), 6, ident=0), 0x0800, ((0x8100, 42),)),
    ethernet(ipv4(tcp(1, 443, 4), 6, frag=0x4000), 0x0800, ((0x88A8, 7), (0x8100, 42))),
    ethernet(ipv4(udp(53, 4444, b"\x12\x34\x81\x80" + b"\0" * 90), 17, "192.0.2.53"), 0x0800),
    ethernet(ipv4(udp(4444, 53, b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\x07example\x03org\0\0\1\0\1"), 17), 0x0800),
    ethernet(ipv4(udp(123, 123, b"\x17\0\x03\x2a" + b"\0" * 44), 17), 0x0800),
    ethernet(ipv4(udp(1900, 1901), 17, options=b"\1" * 8), 0x0800),
    ethernet(ipv4(udp(9, 9, b"x" * 24), 17, frag=0x2000), 0x0800),
    ethernet(ipv4(b"y" * 32, 17, frag=4), 0x0800),
    ethernet(ipv4(icmp(8, body=b"ping"), 1), 0x0800),
    ethernet(ipv4(icmp(3, 3, QUOTED), 1, "192.0.2.99"), 0x0800),
    ethernet(ipv4(icmp(11, 0, ipv4(tcp(99, 443)[:8], 6, total=40)), 1), 0x0800),
    ethernet(ipv4(b"\x16\0\0\0\xe0\0\0\1", 2), 0x0800),
    ethernet(ipv4(b"\0\0\0\1" * 8, 50), 0x0800),
    ethernet(ipv6(tcp(5000, 443, 0x10), 6, "2001:db8:7::1"), 0x86DD),
    ethernet(ipv6(extension(17) + udp(53, 53, b"\0" * 20), 0, hops=255), 0x86DD),
    ethernet(ipv6(fragment6(17, 0, 1) + udp(7, 7, b"z" * 16), 44), 0x86DD),
    ethernet(ipv6(icmp(1, 4, ipv6(udp(5, 53, b"\0" * 12), 17)), 58), 0x86DD),
    ethernet(ipv6(icmp(128), 58), 0x86DD),
    ethernet(struct.pack(">HHBBH", 1, 0x0800, 6, 4, 1) + b"\2" * 20, 0x0806),
]
# Beside the document's examples: precedence, several values, absent fields, and every field once.
EXPRESSIONS = [
    "tcp.flags.reset == 1 || tcp.flags.syn == 1 && icmp",
    "! tcp.flags.syn == 1 && tcp",
    "!!udp and not not ip",
    "tcp.port != 80",
    "!(tcp.port == 80)",
    "udp.port == 53 && icmp",
    "tcp.srcport == 99 || udp.srcport == 4444",
    "udp.srcport > 50 && udp.dstport in {53..60} && ip.src != 192.0.2.0/24",
    "ip.dst in {198.51.100.2, 192.0.2.99}",
    "ipv6.addr == 2001:db8:7::/48 || ipv6.dst == 2001:db8::2 && ipv6.hlim gt 0x3c",
    "tcp.flags == 0x012 or tcp.flags.fin == 1 or tcp.flags.urg == True",
    "tcp.flags.push == 1 and tcp.flags.ack eq 1",
    "tcp.seq_raw >= 2147483648 || tcp.len > 0",
    "ip.proto in {2, 50} || ip.id == 0 || ip.flags.df == 1",
    "icmp.code == 3 || icmpv6.code ne 4",
    "vlan || arp || igmp || esp || gre || sctp || icmpv6",
    "vlan.id != 42",
    'tcp.payload contains "HTTP\\x2f1.1\\r\\n" || tcp.payload contains 20:48',
    "frame contains 00-00-00-00 && frame.len le 64",
    "ip.len lt 60 and ip.ttl ge 61 or ipv6",
    "icmp && ip.len == 40",
    "icmp && tcp.flags.syn == 1",
]


NUMBERS = ("-T", "fields", "-e", "frame.number")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made frames, and the beginnings of real captures where there are any; a packet in each second."""
    packets = [(at, frame, len(frame)) for at, frame in enumerate(FRAMES)]
    for name in SHARED:
        batch = PacketBatch.concat(list(read_capture(name).batches())).select(slice(0, 500))
        for row, size, length in zip(batch.data, batch.captured, batch.length.tolist(), strict=True):
            packets.append((len(packets), row[:size].tobytes(), length))
    path = tmp_path_factory.mktemp("filter") / "some.pcap"
    # In its middle, as the last second has no end; seconds count from the first packet
    path.write_bytes(pcap([(at * 10**9 + 10**9 // 2 * (at > 0), *rest) for at, *rest in packets]))
    return path


def tshark(file: Path, *words: str) -> list[str]:
    command = ["tshark", "-n", "-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE", "-r", str(file)]
    answer = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def selected(file: Path, filters: list[str]) -> dict[str, list[int]]:
    """Return what tshark selects: in one run, which counts what meets each filter second by second."""
    single = [text for text in filters if "," in text]  # at which it would split
    found = {text: [int(row) - 1 for row in tshark(file, "-Y", text, *NUMBERS)] for text in single}
    together = [text for text in filters if text not in found]
    rows = tshark(file, "-q", "-z", ",".join(["io,stat,1", *together]))
    cells = [row.strip("| ").split("|")[1::2] for row in rows if " <> " in row]
    counts = [[int(cell) for cell in row] for row in cells]
    for text, column in zip(together, zip(*counts, strict=True), strict=True):
        found[text] = [at for at, count in enumerate(column) if count]
    return found


def test_tshark_selects_the_same_packets(file: Path) -> None:
    batch = PacketBatch.concat(list(read_capture(file).batches()))
    compared = batch.flags & FLAG_TUNNEL == 0  # tshark looks into tunnels
    for text, numbers in selected(file, [*examples("filter"), *EXPRESSIONS]).items():
        wanted = np.zeros(len(batch), np.bool_)
        wanted[numbers] = True
        found = parse_filter(text).mask(batch)
        assert np.flatnonzero(found & compared).tolist() == np.flatnonzero(wanted & compared).tolist(), text


def test_every_field_is_documented_and_tried() -> None:
    tried = " ".join([*examples("filter"), *examples("fwtop"), *EXPRESSIONS])
    names = set(re.findall(r"[\w.]+", tried))
    assert set(FIELDS) <= names
    for name in FIELDS:
        assert f"`{name}`" in DOCUMENT or f"`.{name.rpartition('.')[2]}`" in DOCUMENT, name


def test_verdicts_and_who_are_text() -> None:
    batch = batch_of(FRAMES[:4])
    verdicts = np.array(["rule 118", "accepted", "NETFILTER_DROP", ""])
    who = np.array(["", "client", "you", "client"])

    def rows(text: str) -> list[int]:
        return np.flatnonzero(parse_filter(text).mask(batch, verdicts=verdicts, who=who)).tolist()

    assert [rows(text) for text in examples("fwtop")] == [[0], [2], [3]]
    assert rows('fwtop.verdict in {"rule 118", "accepted"}') == [0, 1]
    assert rows('fwtop.verdict != "accepted"') == [0, 2]
    assert rows("fwtop.verdict") == [0, 1, 2]
    assert not parse_filter('fwtop.who == "client"').mask(batch).any()


def test_an_empty_filter_selects_everything() -> None:
    assert parse_filter("  ").mask(batch_of(FRAMES)).all()
    assert not len(parse_filter("tcp").mask(PacketBatch.empty()))


@pytest.mark.parametrize(
    ("text", "at", "reason"),
    [
        ("tcp.dstprt == 80", 0, '"tcp.dstprt" is not a field; did you mean tcp.dstport?'),
        ("tcp &&", 6, "expected a field such as tcp.dstport, but the filter ends"),
        ("(tcp", 4, 'expected ")", but the filter ends'),
        ("tcp udp", 4, 'expected && or ||, not "udp"'),
        ("ip.src == 1.2.3", 10, '"1.2.3" is not an IPv4 address or prefix'),
        ("ip.src == 2001:db8::1", 10, '"2001:db8::1" is not an IPv4 address or prefix'),
        ("ip.ttl == 300", 10, "ip.ttl is at most 255"),
        ("ip.ttl == 064", 10, '"064" is not a number'),
        ("ip.src > 1.2.3.4", 7, "ip.src has no order: use == or !="),
        ("tcp == 80", 4, "tcp is a protocol: it stands alone"),
        ("frame == 80", 6, "frame has only contains"),
        ("frame contains ff", 15, 'expected "text" or bytes such as 01:02:ff, not "ff"'),
        ('frame contains ""', 15, "an empty text is in every packet"),
        ('frame contains "abc', 15, "this text has no closing quote"),
        ("tcp.port contains 80", 9, "tcp.port has no contains: frame, tcp.payload and udp.payload have"),
        ("fwtop.who == client", 13, 'expected "text" in quotes: fwtop.who is text, not "client"'),
        ("tcp.flags.syn == 2", 17, "tcp.flags.syn is 1 or 0"),
        ("tcp.port in {80 443}", 16, 'expected "}", not "443"'),
        ("tcp @ udp", 4, 'unexpected "@"'),
        ("tcp.port == 80\x1b[31m", 14, 'unexpected "·"'),
        ("!" * 40 + "tcp", MAX_DEPTH, "nested more than 32 deep"),
        ("tcp or " * 101 + "tcp", 700, "more than 100 tests"),
        ("x" * 1001, MAX_LENGTH, "a filter has at most 1000 characters"),
    ],
)
def test_errors_are_one_line_with_the_place(text: str, at: int, reason: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    assert (caught.value.position, caught.value.reason) == (at, reason)
    assert str(caught.value) == f"at {at + 1}: {reason}"


SIGNS = ["==", "!=", "<", "&&", "||", "!", "(", ")", "{", "}", ",", "&", "in", "contains", "and", "not"]
VALUES = ["80", "0x12", "1.2.3.0/24", "::1", '"GET"', "01:02", "1..9", "é", "\x1b", '"', "\\"]
WORDS = st.sampled_from([*FIELDS, *SIGNS, *VALUES])


@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=12).map(" ".join)))
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_filter_or_has_an_error_in_place(text: str) -> None:
    error = None
    try:
        mask = parse_filter(text).mask(batch_of(FRAMES))
    except FilterError as found:
        error = found
    if error is None:
        assert mask.shape == (len(FRAMES),)
    else:
        assert 0 <= error.position <= len(text)
        assert str(error).isprintable()


def _numbers(batch: PacketBatch, row: int) -> dict[str, list[int]]:
    """What single fields of a plain TCP packet are, without the filter's code."""
    return {
        "tcp.srcport": [int(batch.sport[row])],
        "tcp.port": [int(batch.sport[row]), int(batch.dport[row])],
        "ip.ttl": [int(batch.ttl[row])],
        "ip.id": [int(batch.ip_id[row])],
        "tcp.window_size_value": [int(batch.tcp_window[row])],
        "udp.port": [],
    }


TESTS = st.tuples(
    st.sampled_from(["tcp.srcport", "tcp.port", "ip.ttl", "ip.id", "tcp.window_size_value", "udp.port"]),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    st.integers(0, 255),
)
TREES = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["&&", "||"]), inner, inner)
    ),
    max_leaves=8,
)


def written(tree: tuple) -> str:
    if tree[0] == "not":
        return f"!({written(tree[1])})"
    if tree[0] in ("&&", "||"):
        return f"({written(tree[1])} {tree[0]} {written(tree[2])})"
    return f"{tree[0]} {tree[1]} {tree[2]}"


def holds(tree: tuple, numbers: dict[str, list[int]]) -> bool:
    if tree[0] == "not":
        return not holds(tree[1], numbers)
    if tree[0] == "&&":
        return holds(tree[1], numbers) and holds(tree[2], numbers)
    if tree[0] == "||":
        return holds(tree[1], numbers) or holds(tree[2], numbers)
    values, relation, wanted = numbers[tree[0]], tree[1], tree[2]
    if relation == "!=":
        return bool(values) and all(value != wanted for value in values)
    tests = {"==": int.__eq__, "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__}
    return any(tests[relation](value, wanted) for value in values)


SMALL = st.integers(0, 255)
SEGMENTS = st.lists(st.tuples(SMALL, SMALL, SMALL, SMALL, SMALL), min_size=1, max_size=8)


@given(TREES, SEGMENTS)
@settings(max_examples=200, deadline=None)
def test_trees_mean_what_they_say(tree: tuple, segments: list[tuple[int, int, int, int, int]]) -> None:
    frames = [
        ethernet(ipv4(tcp(sport, dport, window=window), 6, ident=ident, ttl=ttl), 0x0800)
        for sport, dport, window, ident, ttl in segments
    ]
    batch = batch_of(frames)
    mask = parse_filter(written(tree)).mask(batch)
    assert mask.tolist() == [holds(tree, _numbers(batch, row)) for row in range(len(frames))]
