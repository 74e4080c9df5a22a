"""Attacks as tools send them from real addresses, which once went unnamed or were named twice."""

from __future__ import annotations

import string
from random import Random

import numpy as np
import pytest
from analysis_factory import STARTED, ethernet, ip, make_batch, make_tables, make_window, udp
from analysis_flows import HOST, Frame, connection, hosts, judge, segment, visitors
from analysis_payloads import dns_name

from fwtop.analysis.memory import ScanMemory, class_rates
from fwtop.incidents.advisor import Advisor
from fwtop.model.traffic.snapshot import Incident

TOOL = bytes([198, 51, 100, 7])
SECONDS = 4.0


def live(
    frames: list[Frame],
    *,
    weight: float = 1.0,
    seconds: float = SECONDS,
    advisor: Advisor | None = None,
    later: float = 60.0,
) -> dict[str, Incident]:
    """Judge a live window, each packet of which stands for `weight`; by default without a baseline."""
    start_ns = 10**12 + int(later * 1e9)
    batch = make_batch(sorted(frames, key=lambda frame: frame[0]), weight=weight, start_ns=start_ns)
    window = make_window(batch, seconds, live=True, started=STARTED + later)
    attacks = (advisor or Advisor()).judge(window, make_tables(window)).attacks
    assert sum(attack.share for attack in attacks) <= 1.0 + 1e-9
    return {attack.kind: attack for attack in attacks}


def thinned(rng: Random, frames: list[Frame], one_in: int) -> list[Frame]:
    return [frame for frame in frames if rng.random() * one_in < 1]


def syns(rng: Random, count: int, *, resets: int) -> list[Frame]:
    """SYNs of a tool with the next source port each; its kernel resets what the tool never told it of."""
    frames: list[Frame] = []
    for i in range(count):
        at, sport, seq = SECONDS * i / count, 1024 + i % 60_000, rng.getrandbits(32)
        frames.append((at, segment(TOOL, HOST, sport, 80, "S", seq=seq)))
        for k in range(resets):
            reset = segment(TOOL, HOST, sport, 80, "R", seq=seq + 1)
            frames.append((at + 0.0002 * (k + 1), reset))
    return frames


@pytest.mark.parametrize("one_in", [1, 10])
def test_the_resets_of_the_kernel_below_a_tool_belong_to_its_syn_flood(one_in: int) -> None:
    rng = Random(1)
    frames = thinned(rng, syns(rng, 2_000 * one_in, resets=1), one_in)
    found = live(frames + visitors(rng, 20), weight=float(one_in))
    assert set(found) == {"syn_flood"}
    assert found["syn_flood"].share > 0.8
    assert not found["syn_flood"].spoofed
    if one_in == 1:
        assert set(judge(frames)) == {"syn_flood"}


def test_more_resets_than_syns_are_a_flood_of_their_own() -> None:
    assert set(live(syns(Random(2), 1_500, resets=3))) == {"syn_flood", "rst_flood"}


def acks(rng: Random, pps: int, count: int) -> list[Frame]:
    """ACKs with the next source port each and random numbers."""
    step = pps * SECONDS / count
    return [
        (
            SECONDS * i / count,
            segment(
                TOOL,
                HOST,
                int(2000 + i * step) % 65_536,
                80,
                "A",
                seq=rng.getrandbits(32),
                ack=rng.getrandbits(32),
            ),
        )
        for i in range(count)
    ]


def test_acks_that_come_round_to_the_same_source_ports_are_a_flood() -> None:
    rng = Random(21)
    ports = [(2_000 + 16 * i + rng.randrange(16)) % 65_536 for i in range(16_000)]
    frames = [
        (i / 4_000, segment(TOOL, HOST, port, 80, "A", seq=rng.getrandbits(32), ack=rng.getrandbits(32)))
        for i, port in enumerate(ports)
    ]
    assert set(live(frames, weight=16.0)) == {"ack_flood"}


