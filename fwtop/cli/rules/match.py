"""fwtop match: drop packets by bytes in their payload."""

from __future__ import annotations

import argparse

from fwtop.cli.options import option, read_as, whole
from fwtop.cli.rules.mitigation import add_field, add_rule_options, match_of
from fwtop.model.rule import Kind, Rule
from fwtop.model.traffic.dns import type_number
from fwtop.rules import options
from fwtop.rules.fields import DPORT, PROTOCOL
from fwtop.rules.kinds import filters
from fwtop.rules.words import with_summary

HELP = "Drop packets whose payload contains a text, hex bytes, or a DNS name in wire format."
EXAMPLE = "fwtop match --dns attack.example.com --proto udp --dport 53 --yes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    what = parser.add_mutually_exclusive_group(required=True)
    option(what, "--string", "TEXT", "this text, as UTF-8")
    option(what, "--hex", "HEX", "these bytes")
    option(what, "--dns", "NAME", "this DNS name, in wire format")
    option(parser, "--type", "T", "with --dns: only this query type: A, ANY, …", read_as(type_number))
    option(parser, "--mask", "HEX", "with --hex: compare only the bits set in this mask")
    option(
        parser,
        "--offset",
        "N",
        "only at this payload offset",
        whole("a byte offset from 0 to 65535", 0, 65535),
    )
    add_field(parser, PROTOCOL)
    add_field(parser, DPORT)
    parser.add_argument(
        "--via", choices=filters("match"), default="string", help="where to drop (default string)"
    )
    add_rule_options(parser)


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule; raises FwtopError (code 2)."""
    payload = options.payload(
        string=args.string, hex=args.hex, dns=args.dns, type=args.type, mask=args.mask, offset=args.offset
    )
    match = match_of(args, (PROTOCOL, DPORT), payload=(payload,))
    return with_summary(Rule("", Kind(args.via), match, "", args.ttl, created_by="cli"))
