"""fwtop drop: drop packets by header fields in XDP, at tc ingress or at netdev ingress."""

from __future__ import annotations

import argparse

from fwtop.cli.rules.mitigation import add_field, add_rule_options, match_of, prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule
from fwtop.rules import fields
from fwtop.rules.kinds import filters
from fwtop.rules.words import with_summary

HELP = "Drop packets by header fields: in the driver (XDP), at tc ingress, or at nftables' netdev ingress."
EXAMPLE = "fwtop drop --proto udp --sport 123 --length 400:500 --via xdp --yes"

_FIELDS = (
    *(fields.PROTOCOL, *fields.PORTS, fields.LENGTH, fields.TTL, fields.TCP_FLAGS, fields.IP_ID),
    *(*fields.SEGMENT, fields.ICMP_TYPE, fields.FRAGMENT),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_field(parser, fields.PROTOCOL)
    parser.add_argument(
        "--from", dest="sources", action="append", default=[], type=prefix, metavar="PREFIX",
        help="only from these sources (default: all)",
    )  # fmt: skip
    for field in _FIELDS[1:]:
        add_field(parser, field)
    parser.add_argument(
        "--via",
        choices=filters("drop"),
        required=True,
        help="where to drop: in the driver, at tc ingress, or at nftables' netdev ingress",
    )
    add_rule_options(parser)


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule; raises FwtopError (code 2)."""
    match = match_of(args, _FIELDS, sources=tuple(args.sources))
    if match == Match(match.sources, family=args.family):
        raise FwtopError(
            "a drop needs at least one field, or it would drop everything (of a source: fwtop block); "
            "nothing was changed",
            2,
        )
    return with_summary(Rule("", Kind(args.via), match, "", args.ttl, created_by="cli"))
