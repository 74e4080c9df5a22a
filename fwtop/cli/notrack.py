"""fwtop notrack: keep packets out of connection tracking, when its table is what breaks first."""

from __future__ import annotations

import argparse

from fwtop.cli.mitigation import add_rule_options, carry_out, port, protocol
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.wording import summarised

NAME = "notrack"
HELP = "Keep packets (and the answers to them) out of connection tracking."
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
    """Return the rule that was asked for."""
    match = Match(family=args.family, protocol=args.proto, dport=args.dport)
    return summarised(Rule("", Kind.NOTRACK, match, "", args.ttl, created_by="cli"))
