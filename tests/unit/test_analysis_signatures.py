"""Signatures of payloads as real tools send them: most of the attack, next to nothing else (A6)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import count as count_from
from random import Random

import analysis_payloads
import pytest
from analysis_factory import make_batch, make_frames, make_tables, make_window

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.proposals.matching import Texts
from fwtop.analysis.proposals.signatures import Signature, find_signatures
from fwtop.analysis.window.traffic import Traffic
from fwtop.incidents.advisor import Advisor
from fwtop.model.rule import PayloadMatch
from fwtop.model.traffic.packets import PacketBatch

Maker = Callable[[Random], bytes]
VISITORS = {"make": "connections", "src": "60", "count": 400}
RESOLVERS = {
    "make": "udp_conversations",
    "src": "20",
    "dport": 53,
    "payload": "query www.example.org 1",
    "count": 400,
}


def _variants(*texts: bytes) -> Maker:
    return lambda rng: rng.choice(texts) + rng.randbytes(20)


_BUFFER = Random(3).randbytes(512)
# Mirai's vectors (attack_udp.c), booters' tools (hping3, LOIC, UDPUnicorn), amplifiers' answers
TOOLS: dict[str, Maker] = {
    "mirai vse": lambda _: b"\xff\xff\xff\xffTSource Engine Query\x00",
    "mirai udp plain, one buffer": lambda _: _BUFFER,
    "hping3 --data": lambda _: b"X" * 120,
    "loic text": lambda rng: b"A cat is fine too. Desudesudesu~" + bytes([rng.randrange(256)]),
    "text and random": lambda rng: b"flood:" + rng.randbytes(32),
    "text at a moving place": lambda rng: rng.randbytes(rng.randrange(4, 60)) + b"BOOTER" + rng.randbytes(9),
    "three variants": _variants(b"GETALLSTATUS", b"\x01\x02\x03\x04probe", b"zzzzhello-there"),
    "counter between constants": lambda rng: b"\x17\xfe" + rng.randbytes(1) + b"\x99\x42" + rng.randbytes(2)
    + b"\x5a\xc3\x77" + rng.randbytes(40),
    "half bytes": lambda rng: bytes([0xD0 | rng.randrange(16), 0xB0 | rng.randrange(16), 0xA7, 0x3C, 0x19])
    + rng.randbytes(1) + bytes([0xE0 | rng.randrange(16), 0x55]) + rng.randbytes(60),
    "memcached value": lambda rng: struct.pack("!4H", rng.randrange(65536), rng.randrange(500), 750, 0)
    + b"a" * 500,
    "ntp monlist": lambda rng: struct.pack("!BBBBHH", 0xD7, rng.randrange(100), 3, 42, 6, 72)
    + rng.randbytes(432),
    "ssdp": lambda rng: b"HTTP/1.1 200 OK\r\nST: " + rng.choice((b"upnp:rootdevice", b"uuid:x-y-z"))
    + b"\r\nUSN: " + rng.randbytes(4).hex().encode() + b"\r\nSERVER: Linux/2.6 UPnP/1.0 MiniUPnPd/1.7\r\n",
    "sip": lambda rng: b"OPTIONS sip:100@10.10.10.10 SIP/2.0\r\nVia: SIP/2.0/UDP "
    + rng.randbytes(5).hex().encode(),
}  # fmt: skip


_NUMBERS = count_from()


def _traffic(maker: Maker, count: int = 2_000) -> Traffic:
    name = f"tool{next(_NUMBERS)}"  # frames are kept by what they are made from
    analysis_payloads._PLAIN[name] = maker
    batch = make_batch(make_frames([{"src": "300", "dport": 4444, "payload": name, "count": count}], 5.0))
    return Traffic.of(make_window(batch, 5.0), AdviseConfig())


def _normal() -> PacketBatch:
    return make_batch(make_frames([VISITORS, RESOLVERS], 5.0))


def _has(match: PayloadMatch, text: bytes) -> bool:
    """Match one payload, written independently of the arrays."""
    care = match.mask or b"\xff" * len(match.data)
    places = range(len(text)) if match.offset is None else [match.offset]
    return any(
        at + len(match.data) <= len(text)
        and all((text[at + i] ^ match.data[i]) & care[i] == 0 for i in range(len(match.data)))
        for at in places
    )


def _signatures(maker: Maker, *, guess: bool = False) -> list[Signature]:
    traffic = _traffic(maker)
    rows = traffic.rows(traffic.packets.dport == 4444)
    return find_signatures(traffic, rows, Texts.of(_normal()), AdviseConfig(), guess=guess)


@pytest.mark.parametrize("name", ["sip", "mirai vse", "loic text", "ssdp"])
def test_a_piece_of_text_ends_with_its_words(name: str) -> None:
    said = TOOLS[name](Random(1))
    for match in (one.match for one in _signatures(TOOLS[name], guess=False)):
        at = said.find(match.data) if match.mask is None else -1
        before, after = said[at - 1 : at], said[at + len(match.data) :][:1]
        inside = before.isalnum() and match.data[:1].isalnum(), after.isalnum() and match.data[-1:].isalnum()
        assert at < 0 or len(match.data) > 32 or not any(inside), match


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize("guess", [False, True], ids=["baseline", "guess"])
def test_a_tool_is_known_by_its_payload(name: str, guess: bool) -> None:
    found = _signatures(TOOLS[name], guess=guess)
    rng = Random(99)
    sent = [TOOLS[name](rng)[:160] for _ in range(600)]
    batch = _normal()
    normal = [
        batch.data[row, batch.payload_offset[row] : batch.captured[row]].tobytes()
        for row in range(len(batch))
    ]
    for form in ("match", "whole"):
        matches = [getattr(one, form) for one in found]
        hit = sum(any(_has(match, text) for match in matches) for text in sent) / len(sent)
        harmed = sum(any(_has(match, text) for match in matches) for text in normal) / len(normal)
        assert hit >= 0.95, (form, found)
        assert harmed <= 0.005, (form, found)


@pytest.mark.parametrize(
    "maker",
    [lambda rng: rng.randbytes(100), lambda _: b"", lambda rng: rng.randbytes(rng.randrange(1, 4))],
    ids=["random", "empty", "tiny"],
)
def test_what_has_no_constant_part_has_no_signature(maker: Maker) -> None:
    assert _signatures(maker) == []


def test_the_whole_text_is_shown_and_a_short_piece_is_matched() -> None:
    (found,) = _signatures(TOOLS["mirai vse"])
    assert found.whole == PayloadMatch(b"\xff\xff\xff\xffTSource Engine Query\x00", 0)
    assert len(found.match.data) == 8
    (found,) = _signatures(TOOLS["text and random"])
    assert found.whole.data == b"flood:"


def test_the_panel_shows_the_whole_string_once_and_how_rare_it_is() -> None:
    analysis_payloads._PLAIN["tool"] = TOOLS["text and random"]
    flood = {"src": "20", "dport": 27015, "payload": "tool", "count": 3_000}
    batch = make_batch(make_frames([VISITORS, flood], 5.0))
    window = make_window(batch, 5.0)
    rows = Advisor().judge(window, make_tables(window)).payloads
    row = next(row for row in rows if row.data == b"flood:")
    true = 3_000 / len(batch)
    assert row.share.share == pytest.approx(true, abs=1e-6)
    assert row.share.packets == 3_000
    assert row.baseline_share == 0


def test_a_question_is_matched_with_its_type_where_visitors_ask_for_the_same_name() -> None:
    """Without the type, the victim's own name would match its visitors too."""
    visitors = {
        "make": "udp_conversations",
        "src": "30",
        "dport": 53,
        "payload": "query www.example.org 1",
        "count": 150,
    }
    flood = {"dport": 53, "payload": "query www.example.org 255", "count": 6_000}
    batch = make_batch(make_frames([VISITORS, visitors, flood], 5.0))
    window = make_window(batch, 5.0)
    judgement = Advisor().judge(window, make_tables(window))
    string = next(proposal for proposal in judgement.proposals if proposal.kind == "string")
    assert "--dns www.example.org --type ANY" in string.fwtop
    assert string.collateral_share <= 0.005
    closing = next(p for p in judgement.proposals if p.kind == "xdp" and p.attack_share > 0.99)
    assert closing.collateral_share > 0.02
    row = next(row for row in judgement.payloads if row.dns_name == "www.example.org")
    assert row.data.endswith(b"\x03org\x00\x00\xff")
    assert row.baseline_share <= 0.005


