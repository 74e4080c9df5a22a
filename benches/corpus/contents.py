"""Payloads of ordinary clients and of tools."""

from __future__ import annotations

import struct
from random import Random

from fwtop.lab.traffic.answers import dns_wire

AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/130.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 Safari/604.1",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 Version/18.1 Safari/605.1.15",
    "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 Chrome/130.0.0.0 Mobile Safari/537.36",
)
RECORD = b"\x17\x03\x03"  # of TLS, with application data
A2S_INFO = b"\xff\xff\xff\xffTSource Engine Query\0"
WORDS = (
    "www", "mail", "shop", "api", "cdn", "static", "images", "login", "news", "blog", "forum", "docs", "help",
    "status", "dev", "test", "beta", "app", "video", "music", "maps", "travel", "sport", "games", "books",
)  # fmt: skip


def http_request(path: str, agent: str, host: str = "www.shop.example", more: str = "") -> bytes:
    """Write a GET request as a browser does; `more` is what a proxy puts behind the host."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}User-Agent: {agent}\r\nAccept: text/html,*/*;q=0.8\r\n"
        "Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n\r\n"
    ).encode()


def browser(rng: Random) -> str:
    """Write a User-Agent with numbers of its own, as tools do."""
    system = rng.choice(
        ("X11; Linux x86_64", "Windows NT 10.0; Win64; x64", "Macintosh; Intel Mac OS X 10_15_7")
    )
    chrome = f"{rng.randrange(90, 131)}.0.{rng.randrange(1000, 7000)}.{rng.randrange(10, 200)}"
    return f"Mozilla/5.0 ({system}) AppleWebKit/537.36 Chrome/{chrome} Safari/537.36"


def client_hello(rng: Random, name: str) -> bytes:
    """Write the beginning of a TLS ClientHello that names the server (RFC 8446 4.1.2)."""
    host = name.encode()
    server = struct.pack("!HHHBH", 0, len(host) + 5, len(host) + 3, 0, len(host)) + host
    extensions = server + bytes.fromhex("000a00080006001d00170018002b0003020304000d0006000404030804")
    body = b"\x03\x03" + rng.randbytes(32) + b"\x20" + rng.randbytes(32)
    body += b"\0\x06\x13\x01\x13\x02\x13\x03\x01\0"
    room = 517 - 9 - len(body) - 2
    body += struct.pack("!H", room) + extensions.ljust(room, b"\0")
    return b"\x16\x03\x01" + struct.pack("!H", len(body) + 4) + b"\x01" + len(body).to_bytes(3) + body


def dns_question(rng: Random, name: str, kind: int = 1) -> bytes:
    """Write a DNS query with EDNS (RFC 1035, RFC 6891)."""
    head = rng.randbytes(2) + struct.pack("!HHHHH", 0x0100, 1, 0, 0, 1)
    return head + dns_wire(name) + struct.pack("!HH", kind, 1) + b"\0\0\x29\x04\xd0\0\0\0\0\0\0"


def dns_answer(rng: Random, name: str) -> bytes:
    """Write a DNS answer with a few addresses."""
    count = rng.randrange(1, 5)
    head = rng.randbytes(2) + struct.pack("!HHHHH", 0x8180, 1, count, 0, 0)
    answers = b"".join(struct.pack("!HHHIH", 0xC00C, 1, 1, 60, 4) + rng.randbytes(4) for _ in range(count))
    return head + dns_wire(name) + struct.pack("!HH", 1, 1) + answers


def lived_in_name(rng: Random) -> str:
    """Draw a name that people look up; some are much more popular than others."""
    site = min(int(rng.paretovariate(0.8)), 400)
    return f"{WORDS[min(int(rng.paretovariate(0.9)) - 1, len(WORDS) - 1)]}.site{site}.example"


def drawn_word(rng: Random, letters: int) -> str:
    """Draw random letters and digits."""
    return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=letters))
