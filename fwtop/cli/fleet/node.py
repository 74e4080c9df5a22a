"""fwtop fleet node: the service on each machine. It imports little, because it runs everywhere and always."""

from __future__ import annotations

import argparse
import asyncio
import os
import pwd
import sys
import time
from functools import partial

from fwtop.cli.options import Verb, add_netns
from fwtop.kernel import namespaces
from fwtop.model import paths
from fwtop.model.errors import FwtopError


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_netns(parser)


def _run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    from fwtop.client.program import connect_directly
    from fwtop.fleet.broker import Broker
    from fwtop.fleet.machine import read_node
    from fwtop.fleet.node import Node
    from fwtop.sandbox.confine import drop_privileges

    namespaces.enter_named(args.netns)
    if os.geteuid() == 0:
        drop_privileges(_account())
    file = read_node(paths.fleet_directory(args.netns))
    node = Node(file, connect_directly, partial(Broker.connect, file.access), _say)
    asyncio.run(node.run())
    return 0


def _account() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(paths.FLEET_USER)
    except KeyError:
        raise FwtopError(
            f"there is no user {paths.FLEET_USER}: run 'make setup'; nothing was started", 3
        ) from None


def _say(line: str) -> None:
    """Write a line for the journal."""
    stamp = "" if "JOURNAL_STREAM" in os.environ else time.strftime("%H:%M:%S ")
    print(f"{stamp}{line}", file=sys.stderr, flush=True)


ACTIONS = {
    "node": Verb(
        "Carry signed documents from the fleet's servers to this machine's guardian, and tell how the "
        "machine fares. It changes nothing by itself. 'fwtop fleet join' starts it as a service.",
        "fwtop fleet node",
        _arguments,
        _run,
    )
}
