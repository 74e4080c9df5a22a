from __future__ import annotations

import json
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fwtop.bench import frame, scores
from fwtop.bench.frame import Document, Options, Row, measure, median_ratio
from fwtop.bench.picture import draw, short
from fwtop.bench.scores import Interval, Signature
from fwtop.bench.slow_parser import capture_records, parse
from fwtop.bench.text import number, render


def test_rows_take_turns_and_ratios_are_taken_within_a_round() -> None:
    turns: list[str] = []
    base, fast = iter([10.0, 20.0, 40.0]), iter([20.0, 20.0, 120.0])

    def turn(name: str, value: float) -> float:
        turns.append(name)
        return value

    rows = [
        Row("base", "x/s", lambda: turn("base", next(base))),
        Row("fast", "x/s", lambda: turn("fast", next(fast)), "base", published=2.5),
    ]
    first, second = measure(rows, 3)
    assert turns == ["base", "fast"] * 3
    # Rounds' ratios are 2, 1 and 3; the ratio of medians would be 1.
    assert second.ratio == 2.0
    assert second.to_json() == {
        "name": "fast", "unit": "x/s", "median": 20.0, "low": 20.0, "high": 120.0, "ratio": 2.0,
        "versus": "base", "published_ratio": 2.5,
    }  # fmt: skip
    assert first.to_json()["ratio"] is None
    assert "published_ratio" not in first.to_json()


def test_a_row_compared_with_a_row_that_is_not_there_has_no_ratio() -> None:
    (only,) = measure([Row("tc", "pps", lambda: 5.0, "xdp")], 2)
    assert (only.ratio, only.versus) == (None, None)


def test_rounds_in_which_nothing_was_measured_do_not_count() -> None:
    assert median_ratio([4.0, 9.0], [0.0, 3.0]) == 3.0
    assert median_ratio([4.0], [0.0]) is None


def test_warming_up_is_not_counted() -> None:
    values = iter([100.0, 1.0])
    (row,) = measure([Row("a", "s", lambda: next(values))], 1, warm=True)
    assert row.values == (1.0,)


def test_options_choose_rounds() -> None:
    assert Options().choose(5, 2) == 5
    assert Options(quick=True).choose(5, 2) == 2
    assert Options(rounds=7, quick=True).choose(5, 2) == 7


def test_the_document_is_the_interface_s_and_its_text_shows_every_figure() -> None:
    results = measure([Row("a", "pps", lambda: 1234.5), Row("b", "pps", lambda: 617.25, "a")], 1)
    document = Document("t", 1, results, ("a note",), "a machine", "6.1")
    assert set(json.loads(json.dumps(document.to_json()))) == {
        "table", "machine", "kernel", "rounds", "rows", "notes",
    }  # fmt: skip
    text = render(document)
    assert all(word in text for word in ("a machine", "6.1", "1,234", "617.2", "0.5", "a note"))


def test_the_picture_is_well_formed_and_shows_every_row() -> None:
    results = measure([Row("raw <drop>", "pps", lambda: 1200.0), Row("fwtop block", "pps", lambda: 90.0)], 2)
    root = ElementTree.fromstring(draw(Document("ladder", 2, results, (), "a & b", "6.1")))  # noqa: S314
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"raw <drop>", "fwtop block", "1.2 k", "90", "a & b, kernel 6.1"} <= set(texts)
    dots = [float(dot.get("cx", "0")) for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(dots) == 2
    assert dots[0] > dots[1] > 0


def test_a_published_ratio_is_a_ring_where_it_would_lie_here() -> None:
    rows = [Row("first", "s", lambda: 10.0), Row("other", "s", lambda: 100.0, "first", published=10.0)]
    root = ElementTree.fromstring(draw(Document("t", 1, measure(rows, 1))))  # noqa: S314
    dots = [(dot.get("cx"), dot.get("r")) for dot in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(dots) == 4  # the legend's, both rows', and the ring under the second
    assert dots[2][0] == dots[3][0]
    assert short(1_520_000) == "1.52 M"
    assert (short(1e5), short(0.12345), short(999_600)) == ("100 k", "0.123", "1 M")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (3.0, "3"), (0.12345, "0.1235"), (12345.6, "12,346")]
)
def test_figures_have_the_digits_that_they_deserve(value: float, text: str) -> None:
    assert number(value) == text


def test_the_machine_has_a_name() -> None:
    assert "CPUs" in frame.machine_name()


TRUE = {"a": 100, "b": 50, "c": 50, "d": 1}


def test_recall_counts_what_is_missing_and_takes_ties_as_equal() -> None:
    assert scores.strict_recall(TRUE, ["a", "c", "d"], top=2).found == 2  # b and c are equal
    missing = scores.strict_recall(TRUE, ["a", "d", "b"], top=2)
    assert (missing.found, missing.wanted) == (1, 2)
    assert set(missing.missed) <= {"b", "c"}
    assert scores.strict_recall({}, ["a"]).wanted == 0


