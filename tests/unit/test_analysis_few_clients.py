"""What a program, or the people behind one address, ask for is no flood, however fast, and what floods is."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from analysis_factory import ethernet, ip, udp
from analysis_flows import HOST, Frame, connection, hosts, judge, segment
from analysis_payloads import dns_name
from test_analysis_dns import drawn, question

SECONDS = 4.0
AGENT = {
    "script": "curl/8.11.0",
    "git": "git/2.47.1",
    "load test": "ApacheBench/2.3",
    "browser": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
}


def request(path: str, agent: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: www.shop.example\r\nUser-Agent: {AGENT[agent]}\r\n\r\n".encode()


def kept(  # noqa: PLR0917
    rng: Random, clients: int, flows: int, each: int, path: Callable[[int], str], who: str
) -> list[Frame]:
    """Connections on which request follows answer, for as long as the window."""
    found = []
    for client in hosts(rng, clients):
        for _ in range(flows):
            loads = [request(path(k), who) for k in range(each)]
            found += connection(rng, client, 80, loads, gap=SECONDS / each, at=rng.random() / 50, end="")
    return found


def sealed(rng: Random, clients: int, flows: int, each: int, *, answered: int = 1_000) -> list[Frame]:
    """Connections on which the same request inside TLS comes again and again."""
    return [
        frame
        for client in hosts(rng, clients)
        for _ in range(flows)
        for frame in connection(
            rng, client, 443, [b"\x17\x03\x03\x00\x3b" + rng.randbytes(59) for _ in range(each)],
            gap=SECONDS / each, at=rng.random() / 50, end="", answered=answered,
        )
    ]  # fmt: skip


def closed(rng: Random, clients: int, count: int, path: str, who: str) -> list[Frame]:
    """A connection for each request, one after the other."""
    gap = SECONDS / count
    return [
        frame
        for client in hosts(rng, clients)
        for k in range(count)
        for frame in connection(rng, client, 80, [request(path, who)], gap=gap / 3, at=k * gap)
    ]


def office(rng: Random, people: int) -> list[Frame]:
    """Pages with what belongs to them, over six connections each, all behind one address."""
    address, found = hosts(rng, 1)[0], []
    for _ in range(people):
        at = rng.random() * SECONDS * 0.8
        for _ in range(6):
            loads = [request(f"/static/{rng.randrange(300)}.js", "browser") for _ in range(4)]
            found += connection(rng, address, 80, loads, gap=0.02, at=at + rng.random() / 10)
    return found


def looks(rng: Random) -> list[Frame]:
    """A monitor that connects to ports and says nothing, 25 times a second each."""
    monitor = hosts(rng, 1)[0]
    return [
        frame
        for port in (22, 25, 80, 443)
        for k in range(120)
        for frame in connection(rng, monitor, port, [], gap=0.002, at=k * SECONDS / 120)
    ]


def forwarder(rng: Random, zone: str) -> list[Frame]:
    """A forwarder without a cache, or dnsperf: 1,250 questions a second for 200 names."""
    address = hosts(rng, 1)[0]
    names = [f"{drawn(rng, 8)}.{zone or drawn(rng, 9) + '.example'}" for _ in range(200)]
    return [question(rng, address, rng.choice(names)) for _ in range(2_500)]


def asked(rng: Random, answers: float) -> list[Frame]:
    """One program's 6,000 questions a second for a few names, and this part of the answers."""
    source, found = hosts(rng, 1)[0], []
    for k in range(24_000):
        name = dns_name(f"n{k % 20}.example") + b"\0\1\0\1"
        head, at = rng.randbytes(2), k / 6_000
        body = udp(40_000, 53, head + b"\1\0\0\1\0\0\0\0\0\0" + name)
        found.append((at, ethernet(ip(source, HOST, 17, body, ttl=60))))
        if rng.random() < answers:
            body = udp(53, 40_000, head + b"\x81\x80\0\1\0\1\0\0\0\0" + name + rng.randbytes(16))
            found.append((at + 0.0001, ethernet(ip(HOST, source, 17, body, ttl=64))))
    return found


