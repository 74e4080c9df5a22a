"""What tools and captures that nobody here wrote showed: bots in the names of browsers, replays, tunnels."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from analysis_factory import STARTED, ethernet, ip, make_batch, make_tables, make_window, tcp, udp
from analysis_flows import HOST, Frame, connection, hosts, judge, segment, visitors
from analysis_payloads import client_hello, dns_name

from fwtop.analysis.config import AdviseConfig
from fwtop.analysis.memory import class_rates
from fwtop.analysis.parsers.tls import looks_like_quic
from fwtop.analysis.proposals.prefixes import Addresses, fewest_prefixes
from fwtop.analysis.spoofing import from_this_host, spoof_estimate
from fwtop.analysis.window.features import Features
from fwtop.analysis.window.traffic import Traffic
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.snapshot import Incident

SECONDS = 4.0
AGENTS = [f"Mozilla/5.0 (X11; Linux x86_64; rv:{n}.0) Gecko/20100101 Firefox/{n}.0" for n in range(120, 128)]
PAGES = [f"/p{n}.html" for n in range(40)]


def get(path: str, agent: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: www.example.org\r\n{more}User-Agent: {agent}\r\n\r\n".encode()


def sessions(rng: Random, clients: list[bytes], each: int) -> list[Frame]:
    """TLS sessions with one request each."""
    frames: list[Frame] = []
    for client in clients:
        for _ in range(each):
            record = b"\x17\x03\x03\x01\x2c" + rng.randbytes(300)
            at = rng.random() * (SECONDS - 0.2)
            frames += connection(rng, client, 443, [client_hello(rng), record], at=at, gap=0.03)
    return frames


def watching() -> Advisor:
    """An advisor that knows how a few visitors use this host, by HTTP and TLS."""
    rng, advisor = Random(90), Advisor()
    frames = visitors(rng, 60) + sessions(rng, hosts(rng, 30), 1)
    for visitor in hosts(rng, 60):
        agent = rng.choice(AGENTS)
        frames += connection(rng, visitor, 80, [get(page, agent) for page in rng.sample(PAGES, 3)])
    batch = make_batch(sorted(frames, key=lambda frame: frame[0]))
    advisor.baseline.keep_rates(class_rates(batch, 20.0), 20.0)
    advisor.baseline.keep_rows(batch)
    assert advisor.baseline.ready
    return advisor


def live(frames: list[Frame], advisor: Advisor | None = None) -> dict[str, Incident]:
    batch = make_batch(sorted(frames, key=lambda frame: frame[0]), start_ns=10**12 + 60 * 10**9)
    window = make_window(batch, SECONDS, live=True, started=STARTED + 60)
    return {one.kind: one for one in (advisor or Advisor()).judge(window, make_tables(window)).attacks}


@pytest.mark.parametrize("kept", [1, 20])
def test_bots_that_name_another_browser_for_each_page_of_a_site_are_no_proxies(kept: int) -> None:
    """Sixty bots, 20 requests a second each, for pages that everybody wants."""
    rng = Random(1)
    frames: list[Frame] = []
    for bot in hosts(rng, 60):
        for start in range(0, 80, kept):
            loads = [get(rng.choice(PAGES), rng.choice(AGENTS)) for _ in range(kept)]
            frames += connection(rng, bot, 80, loads, at=start * SECONDS / 80, gap=SECONDS / 85)
    found = live(frames, watching())
    assert set(found) == {"http_flood"}
    assert found["http_flood"].share > 0.9


def test_proxies_that_tell_for_whom_they_ask_are_no_flood() -> None:
    """Thirty edges of a content network that nobody has seen before, as busy as each other."""
    rng = Random(2)
    frames: list[Frame] = []
    for edge in hosts(rng, 30):
        loads = []
        for _ in range(120):
            page = PAGES[min(int(rng.paretovariate(0.6)) - 1, len(PAGES) - 1)]
            visitor = ".".join(str(rng.randrange(11, 200)) for _ in range(4))
            loads.append(get(page, rng.choice(AGENTS), f"X-Forwarded-For: {visitor}\r\n"))
        frames += connection(rng, edge, 80, loads, at=0.0, gap=SECONDS / 130)
    assert live(frames, watching()) == {}


def test_a_tls_session_for_each_request_is_a_flood_and_a_page_with_six_is_none() -> None:
    rng = Random(3)
    assert set(live(sessions(rng, hosts(rng, 30), 32), watching())) == {"tls_flood"}
    crowd = sessions(rng, hosts(rng, 150), 6)
    assert live(crowd, watching()) == {}


def random_datagrams(rng: Random, flows: int) -> list[tuple[bytes, int, bytes]]:
    return [
        (host, rng.randrange(1024, 65_536), b"\x45" + rng.randbytes(rng.randrange(30, 600)))
        for host in hosts(rng, flows)
    ]


@pytest.mark.parametrize("times", [2, 8])
def test_random_bytes_that_flows_repeat_are_a_replay(times: int) -> None:
    """A mirror may show each packet twice; a recording that is played in a loop repeats all of them."""
    rng = Random(4)
    packets = random_datagrams(rng, 1_000)
    talks = [(*packets[k % 100][:2], b"\x45" + rng.randbytes(rng.randrange(30, 600))) for k in range(4_000)]
    looped = packets * times if times > 2 else [one for one in talks for _ in range(2)]
    frames = [
        (SECONDS * k / len(looped), ethernet(ip(host, HOST, 17, udp(sport, 443, load), ttl=57)))
        for k, (host, sport, load) in enumerate(looped)
    ]
    assert set(live(frames)) == ({"udp_flood"} if times > 2 else set())


@pytest.mark.parametrize(("qtype", "seconds"), [(10, 24.0), (16, 4.0)], ids=["null", "txt"])
def test_a_tunnel_that_waits_asks_short_names_for_data(qtype: int, seconds: float) -> None:
    """As iodine and dnscat2 do; a flood of such names comes of more sources, or faster."""
    rng = Random(5)

    def asks(source: bytes, at: float) -> Frame:
        label = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz012345", k=14))
        head = rng.randbytes(2) + b"\1\0\0\1\0\0\0\0\0\0"
        data = head + dns_name(f"{label}.t.example") + qtype.to_bytes(2) + b"\0\1"
        return at, ethernet(ip(source, HOST, 17, udp(40_000, 53, data), ttl=60))

    client, bots = bytes([198, 51, 100, 9]), hosts(rng, 60)
    tunnel = [asks(client, seconds * k / 200) for k in range(200)]
    assert judge(tunnel, seconds=seconds) == {}
    flood = [asks(rng.choice(bots), seconds * k / 2_000) for k in range(2_000)]
    assert set(judge(flood, seconds=seconds)) == {"dns_random_subdomain"}


@pytest.mark.parametrize("target", ["239.255.194.10", "192.0.2.7"])
def test_multicast_of_few_neighbours_is_no_flood_of_its_protocol(target: str) -> None:
    """PGM (RFC 3208) to a group, as market data and imaging use it, and the same to a host."""
    rng = Random(6)
    to = bytes(map(int, target.split(".")))
    body = [rng.randbytes(16 + 4 * (k % 2)) for k in range(20)]
    frames = [(k * 0.45, ethernet(ip(bytes([10, 0, 2, 15]), to, 113, body[k], ttl=16))) for k in range(20)]
    assert set(judge(frames, seconds=9.0)) == ({"ip_protocol_flood"} if target == "192.0.2.7" else set())


@pytest.mark.parametrize("host", [bytes([127, 0, 0, 1]), bytes(15) + b"\1", bytes([10, 10, 10, 10])])
def test_a_host_that_talks_to_itself_on_loopback_forges_nothing(host: bytes) -> None:
    rng = Random(7)
    bodies = [udp(rng.choice((4443, 51_430)), 4443, rng.randbytes(400)) for _ in range(300)]
    batch = make_batch(
        [(k / 300, ethernet(ip(host, host, 17, body, ttl=64))) for k, body in enumerate(bodies)]
    )
    traffic = Traffic.of(make_window(batch, 1.0), AdviseConfig())
    own = from_this_host(traffic.packets, ())
    estimate = spoof_estimate(Features(traffic, np.arange(300)), own)
    assert (estimate.probability > 0.5) is (host[0] == 10)


@pytest.mark.parametrize(("pace", "named"), [(1.0, set()), (200.0, {"http_flood"})])
def test_a_form_that_a_scanner_tries_is_no_flood(pace: float, named: set[str]) -> None:
    """One query after the other with a unique value, as tests of web applications send them."""
    rng, scanner = Random(8), bytes([198, 51, 100, 8])
    agent = "Mozilla/5.0 (X11; Linux x86_64; rv:45.0) Gecko/20100101 Firefox/45.0"
    words = ["".join(rng.choices("abcdefghij", k=9)) for _ in range(400)]
    frames: list[Frame] = []
    for k, word in enumerate(words):
        frames += connection(rng, scanner, 80, [get(f"/search?q={word}", agent)], at=k / pace, gap=0.01)
    assert set(judge(frames, seconds=len(words) / pace)) == named


def test_resets_for_repeated_syn_acks_belong_to_the_flood() -> None:
    """A server repeats its SYN-ACK until the RST arrives, so there are some more RSTs than SYNs."""
    rng, tool, frames = Random(9), bytes([198, 51, 100, 7]), []
    for k in range(2_000):
        at, seq = SECONDS * k / 2_000, rng.getrandbits(32)
        frames.append((at, segment(tool, HOST, 1024 + k, 22, "S", seq=seq)))
        for again in range(1 + (k % 3 == 0)):
            reset = tcp(1024 + k, 22, 4, seq=seq + 1 & 0xFFFFFFFF, ack=0)
            frames.append((at + 0.0003 * (again + 1), ethernet(ip(tool, HOST, 6, reset, ttl=63))))
    assert set(live(frames)) == {"syn_flood"}


def test_a_block_list_ends_above_the_clients_that_a_flood_is_mixed_with() -> None:
    sent = {b"\xc6\x33\x64\x07": 9_500, **{bytes([31, 4, 9, 10 + k]): 40 for k in range(12)}}
    frames = [
        (k / 1_000, ethernet(ip(source, HOST, 17, udp(4_000, 27_015, b"x"), ttl=60)))
        for source, count in sent.items()
        for k in range(count)
    ]
    packets = make_batch(frames)
    nobody = Addresses.of(packets, slice(0, 0))
    cover = fewest_prefixes(Addresses.of(packets), np.ones(len(packets)), nobody, target=0.97, limit=100)
    assert [str(prefix) for prefix in cover.prefixes] == ["198.51.100.7"]
    assert cover.sources == 1


@pytest.mark.parametrize(("version", "quic"), [(1, True), (0xFF000021, True), (0xABCDEF01, False)])
def test_drafts_of_quic_are_quic(version: int, quic: bool) -> None:
    rng = Random(10)
    heads = [
        bytes([0xC0 | rng.randrange(16)]) + version.to_bytes(4) + rng.randbytes(59)
        if k % 3
        else bytes([0x40 | rng.randrange(64)]) + rng.randbytes(63)
        for k in range(120)
    ]
    matrix = np.frombuffer(b"".join(heads), np.uint8).reshape(120, 64)
    assert looks_like_quic(matrix, np.full(120, 64)) is quic