@pytest.mark.parametrize(("pps", "count"), [(900, 3_600), (77_000, 16_000)])
def test_acks_of_one_address_are_a_flood_at_any_rate_even_if_it_also_visits(pps: int, count: int) -> None:
    rng = Random(3)
    visit = connection(rng, TOOL, 80, [b"GET / HTTP/1.1\r\n\r\n"] * 3, at=1.0)
    found = live(acks(rng, pps, count) + visit + visitors(rng, 20), weight=pps * SECONDS / count)
    assert set(found) == {"ack_flood"}
    assert found["ack_flood"].share > 0.8
    assert not found["ack_flood"].spoofed


def test_syns_of_an_address_that_also_visits_are_a_flood() -> None:
    rng = Random(4)
    visit = connection(rng, TOOL, 80, [b"GET / HTTP/1.1\r\n\r\n"] * 3, at=1.0)
    assert set(live(syns(rng, 3_000, resets=0) + visit)) == {"syn_flood"}


@pytest.mark.parametrize("one_in", [1, 40])
def test_the_open_connections_of_a_proxy_are_no_flood(one_in: int) -> None:
    """Thousands of connections of one address, opened before: few packets of each in a window."""
    rng = Random(5)
    frames: list[Frame] = []
    for _ in range(400 * one_in):
        gap, loads = rng.random(), [rng.randbytes(300) for _ in range(3)]
        open_before = connection(rng, TOOL, 443, loads, gap=gap, at=-1.0, end="")
        frames += [(at, frame) for at, frame in open_before if at >= 0]
    assert live(thinned(rng, frames, one_in), weight=float(one_in)) == {}


def datagram(at: float, src: bytes, ports: tuple[int, int], data: bytes, *, ttl: int | None = None) -> Frame:
    return at, ethernet(ip(src, HOST, 17, udp(*ports, data), ttl=ttl or 64 - src[3] % 20))


def question(rng: Random, name: str, qtype: bytes = b"\0\1") -> bytes:
    return rng.randbytes(2) + b"\1\0\0\1\0\0\0\0\0\0" + dns_name(name) + qtype + b"\0\1"


def quiet(seconds: int = 20) -> Advisor:
    """An advisor that has watched a host with a few visitors, name server clients and players."""
    rng, advisor = Random(9), Advisor()
    frames: list[Frame] = []
    for second in range(seconds):
        for client in hosts(rng, 15):
            loads = [b"\x17\x03\x03\x01\x2c" + rng.randbytes(200)] * 4
            frames += connection(rng, client, 443, loads, at=second + rng.random())
        for client in hosts(rng, 20):
            ports = (rng.randrange(1024, 65_536), 53)
            frames.append(datagram(second + rng.random(), client, ports, question(rng, "www.example.org")))
    batch = make_batch(sorted(frames, key=lambda frame: frame[0]))
    first = int(batch.time_ns.min())
    for end in range(1, seconds + 1):
        since = first + (end - 2) * 10**9
        inside = (batch.time_ns >= since) & (batch.time_ns < since + 2 * 10**9)
        window = make_window(batch.select(inside), 2.0, live=True, started=STARTED - seconds + end - 2)
        assert not advisor.judge(window, make_tables(window)).attacks
    assert advisor.baseline.ready
    return advisor


NAMES = [f"{word}{i}.example.org" for word in ("www", "mail", "ns", "api", "cdn") for i in range(200)]


@pytest.mark.one_each("30-False", "200-True")
@pytest.mark.parametrize(("sources", "known"), [(30, False), (200, False), (200, True), (3_000, True)])
def test_so_many_ordinary_queries_of_sources_that_ask_alike_are_a_flood(sources: int, *, known: bool) -> None:
    rng = Random(6)
    bots = hosts(rng, sources)
    frames = [
        datagram(
            rng.random() * 4,
            rng.choice(bots),
            (rng.randrange(1024, 65_536), 53),
            question(rng, rng.choice(NAMES)),
        )
        for _ in range(10_000)
    ]
    # 10,000 a second: so few sources can't have that many clients each; more may, but not all at once
    assert set(live(frames, weight=4.0, advisor=quiet() if known else None)) == {"dns_query_flood"}


