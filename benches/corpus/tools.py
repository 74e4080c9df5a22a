"""Attacks that live tools send from real addresses: over connections, or as clients do."""

from __future__ import annotations

import struct

from msgspec.structs import replace

from benches.corpus.arrivals import Arrivals, connection, senders
from benches.corpus.contents import (
    A2S_INFO,
    AGENTS,
    RECORD,
    browser,
    client_hello,
    dns_question,
    drawn_word,
    http_request,
    lived_in_name,
)
from fwtop.model.traffic.protocols import ICMPV6

_STREAMS = 300  # packets a second of a connection that opens streams without end, at least


def syn_with_resets(to: Arrivals, count: int) -> None:
    """hping3 from its own address: its kernel resets each connection that it never opened."""
    tool, option = senders(to.rng, 1)[0], to.rng.choice((b"", b"\x02\x04\x05\xb4"))
    first = to.rng.randrange(1024, 65_536)
    for k in range(count // 2):
        at, sport = to.seconds * k / max(1, count // 2), (first + k) % 64_512 + 1024
        seq = to.rng.getrandbits(32)
        to.segment(at, tool, (sport, 80), "S", numbers=(seq, 0), window=512, options=option)
        to.segment(at + 0.0003, tool, (sport, 80), "R", numbers=(seq + 1, 0), window=0)


def ack_from_one(to: Arrivals, count: int) -> None:
    """hping3 -A from its own address, with the next source port each."""
    tool, first = senders(to.rng, 1)[0], to.rng.randrange(1024, 65_536)
    for k in range(count):
        numbers = (to.rng.getrandbits(32), to.rng.getrandbits(32))
        ports = ((first + k) % 64_512 + 1024, 80)
        to.segment(to.seconds * k / count, tool, ports, "A", numbers=numbers, window=512)


def full_scan(to: Arrivals, count: int) -> None:
    """Nmap -p- at full speed: one source port, one window size, every port once."""
    tool, sport = senders(to.rng, 1)[0], to.rng.randrange(32_768, 65_536)
    order = to.rng.sample(range(1, 65_536), 65_535)
    for k in range(min(count, 65_535)):
        numbers = (to.rng.getrandbits(32), 0)
        at = to.seconds * k / count
        to.segment(
            at, tool, (sport, order[k]), "S", numbers=numbers, window=1024, options=b"\x02\x04\x05\xb4"
        )


def random_pages(to: Arrivals, count: int) -> None:
    """Bots on kept connections that ask for random pages in the name of a random browser."""
    bots = senders(to.rng, max(2, min(300, count // 6)))
    for bot in bots:
        way = connection(to, bot, 80, to.rng.uniform(-0.5, 0.3))
        way.open()
        for _ in range(max(1, count // len(bots) // 2)):
            way.send(http_request(f"/{drawn_word(to.rng, to.rng.randrange(6, 14))}", to.rng.choice(AGENTS)))
            way.at += to.rng.expovariate(count / len(bots) / 2 / to.seconds)
            way.acknowledge(3000)


def one_page(to: Arrivals, count: int) -> None:
    """Few bots that ask for one page without end, faster than people."""
    bots = senders(to.rng, max(1, min(50, count // 200)))
    agent = to.rng.choice((*AGENTS, "python-requests/2.32", "Go-http-client/1.1"))
    for bot in bots:
        way = connection(to, bot, 80, 0.0)
        way.open()
        for _ in range(count // len(bots) // 2):
            way.send(http_request("/search", agent))
            way.at += to.rng.expovariate(count / len(bots) / 2 / to.seconds)
            way.acknowledge(9000)


def listed_pages(to: Arrivals, count: int) -> None:
    """Bots that draw a page of the site for each request, and the browser that they claim to be."""
    bots = senders(to.rng, max(2, min(300, count // 30)))
    pages = [f"/{drawn_word(to.rng, 6)}.html" for _ in range(to.rng.choice((12, 30, 60)))]
    agents = AGENTS if to.rng.random() < 0.5 else ()
    each, kept = max(1, count // len(bots) // 3), to.rng.choice((1, 30))
    for bot in bots:
        way = connection(to, bot, 80, to.rng.uniform(-0.5, 0.3))
        for number in range(each):
            if number % kept == 0:
                if number:
                    way.close()
                    way = connection(to, bot, 80, way.at)
                way.open()
            agent = to.rng.choice(agents) if agents else browser(to.rng)
            way.send(http_request(to.rng.choice(pages), agent))
            way.at += to.rng.expovariate(each / to.seconds)
            way.acknowledge(3000)


def tls_sessions(to: Arrivals, count: int) -> None:
    """Bots that begin a TLS session for each request: the handshake costs the server more than the page."""
    each = to.rng.choice((40, 60))  # packets a second: 7 or 10 sessions
    bots = senders(to.rng, max(2, min(200, round(count / to.seconds / each))))
    for number in range(count // 6):
        way = connection(to, bots[number % len(bots)], 443, to.when())
        way.open()
        way.send(client_hello(to.rng, "www.shop.example"), 517)
        size = to.rng.randrange(120, 300)
        way.send(RECORD + size.to_bytes(2) + to.rng.randbytes(100), size + 5)
        way.acknowledge(3000)
        way.close()


def unique_queries(to: Arrivals, count: int) -> None:
    """Bots that open a connection for each request, with a unique query behind one path."""
    bots = senders(to.rng, max(2, min(400, count // 10)))
    for _ in range(count // 5):
        way = connection(to, to.rng.choice(bots), 80, to.when())
        way.open()
        way.send(http_request(f"/search?q={drawn_word(to.rng, 10)}", AGENTS[1]))
        way.acknowledge(2000)
        way.close()


def tls_handshakes(to: Arrivals, count: int) -> None:
    """Bots that begin TLS handshakes and leave: each costs the server a signature."""
    bots = senders(to.rng, max(1, min(300, count // 40)))
    for _ in range(count // 4):
        way = connection(to, to.rng.choice(bots), 443, to.when())
        way.open()
        way.send(client_hello(to.rng, "www.shop.example"), 517)
        way.close("R")


def empty_connections(to: Arrivals, count: int) -> None:
    """Bots that open connections, send nothing and close them."""
    bots = senders(to.rng, max(1, min(200, count // 60)))
    for _ in range(count // 3):
        way = connection(to, to.rng.choice(bots), 80, to.when())
        way.open()
        way.at += 0.3
        way.close()


def game_queries(to: Arrivals, count: int) -> None:
    """Bots that ask a game server for its name without waiting for the answer."""
    bots = senders(to.rng, max(1, min(500, count // 20)))
    ports = {bot.address: to.rng.randrange(1024, 65_536) for bot in bots}
    for k in range(count):
        bot = to.rng.choice(bots)
        to.datagram(to.seconds * k / count, bot, (ports[bot.address], 27_015), A2S_INFO)


def dns_questions(to: Arrivals, count: int) -> None:
    """Bots that ask the name server for real names, much faster than resolvers."""
    bots = senders(to.rng, max(1, min(100, count // 50)))
    names = [lived_in_name(to.rng) for _ in range(to.rng.choice((1, 3, 50)))]
    for k in range(count):
        ports = (to.rng.randrange(1024, 65_536), 53)
        to.datagram(
            to.seconds * k / count, to.rng.choice(bots), ports, dns_question(to.rng, to.rng.choice(names))
        )


def replayed_datagrams(to: Arrivals, count: int) -> None:
    """tcpreplay --loop: the same encrypted packets from the same flows, again and again."""
    port, times = to.rng.choice((443, 3074, 27_015, 51_820)), to.rng.randrange(5, 30)
    kept = max(20, min(100, count // times))
    recorded = []
    for bot in senders(to.rng, kept):
        size = to.rng.randrange(30, 1200)
        head = bytes([0x40 | to.rng.randrange(64)]) + to.rng.randbytes(min(160, size) - 1)
        recorded.append((bot, (to.rng.randrange(1024, 65_536), port), head, size))
    for k in range(count):
        to.datagram(to.seconds * k / count, *recorded[k % kept])


def junk_to_dns(to: Arrivals, count: int) -> None:
    """Bots that send random bytes to port 53, in the hope that it is open."""
    bots = senders(to.rng, max(1, min(200, count // 50)))
    size = to.rng.choice((64, 512, 1024))
    for k in range(count):
        ports = (to.rng.randrange(1024, 65_536), 53)
        to.datagram(to.seconds * k / count, to.rng.choice(bots), ports, to.rng.randbytes(100)[:size], size)


def router_advertisements(to: Arrivals, count: int) -> None:
    """flood_router26: router advertisements with ever new prefixes from invented neighbours."""
    for k in range(count):
        address = b"\xfe\x80" + bytes(6) + to.rng.randbytes(8)
        neighbour = replace(senders(to.rng, 1)[0], address=address, ttl=255)
        prefix = b"\x03\x04\x40\xc0" + b"\xff" * 8 + bytes(4) + b"\x20\x01" + to.rng.randbytes(14)
        head = (
            b"\x86\0\0\0\x40\x08\xff\xff" + bytes(8) + prefix + struct.pack("!BB", 1, 1) + to.rng.randbytes(6)
        )
        to.packet(to.seconds * k / count, neighbour, ICMPV6, head)


def junk_on_connections(to: Arrivals, count: int) -> None:
    """Bots that open connections and fill them with junk, which the server neither answers nor wants."""
    bots = senders(to.rng, max(1, round(10 ** to.rng.uniform(0, 2.3))))
    port, each = to.rng.choice((22, 80, 443, 3306, 8080, 25_565)), to.rng.choice((1, 2, 4, 8))
    same, word = to.rng.choice((0, 64, 512, 1000)), to.rng.choice((b"", b"\0", b"A", b"flood!"))
    flows = max(1, min(len(bots) * each, count // 30))
    for number in range(flows):
        way = connection(to, bots[number % len(bots)], port, to.rng.uniform(0, 0.1))
        if to.rng.random() < 0.7:
            way.open()
        pace = (to.seconds - way.at) / max(1, count // flows)
        for _ in range(count // flows):
            size = same or to.rng.randrange(30, 1200)
            way.at += pace * to.rng.uniform(0.5, 1.5)
            way.send((word * 160 if word else to.rng.randbytes(160))[: min(size, 160)], size)


def junk_to_collectors(to: Arrivals, count: int) -> None:
    """Bots that send junk, or one line again and again, to a port where logs or flow records arrive."""
    bots = senders(to.rng, max(1, round(10 ** to.rng.uniform(0.5, 2.7))))
    port, size = to.rng.choice((514, 162, 2055, 4739, 6343, 8125, 12_201)), to.rng.choice((0, 128, 512, 1200))
    line = to.rng.choice((b"", b"", b"<13>Nov 22 18:00:00 host app: flood"))
    sports = {bot.address: to.rng.randrange(1024, 65_536) for bot in bots}
    for k in range(count):
        bot = to.rng.choice(bots)
        whole = size or to.rng.randrange(40, 1400)
        head = line or to.rng.randbytes(min(160, whole))
        to.datagram(to.seconds * k / count, bot, (sports[bot.address], port), head, None if line else whole)


def upgrades_again(to: Arrivals, count: int) -> None:
    """Bots that ask for a WebSocket, close it and ask again: each costs the application a session."""
    bots = senders(to.rng, max(2, min(300, count // 60)))
    line, rest = http_request("/live", to.rng.choice(AGENTS)).split(b"\r\n", 1)
    request = line + b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" + rest
    for _ in range(count // 5):
        way = connection(to, to.rng.choice(bots), 80, to.when())
        way.open()
        way.send(request)
        way.at += 0.03
        way.acknowledge(129)
        way.close(to.rng.choice(("R", "FA")))


def http2_streams(to: Arrivals, count: int) -> None:
    """Few clients that open HTTP/2 streams inside TLS without end, and reset them or take their answers.

    As h2load and a rapid reset by hand arrive (nginx 1.22): one record a request, nearly all of one size.
    """
    bots = senders(to.rng, to.rng.choice((1, 1, 3, 10)))
    flows = max(1, min(len(bots) * to.rng.choice((1, 4, 10)), round(count / to.seconds / _STREAMS)))
    size, reset = to.rng.randrange(21, 70), to.rng.random() < 0.5
    together = to.rng.choice((1, 1, 1, 12))  # records a segment, where the sender's kernel joins them
    for number in range(flows):
        way = connection(to, bots[number % len(bots)], 443, to.rng.uniform(0, 0.1))
        if to.rng.random() < 0.7:
            way.open()
            way.send(client_hello(to.rng, "www.shop.example"), 517)
            way.acknowledge(3000)
        for _ in range(max(1, count // flows * 2 // 3)):
            way.at += to.rng.expovariate(count / flows * 2 / 3 / to.seconds)
            once = size + 14 if not reset and to.rng.random() < 0.05 else size  # WINDOW_UPDATE
            record = RECORD + once.to_bytes(2) + to.rng.randbytes(once)
            way.send((record * together)[:160], len(record) * together)
            if to.rng.random() < 0.5:
                way.acknowledge(to.rng.randrange(0, 200) if reset else to.rng.randrange(200, 4000))
