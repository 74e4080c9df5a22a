"""What a login by SSH sends, from the SYN to the first encrypted packets, as common clients send it.

Header fields of the first segments tell systems apart: TTL, window and options of Linux, Windows 10 and 11,
macOS, FreeBSD and OpenBSD as they come on Ethernet, through PPPoE and through tunnels. The text of the
protocol is that of OpenSSH and PuTTY (RFC 4253, 4.2 and 7.1); the clients of guessing bots (Go, libssh,
paramiko) are left out on purpose, as their banners are what one blocks. What differs from one segment to the
next is left open.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.rule import Range
from fwtop.model.traffic.protocols import TCP

SYN, ACK, PUSH, ECN = 0x02, 0x10, 0x18, 0xC0
SYN_ACK = SYN | ACK
_EPHEMERAL = 40_000  # a port of this host's own connections
_SEGMENT_SIZES = {4: (1460, 1452, 1420, 1400, 1380, 1360), 6: (1440, 1432, 1400, 1380, 1360)}
_STAMPS: Open = (b"\1\1\x08\x0a", 8)
_PACKAGED = (
    "OpenSSH_8.4p1 Debian-5+deb11u3", "OpenSSH_9.2p1 Debian-2+deb12u6", "OpenSSH_10.0p2 Debian-5",
    "OpenSSH_8.2p1 Ubuntu-4ubuntu0.11", "OpenSSH_8.9p1 Ubuntu-3ubuntu0.10",
    "OpenSSH_9.6p1 Ubuntu-3ubuntu13.5",
)  # fmt: skip
_WINDOWS = tuple(f"OpenSSH_for_Windows_{version}" for version in ("7.7", "8.1", "8.6", "9.5"))
_PUTTY = tuple(f"PuTTY_Release_0.{version}" for version in range(70, 84))
# RFC 4253, 7.1: names as OpenSSH 9 lists them; of each list only the number of bytes and the order matter.
_NAMES = (
    b"sntrup761x25519-sha512,sntrup761x25519-sha512@openssh.com,curve25519-sha256,"
    b"curve25519-sha256@libssh.org,ecdh-sha2-nistp256,ecdh-sha2-nistp384,ecdh-sha2-nistp521,"
    b"diffie-hellman-group-exchange-sha256,diffie-hellman-group16-sha512,diffie-hellman-group18-sha512,"
    b"diffie-hellman-group14-sha256,ext-info-c,kex-strict-c-v00@openssh.com",
    b"ssh-ed25519-cert-v01@openssh.com,ecdsa-sha2-nistp256-cert-v01@openssh.com,"
    b"ecdsa-sha2-nistp384-cert-v01@openssh.com,ecdsa-sha2-nistp521-cert-v01@openssh.com,"
    b"sk-ssh-ed25519-cert-v01@openssh.com,sk-ecdsa-sha2-nistp256-cert-v01@openssh.com,"
    b"rsa-sha2-512-cert-v01@openssh.com,rsa-sha2-256-cert-v01@openssh.com,ssh-ed25519,ecdsa-sha2-nistp256,"
    b"ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,sk-ssh-ed25519@openssh.com,sk-ecdsa-sha2-nistp256@openssh.com,"
    b"rsa-sha2-512,rsa-sha2-256",
    *2 * (b"chacha20-poly1305@openssh.com,aes128-ctr,aes192-ctr,aes256-ctr,aes128-gcm@openssh.com,"
          b"aes256-gcm@openssh.com",),
    *2 * (b"umac-64-etm@openssh.com,umac-128-etm@openssh.com,hmac-sha2-256-etm@openssh.com,"
          b"hmac-sha2-512-etm@openssh.com,hmac-sha1-etm@openssh.com,umac-64@openssh.com,umac-128@openssh.com,"
          b"hmac-sha2-256,hmac-sha2-512,hmac-sha1",),
    *2 * (b"none,zlib@openssh.com,zlib",), b"", b"",
)  # fmt: skip
_BLOCK, _LEAST_PADDING = 8, 4
_KEYS = (32, 1190, 1216)  # bytes: X25519; with sntrup761; with ML-KEM-768
_ENCRYPTED = (44, 60, 84, 148, 372, 112, 36, 500, 644, 52, 68, 76, 100, 132, 580, 628)  # of user and channel
_COUNTED_ENCRYPTED = 7  # of a login with one key, and its terminal
_IP_HEADER = {4: 20, 6: 40}
_TCP_HEADER = 20
_MAX_HOPS = 30


class _System(Struct, frozen=True):
    """How a system's TCP begins, and what its clients say."""

    name: str
    ttl: int
    window: int  # of the SYN; of whole segments if `in_segments`
    later: tuple[Range, ...]  # windows of what follows, with nothing in the buffer
    before: bytes  # options of the SYN around the segment size
    options: Open
    banners: tuple[str, ...]
    stamped: bool = True
    in_segments: bool = False
    ip_id: int | None = None
    flags: tuple[int, ...] = (SYN,)

    def syns(self, family: int) -> Iterator[tuple[int, int, Open]]:
        """Yield flags, window and options of its SYNs."""
        for flags in self.flags:
            for size in _SEGMENT_SIZES[family]:
                window = self.window // size * size if self.in_segments else self.window
                announced = b"\2\4" + size.to_bytes(2, "big") + self.before
                yield flags, window, (announced, *self.options)


