"""fwtop match: drop packets by bytes in their payload."""

from __future__ import annotations

import argparse

from fwtop.cli.rules.mitigation import add_rule_options, carry_out, port, protocol
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule
from fwtop.model.text import dns_name_text
from fwtop.model.traffic.dns import type_number, wire_name
from fwtop.rules.words import with_summary

HELP = "Drop packets whose payload contains a text, hex bytes, or a DNS name in wire format."
EXAMPLE = "fwtop match --dns attack.example.com --proto udp --dport 53 --yes"
_MAX_BYTES = 128


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--string", metavar="TEXT", help="this text, as UTF-8")
    what.add_argument("--hex", metavar="HEX", help="these bytes")
    what.add_argument("--dns", metavar="NAME", help="this DNS name, in wire format")
    parser.add_argument("--type", type=_type, metavar="T", help="with --dns: only this query type: A, ANY, …")
    parser.add_argument("--mask", metavar="HEX", help="with --hex: compare only the bits set in this mask")
    parser.add_argument("--offset", type=_offset, metavar="N", help="only at this payload offset")
    parser.add_argument("--proto", type=protocol, metavar="P", help="tcp, udp, … or a number")
    parser.add_argument("--dport", type=port, metavar="N", help="destination port")
    parser.add_argument(
        "--via", choices=("string", "xdp", "tc"), default="string", help="where to drop (default string)"
    )
    add_rule_options(parser)


def run(args: argparse.Namespace) -> int:
    """Install the match."""
    return carry_out(args, [rule_of(args)])


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule; raises FwtopError (code 2)."""
    payload = _payload(args)
    match = Match(family=args.family, protocol=args.proto, dport=args.dport, payload=(payload,))
    return with_summary(Rule("", Kind(args.via), match, "", args.ttl, created_by="cli"))


def _payload(args: argparse.Namespace) -> PayloadMatch:
    if (args.type is not None and args.dns is None) or (args.mask is not None and args.hex is None):
        raise FwtopError("--type requires --dns, and --mask requires --hex; nothing was changed", 2)
    if args.dns is not None:
        labels = dns_labels(args.dns)
        asked = args.type.to_bytes(2, "big") if args.type is not None else b""
        return _checked(PayloadMatch(wire_name(labels) + asked, args.offset, dns_name=dns_name_text(labels)))
    if args.string is not None:
        return _checked(PayloadMatch(args.string.encode("utf-8", "surrogateescape"), args.offset))
    mask = _hex(args.mask) if args.mask is not None else None
    return _checked(PayloadMatch(_hex(args.hex), args.offset, mask))


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raise FwtopError(f"{text[:40]!r} is not hex; nothing was changed", 2) from None


def _checked(payload: PayloadMatch) -> PayloadMatch:
    if not 1 <= len(payload.data) <= _MAX_BYTES:
        raise FwtopError(
            f"a match needs 1 to {_MAX_BYTES} bytes, not {len(payload.data)}; nothing was changed", 2
        )
    if payload.mask is None:
        return payload
    if len(payload.mask) != len(payload.data) or not any(payload.mask):
        raise FwtopError("a mask must be as long as the bytes and not all zero; nothing was changed", 2)
    if payload.offset is None:
        raise FwtopError("a mask needs --offset; nothing was changed", 2)
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


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a byte offset from 0 to 65535")
    return int(text)


def _type(text: str) -> int:
    try:
        return type_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
