"""fwtop limit: let each source prefix send so much a second, drop the rest."""

from __future__ import annotations

import argparse
import re

from fwtop.cli.mitigation import add_rule_options, carry_out, port, protocol
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from fwtop.model.wording import summarised

NAME = "limit"
HELP = "Limit what each source prefix may send; what is above is dropped."
EXAMPLE = "fwtop limit --proto udp --dport 53 --per 24 --rate 1000/s --yes"
_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60}
_BYTES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}
_DEFAULT_PREFIX_V6 = 64


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--proto", type=protocol, metavar="P", help="tcp, udp, icmp, … or a number")
    parser.add_argument("--dport", type=port, metavar="N", help="destination port")
    parser.add_argument(
        "--per", type=_length, required=True, metavar="BITS", help="length of the source prefix: 24"
    )
    parser.add_argument(
        "--per6",
        type=_length,
        default=None,
        metavar="BITS",
        help=f"the same for IPv6 (default {_DEFAULT_PREFIX_V6})",
    )
    parser.add_argument(
        "--rate", type=rate, required=True, metavar="RATE", help="1000/s, 30/m, or bytes: 2MB/s"
    )
    parser.add_argument(
        "--burst", type=_burst, default=None, metavar="N", help="at once (default: a second's worth)"
    )
    parser.add_argument("--by-port", action="store_true", help="count each destination port for itself")
    parser.add_argument(
        "--via", choices=("hashlimit", "xdp", "tc"), default="hashlimit", help="where (default hashlimit)"
    )
    add_rule_options(parser)


def run(args: argparse.Namespace) -> int:
    """Install the limit."""
    return carry_out(args, [rule_of(args)])


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the rule that was asked for; raises FwtopError (code 2)."""
    per_second, in_bytes = args.rate
    v4, v6 = _lengths(args)
    limit = RateLimit(per_second, args.burst or per_second, v4, v6, in_bytes, args.by_port)
    match = Match(family=args.family, protocol=args.proto, dport=args.dport)
    rule = Rule("", Kind(args.via), match, "", args.ttl, created_by="cli", limit=limit)
    return summarised(rule)


def rate(text: str) -> tuple[int, bool]:
    """Read a rate; returns packets or bytes a second, and whether it counts bytes."""
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(b?)/(s|sec|second|m|min|minute)", text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a rate like 1000/s, 600/m or 2MB/s")
    number, scale, byte, unit = found.groups()
    per_second = int(number) * _BYTES[scale.lower()] // _UNITS[unit.lower()]
    if not 0 < per_second < 1 << 32:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} must be at least one a second and below 2^32")
    return per_second, bool(byte)


def _lengths(args: argparse.Namespace) -> tuple[int, int]:
    if args.family == 6:
        return 32, args.per6 or args.per
    if args.per > 32:
        raise FwtopError("--per is at most 32 for IPv4; --per6 is IPv6's; nothing was changed", 2)
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
