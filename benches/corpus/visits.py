"""Ordinary TCP traffic, as a host receives it: each function sends about `count` packets of one profile."""

from __future__ import annotations

from collections.abc import Callable

from benches.corpus.arrivals import FULL, Arrivals, Connection, Sender, connection, senders
from benches.corpus.contents import AGENTS, RECORD, client_hello, http_request
from fwtop.model.traffic.protocols import ICMP

_HOSTS_EACH = 12  # packets that a visitor sends


def browsing(to: Arrivals, count: int) -> None:
    """Visitors of a website over TLS: a handshake, requests, and an ACK for every second segment."""
    for visitor in _visitors(to, count):
        way = connection(to, visitor, 443, _begin(to))
        way.open(to.rng.uniform(0.01, 0.12))
        way.send(client_hello(to.rng, "www.shop.example"), 517)
        _acks(way, 3)
        for _ in range(to.rng.randrange(1, 4)):
            size = to.rng.randrange(80, 700)
            way.at += to.rng.expovariate(8)
            way.send(RECORD + size.to_bytes(2) + to.rng.randbytes(120), size + 5)
            _acks(way, to.rng.randrange(1, 6))
        way.close()


def flash_crowd(to: Arrivals, count: int) -> None:
    """Many visitors who all want the same few pages, over plain HTTP."""
    pages = ["/", "/style.css", "/app.js", "/logo.svg", "/live", "/news/1", "/news/2", "/tickets"]
    for visitor in _visitors(to, count):
        agent = to.rng.choice(AGENTS)
        way = connection(to, visitor, 80, _begin(to))
        way.open(to.rng.uniform(0.01, 0.12))
        for page in to.rng.sample(pages, to.rng.randrange(1, 5)):
            way.send(http_request(page, agent))
            _acks(way, to.rng.randrange(1, 4))
            way.at += to.rng.expovariate(5)
        way.close()


