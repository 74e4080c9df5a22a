"""fwtop fleet: verbs of two words, for many machines; each is a row of the module that the table names."""

from __future__ import annotations

import argparse
import importlib
import textwrap

from fwtop.cli.options import Verb
from fwtop.model.errors import FwtopError

ACTIONS = {  # name → module (its ACTIONS), and what the overview says
    "init": ("setup", "make a fleet's keys, and what its servers need"),
    "token": ("setup", "make a token with which machines ask to join"),
    "join": ("setup", "have this machine ask to join, and wait to be admitted"),
    "leave": ("setup", "have this machine leave its fleet"),
    "nodes": ("setup", "list the machines; --approve admits those that wait"),
    "revoke": ("setup", "believe machines no more, and let them connect no more"),
    "node": ("node", "the service on each machine, which carries between servers and guardian"),
    "status": ("watch", "how the machines and the roll-outs fare, and what is wrong"),
    "doctor": ("watch", "check servers, streams, machines and clocks, and say what to mend"),
    "block": ("rollout", "block sources on machines"),
    "limit": ("rollout", "limit rates on machines"),
    "match": ("rollout", "drop packets by their payload on machines"),
    "drop": ("rollout", "drop packets by header fields on machines"),
    "protect": ("rollout", "set who may connect to a port of machines"),
    "list": ("bundles", "block a list of up to 5,000,000 entries on machines"),
    "policy": ("bundles", "have machines keep a policy's rules"),
    "group": ("bundles", "have a group of the fleet's rules drop, only count, or do nothing"),
    "undo": ("rollout", "take a roll-out back on all machines"),
    "sign": ("documents", "sign a document with SSH keys"),
    "deliver": ("documents", "hand a signed document to this machine's guardian, without a courier"),
    "log": ("documents", "what this machine was asked to do, by whom, and what it did"),
}
HELP = "Many machines: which are attacked, and one signed rule on all of them, on trial on each. " + (
    "'fwtop fleet ACTION --help' tells more."
)
EXAMPLE = "fwtop fleet status"


def action(name: str) -> Verb:
    """Import a verb of two words by its second."""
    verb: Verb = importlib.import_module(f"fwtop.cli.fleet.{ACTIONS[name][0]}").ACTIONS[name]
    return verb


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the action, which is all that this verb has by itself."""
    rows = (f"{name}: {text}" for name, (_, text) in ACTIONS.items())
    parser.add_argument("action", choices=tuple(ACTIONS), help=textwrap.shorten("; ".join(rows), 2000))


def run(args: argparse.Namespace) -> int:
    """Never run with an action: `main` does that; argparse has refused everything else."""
    raise FwtopError(f"'fwtop fleet {args.action}' takes its options behind the action", 2)
