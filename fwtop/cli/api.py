"""fwtop api: serve the stream for programs on this machine, or in a named namespace."""

from __future__ import annotations

import argparse
import json
import os

from fwtop.cli.options import add_netns, flag
from fwtop.model.errors import FwtopError

HELP = (
    "Serve the stream for programs at /run/fwtop/api.sock (with --netns at /run/fwtop/api-NAME.sock) until "
    "stopped: JSON, a line a document. Where systemd runs, enable fwtop-api.socket instead."
)
EXAMPLE = "sudo fwtop api --netns blue"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    flag(parser, "--schema", "print the JSON schema of requests, answers and documents, and end")
    add_netns(parser)


def run(args: argparse.Namespace) -> int:
    """Serve; ends by a signal."""
    if args.schema:
        from fwtop.api.messages import schema

        print(json.dumps(schema(), indent=1))
        return 0
    from fwtop.api.main import serve
    from fwtop.guardian.main import Options
    from fwtop.kernel.namespaces import enter_named
    from fwtop.kernel.programs import GUARDIAN_ENVIRONMENT, restart_with

    if os.geteuid() != 0:
        raise FwtopError("serving programs needs root; try: sudo fwtop api", 3)
    restart_with(GUARDIAN_ENVIRONMENT)  # else it keeps what the longest list took
    enter_named(args.netns)
    serve(Options.parse([]))
    return 0