def _versions(suffix: str = "") -> tuple[str, ...]:
    numbers = [f"{major}.{minor}" for major in (7, 8, 9) for minor in range(10)] + ["10.0", "10.1", "10.2"]
    return tuple(f"OpenSSH_{number}{suffix}" for number in numbers)


_SYSTEMS = (
    _System("Linux", 64, 65_535, (Range(501, 512),), b"\4\2\x08\x0a", (8, b"\1\3\3\7"),
            _PACKAGED + _versions("p1"), in_segments=True),
    _System("Windows", 128, 65_535, (Range(255, 256), Range(513, 513), Range(1023, 1026), Range(8191, 8212)),
            b"\1\3\3\x08\1\1\4\2", (), _WINDOWS + _PUTTY, stamped=False, in_segments=True),
    _System("Windows", 128, 65_535, (Range(255, 256), Range(1023, 1026)), b"\1\3\3\x08\1\1\4\2", (),
            _WINDOWS, stamped=False),
    _System("macOS", 64, 65_535, (Range(2048, 2070),), b"\1\3\3\6\1\1\x08\x0a", (8, b"\4\2\0\0"),
            _versions(), ip_id=0, flags=(SYN, SYN | ECN)),
    _System("BSD", 64, 65_535, (Range(1023, 1030),), b"\1\3\3\6\4\2\x08\x0a", (8,),
            (*_versions(), "OpenSSH_9.6 FreeBSD-20240104"), ip_id=0),
    _System("BSD", 64, 16_384, (Range(255, 257),), b"\1\1\4\2\1\3\3\6\1\1\x08\x0a", (8,), _versions()),
)  # fmt: skip
SYSTEMS = tuple(dict.fromkeys(system.name for system in _SYSTEMS))


def _message(number: int, body: Open) -> Open:
    """Return an unencrypted message of the protocol (RFC 4253, 6)."""
    size = 6 + length_of(body)
    padding = _LEAST_PADDING + -(size + _LEAST_PADDING) % _BLOCK
    head = (size - 4 + padding).to_bytes(4, "big") + bytes((padding, number))
    return (head, *body, padding)


def _exchange() -> Open:
    """Return the message that lists what the client can do."""
    lists = b"".join(len(names).to_bytes(4, "big") + names for names in _NAMES)
    return _message(20, (16, lists, bytes(5)))


def login(port: int, family: int) -> tuple[tuple[Segment, ...], ...]:
    """Return what each kind of client sends to log in at a port, each in order."""
    return tuple(tuple(_of_system(system, port, family)) for system in _SYSTEMS)


def _of_system(system: _System, port: int, family: int) -> Iterator[Segment]:
    first = Segment(system.name, "SYN", family, port, SYN, system.ttl, (), (), ip_id=system.ip_id)
    for number, (flags, window, options) in enumerate(system.syns(family)):
        yield replace(first, flags=flags, windows=(Range(window, window),), options=options, other=number > 0)
    stamps = _STAMPS if system.stamped else ()
    later = replace(first, step="ACK", flags=ACK, windows=system.later, options=stamps)
    for _ in range(4):
        yield later
    said = replace(later, flags=PUSH)
    for number, banner in enumerate(system.banners):
        text = f"SSH-2.0-{banner}\r\n".encode()
        yield replace(said, step="banner", payload=(text,), other=number > 0)
    exchange, size = _exchange(), _SEGMENT_SIZES[family][0] - length_of(later.options)
    end = length_of(exchange)
    # On the wire in two segments, for netfilter often as one that the kernel put together.
    for low, high, other in ((0, size, False), (size, end, False), (0, end, True)):
        yield replace(said, step="key exchange", payload=cut(exchange, low, high), other=other)
    for number, key in enumerate(_KEYS):
        yield replace(
            said, step="key exchange", payload=_message(30, (key.to_bytes(4, "big"), key)), other=number > 0
        )
    yield replace(said, step="key exchange", payload=_message(21, ()))
    for number, size in enumerate(_ENCRYPTED):
        yield replace(said, step="login", payload=(size,), other=number >= _COUNTED_ENCRYPTED)


