"""Ordinary traffic over UDP and other protocols: each function sends about `count` packets of one profile."""

from __future__ import annotations

import struct

from benches.corpus.arrivals import CAPTURED, HOST_4, Arrivals, Sender, connection, senders
from benches.corpus.contents import A2S_INFO, WORDS, dns_answer, dns_question, drawn_word, lived_in_name
from fwtop.model.traffic.protocols import ESP, GRE, ICMP, ICMPV6

_SEARCH = (
    b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n"
    b'MAN: "ssdp:discover"\r\nMX: 3\r\nST: ssdp:all\r\n\r\n'
)
_LOCATE = bytes.fromhex("0201000031000000000000000002656e00000010") + b"service:printer\0\x07default\0\0\0\0"
_SIZES = (80, 96, 128, 176, 512, 1360, 1392, 1392)


def wireguard(to: Arrivals, count: int) -> None:
    """A WireGuard tunnel of one to four peers: counters in the clear, padded sizes."""
    for peer in (peers := senders(to.peers, to.peers.randrange(1, 5))):
        index, number, sport = to.rng.randbytes(4), to.rng.getrandbits(20), to.rng.randrange(1024, 65_536)
        for k, at in enumerate(_even(to, count // len(peers))):
            head = b"\x04\0\0\0" + index + struct.pack("<Q", number + k) + to.rng.randbytes(100)
            to.datagram(at, peer, (sport, 51_820), head, 32 + to.rng.choice(_SIZES))


def game_server(to: Arrivals, count: int) -> None:
    """Players of a game: each sends small numbered packets many times a second."""
    pace = to.rng.choice((20, 33, 64))
    for player in senders(to.rng, max(1, min(64, round(count / pace / to.seconds)))):
        sport, number = to.rng.randrange(1024, 65_536), to.rng.getrandbits(16)
        for k, at in enumerate(_even(to, int(pace * to.seconds))):
            head = struct.pack("<II", number + k, number + k + 3) + to.rng.randbytes(60)
            to.datagram(at, player, (sport, 27_015), head, to.rng.randrange(40, 160))


def calls(to: Arrivals, count: int) -> None:
    """Voice calls: RTP, 50 packets a second each way."""
    for caller in senders(to.rng, max(1, round(count / 50 / to.seconds))):
        ports = (to.rng.randrange(16_384, 32_768) & ~1, to.rng.randrange(10_000, 20_000) & ~1)
        sequence, stream = to.rng.getrandbits(15), to.rng.randbytes(4)
        for k, at in enumerate(_even(to, int(50 * to.seconds))):
            head = struct.pack("!BBHI", 0x80, 8, sequence + k & 0xFFFF, 160 * k) + stream
            to.datagram(at, caller, ports, head + to.rng.randbytes(100), 172)


def video(to: Arrivals, count: int) -> None:
    """A video conference: a few streams of large and small numbered packets."""
    for sender in (people := senders(to.rng, to.rng.randrange(1, 9))):
        ports = (to.rng.randrange(20_000, 60_000), 3478 if to.rng.random() < 0.3 else 10_000)
        sequence, stream = to.rng.getrandbits(15), to.rng.randbytes(4)
        for k, at in enumerate(_even(to, count // len(people))):
            head = struct.pack("!BBHI", 0x90, 96, sequence + k & 0xFFFF, 3000 * k) + stream
            head += to.rng.randbytes(100)
            to.datagram(at, sender, ports, head, to.rng.choice((to.rng.randrange(60, 1100), 1120, 1180)))


def iperf3_udp(to: Arrivals, count: int) -> None:
    """iperf3 over UDP: numbered datagrams of one size at a rate that its user chose, and a TCP connection."""
    client = senders(to.rng, 1)[0]
    connection(to, client, 5201, 0.01).send(b'{"udp":true}', 150)
    sport, size = to.rng.randrange(32_768, 61_000), to.rng.choice((1448, 1448, 1200, 64))
    for k, at in enumerate(_even(to, count)):
        head = struct.pack("!III", int(at), int(at % 1 * 1e6), k + 1) + b"0123456789" * 15
        to.datagram(at, client, (sport, 5201), head, size)


def dns_server(to: Arrivals, count: int) -> None:
    """Resolvers that ask an authoritative name server; each keeps what it was told for a minute."""
    resolvers = senders(to.rng, max(3, count // 8))
    known: set[tuple[int, str]] = set()
    for _ in range(count):
        place = min(int(to.rng.paretovariate(0.3)) - 1, len(resolvers) - 1)
        name = lived_in_name(to.rng)
        while (place, name) in known:
            name, place = f"{to.rng.choice(WORDS)}.{lived_in_name(to.rng)}", to.rng.randrange(len(resolvers))
        known.add((place, name))
        head = dns_question(to.rng, name, to.rng.choice((1, 1, 28, 15, 16)))
        to.datagram(to.when(), resolvers[place], (to.rng.randrange(1024, 65_536), 53), head)


def resolving(to: Arrivals, count: int) -> None:
    """Answers of the host's own resolvers."""
    resolvers = senders(to.peers, to.peers.randrange(1, 4))
    for _ in range(min(count, int(800 * to.seconds))):
        ports = (53, to.rng.randrange(32_768, 61_000))
        to.datagram(to.when(), to.rng.choice(resolvers), ports, dns_answer(to.rng, lived_in_name(to.rng)))


def time_server(to: Arrivals, count: int) -> None:
    """Clients of a public time server: each asks once a minute or so."""
    for client in senders(to.rng, count):
        head = b"\x23\0\x06\x20" + bytes(36) + to.rng.randbytes(8)
        to.datagram(to.when(), client, (to.rng.choice((123, to.rng.randrange(1024, 65_536))), 123), head)


def quic_server(to: Arrivals, count: int) -> None:
    """Visitors over QUIC: an Initial, then short headers whose protected bits are random."""
    for visitor in senders(to.rng, max(1, count // 25)):
        sport, at = to.rng.randrange(1024, 65_536), to.rng.uniform(-0.5, to.seconds)
        identity = to.rng.randbytes(8)
        first = b"\xc3\0\0\0\x01\x08" + identity + b"\0\0\x44\x9e" + to.rng.randbytes(90)
        to.datagram(at, visitor, (sport, 443), first, 1200)
        for _ in range(to.rng.randrange(5, 40)):
            at += to.rng.expovariate(40)
            head = bytes([0x40 | to.rng.getrandbits(5)]) + identity + to.rng.randbytes(80)
            to.datagram(at, visitor, (sport, 443), head, to.rng.choice((32, 35, 40, 120, 700)))


def quic_download(to: Arrivals, count: int) -> None:
    """The host's own downloads over QUIC."""
    for server in (servers := senders(to.rng, to.rng.randrange(1, 4))):
        port = to.rng.randrange(32_768, 61_000)
        for at in _even(to, count // len(servers)):
            head = bytes([0x40 | to.rng.getrandbits(5)]) + to.rng.randbytes(100)
            to.datagram(at, server, (443, port), head, to.rng.choice((1200, 1200, 1200, 1350, 60)))


def torrent(to: Arrivals, count: int) -> None:
    """Peers of a BitTorrent client: uTP with its counters, and the questions of the DHT."""
    for peer in senders(to.rng, max(2, count // 20)):
        sport, number = to.rng.randrange(1024, 65_536), to.rng.getrandbits(15)
        if to.rng.random() < 0.4:
            question = to.rng.randbytes(20) + b"e1:q9:find_node1:t2:" + to.rng.randbytes(2)
            to.datagram(to.when(), peer, (sport, 6881), b"d1:ad2:id20:" + question + b"1:y1:qe")
            continue
        for k, at in enumerate(_even(to, to.rng.randrange(5, 60))):
            head = struct.pack(
                "!BBHIIIHH", 1, 0, number & 0xFFFF, int(at * 1e6), 900, 1 << 18, number + k & 0xFFFF, k
            )
            to.datagram(
                at, peer, (sport, 6881), head + to.rng.randbytes(90), to.rng.choice((20, 20, 1402, 1402, 500))
            )


def telemetry(to: Arrivals, count: int) -> None:
    """Machines that send logs and metrics to this collector."""
    for machine in (machines := senders(to.peers, to.peers.randrange(2, 60))):
        sport = to.rng.randrange(32_768, 61_000)
        for at in _even(to, count // len(machines)):
            if to.rng.random() < 0.7:
                minute, second = int(at) % 60, int(at * 60) % 60
                head = b"<134>Nov 22 18:%02d:%02d web-%d nginx: " % (minute, second, sport % 90)
                said = drawn_word(to.rng, to.rng.randrange(30, 100)).encode()
                to.datagram(at, machine, (sport, 514), head + said)
            else:
                to.datagram(at, machine, (sport, 8125), b"web.requests:%d|c" % to.rng.randrange(500))


def polling(to: Arrivals, count: int) -> None:
    """Monitoring of devices by SNMP and CoAP, a new port for each question."""
    stations = senders(to.peers, to.peers.randrange(1, 4))
    for _ in range(min(count, int(100 * to.seconds))):
        sport, at = to.rng.randrange(32_768, 61_000), to.when()
        if to.rng.random() < 0.5:
            head = bytes.fromhex("302902010104067075626c6963a01c0204") + to.rng.randbytes(4)
            head += bytes.fromhex("020100020100300e300c06082b060102010101000500")
            to.datagram(at, to.rng.choice(stations), (sport, 161), head)
        else:
            to.datagram(
                at, to.rng.choice(stations), (sport, 5683), b"\x40\1" + to.rng.randbytes(2) + b"\xb4temp"
            )


def service_location(to: Arrivals, count: int) -> None:
    """Programs of the local network that look for services: SLP, SSDP and multicast DNS."""
    searches = (
        (427, _LOCATE),
        (1900, _SEARCH),
        (5353, bytes.fromhex("000000000001000000000000055f68747470045f746370056c6f63616c00000c0001")),
    )  # fmt: skip
    machines = senders(to.peers, to.peers.randrange(2, 40))
    for _ in range(min(count, int(60 * to.seconds))):
        port, head = to.rng.choice(searches)
        sport = port if port == 5353 else to.rng.randrange(32_768, 61_000)
        to.datagram(to.when(), to.rng.choice(machines), (sport, port), head)


def dns_tunnel(to: Arrivals, count: int) -> None:
    """A tunnel over DNS (iodine): long names below one zone, one after the other."""
    client = senders(to.rng, 1)[0]
    sport = to.rng.randrange(1024, 65_536)
    for at in _even(to, min(count, int(300 * to.seconds))):
        name = ".".join(drawn_word(to.rng, 57) for _ in range(3)) + ".t.example.org"
        to.datagram(at, client, (sport, 53), dns_question(to.rng, name, 10))


def server_browsers(to: Arrivals, count: int) -> None:
    """Players and master servers that ask a game server for its name and players, a few a second in all."""
    people = senders(to.rng, max(5, count // 3))
    for _ in range(min(count, int(60 * to.seconds))):
        person = to.rng.choice(people)
        to.datagram(to.when(), person, (to.rng.randrange(1024, 65_536), 27_015), A2S_INFO)


def network_storage(to: Arrivals, count: int) -> None:
    """A client of NFS over UDP: large datagrams in fragments."""
    client = senders(to.peers, 1)[0]
    head = to.rng.randbytes(4) + bytes(4) + b"\0\0\0\2\0\1\x86\xa3\0\0\0\3\0\0\0\7"
    for at in _even(to, max(1, count // 6)):
        _fragments(to, at, client, head + to.rng.randbytes(100), 8300)


def pings(to: Arrivals, count: int) -> None:
    """A few hosts that ping."""
    for host in (hosts := senders(to.rng, to.rng.randrange(1, 12))):
        mark = to.rng.randbytes(2)
        for k, at in enumerate(_even(to, min(count // len(hosts), int(10 * to.seconds)))):
            to.packet(at, host, ICMP, b"\x08\0\0\0" + mark + struct.pack("!H", k) + bytes(range(56)))


def neighbours(to: Arrivals, count: int) -> None:
    """Neighbour discovery on an IPv6 link, and a router that advertises itself now and then."""
    for host in senders(to.rng, max(1, min(count, 40)), family=6):
        kind = to.rng.choice((135, 135, 136, 134))
        to.packet(
            to.when(),
            host,
            ICMPV6,
            bytes([kind, 0]) + bytes(6) + host.address + b"\1\1" + to.rng.randbytes(6),
        )


def gre_tunnel(to: Arrivals, count: int) -> None:
    """A GRE tunnel of one peer: the same few hosts inside."""
    peer = senders(to.peers, 1)[0]
    inner = [bytes([10, 9, 0, n]) for n in range(2, 8)]
    for at in _even(to, count):
        size = to.rng.choice((40, 52, 52, 576, 1400))
        packet = struct.pack("!BBHHHBBH", 0x45, 0, size, to.rng.getrandbits(16), 0x4000, 63, 6, 0)
        head = b"\0\0\x08\0" + packet + to.rng.choice(inner) + b"\x0a\x09\1\1" + to.rng.randbytes(40)
        to.packet(at, peer, GRE, head, 4 + size)


def esp_tunnel(to: Arrivals, count: int) -> None:
    """IPsec between sites: one association a peer, with a sequence number."""
    for peer in (peers := senders(to.peers, to.peers.randrange(1, 5))):
        spi, number = to.rng.randbytes(4), to.rng.getrandbits(20)
        for k, at in enumerate(_even(to, count // len(peers))):
            head = spi + struct.pack("!I", number + k) + to.rng.randbytes(90)
            to.packet(at, peer, ESP, head, to.rng.choice((100, 116, 600, 1400, 1440)))


def mail(to: Arrivals, count: int) -> None:
    """Other mail servers that deliver a message each."""
    for server in senders(to.rng, max(1, count // 14)):
        way = connection(to, server, 25, to.rng.uniform(-0.5, to.seconds))
        way.open()
        for line in (
            b"EHLO mx.example.net\r\n",
            b"MAIL FROM:<a@example.net>\r\n",
            b"RCPT TO:<b@shop.example>\r\n",
            b"DATA\r\n",
        ):
            way.send(line)
            way.at += to.rng.uniform(0.02, 0.1)
            way.acknowledge(60)
        for _ in range(to.rng.randrange(1, 5)):
            way.send(b"Received: from mx.example.net\r\n" + to.rng.randbytes(60), 1448, flags="A")
        way.close()


def _even(to: Arrivals, count: int) -> list[float]:
    """Return times at an even pace, each a little early or late."""
    return [to.seconds * (k + to.rng.random()) / count for k in range(count)]


def _fragments(to: Arrivals, at: float, sender: Sender, head: bytes, size: int) -> None:
    """Add a large UDP datagram of an IPv4 host in fragments."""
    address, ttl = sender.address, sender.ttl
    number, segment = to.rng.getrandbits(16), struct.pack("!HHHH", 800, 2049, 8 + size, 0) + head
    for offset in range(0, 8 + size, 1480):
        piece = min(1480, 8 + size - offset)
        more = 0x2000 if offset + piece < 8 + size else 0
        front = struct.pack("!BBHHHBBH", 0x45, 0, 20 + piece, number, more | offset // 8, ttl, 17, 0)
        data = segment if offset == 0 else to.rng.randbytes(100)
        frame = bytes.fromhex("0200000000010200000000020800") + front + address + HOST_4 + data
        to.at.append(min(at + offset * 1e-8, to.seconds * 0.9999))
        to.data.append(frame[:CAPTURED])
        to.size.append(34 + piece)