def crawling(to: Arrivals, count: int) -> None:
    """A few crawlers that fetch one page after the other over connections that stay open."""
    robots = senders(to.rng, to.rng.randrange(1, 6))
    agent = "Mozilla/5.0 (compatible; Searchbot/2.1; +http://search.example/bot.html)"
    each = max(2, count // len(robots))
    for robot in robots:
        way = connection(to, robot, 80, 0.0)
        way.open()
        for number in range(min(each // 3, int(15 * to.seconds))):
            way.at = to.seconds * number / max(1, min(each // 3, int(15 * to.seconds)))
            way.send(http_request(f"/item/{to.rng.randrange(10**6)}", agent))
            _acks(way, 2)


def monitoring(to: Arrivals, count: int) -> None:
    """Programs that look every second whether the server answers: short connections to the same page."""
    probes = senders(to.peers, to.peers.randrange(2, 12))
    for _ in range(max(4, min(count // 5, int(6 * len(probes) * to.seconds)))):
        way = connection(to, to.rng.choice(probes), to.rng.choice((80, 80, 443)), to.when())
        way.open(0.005)
        if way.ports[1] == 80:
            way.send(http_request("/health", "HealthChecker/1.0"))
        else:
            way.send(client_hello(to.rng, "status.shop.example"), 517)
        _acks(way, 1)
        way.close()


def calls_of_programs(to: Arrivals, count: int) -> None:
    """Programs that call an API over connections kept open, and a database behind them."""
    clients = senders(to.peers, to.peers.randrange(4, 40))
    each = max(3, count // len(clients))
    for client in clients:
        way = connection(to, client, to.rng.choice((443, 5432, 6379)), to.rng.uniform(0, 0.2))
        for _ in range(each // 2):
            size = to.rng.randrange(60, 900)
            way.send(RECORD + size.to_bytes(2) + to.rng.randbytes(100), size + 5)
            way.at += to.rng.expovariate(each / 2 / to.seconds)
            way.acknowledge(to.rng.randrange(100, 4000))


def proxied(to: Arrivals, count: int) -> None:
    """Visitors behind a content network: few addresses, many people, connections kept open."""
    edges = senders(to.peers, to.peers.randrange(4, 30))
    tells = to.rng.random() < 0.6
    each = max(4, count // (3 * len(edges)))
    for edge in edges:
        for _ in range(2):
            way = connection(to, edge, 80, to.rng.uniform(0, 0.3))
            way.open()
            for _ in range(each // 2):
                page = f"/p/{int(to.rng.paretovariate(0.7)) % 5000}"
                visitor = f"X-Forwarded-For: {to.rng.randrange(11, 200)}.{to.rng.randrange(256)}.7.9\r\n"
                way.send(http_request(page, to.rng.choice(AGENTS), more=visitor if tells else ""))
                way.at += to.rng.expovariate(each / 2 / to.seconds)
                _acks(way, 2)


def iperf3_tcp(to: Arrivals, count: int) -> None:
    """iperf3 over TCP: a control connection, and full segments on one to eight others."""
    client = senders(to.rng, 1)[0]
    connection(to, client, 5201, 0.0).send(b'{"tcp":true}', 200)
    _bulk(to, client, 5201, max(1, count), flows=to.rng.randrange(1, 9), head=lambda: to.rng.randbytes(100))


def rsync(to: Arrivals, count: int) -> None:
    """A backup that arrives over SSH or rsync: full segments, and now and then a short one."""
    client = senders(to.rng, 1)[0]
    _bulk(to, client, to.rng.choice((22, 873)), count, flows=1, head=lambda: to.rng.randbytes(100))


def uploads(to: Arrivals, count: int) -> None:
    """People who upload pictures over TLS."""
    people = senders(to.rng, max(2, count // 150))
    for person in people:
        _bulk(to, person, 443, 150, flows=1, head=lambda: RECORD + b"\x40\x10" + to.rng.randbytes(90))


def ssh_sessions(to: Arrivals, count: int) -> None:
    """Operators at work: small encrypted segments at the pace of typing."""
    for operator in senders(to.rng, max(1, min(6, count // 20))):
        way = connection(to, operator, 22, to.rng.uniform(0, 0.3))
        for _ in range(min(count, int(8 * to.seconds))):
            way.send(to.rng.randbytes(36), to.rng.choice((36, 36, 44, 76)))
            way.at += to.rng.expovariate(8)
            way.acknowledge(to.rng.randrange(36, 400))


def downloads(to: Arrivals, count: int) -> None:
    """The host's own downloads, as of apt: SYN-ACKs of a few mirrors, then full segments."""
    for mirror in senders(to.rng, to.rng.randrange(1, 5)):
        ports = (to.rng.choice((80, 443)), to.rng.randrange(32_768, 61_000))
        way = Connection(to, mirror, ports, to.rng.uniform(0, 0.3))
        way.accept()
        _segments(way, max(3, count // 3), lambda: to.rng.randbytes(100))


def own_scan(to: Arrivals, count: int) -> None:
    """A scan made by the host: RSTs of closed ports, SYN-ACKs of open ones, and ICMP errors."""
    targets = senders(to.rng, to.rng.choice((1, 8, 200)))
    sport = to.rng.randrange(32_768, 61_000)
    for number in range(count):
        target, at = to.rng.choice(targets), to.seconds * number / count
        port, draw = to.rng.randrange(1, 65_536), to.rng.random()
        numbers = (to.rng.getrandbits(32), to.rng.getrandbits(32))
        if draw < 0.9:
            to.segment(at, target, (port, sport), "RA", numbers=(0, numbers[1]), window=0)
        elif draw < 0.95:
            options = b"\x02\x04\x05\xb4"
            to.segment(at, target, (port, sport), "SA", numbers=numbers, window=64240, options=options)
        else:
            to.packet(at, target, ICMP, b"\x03\x0a\0\0\0\0\0\0" + to.rng.randbytes(28))


def background(to: Arrivals, count: int) -> None:
    """What every address receives: single SYNs of scanners to well-known ports."""
    for scanner in senders(to.rng, max(1, min(count, int(10 * to.seconds)))):
        port = to.rng.choice((22, 23, 80, 443, 445, 3389, 5900, 8080, to.rng.randrange(1, 65_536)))
        numbers = (to.rng.getrandbits(32), 0)
        to.segment(
            to.when(), scanner, (to.rng.randrange(32_768, 65_536), port), "S", numbers=numbers, window=1024
        )


def polled_machines(to: Arrivals, count: int) -> None:
    """Industrial control: a station that polls over Modbus/TCP at an even pace."""
    station = senders(to.peers, 1)[0]
    flows = to.rng.randrange(1, 6)
    for _ in range(flows):
        way = connection(to, station, 502, to.rng.uniform(0, 0.05))
        pace = min(count / flows / 2, 60 * to.seconds)
        for number in range(int(pace)):
            way.send(number.to_bytes(2) + b"\0\0\0\x06\x01\x03" + to.rng.randbytes(1) + b"\0\0\x0a")
            way.at += to.seconds / pace
            way.acknowledge(29)


def _visitors(to: Arrivals, count: int) -> list[Sender]:
    """Draw visitors: a few of them come again and again."""
    family = 6 if to.rng.random() < 0.2 else 4
    people = senders(to.rng, max(1, count // _HOSTS_EACH), family=family)
    return [people[min(int(to.rng.paretovariate(0.6)) - 1, len(people) - 1) if to.rng.random() < 0.2
                   else number] for number in range(len(people))]  # fmt: skip


def _begin(to: Arrivals) -> float:
    """Draw when a connection began, for some of them before the window."""
    return to.rng.uniform(-0.5, to.seconds)


def _acks(way: Connection, count: int) -> None:
    for _ in range(count):
        way.at += way.to.rng.uniform(0.0005, 0.02)
        way.acknowledge(2 * FULL)


def _bulk(
    to: Arrivals, client: Sender, port: int, count: int, *, flows: int, head: Callable[[], bytes]
) -> None:
    for _ in range(flows):
        way = connection(to, client, port, to.rng.uniform(0, 0.2))
        way.open()
        _segments(way, max(2, count // flows), head)


def _segments(way: Connection, count: int, head: Callable[[], bytes]) -> None:
    """Send full segments at an even pace until the window ends; some last ones are shorter."""
    pace = (way.to.seconds - way.at) / count
    for _ in range(count):
        way.at += pace * way.to.rng.uniform(0.2, 1.8)
        size = FULL if way.to.rng.random() < 0.97 else way.to.rng.randrange(20, FULL)
        way.send(head(), size, flags="A" if size == FULL else "PA")
