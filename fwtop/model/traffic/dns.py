"""DNS names and types in wire form (RFC 1035, 3.1 and 3.2.2): the bytes of payload matches."""

from __future__ import annotations

TYPES = {
    1: "A",
    2: "NS",
    5: "CNAME",
    6: "SOA",
    12: "PTR",
    15: "MX",
    16: "TXT",
    28: "AAAA",
    33: "SRV",
    43: "DS",
    46: "RRSIG",
    47: "NSEC",
    48: "DNSKEY",
    52: "TLSA",
    64: "SVCB",
    65: "HTTPS",
    99: "SPF",
    255: "ANY",
}
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