def answers(family: int) -> tuple[Segment, ...]:
    """Return what answers a connection that this host opens; the answering port is not known."""
    size = (1460 if family == 4 else 1440).to_bytes(2, "big")
    linux: Open = (b"\2\4" + size + b"\4\2\x08\x0a", 8, b"\1\3\3\7")
    windows: Open = (b"\2\4" + size + b"\1\3\3\x08\1\1\4\2",)
    window = 65_160 if family == 4 else 64_260
    about = Segment(
        "Linux", "SYN+ACK", family, _EPHEMERAL, SYN_ACK, 64, (Range(window, window),), linux, ip_id=0
    )
    other = replace(about, system="Windows", first_ttl=128, windows=(Range(65_535, 65_535),), options=windows)
    return about, replace(other, ip_id=None)


Open = tuple[bytes | int, ...]  # known bytes, and numbers of bytes that may be anything


def length_of(parts: Open) -> int:
    """Return the number of bytes."""
    return sum(part if isinstance(part, int) else len(part) for part in parts)


def flat(parts: Open) -> tuple[bytes, bytes]:
    """Return the bytes and a mask of those that are known."""
    data = b"".join(bytes(part) for part in parts)
    known = b"".join(bytes(part) if isinstance(part, int) else b"\xff" * len(part) for part in parts)
    return data, known


def cut(parts: Open, first: int, end: int) -> Open:
    """Return the bytes from one place to another."""
    found: list[bytes | int] = []
    at = 0
    for part in parts:
        size = part if isinstance(part, int) else len(part)
        low, high = max(first - at, 0), min(end - at, size)
        if low < high:
            found.append(high - low if isinstance(part, int) else part[low:high])
        at += size
    return tuple(found)


class Segment(Struct, frozen=True):
    """One segment to a port, of a client whose operating system, distance and own port are not known."""

    system: str
    step: str  # in words: SYN, banner
    family: int
    dport: int
    flags: int
    first_ttl: int
    windows: tuple[Range, ...]
    options: Open
    payload: Open = ()
    ip_id: int | None = None  # None: anything
    sport: int | None = None  # None: any of the client's own ports
    other: bool = False  # in place of another one, so not counted beside it

    @property
    def ttls(self) -> Range:
        """The TTLs with which it may arrive."""
        return Range(self.first_ttl - _MAX_HOPS, self.first_ttl)

    @property
    def header(self) -> int:
        """The length of the TCP header, bytes."""
        return _TCP_HEADER + length_of(self.options)

    @property
    def length(self) -> int:
        """The total length of the IP packet, bytes."""
        return _IP_HEADER[self.family] + self.header + length_of(self.payload)

    @property
    def packet(self) -> Open:
        """The whole packet from the IP header on."""
        window: bytes | int = 2
        if len(self.windows) == 1 and self.windows[0].low == self.windows[0].high:
            window = self.windows[0].low.to_bytes(2, "big")
        sport: bytes | int = 2 if self.sport is None else self.sport.to_bytes(2, "big")
        offset = bytes((self.header // 4 << 4, self.flags))
        tcp: Open = (sport, self.dport.to_bytes(2, "big"), 8, offset, window, 2, b"\0\0", *self.options)
        return (*self._ip_header(), *tcp, *self.payload)

    def _ip_header(self) -> Open:
        if self.family == 6:
            size = (self.length - _IP_HEADER[6]).to_bytes(2, "big")
            return (b"\x60", 3, size + bytes((TCP,)), 1, 16, 16)
        head = b"\x45\0" + self.length.to_bytes(2, "big")
        serial: bytes | int = 2 if self.ip_id is None else self.ip_id.to_bytes(2, "big")
        return (head, serial, b"\x40\0", 1, bytes((TCP,)), 2, 4, 4)
