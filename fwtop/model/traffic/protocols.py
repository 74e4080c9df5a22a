"""Names of IP protocols, TCP flags and DNS types, for display and as options, and DNS names in wire form."""

from __future__ import annotations

ICMP, IGMP, TCP, UDP, GRE, ESP, ICMPV6 = 1, 2, 6, 17, 47, 50, 58  # IANA's protocol numbers
NUMBERS = {
    "icmp": ICMP,
    "igmp": IGMP,
    "ipip": 4,
    "tcp": TCP,
    "udp": UDP,
    "dccp": 33,
    "6in4": 41,
    "gre": GRE,
    "esp": ESP,
    "ah": 51,
    "icmpv6": ICMPV6,
    "ospf": 89,
    "pim": 103,
    "vrrp": 112,
    "sctp": 132,
    "udplite": 136,
}
NAMES = {number: name for name, number in NUMBERS.items()}
WITH_PORTS = frozenset({TCP, UDP, 33, 132, 136})  # and DCCP, SCTP, UDP-Lite
TCP_FLAGS = {"FIN": 1, "SYN": 2, "RST": 4, "PSH": 8, "ACK": 16, "URG": 32, "ECE": 64, "CWR": 128}
_CLASSIC = 63  # the six flags of RFC 793
_SPOKEN = {ICMP: "ICMP", TCP: "TCP", UDP: "UDP", GRE: "GRE", ESP: "ESP", ICMPV6: "ICMPv6", 132: "SCTP"}


def protocol_name(number: int) -> str:
    """Return a protocol's name as an option takes it, or its number."""
    return NAMES.get(number, str(number))


def spoken_protocol(number: int) -> str:
    """Return a protocol as written in a sentence: TCP, ICMPv6, protocol 99."""
    return _SPOKEN.get(number, f"protocol {number}")


def flag_names(flags: int, separator: str = "+") -> str:
    """Join the names of the set flags."""
    return separator.join(name for name, bit in TCP_FLAGS.items() if flags & bit)


def flags_option(mask: int, value: int) -> str:
    """Format flags as --tcp-flags takes them: syn,ack/syn."""
    first = "all" if mask == _CLASSIC else flag_names(mask, ",").lower() or "none"
    return f"{first}/{flag_names(value, ',').lower() or 'none'}"


def read_flags(text: str) -> tuple[int, int]:
    """Parse MASK/FLAGS, or FLAGS for both, names or numbers; returns mask and value, raises ValueError."""
    mask, slash, value = text.partition("/")
    numbers = (_read_bits(mask), _read_bits(value if slash else mask))
    if numbers[1] & ~numbers[0]:
        raise ValueError(f"{text[:40]!r}: the mask must contain every flag")
    return numbers


def _read_bits(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= 255:
        return int(text)
    words = {**{name.lower(): bit for name, bit in TCP_FLAGS.items()}, "none": 0, "all": _CLASSIC}
    total = 0
    for name in text.lower().split(","):
        if name not in words:
            raise ValueError(f"{name[:20]!r} is not a TCP flag: {', '.join(words)}")
        total |= words[name]
    return total


def flags_text(mask: int, value: int) -> str:
    """Describe a flag match, as it follows "with": "SYN but no ACK", "only SYN", "no flags"."""
    wanted, unwanted = flag_names(value), flag_names(mask & ~value, "/")
    if mask & _CLASSIC == _CLASSIC:
        return f"only {wanted}" if wanted else "no flags"
    return " but ".join([wanted] * bool(wanted) + [f"no {unwanted}"] * bool(unwanted))


def segments_text(flags: int) -> str:
    """Name the segments that have these flags: SYNs, SYN+ACKs, 6-flag TCP."""
    return f"{flag_names(flags)}s" if flags.bit_count() < 4 else f"{flags.bit_count()}-flag TCP"


TYPES = {
    1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA", 33: "SRV", 43: "DS",
    46: "RRSIG", 47: "NSEC", 48: "DNSKEY", 52: "TLSA", 64: "SVCB", 65: "HTTPS", 99: "SPF", 255: "ANY",
}  # fmt: skip
_NUMBERS = {name: number for number, name in TYPES.items()}


def wire_name(labels: list[bytes]) -> bytes:
    """Encode labels as in a message: each preceded by its length, then the root's zero."""
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def split_wire(data: bytes) -> tuple[list[bytes], bytes]:
    """Split bytes into the labels of the name they start with and the rest; a name may be truncated."""
    labels, at = [], 0
    while at < len(data) and 0 < data[at] < 64:
        labels.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    return labels, data[at + 1 :]


def type_text(number: int) -> str:
    """Return a type's name, or the form of RFC 3597: TYPE4711."""
    return TYPES.get(number, f"TYPE{number}")


def type_number(text: str) -> int:
    """Parse a type: its name, TYPE4711 or a number; raises ValueError with a message for the user."""
    upper = text.upper()
    digits = upper.removeprefix("TYPE")
    if upper not in _NUMBERS and not (digits.isascii() and digits.isdigit() and int(digits) <= 65535):
        raise ValueError(f"{text[:20]!r} is not a DNS type such as A, ANY or TYPE46")
    return _NUMBERS[upper] if upper in _NUMBERS else int(digits)
