"""Machines by the hundred that nobody answers, or that ask without end; and attacks that resemble them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from benches.accuracy.naming import judged
from benches.corpus import machines
from benches.corpus.cases import draw
from fwtop.analysis.measures.conversations import framed, is_filler, is_report, snmp_numbers
from fwtop.analysis.parsers.services import tftp_data

WIDTH = 64
WRITERS = [write for _, write in machines._REPORTS]


def rows(*payloads: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return payloads as the engine reads them: a matrix, and how many bytes of each are real."""
    cut = [one[:WIDTH] for one in payloads]
    matrix = np.frombuffer(b"".join(one.ljust(WIDTH, b"\0") for one in cut), np.uint8).reshape(-1, WIDTH)
    return matrix.copy(), np.array([len(one) for one in cut])


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_reports_are_told_from_noise_and_requests(write) -> None:
    rng = Random(3)
    assert is_report(*rows(*(write(rng, number) for number in range(40)))).all()
    assert is_report(*rows(*(rng.randbytes(200) for _ in range(400)))).mean() < 0.02
    assert not is_report(
        *rows(b"REGISTER sip:shop.example SIP/2.0", b"flood 17 flood 18", b"", b"M-SEARCH * HTTP")
    ).any()


def test_messages_begin_alike_and_filler_repeats() -> None:
    rng = Random(4)
    assert framed(*rows(b"<13>a", b"<14>b", b"{}", b"<15>")) == 0.75
    assert framed(*rows(*(rng.randbytes(64) for _ in range(512)))) < 0.05
    assert framed(*rows()) == 0.0
    texts = (
        b"A" * 100,
        b"flood!" * 20,
        bytes(40),
        b"\xc0\0",
        b"<13>Nov 22 18:00:00 web-1 nginx: hello",
        rng.randbytes(64),
    )
    assert is_filler(*rows(*texts)).tolist() == [True, True, True, False, False, False]


def test_answers_of_snmp_carry_their_request_s_number() -> None:
    rng = Random(5)
    short, long = machines._snmp_answer(rng, 1), machines._snmp_answer(rng, 25)
    numbers = snmp_numbers(*rows(short, long, b"\x30\x05hello", b""))
    assert len(numbers) == len(set(numbers)) == 2
    assert all(len(number) == 4 for number in numbers)


def test_flow_records_are_no_answers_of_tftp() -> None:
    record = machines._netflow(Random(6), 1)
    error = b"\0\x05\0\x01File not found\0"
    assert tftp_data(*rows(record[:3] + b"\x01" + record[4:], error, b"\0\x05\0\x01\0")).tolist() == [
        False,
        True,
        True,
    ]


@pytest.mark.one_each("websockets", "tickers")
@pytest.mark.parametrize("family", [
    "collectors", "log_shippers", "polled_devices", "websockets", "things", "services", "tickers",
])  # fmt: skip
def test_machines_raise_no_alarm_on_other_seeds(family: str) -> None:
    assert [judged(draw(f"ordinary: {family}", number, seed=2025)).false_alarms for number in range(6)] == [
        0
    ] * 6


@pytest.mark.one_each("http2_streams")
@pytest.mark.parametrize("family", [
    "junk_on_connections", "junk_to_collectors", "upgrades_again", "http2_streams",
])  # fmt: skip
def test_what_resembles_machines_is_named_on_other_seeds(family: str) -> None:
    """One miss in four is the most: of a thin sample beside busy clients less can be told."""
    outcomes = [judged(draw(f"tool: {family}", number, seed=2025)) for number in range(8)]
    met = [name == attack.kind for outcome in outcomes for attack, name in outcome.met]
    assert sum(met) >= 0.75 * len(met) > 0
    assert sum(outcome.false_alarms for outcome in outcomes) == 0