def scan(rng: Random) -> list[Frame]:
    """Nmap of a hundred ports within a few milliseconds: few packets are no rate."""
    scanner, sport = hosts(rng, 1)[0], rng.randrange(32_768, 61_000)
    ports = rng.sample(range(1, 1_024), 100)
    return [
        (k * 0.0001, segment(scanner, HOST, sport, port, "S", seq=rng.getrandbits(32)))
        for k, port in enumerate(ports)
    ]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda rng: kept(rng, 1, 4, 400, lambda _: "/index.html", "load test"), id="ab -k"),
        pytest.param(
            lambda rng: kept(rng, 2, 8, 150, lambda _: "/index.html", "load test"), id="two of them"
        ),
        pytest.param(lambda rng: sealed(rng, 1, 4, 1_500), id="ab -k, wrk, h2load over TLS"),
        pytest.param(
            lambda rng: kept(rng, 240, 1, 4, lambda _: "/poll", "script"), id="agents that poll each second"
        ),
        pytest.param(lambda rng: closed(rng, 1, 1_000, "/api", "script"), id="curl in a loop"),
        pytest.param(
            lambda rng: kept(rng, 1, 1, 300, lambda k: f"/r.git/objects/{k}", "git"), id="git clone"
        ),
        pytest.param(lambda rng: office(rng, 60), id="an office's NAT"),
        pytest.param(looks, id="a monitor"),
        pytest.param(lambda rng: forwarder(rng, ""), id="a DNS forwarder"),
        pytest.param(lambda rng: forwarder(rng, "zone.example"), id="a DNS forwarder, one zone"),
    ],
)
def test_few_clients_that_wait_for_answers_are_no_flood(made: Callable[[Random], list[Frame]]) -> None:
    assert judge(made(Random(3)), seconds=SECONDS) == {}


@pytest.mark.parametrize(("answers", "kinds"), [(1.0, set()), (0.3, {"dns_query_flood"})])
def test_who_is_given_an_answer_to_each_question_floods_no_name_server(
    answers: float, kinds: set[str]
) -> None:
    assert set(judge(asked(Random(3), answers), seconds=SECONDS)) == kinds


def test_a_hundred_probes_at_once_are_a_scan() -> None:
    assert set(judge(scan(Random(3)), seconds=0.01)) == {"port_scan"}


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        pytest.param(
            lambda rng: kept(rng, 1, 80, 40, lambda _: "/index.html", "load test"), "http_flood",
            id="eighty connections of one address",
        ),
        pytest.param(
            lambda rng: kept(rng, 30, 2, 120, lambda _: "/search", "browser"), "http_flood",
            id="thirty addresses",
        ),
        pytest.param(
            lambda rng: [f for _ in range(3) for f in closed(rng, 200, 4, "/", "script")], "http_flood",
            id="two hundred addresses that connect each time",
        ),
        pytest.param(
            lambda rng: kept(rng, 2, 4, 200, lambda _: f"/{rng.getrandbits(60):x}", "browser"), "http_flood",
            id="random paths",
        ),
        pytest.param(
            lambda rng: sealed(rng, 1, 4, 1_500, answered=0), "http_flood", id="TLS, no answer awaited"
        ),
        pytest.param(
            lambda rng: sealed(rng, 1, 200, 160), "http_flood", id="TLS, 200 connections of one address"
        ),
        pytest.param(lambda rng: sealed(rng, 40, 1, 1_200), "http_flood", id="TLS, forty addresses"),
    ],
)  # fmt: skip
def test_what_occupies_a_server_or_bypasses_its_cache_is_a_flood(
    made: Callable[[Random], list[Frame]], kind: str
) -> None:
    assert set(judge(made(Random(3)), seconds=SECONDS)) == {kind}
