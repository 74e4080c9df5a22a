"""The parsers of attackers' bytes: right on real messages, silent on any others."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from analysis_factory import make_batch, make_frames, make_tables, make_window
from analysis_payloads import client_hello, dns_answer, dns_name, dns_query
from hypothesis import given, settings
from hypothesis import strategies as st

from fwtop.analysis.parsers import dns, http, tls
from fwtop.analysis.parsers.services import SERVICES, isakmp_answer, starts
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.packets import PacketBatch
from fwtop.parse.dns_question import parse_question

WIDTH = 64  # payload bytes by which services are told apart


def test_a_dns_message_is_parsed_to_its_question() -> None:
    question = parse_question(dns_query(Random(1), "WwW.Example.COM", 255))
    assert question is not None
    assert (question.name, question.qtype, question.response) == ("www.example.com", 255, False)
    assert question.wire == dns_name("www.example.com")
    answer = parse_question(dns_answer(Random(1), "isc.org", 46))
    assert answer is not None
    assert (answer.answers, answer.response, dns.type_name(answer.qtype)) == (8, True, "RRSIG")


def test_dns_name_that_the_sample_cuts() -> None:
    message = dns_query(Random(1), "abcdefgh.victim.example", 1)
    cut = parse_question(message[:18])
    assert cut is not None
    assert cut.cut
    assert cut.labels == (b"abcde",)


def test_an_http_request_is_parsed_to_path_query_and_fields() -> None:
    request = http.parse_request(b"GET /a/b?x=1&y HTTP/1.1\r\nHost: h.example\r\nUser-Agent: A/1\r\n\r\n")
    assert request is not None
    assert (request.path, request.query, request.host, request.agent) == (
        b"/a/b",
        b"x=1&y",
        b"h.example",
        b"A/1",
    )
    assert http.parse_request(b"\x16\x03\x01") is None


def test_tls_hello_name_and_ja4() -> None:
    hello = tls.parse_hello(client_hello(Random(1), "shop.example"))
    assert hello is not None
    assert hello.server_name == b"shop.example"
    assert hello.ja4.startswith("t13d0305h2_")
    cut = tls.parse_hello(client_hello(Random(1), "shop.example")[:90])
    assert cut is not None
    assert cut.ja4 == ""


def test_ja4_of_the_specification() -> None:
    """The example of FoxIO's JA4 technical details (Chrome): t13d1516h2_8daaf6152771_e5627efa2ab1."""
    ciphers = [0x1301, 0x1302, 0x1303, 0xC02B, 0xC02F, 0xC02C, 0xC030, 0xCCA9, 0xCCA8, 0xC013, 0xC014]
    ciphers += [0x009C, 0x009D, 0x002F, 0x0035]
    kinds = [
        0x1B,
        0x00,
        0x33,
        0x10,
        0x4469,
        0x17,
        0x2D,
        0x0D,
        0x05,
        0x23,
        0x12,
        0x2B,
        0xFF01,
        0x0B,
        0x0A,
        0x15,
    ]
    content = {
        0x0D: bytes.fromhex("0010" + "0403080404010503080505010806" + "0601"),
        0x10: b"\0\x0c\x02h2\x08http/1.1",
        0x2B: bytes.fromhex("06" + "0a0a03040303"),
    }
    extensions = [(0x2A2A, b"")] + [(kind, content.get(kind, b"")) for kind in kinds]
    assert tls._ja4(0x0303, [0x4A4A, *ciphers], extensions) == "t13d1516h2_8daaf6152771_e5627efa2ab1"


def test_quic_long_header() -> None:
    header = tls.parse_long_header(b"\xc3\0\0\0\x01\x08" + bytes(8) + b"\x05" + bytes(5))
    assert header == tls.QuicHeader(1, 8, 5, True)
    assert tls.parse_long_header(b"\xc3\0\0\0\x01\xff" + bytes(30)) is None


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_parsers_never_raise(data: bytes) -> None:
    parse_question(data)
    http.parse_request(b"GET " + data)
    tls.parse_hello(b"\x16\x03\x01\0\0\x01" + data)
    tls.parse_long_header(b"\xc0" + data)


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=WIDTH), min_size=1, max_size=6))
def test_shapes_never_raise_and_never_match_nothing(payloads: list[bytes]) -> None:
    matrix = np.zeros((len(payloads), WIDTH), np.uint8)
    for row, data in enumerate(payloads):
        matrix[row, : len(data)] = np.frombuffer(data, np.uint8)
    length = np.array([len(data) for data in payloads])
    for service in SERVICES:
        if service.shape is not None:
            fits = service.shape(matrix, length)
            assert not fits[length == 0].any(), service.name


