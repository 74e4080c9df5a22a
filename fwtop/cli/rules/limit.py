"""fwtop limit: limit the rate of each source prefix, or the connections that it has open."""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from fwtop.cli.options import read_as
from fwtop.cli.rules.mitigation import add_field, add_rule_options, carry_out, match_of
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.rules import options
from fwtop.rules.fields import DPORT, PROTOCOL
from fwtop.rules.kinds import filters

HELP = "Limit the rate of each source prefix, or its open connections; the excess is dropped."
EXAMPLE = "fwtop limit --proto udp --dport 53 --per 24 --rate 1000/s --yes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_field(parser, PROTOCOL)
    add_field(parser, DPORT)
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
        help=f"the same for IPv6 (default {options.DEFAULT_PREFIX_V6})",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--rate", type=read_as(options.rate), metavar="RATE", help="1000/s, 30/m, or bytes: 2MB/s"
    )
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
    parser.add_argument("--via", choices=filters("limit"), default=None, help="where (default hashlimit)")
    add_rule_options(parser)


def run(args: argparse.Namespace) -> int:
    """Install the limit."""
    return carry_out(args, [rule_of(args)])


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule; raises FwtopError (code 2)."""
    if args.close_open and args.connections is None:
        raise FwtopError("--close-open needs --connections; nothing was changed", 2)
    rule = options.limited(
        match_of(args, (PROTOCOL, DPORT)),
        args.per,
        per6=args.per6,
        rate=args.rate,
        connections=args.connections,
        burst=args.burst,
        by_port=args.by_port,
        via=args.via,
    )
    return replace(rule, ttl_seconds=args.ttl, created_by="cli", close_open=args.close_open)


def _connections(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**6):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of connections above 0")
    return int(text)


def _length(text: str) -> int:
    bits = text.removeprefix("/")
    if not (bits.isascii() and bits.isdigit() and 1 <= int(bits) <= 128):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a prefix length from 1 to 128")
    return int(bits)


def _burst(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 10**9):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of packets or bytes above 0")
    return int(text)
