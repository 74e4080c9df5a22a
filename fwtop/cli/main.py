"""The command line: finds the verb, imports only its module, turns errors into a line and a status."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import textwrap
from types import ModuleType
from typing import NoReturn

from fwtop import __version__
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

DEFAULT_VERB = "watch"
VERBS = {
    "watch": "the live screen (the default)",
    "snapshot": "one observation without a screen",
    "read": "the same judgement on a capture file",
    "record": "watch and store without a screen, until stopped",
    "block": "block sources: prefixes, an AS, a country, a file",
    "limit": "limit what each source prefix may send a second",
    "match": "drop packets by bytes in their payload",
    "drop": "drop packets by header fields, before the stack sees them",
    "notrack": "keep packets out of connection tracking",
    "synproxy": "answer SYNs with cookies, let finished handshakes through",
    "sysctl": "kernel settings that help under attack",
    "apply": "install a proposal of the running or last observation",
    "status": "active rules and what they drop",
    "keep": "confirm a provisional rule, or renew a confirmed one",
    "undo": "take rules back",
    "why": "why a rule does nothing",
    "sessions": "stored sessions",
    "report": "a session as html, md or json, or its rules as a script",
    "replay": "a session on the screen again",
    "doctor": "what this machine can do, and what is missing",
    "lab": "an attack on a victim in namespaces of its own",
    "bench": "measured tables; --calibrate: what each kind of rule costs here",
}


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line with a way on."""

    def error(self, message: str) -> NoReturn:
        raise FwtopError(f"{safe_text(message)}; see '{self.prog} --help'", 2)


def main(arguments: list[str]) -> int:
    """Run one verb and return the exit status (0 done, 1 failed, 2 wrong usage, 3 not possible here)."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except FwtopError as error:
        print(f"fwtop: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        print("fwtop: there is not enough memory for this; nothing was changed", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output is gone (fwtop … | head); nothing is wrong with us.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: list[str]) -> int:
    if arguments[:1] in (["--version"], ["-V"]):
        print(f"fwtop {__version__}")
        return 0
    if arguments[:1] in (["--help"], ["-h"], ["help"]):
        print(_overview())
        return 0
    verb = DEFAULT_VERB
    if arguments and not arguments[0].startswith("-"):
        verb, arguments = arguments[0], arguments[1:]
    if verb not in _available():
        raise FwtopError(f"there is no verb {safe_text(verb, limit=40)!r}; see 'fwtop --help'", 2)
    module = _verb_module(verb)
    parser = _Parser(
        prog=f"fwtop {verb}",
        description=textwrap.fill(module.HELP, 80),
        epilog=f"example: {module.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.arguments(parser)
    return int(module.run(parser.parse_intermixed_args(arguments)))


def _available() -> list[str]:
    here = os.path.dirname(__file__)
    return [verb for verb in VERBS if os.path.exists(os.path.join(here, f"{verb}.py"))]


def _verb_module(verb: str) -> ModuleType:
    return importlib.import_module(f"fwtop.cli.{verb}")


def _overview() -> str:
    verbs = "\n".join(f"  {verb:<10} {VERBS[verb]}" for verb in _available())
    return (
        "usage: sudo fwtop [VERB] [OPTIONS]\n\n"
        "See what is flooding this machine, and stop it with one key.\n\n"
        f"{verbs}\n\n"
        "Every verb has --help with an example. Exit status: 0 done, 1 failed, 2 wrong usage,\n"
        "3 a privilege or kernel feature is missing."
    )