@pytest.mark.parametrize("at", [0, 4, 8])
@pytest.mark.parametrize(
    "beginnings",
    [(b"DB2",), (b"get", b"gets "), (b"\xff\xffinfo", b"\xff\xffprint", b"HTTP/1.1 200", b"HTTP/1.0")],
)
def test_beginnings_of_payloads(beginnings: tuple[bytes, ...], at: int) -> None:
    """Whole ones, cut ones, and such with another byte, as `bytes.startswith` finds them."""
    rng = Random(at)
    payloads = [b"", *(bytes(at) + text[:size] for text in beginnings for size in range(len(text) + 1))]
    for text in beginnings:
        changed = bytearray(bytes(at) + text + b"more")
        changed[rng.randrange(at, at + len(text))] ^= 1
        payloads += [bytes(at) + text + b"more", bytes(changed)]
    matrix = np.zeros((len(payloads), WIDTH), np.uint8)
    for row, data in enumerate(payloads):
        matrix[row, : len(data)] = np.frombuffer(data, np.uint8)
    fits = starts(*beginnings, at=at)(matrix, np.array([len(data) for data in payloads]))
    assert fits.tolist() == [data[at:].startswith(beginnings) for data in payloads]


@pytest.mark.parametrize("seed", range(12))
def test_random_packets_of_any_kind_don_t_break_the_judge(seed: int) -> None:
    """Headers and all are random bytes behind a link header: nothing may raise, texts stay printable."""
    rng = Random(seed)
    frames = []
    for i in range(400):
        kind = rng.choice((b"\x08\0", b"\x86\xdd", b"\x08\x06", b"\x81\0"))
        head = bytes([rng.choice((0x45, 0x46, 0x60, 0x4F, 0))]) + rng.randbytes(8)
        protocol = bytes([rng.choice((1, 6, 6, 6, 17, 17, 47, 50, 58, 44, 0, 132))])
        frames.append(
            (i * 0.001, rng.randbytes(12) + kind + head + protocol + rng.randbytes(rng.randrange(260)))
        )
    batch = make_batch(frames)
    for live in (True, False):
        window = make_window(batch, 1.0, live=live)
        judgement = Advisor().judge(window, make_tables(window))
        for attack in judgement.attacks:
            assert all(sentence.isprintable() for sentence in (*attack.evidence, attack.title))


def test_hostile_names_are_shown_harmless() -> None:
    item = {
        "src": "300",
        "sport": 53,
        "dport": 80,
        "payload": "answer \x1b[31mevil.example 255 900",
        "count": 400,
    }
    batch = make_batch(make_frames([item], 2.0))
    window = make_window(batch, 2.0)
    judgement = Advisor().judge(window, make_tables(window))
    assert judgement.attacks
    texts = [s for a in judgement.attacks for s in a.evidence] + [p.summary for p in judgement.proposals]
    texts += [line for p in judgement.proposals for line in (*p.commands, p.fwtop)]
    assert all("\x1b" not in text for text in texts)
    assert any("evil" in text for text in texts)
    assert isinstance(batch, PacketBatch)


@pytest.mark.parametrize(
    ("head", "is_answer"),
    [
        (b"\x21\x20\x22\x08", False),  # IKE_SA_INIT, from the initiator
        (b"\x21\x20\x22\x20", True),
        (b"\x01\x10\x02\0", False),  # a proposal in main mode: nobody has answered with a cookie yet
    ],
)
def test_the_first_message_of_an_ike_client_is_no_answer(head: bytes, is_answer: bool) -> None:
    text = np.frombuffer(b"initiate" + bytes(8) + head + bytes(28), np.uint8)[None, :]
    assert bool(isakmp_answer(text, np.array([text.shape[1]]))[0]) is is_answer
