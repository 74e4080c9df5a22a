"""Payloads as the services really send them: used by the scenarios to build packets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import count
from random import Random

Payload = Callable[[Random], bytes]


def dns_name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def dns_query(rng: Random, name: str, qtype: int = 1, *, edns: bool = True) -> bytes:
    head = struct.pack("!HHHHHH", rng.randrange(65536), 0x0100, 1, 0, 0, int(edns))
    tail = b"\0\0\x29\x10\0\0\0\0\0\0\0" if edns else b""
    return head + dns_name(name) + struct.pack("!HH", qtype, 1) + tail


def dns_answer(rng: Random, name: str, qtype: int = 255, size: int = 1200) -> bytes:
    head = struct.pack("!HHHHHH", rng.randrange(65536), 0x8180, 1, 8, 0, 1)
    body = head + dns_name(name) + struct.pack("!HH", qtype, 1)
    while len(body) < size:
        body += b"\xc0\x0c" + struct.pack("!HHIH", qtype, 1, 300, 100) + rng.randbytes(100)
    return body[:size]


def _ntp_monlist(rng: Random) -> bytes:
    return b"\xd7\0\x03\x2a\0\x06\0\x48" + rng.randbytes(432)


def _snmp(rng: Random) -> bytes:
    body = b"\x02\x01\x01\x04\x06public\xa2" + rng.randbytes(rng.randrange(60, 1200))
    return b"\x30\x82" + struct.pack("!H", len(body)) + body


def _ssdp(rng: Random) -> bytes:
    return (
        b"HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\nST: upnp:rootdevice\r\nUSN: uuid:"
        + rng.randbytes(8).hex().encode()
        + b"\r\nEXT:\r\nSERVER: RedHat/7.3 UPnP/1.0 MiniUPnPd/1.0\r\n\r\n"
    )


def _memcached(rng: Random) -> bytes:
    total = 600
    return struct.pack("!HHHH", 7, rng.randrange(total), total, 0) + b"a" * 1392


def _cldap(rng: Random) -> bytes:
    body = b"\x02\x01\x07\x64\x84\0\0\x0b\x80\x04\0\x30\x84" + rng.randbytes(rng.randrange(1200, 1420))
    return b"\x30\x84" + struct.pack("!I", len(body)) + body


def _chargen(rng: Random) -> bytes:
    start = rng.randrange(94)
    return bytes(0x20 + (start + i) % 95 for i in range(rng.choice((74, 512, 1024))))


def _qotd(rng: Random) -> bytes:
    return b'"' + bytes(rng.choice(b"abcdefgh etaoin") for _ in range(rng.randrange(60, 300))) + b'"\r\n'


def _http_request(rng: Random, path: str) -> bytes:
    agent = rng.choice(
        ("Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (Windows NT 10.0)", "curl/8.5", "Safari/17")
    )
    return (
        f"GET {path} HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: {agent}\r\nAccept: */*\r\n\r\n".encode()
    )


def client_hello(rng: Random, server_name: str = "www.example.org") -> bytes:
    name = server_name.encode()
    sni = struct.pack("!HBH", len(name) + 3, 0, len(name)) + name
    extensions = [
        (0, sni),
        (10, b"\0\x04\0\x1d\0\x17"),
        (13, b"\0\x04\x04\x03\x08\x04"),
        (16, b"\0\x03\x02h2"),
    ]
    extensions.append((43, b"\x04\x03\x04\x03\x03"))
    raw = b"".join(struct.pack("!HH", kind, len(data)) + data for kind, data in extensions)
    body = b"\x03\x03" + rng.randbytes(32) + b"\0" + b"\0\x06\x13\x01\x13\x02\xc0\x2f" + b"\x01\0"
    body += struct.pack("!H", len(raw)) + raw
    handshake = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + struct.pack("!H", len(handshake)) + handshake


_PLAIN: dict[str, Payload] = {
    "empty": lambda rng: b"",
    "ntp": _ntp_monlist,
    "snmp": _snmp,
    "ssdp": _ssdp,
    "memcached": _memcached,
    "cldap": _cldap,
    "chargen": _chargen,
    "qotd": _qotd,
    "tftp": lambda rng: b"\0\x03\0\x01" + rng.randbytes(512),
    "rpcbind": lambda rng: (
        rng.randbytes(4) + b"\0\0\0\x01" + b"\0" * 16 + rng.randbytes(rng.choice((60, 460, 900)))
    ),
    "netbios": lambda rng: (
        rng.randbytes(2) + b"\x84\0\0\0\0\x01\0\0\0\0 " + b"CK" + b"A" * 30 + rng.randbytes(120)
    ),
    "ripv1": lambda rng: b"\x02\x01\0\0" + b"\0\x02\0\0\x0a\x01\x02\0" + rng.randbytes(480),
    "mssql": lambda rng: (
        b"\x05\x85\x01ServerName;" + rng.randbytes(6).hex().encode() + b";InstanceName;SQL;;" * 12
    ),
    "mdns": lambda rng: dns_answer(rng, "_services._dns-sd._udp.local", 12, 320),
    "ws_discovery": lambda rng: (
        b'<?xml version="1.0" encoding="UTF-8"?><SOAP-ENV:Envelope ' + rng.randbytes(600)
    ),
    "coap": lambda rng: b"\x64\x45" + rng.randbytes(6) + b"\xff</.well-known/core>;" + rng.randbytes(500),
    "steam": lambda rng: b"\xff\xff\xff\xffI\x11" + rng.randbytes(rng.randrange(80, 300)),
    "quake": lambda rng: (
        b"\xff\xff\xff\xffstatusResponse\n\\sv_hostname\\" + rng.randbytes(rng.randrange(400, 1200))
    ),
    "sip": lambda rng: (
        b"SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP " + rng.randbytes(4).hex().encode() + b"\r\n" * 150
    ),
    "isakmp": lambda rng: rng.randbytes(16) + b"\x01\x10\x02\0" + rng.randbytes(80),
    "bacnet": lambda rng: b"\x81\x0a\0\x40\x01\0" + rng.randbytes(58),
    "dvr_dhcpdiscover": lambda rng: (
        b'{"mac":"' + rng.randbytes(6).hex().encode() + b'","method":"client.notify"' * 20
    ),
    "ubiquiti": lambda rng: b"\x01\0\0\x9a\x02\0\x0a" + rng.randbytes(147),
    "arms": lambda rng: b"\0\x01\x03\xea" + rng.randbytes(1000),
    "l2tp": lambda rng: b"\xc8\x02\0\x60" + rng.randbytes(90),
    "openvpn": lambda rng: b"\x40" + rng.randbytes(13),
    "plex": lambda rng: (
        b"HTTP/1.0 200 OK\r\nContent-Type: plex/media-server\r\nName: " + rng.randbytes(20).hex().encode()
    ),
    "bittorrent": lambda rng: (
        b"d1:rd2:id20:" + rng.randbytes(20) + b"5:nodes208:" + rng.randbytes(208) + b"e"
    ),
    "jenkins": lambda rng: (
        b"<hudson><version>2.3</version><url>" + rng.randbytes(20).hex().encode() + b"</url></hudson>"
    ),
    "tp240": lambda rng: rng.randbytes(1100),
    "vxworks": lambda rng: rng.randbytes(4) + b"\0\0\0\x01" + rng.randbytes(200),
    "crestron": lambda rng: b"\x14\0\0\0\x01\x04\0\x03" + rng.randbytes(250),
    "dtls": lambda rng: b"\x16\xfe\xfd\0\0\0\0\0\0\0\0\0\x30" + rng.randbytes(70),
    "zeros": lambda rng: bytes(512),
    "random_512": lambda rng: rng.randbytes(512),
    "random_any": lambda rng: rng.randbytes(rng.randrange(20, 1400)),
    "random_1400": lambda rng: rng.randbytes(1400),
    "constant": lambda rng: b"\x13\x37flood-tool/2.1 hello there" + rng.randbytes(40),
    "quic": lambda rng: bytes([0x40 | rng.randrange(64)]) + rng.randbytes(rng.choice((40, 80, 300, 1200))),
    "game": lambda rng: (
        struct.pack("!I", 0x5A000000 | rng.randrange(1 << 16)) + rng.randbytes(rng.randrange(20, 160))
    ),
    "rtp": lambda rng: b"\x80\x08" + rng.randbytes(170),
    "esp": lambda rng: rng.randbytes(rng.choice((100, 200, 1000))),
    "gre_ip": lambda rng: b"\0\0\x08\0\x45\0\x02\x1c" + rng.randbytes(516),
    "echo": lambda rng: b"abcdefghijklmnopqrstuvwabcdefghi",
    "page": lambda rng: _http_request(
        rng, rng.choice(("/", "/style.css", "/app.js", "/news/1", "/logo.png"))
    ),
    "same_page": lambda rng: _http_request(rng, "/"),
    "busting": lambda rng: (
        f"GET /search?q={rng.randbytes(6).hex()} HTTP/1.1\r\nHost: v\r\nUser-Agent: x\r\n\r\n".encode()
    ),
    "hello": client_hello,
    "random_64": lambda rng: rng.randbytes(64),
    "quic_initial": lambda rng: (
        bytes([0xC0 | rng.randrange(48)])
        + b"\0\0\0\x01\x08"
        + rng.randbytes(8)
        + b"\x08"
        + rng.randbytes(1180)
    ),
    "a2s_query": lambda rng: b"\xff\xff\xff\xffTSource Engine Query\0",
    "ntp_question": lambda rng: b"\x23\0\x06\x20" + bytes(36) + rng.randbytes(8),
    "bittorrent_question": lambda rng: (
        b"d1:ad2:id20:"
        + rng.randbytes(20)
        + b"9:info_hash20:"
        + rng.randbytes(20)
        + b"e1:q9:get_peers1:y1:qe"
    ),
    "snmp_small": lambda rng: b"\x30\x50\x02\x01\x01\x04\x06public\xa2\x43" + rng.randbytes(67),
    "blank": lambda rng: b"X" * 900,
}


def payload(spec: str) -> Payload:
    """Return a builder: a name above, or one with arguments (`answer NAME TYPE SIZE`, `query NAME TYPE`)."""
    words = spec.split()
    if words[0] == "answer":
        return lambda rng: dns_answer(rng, words[1], int(words[2]), int(words[3]))
    if words[0] == "query":
        return lambda rng: dns_query(rng, words[1], int(words[2]))
    if words[0] == "random_query":
        letters = "abcdefghijklmnopqrstuvwxyz0123456789"
        return lambda rng: dns_query(
            rng, "".join(rng.choices(letters, k=rng.randrange(8, 16))) + "." + words[1]
        )
    if words[0] == "many_queries":
        return lambda rng: dns_query(
            rng, f"{rng.choice(_WORDS)}.{rng.choice(_WORDS)}.example", rng.choice((1, 28, 15))
        )
    if words[0] == "many_answers":
        return lambda rng: dns_answer(
            rng, f"{rng.choice(_WORDS)}.{rng.choice(_WORDS)}.com", 1, rng.randrange(60, 300)
        )
    return _wireguard() if words[0] == "wireguard" else _PLAIN[words[0]]


def _wireguard() -> Payload:
    number = count()
    return lambda rng: (
        b"\x04\0\0\0\x11\x22\x33\x44"
        + struct.pack("<Q", next(number))
        + rng.randbytes(rng.choice((96, 160, 1424, 1424)))
    )


_WORDS = [
    "www",
    "mail",
    "shop",
    "api",
    "cdn",
    "static",
    "images",
    "login",
    "news",
    "blog",
    "forum",
    "docs",
    "help",
    "support",
    "status",
    "dev",
    "test",
    "stage",
    "beta",
    "app",
    "video",
    "music",
    "photos",
    "maps",
    "travel",
    "sport",
    "games",
    "books",
    "food",
    "garden",
    "house",
    "city",
    "river",
    "forest",
    "ocean",
    "cloud",
    "data",
    "store",
]