def test_a_busy_name_server_s_clients_differ_in_what_they_ask() -> None:
    rng = Random(7)
    clients = hosts(rng, 2_000)
    busy = [1 / (rank + 1) for rank in range(len(clients))]
    frames = [
        datagram(
            rng.random() * 4, client, (rng.randrange(1024, 65_536), 53), question(rng, rng.choice(NAMES))
        )
        for client in rng.choices(clients, busy, k=10_000)
    ]
    assert live(frames, weight=2.0) == {}


@pytest.mark.one_each
@pytest.mark.parametrize("bots", [1, 8, 50, 2_000])
@pytest.mark.parametrize("port", [27_015, 7_777])
def test_players_ask_a_server_now_and_then_and_bots_without_end(bots: int, port: int) -> None:
    rng = Random(8)
    own = {bot: rng.randrange(1024, 65_536) for bot in hosts(rng, bots)}
    frames = []
    for _ in range(10_000):
        bot = rng.choice(list(own))
        asks = b"\xff\xff\xff\xff" + rng.choice((b"U", b"V")) + rng.randbytes(4)
        frames.append(datagram(rng.random() * 4, bot, (own[bot], port), asks))
    assert set(live(frames, weight=2.0)) == {"udp_flood"}
    assert live(frames[:60]) == {}


