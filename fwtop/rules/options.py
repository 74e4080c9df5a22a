"""What the options of a rule mean: the same on the command line and in the tables of a policy.

What reads the text of an option raises ValueError; what puts options together raises FwtopError (code 2).
"""

from __future__ import annotations

import re

from fwtop.model.errors import FwtopError
from fwtop.model.rule import ConnectionLimit, Kind, Match, PayloadMatch, RateLimit, Rule
from fwtop.model.text import dns_name_text
from fwtop.model.traffic.protocols import TCP, UDP, wire_name
from fwtop.rules.words import with_summary

_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60}
_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}
_MAX_PAYLOAD_BYTES = 128
_SERVICES = {"tcp": TCP, "udp": UDP}
DEFAULT_PREFIX_V6 = 64


def service(text: str) -> tuple[int, int]:
    """Read 443/tcp as port and protocol number."""
    port, _, name = text.partition("/")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535) or name.lower() not in _SERVICES:
        raise ValueError(f"{text[:40]!r} is not a service like 443/tcp or 53/udp")
    return int(port), _SERVICES[name.lower()]


def rate(text: str) -> tuple[int, bool]:
    """Read a rate: packets or bytes per second, and whether it counts bytes."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(b?)/(s|sec|second|m|min|minute)", text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text[:40]!r} is not a rate like 1000/s, 600/m or 2MB/s")
    number, scale, byte, unit = found.groups()
    per_second = int(number) * _BYTES[scale.lower()] // _UNITS[unit.lower()]
    if not 0 < per_second < 1 << 32:
        raise ValueError(f"{text[:40]!r} must be at least one per second and below 2^32")
    return per_second, bool(byte)


def limited(
    match: Match,
    per: int,
    *,
    per6: int | None = None,
    rate: tuple[int, bool] | None = None,
    connections: int | None = None,
    burst: int | None = None,
    by_port: bool = False,
    via: str | None = None,
) -> Rule:
    """Return the rule that limits each source prefix: its rate, or the connections that it has open."""
    if match.family != 6 and per > 32:
        raise FwtopError("--per is at most 32 (IPv4); use --per6 for IPv6; nothing was changed", 2)
    v4, v6 = (32, per6 or per) if match.family == 6 else (per, per6 or DEFAULT_PREFIX_V6)
    if rate is not None and connections is None:
        limit = RateLimit(rate[0], burst or rate[0], v4, v6, rate[1], by_port)
        return with_summary(Rule("", Kind(via or "hashlimit"), match, "", 0, limit=limit))
    if connections is None or rate is not None:
        raise FwtopError("a limit needs either a rate or connections; nothing was changed", 2)
    if match.protocol not in (None, TCP) or burst or by_port or via:
        line = "--connections is for TCP, and without --burst, --by-port and --via; nothing was changed"
        raise FwtopError(line, 2)
    match = Match(family=match.family, protocol=TCP, dport=match.dport)
    most = ConnectionLimit(connections, v4, v6)
    return with_summary(Rule("", Kind.CONNLIMIT, match, "", 0, connections=most))


def payload(
    *,
    string: str | None = None,
    hex: str | None = None,
    dns: str | None = None,
    type: int | None = None,
    mask: str | None = None,
    offset: int | None = None,
) -> PayloadMatch:
    """Return the bytes that are looked for in a payload."""
    if sum(given is not None for given in (string, hex, dns)) != 1:
        raise FwtopError("a match needs one of string, hex and dns; nothing was changed", 2)
    if (type is not None and dns is None) or (mask is not None and hex is None):
        raise FwtopError("--type requires --dns, and --mask requires --hex; nothing was changed", 2)
    if string is not None:
        return _checked(PayloadMatch(string.encode("utf-8", "surrogateescape"), offset))
    if hex is not None:
        return _checked(PayloadMatch(_bytes(hex), offset, _bytes(mask) if mask is not None else None))
    labels = dns_labels(dns or "")
    asked = type.to_bytes(2, "big") if type is not None else b""
    return _checked(PayloadMatch(wire_name(labels) + asked, offset, dns_name=dns_name_text(labels)))


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise FwtopError(f"{text[:40]!r} is not hex; nothing was changed", 2) from None


def _checked(found: PayloadMatch) -> PayloadMatch:
    if not 1 <= len(found.data) <= _MAX_PAYLOAD_BYTES:
        line = f"a match needs 1 to {_MAX_PAYLOAD_BYTES} bytes, not {len(found.data)}; nothing was changed"
        raise FwtopError(line, 2)
    if found.mask is None:
        return found
    if len(found.mask) != len(found.data) or not any(found.mask):
        raise FwtopError("a mask must be as long as the bytes and not all zero; nothing was changed", 2)
    if found.offset is None:
        raise FwtopError("a mask needs --offset; nothing was changed", 2)
    return found


def dns_labels(name: str) -> list[bytes]:
    """Split a name into labels (RFC 1035 3.1, IDNA for other scripts)."""
    labels = []
    for label in name.rstrip(".").split("."):
        try:
            data = label.encode("ascii") if label.isascii() else label.encode("idna")
        except UnicodeError:
            data = b""
        if not 1 <= len(data) <= 63:
            raise FwtopError(
                f"{name[:60]!r} is not a DNS name (labels of 1 to 63 bytes); nothing was changed", 2
            )
        labels.append(data)
    return labels
