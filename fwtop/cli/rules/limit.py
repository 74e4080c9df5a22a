"""fwtop limit: limit the rate of each source prefix, or the connections that it has open."""

from __future__ import annotations

import argparse

from msgspec.structs import replace

from fwtop.cli.options import flag, option, read_as, whole
from fwtop.cli.rules.mitigation import add_field, add_rule_options, match_of
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
        "--per", type=_length, required=True, metavar="BITS", help="source prefix length, for example 24"
    )
    default = f"the same for IPv6 (default {options.DEFAULT_PREFIX_V6})"
    option(parser, "--per6", "BITS", default, _length)
    what = parser.add_mutually_exclusive_group(required=True)
    option(what, "--rate", "RATE", "1000/s, 30/m, or bytes: 2MB/s", read_as(options.rate))
    option(
        what,
        "--connections",
        "N",
        "TCP connections that a prefix may have open",
        whole("a number of connections above 0", 1, 10**6),
    )
    flag(
        parser,
        "--close-open",
        "with --connections: also close open connections above the limit, longest idle first",
    )
    option(
        parser,
        "--burst",
        "N",
        "burst in packets or bytes (default: one second of the rate)",
        whole("a number of packets or bytes above 0", 1, 10**9),
    )
    flag(parser, "--by-port", "count each destination port separately")
    parser.add_argument("--via", choices=filters("limit"), help="where (default hashlimit)")
    add_rule_options(parser)


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


def _length(text: str) -> int:
    return whole("a prefix length from 1 to 128", 1, 128)(text.removeprefix("/"))