@pytest.mark.parametrize("pps", [4_300, 26_000])
def test_a_measurement_over_udp_that_was_agreed_on_is_no_flood(pps: int) -> None:
    """iperf3 at 50 and 300 Mbit/s: its control connection is silent while the datagrams flow."""
    rng, advisor = Random(10), quiet()
    control = connection(rng, TOOL, 5201, [rng.randbytes(37), rng.randbytes(150)], at=0.5, end="")
    assert live(control, advisor=advisor, later=50.0) == {}
    one_in = pps * SECONDS / 12_000
    frames = []
    for k in range(12_000):
        number = int(k * one_in)
        micros = number * 1_000_000 // pps
        head = (micros // 10**6).to_bytes(4) + (micros % 10**6).to_bytes(4) + number.to_bytes(4)
        frames.append(datagram(number / pps, TOOL, (40_000, 5201), head + b"0123456789" * 140))
    assert live(frames, weight=one_in, advisor=advisor) == {}


@pytest.mark.parametrize("as_live", [True, False], ids=["live", "capture"])
def test_neighbours_that_answer_a_search_for_services_are_no_reflectors(*, as_live: bool) -> None:
    rng = Random(11)
    lan = [bytes([10, 10, 10, 20 + i]) for i in range(40)]
    answers = {
        427: b"\2\2\0\0\x4e\0\0\0\0\0\0\1\0\2en\0\0\0\1\0\xff\xff\0\x35service:wbem:https://10.10.10.20:5989",
        1900: b"HTTP/1.1 200 OK\r\nST: upnp:rootdevice\r\nUSN: uuid:1\r\n\r\n" + bytes(150),
        5353: b"\0\0\x84\0\0\0\0\2\0\0\0\0" + dns_name("_http._tcp.local") + b"\0\x0c\0\1" + bytes(210),
    }
    for port, answer in answers.items():
        frames = []
        for _ in range(600):
            sport = port if port != 1900 else rng.choice((port, rng.randrange(30_000, 60_000)))
            frames.append(datagram(rng.random() * 4, rng.choice(lan), (sport, 50_000), answer, ttl=64))
        assert (live(frames) if as_live else judge(frames)) == {}, port
        far = [
            datagram(rng.random() * 4, bot, (port, 50_000), answer)
            for bot in hosts(rng, 40)
            for _ in range(20)
        ]
        assert len(live(far)) == 1, port


@pytest.mark.one_each
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("pace", [60, 500])
def test_a_tunnel_over_dns_is_no_attack_on_its_zone(clients: int, pace: int) -> None:
    rng = Random(12)
    senders = hosts(rng, clients)
    letters = string.ascii_lowercase + string.digits
    frames = []
    for i in range(pace * 4):
        labels = ["".join(rng.choices(letters, k=57)) for _ in range(rng.choice((1, 2, 3)))]
        asks = question(rng, ".".join([*labels, "t.example.org"]), b"\0\x0a")
        frames.append(datagram(i / pace, senders[i % clients], (33_333, 53), asks))
    assert judge(frames) == {}
    assert live(frames) == {}
    bots = hosts(rng, 200)
    spread = [(at, datagram(at, rng.choice(bots), (33_333, 53), frame[42:])[1]) for at, frame in frames]
    if pace == 500:
        assert set(live(spread)) == {"dns_random_subdomain"}


@pytest.mark.parametrize(
    ("pps", "one_in", "kind", "title"),
    [
        (1_000, 1, "port_scan", "Port scan by 198.51.100.7"),
        (8_000, 2, "syn_flood", "SYN flood over many ports by 198.51.100.7"),
        (60_000, 12, "syn_flood", "SYN flood over many ports by 198.51.100.7"),
    ],
)
def test_a_scan_at_the_rate_of_a_flood_is_a_flood(pps: int, one_in: int, kind: str, title: str) -> None:
    rng = Random(13)
    ports = rng.sample(range(1, 65_536), min(65_000, int(pps * SECONDS)))[::one_in]
    seconds = len(ports) * one_in / pps
    frames = [
        (i * one_in / pps, segment(TOOL, HOST, 54_321, port, "S", seq=77, options=b"\2\4\5\xb4"))
        for i, port in enumerate(ports)
    ]
    found = live(frames, weight=float(one_in), seconds=seconds)
    assert {name: one.title for name, one in found.items()} == {kind: title}
    assert not found[kind].spoofed


def test_a_flood_of_all_ports_again_and_again_is_no_scan() -> None:
    rng = Random(14)
    frames = [
        (i / 40_000, segment(TOOL, HOST, (2_000 + 10 * i) % 65_536, 10 * i % 65_536, "S", seq=i))
        for i in range(16_000)
    ]
    assert set(live([*frames, *visitors(rng, 10)], weight=25.0, seconds=0.4)) == {"syn_flood"}


LETTERS = string.ascii_lowercase + string.digits


def drawn(rng: Random, size: int = 10) -> str:
    return "".join(rng.choices(LETTERS, k=size))


def get(path: str, agent: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: {agent}\r\nAccept: */*\r\n\r\n".encode()
    )


@pytest.mark.one_each
@pytest.mark.parametrize("one_in", [1, 8])
@pytest.mark.parametrize("keep", [False, True], ids=["connection_each", "kept_alive"])
def test_requests_for_random_pages_by_random_agents_are_a_flood(one_in: int, *, keep: bool) -> None:
    """300 sources, 1,500 requests a second: each 5, as a person's browser may."""
    rng = Random(15)
    frames: list[Frame] = []
    for bot in hosts(rng, 300):
        loads = [get(f"/{drawn(rng)}", f"Mozilla/5.0 (X11; {drawn(rng, 6)})") for _ in range(20)]
        if keep:
            frames += connection(rng, bot, 80, loads, at=0.0, gap=0.2)
        else:
            for load in loads:
                frames += connection(rng, bot, 80, [load], at=rng.random() * 4)
    found = live(thinned(rng, frames, one_in), weight=float(one_in))
    assert set(found) == {"http_flood"}
    assert found["http_flood"].share > 0.9


def test_a_crowd_and_the_edges_of_a_cdn_are_no_flood() -> None:
    rng = Random(16)
    agents = [f"Mozilla/5.0 (X11; rv:{i})" for i in range(40)]
    pages = [f"/news/{i}.html" for i in range(60)]
    crowd: list[Frame] = []
    for visitor in hosts(rng, 1_500):
        browser = rng.choice(agents)
        loads = [get(rng.choice(pages), browser) for _ in range(3)]
        crowd += connection(rng, visitor, 80, loads, at=rng.random() * 3, gap=0.2)
    assert live(crowd) == {}
    edges, cdn = hosts(rng, 120), []
    busy = [1 / (rank + 1) for rank in range(len(edges))]
    for edge in rng.choices(edges, busy, k=2_000):
        load = get(f"/img/{rng.randrange(10**6):06}.png", rng.choice(agents))
        cdn += connection(rng, edge, 80, [load], at=rng.random() * 4)
    assert live(cdn) == {}


def headers_frames(rng: Random, count: int) -> bytes:
    frames = b""
    for i in range(count):
        block = b"\x82\x84\x86\x41\x8a" + rng.randbytes(10)
        frames += len(block).to_bytes(3) + b"\1\5" + (2 * i + 1).to_bytes(4) + block
    return frames


@pytest.mark.parametrize("together", [1, 40])
def test_requests_over_http2_are_counted_by_their_frames(together: int) -> None:
    rng = Random(17)
    frames: list[Frame] = []
    opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    for bot in hosts(rng, 30):
        loads = [opening, *(headers_frames(rng, together) for _ in range(100))]
        frames += connection(rng, bot, 80, loads, at=0.0, gap=0.03)
    assert set(live(frames)) == {"http_flood"}
    page: list[Frame] = []
    for visitor in hosts(rng, 60):
        loads = [opening, headers_frames(rng, 30), *(headers_frames(rng, 1) for _ in range(3))]
        page += connection(rng, visitor, 80, loads, at=rng.random() * 3, gap=0.3)
    assert live(page) == {}


@pytest.mark.one_each
@pytest.mark.parametrize("one_in", [1, 8])
@pytest.mark.parametrize("bots", [1, 20])
def test_rapid_reset_in_clear_text_is_named(bots: int, one_in: int) -> None:
    """50 streams, opened and reset, in each write of 2 KB, which takes two segments: CVE-2023-44487."""
    rng = Random(18)
    frames: list[Frame] = []
    for bot in hosts(rng, bots):
        for _ in range(20 // bots):
            loads = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"]
            for write in range(200):
                text = b"".join(opened_and_reset(rng, 2 * (50 * write + stream) + 1) for stream in range(50))
                loads += [text[:1448], text[1448:]]
            frames += connection(rng, bot, 80, loads, at=0.0, gap=0.01)
    found = live(thinned(rng, [*frames, *visitors(rng, 20)], one_in), weight=float(one_in))
    assert set(found) == {"http_flood"}
    assert "HTTP/2" in found["http_flood"].title


def opened_and_reset(rng: Random, stream: int) -> bytes:
    """A HEADERS frame that holds a whole request, and RST_STREAM with CANCEL (RFC 9113 6.2, 6.4)."""
    block = b"\x82\x84\x86\x41\x8a" + rng.randbytes(10)
    number = stream.to_bytes(4)
    headers = len(block).to_bytes(3) + b"\1\5" + number + block
    return headers + (4).to_bytes(3) + b"\3\0" + number + (8).to_bytes(4)


def advertisement(rng: Random) -> bytes:
    """A router advertisement of a new prefix by a new router."""
    prefix = b"\3\4\x40\xc0" + bytes(12) + b"\x20\1" + rng.randbytes(14)
    source = b"\xfe\x80" + bytes(6) + rng.randbytes(8)
    every_node = bytes.fromhex("ff02" + 13 * "00" + "01")
    return ethernet(ip(source, every_node, 58, b"\x86\0\0\0\x40\0\7\x08" + bytes(8) + prefix, ttl=255))


@pytest.mark.parametrize("as_live", [True, False], ids=["live", "capture"])
def test_router_advertisements_in_thousands_are_a_flood_and_a_few_are_not(*, as_live: bool) -> None:
    rng = Random(18)
    many = [(i / 2_000, advertisement(rng)) for i in range(8_000)]
    few = [*many[::400], *visitors(rng, 20)]
    found, calm = (live(many), live(few)) if as_live else (judge(many), judge(few))
    assert found["icmp_flood"].title == "ICMPv6 router advertisement flood"
    assert calm == {}


def test_a_flood_from_the_link_is_for_the_switch_and_not_for_the_provider() -> None:
    rng = Random(18)
    batch = make_batch([(i / 500, advertisement(rng)) for i in range(2_000)])
    window = make_window(batch, SECONDS, live=True)
    (offer,) = Advisor().judge(window, make_tables(window)).proposals
    assert (offer.kind, offer.fwtop) == ("switch", "")
    assert "provider" not in offer.summary
    assert "RFC 6105" in offer.commands[0]


def every(frames: list[Frame]) -> list[Incident]:
    batch = make_batch(sorted(frames, key=lambda frame: frame[0]), weight=10.0)
    window = make_window(batch, SECONDS, live=True)
    return list(Advisor().judge(window, make_tables(window)).attacks)


def forged_syns(rng: Random, host: bytes, port: int, ttl: int, count: int) -> list[Frame]:
    return [
        (
            rng.random() * 4,
            segment(rng.randbytes(4), host, rng.randrange(1024, 65_536), port, "S", seq=0, ttl=ttl),
        )
        for _ in range(count)
    ]


def test_two_floods_of_one_kind_on_two_addresses_or_by_two_tools_stay_two() -> None:
    rng, other = Random(19), bytes([10, 10, 10, 11])
    first = forged_syns(rng, HOST, 80, 60, 3_000)
    for second in (forged_syns(rng, other, 80, 60, 2_000), forged_syns(rng, HOST, 22, 101, 2_000)):
        attacks = every(first + second)
        assert [attack.kind for attack in attacks] == ["syn_flood", "syn_flood"]
        assert len({attack.id for attack in attacks}) == len({attack.title for attack in attacks}) == 2
        assert [attack.share for attack in attacks] == [pytest.approx(0.6), pytest.approx(0.4)]


def test_one_tool_on_several_ports_or_against_one_main_target_is_one_flood() -> None:
    rng, other = Random(20), bytes([10, 10, 10, 11])
    ports = [frame for port in (80, 443, 22) for frame in forged_syns(rng, HOST, port, 60, 1_500)]
    assert len(every(ports)) == 1
    strays = forged_syns(rng, HOST, 80, 60, 4_000) + forged_syns(rng, other, 80, 60, 200)
    assert len(every(strays)) == 1


def test_a_memory_of_probes_holds_so_much_whatever_is_probed() -> None:
    memory = ScanMemory()
    draw = np.random.default_rng(3)
    for now in range(60):
        for source in range(8):
            memory.add(source, draw.integers(0, 1 << 63, 20).astype(np.uint64), float(now))
    assert {len(probes.pairs) for probes in memory.sources.values()} == {512}
    assert max(probes.pairs.nbytes for probes in memory.sources.values()) == 512 * 4
    before = memory.add(1, np.arange(3, dtype=np.uint64), 60.0)
    assert before.last == 60.0
    assert len(memory.add(9, np.arange(3, dtype=np.uint64), 61.0).pairs) == 3
    assert len(memory.add(9, np.array([1, 2, 7], np.uint64), 62.0).pairs) == 4


@pytest.mark.parametrize(
    ("data", "title"), [(b"", "UDP flood over many ports by 198.51.100.7"), (b"X" * 40, "UDP flood")]
)
def test_datagrams_to_all_ports_are_a_scanners_only_without_data(data: bytes, title: str) -> None:
    """nmap sends empty datagrams but to ports of services; hping3 -2 -p ++1 -d 40 looks for nothing."""
    pps = 8_000
    frames = [(i / pps, datagram(i / pps, TOOL, (2_000, 1 + i), data)[1]) for i in range(pps * 3)]
    assert {one.title for one in live(frames).values()} == {title}


@pytest.mark.parametrize("length", [40, 1_400])
def test_who_measured_the_line_before_gets_no_credit_for_other_datagrams(length: int) -> None:
    """iperf3 sent as much to its port; of it, only datagrams of that length to other ports may be usual."""
    rng, advisor = Random(4), quiet()
    packets = [
        (i / 8_000, datagram(0, TOOL, (40_000, 5_201), i.to_bytes(12) + bytes(1_388))[1])
        for i in range(8_000)
    ]
    batch = make_batch(packets)
    for _ in range(20):
        advisor.baseline.keep_rates(class_rates(batch, 1.0), 1.0)
        advisor.baseline.keep_rows(batch)
    frames = [
        datagram(i / 5_000, TOOL, (2_000, 9_999), rng.randbytes(8) + b"X" * (length - 8))
        for i in range(15_000)
    ]
    found = live(frames, advisor=advisor)
    assert set(found) == ({"udp_flood"} if length == 40 else set())
    if length == 40:
        assert any("normally none like them" in line for line in found["udp_flood"].evidence)


def arp(rng: Random) -> bytes:
    """Return who-has 10.10.10.10 of a new station."""
    station = b"\2" + rng.randbytes(5)
    request = b"\0\1\x08\0\6\4\0\1" + station + b"\x0a\x0a" + rng.randbytes(2) + bytes(6) + HOST
    return b"\xff" * 6 + station + b"\x08\x06" + request + bytes(18)


@pytest.mark.parametrize(("pps", "found"), [(300, set()), (5_000, {"arp_flood"})])
def test_an_arp_flood_is_named_and_no_rule_is_offered_that_cuts_the_host_off(
    pps: int, found: set[str]
) -> None:
    rng, advisor = Random(8), quiet()
    frames = [(i / pps, arp(rng)) for i in range(pps * 3)]
    named = live(frames, advisor=advisor)
    assert set(named) == found
    for attack in named.values():
        assert attack.target == "ARP"
        assert not attack.spoofed
        assert "no link has so many neighbours" in attack.evidence
    batch = make_batch(frames, start_ns=10**12 + 70 * 10**9)
    window = make_window(batch, SECONDS, live=True, started=STARTED + 70)
    assert not [one for one in advisor.judge(window, make_tables(window)).proposals if one.rule is not None]


@pytest.mark.parametrize(
    ("group", "port", "pps", "found"),
    [
        ("224.0.0.251", 5353, 300, set()),
        ("224.0.0.251", 5353, 5_000, {"multicast_flood"}),
        ("255.255.255.255", 67, 5_000, {"multicast_flood"}),
        ("239.1.2.3", 5004, 5_000, set()),  # a stream that somebody subscribed to
    ],
)
def test_a_storm_of_discovery_is_named_and_no_source_is_blocked(
    group: str, port: int, pps: int, found: set[str]
) -> None:
    rng, advisor = Random(8), quiet()
    to = bytes(map(int, group.split(".")))
    frames = []
    for number in range(pps * 3):
        neighbour = b"\x0a\x0a" + rng.randbytes(2)
        datagram = ip(neighbour, to, 17, udp(port, port, bytes(60)), ttl=1)
        frames.append((number / pps, ethernet(datagram)))
    assert set(live(frames, advisor=advisor)) == found
    batch = make_batch(frames, start_ns=10**12 + 70 * 10**9)
    window = make_window(batch, SECONDS, live=True, started=STARTED + 70)
    proposals = advisor.judge(window, make_tables(window)).proposals
    assert {one.rule.match.dport for one in proposals if one.rule is not None} <= {port}
    assert bool(proposals) == bool(found)