def test_recall_does_not_ask_for_what_a_sample_cannot_tell() -> None:
    true = {"a": 1000, "b": 990, "c": 1}
    assert scores.top_recall(true, ["b"], 20.0, top=1).found == 1
    assert scores.top_recall(true, ["b"], 1.0, top=1).found == 0
    assert scores.top_recall(true, ["c"], 20.0, top=1).found == 0
    assert scores.top_recall({"a": 150, "b": 3}, [], 20.0).wanted == 0  # 8 samples at most


def test_coverage() -> None:
    inside, outside = Interval("in", 0.1, 0.3, 0.2), Interval("out", 0.1, 0.3, 0.31)
    assert scores.coverage([inside, outside, inside, inside]) == 0.75
    assert scores.coverage([outside], slack=0.02) == 1.0
    assert scores.coverage([]) is None
    assert not inside.is_exact
    assert Interval("exact", 0.25, 0.25, 0.25).is_exact


@pytest.mark.parametrize(
    ("expected", "seen", "score"),
    [
        (["syn_flood"], ["syn_flood"], 1.0),
        (["syn_flood", "udp_flood"], ["syn_flood"], 0.5),
        (["syn_flood"], ["syn_flood", "ack_flood"], 0.5),
        ([], [], 1.0),
        ([], ["udp_flood"], 0.0),
    ],
)
def test_naming_pays_for_misses_and_for_extra_names(
    expected: list[str], seen: list[str], score: float
) -> None:
    assert scores.named_rightly(expected, seen) == score


def test_relative_difference() -> None:
    assert scores.relative_difference(99, 100) == 0.01
    assert scores.relative_difference(0, 0) == 0.0
    assert scores.relative_difference(1, 0) == 1.0


def test_signatures_match_at_their_offset_or_anywhere() -> None:
    payloads = [b"xxATTACK", b"ATTACKxx", b"nothing"]
    assert scores.matched([Signature(b"ATTACK", 2)], payloads) == pytest.approx(1 / 3)
    assert scores.matched([Signature(b"ATTACK", None)], payloads) == pytest.approx(2 / 3)
    assert scores.matched([], payloads) == 0.0
    assert scores.matched([Signature(b"a", None)], []) == 0.0


UDP = struct.pack(">HHHH", 53, 4444, 11, 0) + b"abc"


def _ipv4(protocol: int, body: bytes, fragment: int = 0) -> bytes:
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 1, fragment, 60, protocol, 0)
    return bytes(12) + b"\x08\x00" + head + bytes([192, 0, 2, 7]) + bytes([198, 51, 100, 1]) + body


def test_the_slow_parser_reads_headers() -> None:
    packet = parse(_ipv4(17, UDP) + b"padding")
    assert packet is not None
    assert (packet.source, packet.sport, packet.dport, packet.payload) == ("192.0.2.7", 53, 4444, b"abc")
    later = parse(_ipv4(17, b"middle of it", fragment=100))
    assert later is not None
    assert later.later_fragment
    assert later.sport is None


def test_the_slow_parser_goes_through_vlan_tags_and_ipv6_extensions() -> None:
    source = bytes.fromhex("20010db8000000000000000000000009")
    hop = bytes([17, 0]) + bytes(6)
    ipv6 = struct.pack(">IHBB", 6 << 28, len(hop) + len(UDP), 0, 60) + source + bytes(16) + hop + UDP
    packet = parse(bytes(12) + b"\x81\x00\x00\x05\x86\xdd" + ipv6)
    assert packet is not None
    assert (packet.source, packet.sport, packet.payload) == ("2001:db8::9", 53, b"abc")


def test_the_slow_parser_finds_ip_behind_pppoe_mpls_and_cooked_headers() -> None:
    whole = _ipv4(17, UDP)
    packet = whole[14:]
    session = bytes(12) + b"\x88\x64\x11\0\0\1\0\0\0\x21" + packet
    labels = bytes(12) + b"\x88\x47\0\1\0\x40\0\1\1\x40" + packet
    cooked = b"\x08\0" + bytes(18) + packet
    found = [parse(session), parse(labels), parse(cooked, 276)]
    assert found == [parse(whole)] * 3 != [None] * 3


def test_the_slow_parser_gives_up_on_what_is_cut() -> None:
    assert parse(b"") is None
    assert parse(bytes(12) + b"\x08\x00\x45") is None
    assert parse(bytes(12) + b"\x08\x06" + bytes(30)) is None


def test_the_slow_reader_reads_both_kinds_of_captures(tmp_path: Path) -> None:
    frame_bytes = _ipv4(17, UDP)
    size = len(frame_bytes)
    classic = tmp_path / "a.pcap"
    classic.write_bytes(
        struct.pack(">IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
        + struct.pack(">IIII", 1, 2, size, size + 9)
        + frame_bytes
    )
    assert list(capture_records(classic)) == [(frame_bytes, size + 9, 1)]
    padded = frame_bytes + bytes(-size % 4)
    block = struct.pack("<IIIII", 0, 0, 0, size, size) + padded
    blocks = [
        (0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)),
        (1, struct.pack("<HHI", 1, 0, 0)),
        (6, block),
    ]
    modern = tmp_path / "a.pcapng"
    modern.write_bytes(
        b"".join(
            struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)
            for kind, body in blocks
        )
    )
    assert list(capture_records(modern)) == [(frame_bytes, size, 1)]
