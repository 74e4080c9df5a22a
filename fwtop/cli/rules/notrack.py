"""fwtop notrack: exempt packets from connection tracking, whose table may fill up first."""

from __future__ import annotations

import argparse

from fwtop.cli.rules.mitigation import add_field, add_rule_options, match_of
from fwtop.model.rule import Kind, Rule
from fwtop.rules.fields import DPORT, PROTOCOL
from fwtop.rules.words import with_summary

HELP = "Exempt packets and their replies from connection tracking."
EXAMPLE = "fwtop notrack --proto udp --dport 53 --yes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_field(parser, PROTOCOL)
    add_field(parser, DPORT)
    add_rule_options(parser)


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule."""
    match = match_of(args, (PROTOCOL, DPORT))
    return with_summary(Rule("", Kind.NOTRACK, match, "", args.ttl, created_by="cli"))
