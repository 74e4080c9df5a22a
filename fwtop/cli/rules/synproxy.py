"""fwtop synproxy: answer SYNs with cookies; pass completed handshakes only."""

from __future__ import annotations

import argparse

from fwtop.cli.rules.mitigation import add_field, add_rule_options, match_of, prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Rule
from fwtop.model.traffic.protocols import TCP
from fwtop.rules.fields import DPORT

HELP = (
    "Answer SYNs to a TCP port with cookies before connection tracking and the server see them; only "
    "finished handshakes go on. The kernel settings that this needs are changed and restored with the rule."
)
EXAMPLE = "fwtop synproxy --dport 443 --ttl 1h --yes"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_field(parser, DPORT, required=True, help="the TCP port under attack")
    parser.add_argument(
        "--to",
        action="append",
        default=[],
        type=prefix,
        metavar="PREFIX",
        help="forward to servers behind this machine (default: this machine's own addresses)",
    )
    add_rule_options(parser)


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule; raises FwtopError (code 2)."""
    destinations = tuple(args.to)
    match = match_of(args, (DPORT,), destinations=destinations, protocol=TCP)
    if match.dport == 0:
        raise FwtopError("port 0 is not a TCP service; nothing was changed", 2)
    where = f" of {', '.join(map(str, destinations))}" if destinations else ""
    summary = f"answer SYNs to port {match.dport}{where} with cookies"
    return Rule("", Kind.SYNPROXY, match, summary, args.ttl, created_by="cli")
