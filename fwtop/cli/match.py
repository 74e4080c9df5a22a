"""fwtop match: drop packets by bytes in their payload."""

from __future__ import annotations

import argparse

from fwtop.cli.mitigation import add_rule_options, carry_out, port, protocol
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule
from fwtop.model.text import dns_name_text
from fwtop.model.wording import summarised

NAME = "match"
HELP = "Drop packets that carry these bytes: text, hex, or a DNS name as it looks on the wire."
EXAMPLE = "fwtop match --dns attack.example.com --proto udp --dport 53 --yes"
_MAX_BYTES = 128


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--string", metavar="TEXT", help="this text, as UTF-8")
    what.add_argument("--hex", metavar="HEX", help="these bytes")
    what.add_argument("--dns", metavar="NAME", help="this name in a DNS message, as it is written there")
    parser.add_argument("--offset", type=_offset, metavar="N", help="at this byte of the payload only")
    parser.add_argument("--proto", type=protocol, metavar="P", help="tcp, udp, … or a number")
    parser.add_argument("--dport", type=port, metavar="N", help="destination port")
    add_rule_options(parser)


def run(args: argparse.Namespace) -> int:
    """Install the match."""
    payload = _payload(args)
    match = Match(family=args.family, protocol=args.proto, dport=args.dport, payload=(payload,))
    return carry_out(args, [summarised(Rule("", Kind.STRING, match, "", args.ttl, created_by="cli"))])


def _payload(args: argparse.Namespace) -> PayloadMatch:
    if args.dns is not None:
        labels = dns_labels(args.dns)
        return _checked(PayloadMatch(wire_name(labels), args.offset, dns_name=dns_name_text(labels)))
    if args.string is not None:
        return _checked(PayloadMatch(args.string.encode("utf-8", "surrogateescape"), args.offset))
    try:
        data = bytes.fromhex(args.hex.removeprefix("0x"))
    except ValueError:
        raise FwtopError(f"{args.hex[:40]!r} is not hex; nothing was changed", 2) from None
    return _checked(PayloadMatch(data, args.offset))


def _checked(payload: PayloadMatch) -> PayloadMatch:
    if not 1 <= len(payload.data) <= _MAX_BYTES:
        raise FwtopError(
            f"a match takes 1 to {_MAX_BYTES} bytes, not {len(payload.data)}; nothing was changed", 2
        )
    return payload


def dns_labels(name: str) -> list[bytes]:
    """Split a name into labels (RFC 1035 3.1, IDNA for other scripts); raises FwtopError (code 2)."""
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


def wire_name(labels: list[bytes]) -> bytes:
    """Write labels as they stand in a message: each after its length, and the root's zero."""
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a byte offset from 0 to 65535")
    return int(text)
