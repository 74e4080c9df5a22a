"""fwtop notrack: exempt packets from connection tracking, whose table may fill up first."""

from __future__ import annotations

import argparse

from fwtop.cli.rules.mitigation import add_rule_options, carry_out, port, protocol
from fwtop.model.rule import Kind, Match, Rule
from fwtop.rules.words import with_summary

HELP = "Exempt packets and their replies from connection tracking."
EXAMPLE = "fwtop notrack --proto udp --dport 53 --yes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--proto", type=protocol, metavar="P", help="tcp, udp, icmp, … or a number")
    parser.add_argument("--dport", type=port, metavar="N", help="destination port")
    add_rule_options(parser)


def run(args: argparse.Namespace) -> int:
    """Install the exemption."""
    return carry_out(args, [rule_of(args)])


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule."""
    match = Match(family=args.family, protocol=args.proto, dport=args.dport)
    return with_summary(Rule("", Kind.NOTRACK, match, "", args.ttl, created_by="cli"))
