"""fwtop limit: limit the rate of each source prefix, or the connections that it has open."""

from __future__ import annotations

import argparse
import re

from msgspec.structs import replace

from fwtop.cli.rules.mitigation import add_rule_options, carry_out, port, protocol
from fwtop.model.errors import FwtopError
from fwtop.model.rule import ConnectionLimit, Kind, Match, RateLimit, Rule
from fwtop.model.traffic.protocols import TCP
from fwtop.rules.words import with_summary

HELP = "Limit the rate of each source prefix, or its open connections; the excess is dropped."
EXAMPLE = "fwtop limit --proto udp --dport 53 --per 24 --rate 1000/s --yes"
_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60}
_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}
_DEFAULT_PREFIX_V6 = 64


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--proto", type=protocol, metavar="P", help="tcp, udp, icmp, … or a number")
    parser.add_argument("--dport", type=port, metavar="N", help="destination port")
    parser.add_argument(
        "--per",
        type=_length,
        required=True,
        metavar="BITS",
        help="source prefix length, for example 24",
    )
    parser.add_argument(
        "--per6",
        type=_length,
        default=None,
        metavar="BITS",
        help=f"the same for IPv6 (default {_DEFAULT_PREFIX_V6})",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--rate", type=rate, metavar="RATE", help="1000/s, 30/m, or bytes: 2MB/s")
    what.add_argument(
        "--connections", type=_connections, metavar="N", help="TCP connections that a prefix may have open"
    )
    parser.add_argument(
        "--close-open",
        action="store_true",
        help="with --connections: also close open connections above the limit, longest idle first",
    )
    parser.add_argument(
        "--burst",
        type=_burst,
        default=None,
        metavar="N",
        help="burst in packets or bytes (default: one second of the rate)",
    )
    parser.add_argument("--by-port", action="store_true", help="count each destination port separately")
    parser.add_argument(
        "--via", choices=("hashlimit", "xdp", "tc"), default=None, help="where (default hashlimit)"
    )
    add_rule_options(parser)


def run(args: argparse.Namespace) -> int:
    """Install the limit."""
    return carry_out(args, [rule_of(args)])


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule; raises FwtopError (code 2)."""
    v4, v6 = _lengths(args)
    if args.connections is not None:
        return _connection_limit(args, ConnectionLimit(args.connections, v4, v6))
    if args.close_open:
        raise FwtopError("--close-open needs --connections; nothing was changed", 2)
    per_second, in_bytes = args.rate
    limit = RateLimit(per_second, args.burst or per_second, v4, v6, in_bytes, args.by_port)
    match = Match(family=args.family, protocol=args.proto, dport=args.dport)
    rule = Rule("", Kind(args.via or "hashlimit"), match, "", args.ttl, created_by="cli", limit=limit)
    return with_summary(rule)


def _connection_limit(args: argparse.Namespace, limit: ConnectionLimit) -> Rule:
    if args.proto not in (None, TCP) or args.burst or args.by_port or args.via:
        line = "--connections is for TCP, and without --burst, --by-port and --via; nothing was changed"
        raise FwtopError(line, 2)
    match = Match(family=args.family, protocol=TCP, dport=args.dport)
    rule = Rule("", Kind.CONNLIMIT, match, "", args.ttl, created_by="cli")
    return with_summary(replace(rule, connections=limit, close_open=args.close_open))


def _connections(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**6):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of connections above 0")
    return int(text)


def rate(text: str) -> tuple[int, bool]:
    """Parse a rate; return packets or bytes per second, and whether it counts bytes."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(b?)/(s|sec|second|m|min|minute)", text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a rate like 1000/s, 600/m or 2MB/s")
    number, scale, byte, unit = found.groups()
    per_second = int(number) * _BYTES[scale.lower()] // _UNITS[unit.lower()]
    if not 0 < per_second < 1 << 32:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be at least one per second and below 2^32")
    return per_second, bool(byte)


def _lengths(args: argparse.Namespace) -> tuple[int, int]:
    if args.family == 6:
        return 32, args.per6 or args.per
    if args.per > 32:
        raise FwtopError("--per is at most 32 (IPv4); use --per6 for IPv6; nothing was changed", 2)
    return args.per, args.per6 or _DEFAULT_PREFIX_V6


def _length(text: str) -> int:
    bits = text.removeprefix("/")
    if not (bits.isascii() and bits.isdigit() and 1 <= int(bits) <= 128):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a prefix length from 1 to 128")
    return int(bits)


def _burst(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**9):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of packets or bytes above 0")
    return int(text)