REAL = (
    b"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 "
    b"Safari/537.36",
    b"Mozilla/5.0 (Windows NT 10.0; Win64; x64; rv:133.0) Gecko/20100101 Firefox/133.0",
    b"Mozilla/5.0 (iPhone; CPU iPhone OS 18_1_1 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) "
    b"Version/18.1.1 Mobile/15E148 Safari/604.1",
)


def _request(agent: bytes) -> Maker:
    def make(rng: Random) -> bytes:
        host, page = b"www.shop.example", rng.randbytes(5).hex().encode()
        return b"GET /%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\n\r\n" % (page, host, agent)

    return make


@pytest.mark.parametrize("guess", [False, True], ids=["baseline", "guess"])
@pytest.mark.parametrize("agent", REAL, ids=["Chrome", "Firefox", "Safari"])
def test_what_everybodys_browser_sends_is_no_signature(agent: bytes, guess: bool) -> None:
    """The first proposal against bots was to drop "Mozilla/5.0 (Windows": no visitor had come with it yet."""
    assert _signatures(_request(agent), guess=guess) == []


@pytest.mark.parametrize(
    "agent", [b"Mozilla/5.0 (Windows NT 6.1) AppleWebKit/537.36", b"python-requests/2.31.0"]
)
def test_what_no_browser_sends_of_itself_is_one(agent: bytes) -> None:
    found = _signatures(_request(agent), guess=True)
    assert found[0].attack_share == 1.0
    everybody = [_request(one)(Random(9)) for one in REAL]
    assert not any(_has(one.match, text) for one in found for text in everybody), found
