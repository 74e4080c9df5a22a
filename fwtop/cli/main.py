"""The command line: import the verb's module, run it, turn errors into one line and an exit status."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import textwrap
from typing import Any, NoReturn

from fwtop import __version__
from fwtop.kernel.programs import hurry
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

DEFAULT_VERB = "watch"
VERBS = {
    "watch": "the live screen (the default)",
    "snapshot": "one observation without a screen",
    "record": "record a session without a screen, until stopped",
    "service": "the recorder as a systemd service: status, enable, disable, restart",
    "alarms": "where the recorder's alarms go; 'test' sends one",
    "block": "block sources: prefixes, an AS, a country, a file",
    "limit": "limit the rate or the connections of each source prefix",
    "match": "drop packets by bytes in their payload",
    "drop": "drop packets by header fields, before the network stack",
    "notrack": "exempt packets from connection tracking",
    "synproxy": "answer SYNs with cookies, pass only completed handshakes",
    "sysctl": "change kernel settings that help under attack",
    "apply": "install a proposal from the running or last observation",
    "status": "active rules and their counters",
    "keep": "confirm a provisional rule, or renew a confirmed one",
    "group": "switch a group of rules on, off or to counting; list groups",
    "change": "change the rate, the ports or the sources of a rule in place",
    "mode": "have rules drop, or only count what they would drop",
    "repair": "reinstall the parts of a rule that are missing from the kernel",
    "undo": "remove rules",
    "why": "explain why a rule has no effect",
    "rules": "list every rule and set on this machine, with rates",
    "events": "stream changes to the rules and sets on this machine",
    "harden": "playbooks: show what each would do here, apply it as one rule",
    "list": "named lists shared by rules: create, add, remove, replace, test, show, save, delete",
    "protect": "set who may connect to a port: everybody, access lists only, nobody",
    "api": "serve programs a stream of JSON lines",
    "policy": "permanent lists and rules from a file: check, diff, apply, history, rollback, export",
    "fleet": "many machines: one signed rule on all that are attacked, on trial on each",
    "read": "analyse a capture file",
    "sessions": "list stored sessions",
    "report": "write a report on a session (HTML, Markdown, text, JSON), or its rules as a script",
    "replay": "play a stored session on the screen",
    "trends": "averages of the last hour, day and 15 days",
    "config": "show the settings of the screen, and where each comes from",
    "geoip": "the data on countries and networks: show their age, update them",
    "doctor": "check what this machine supports, and what is missing",
    "lab": "attack a victim in network namespaces",
    "bench": "run benchmarks; --calibrate measures the cost of each kind of rule",
}
# Where verbs are: some are rows of one module (its VERBS), others are a module each.
_ROWS = {
    "launcher": ("watch", "snapshot"),
    "recorder": ("record", "service", "alarms"),
    "rules.making": ("limit", "match", "drop", "notrack", "synproxy", "sysctl", "apply"),
    "rules.standing": ("status", "keep", "mode", "repair", "undo", "why"),
    "rules.machine": ("rules", "events"),
    "sessions.playing": ("read", "replay"),
    "sessions.listing": ("sessions", "trends"),
    "trying": ("lab", "bench"),
}
_OF_RULES = ("block", "change", "group", "harden", "list", "policy", "protect")
_HOMES = {
    **{verb: module for module, verbs in _ROWS.items() for verb in verbs},
    **{verb: f"rules.{verb}" for verb in _OF_RULES},
    "report": "sessions.report",
}
_URGENT = {"watch", "record", "snapshot", *_OF_RULES, *_ROWS["rules.making"], *_ROWS["rules.standing"]}


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises errors as one line with a hint."""

    def error(self, message: str) -> NoReturn:
        raise FwtopError(f"{safe_text(message)}; see '{self.prog} --help'", 2)


def main(arguments: list[str]) -> int:
    """Run one verb; return its exit status (0 success, 1 failure, 2 usage, 3 not possible here)."""
    status = 0
    try:
        try:
            status = _run(arguments)
        except FwtopError as error:
            status = error.code
            print(f"fwtop: {error}", file=sys.stderr)
            if "--json" in arguments:  # who reads JSON gets some, whatever happens
                print(json.dumps(error.document()))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        print("fwtop: there is not enough memory for this; nothing was changed", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader closed the pipe (fwtop … | head).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


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
    if verb not in VERBS:
        raise FwtopError(f"there is no verb {safe_text(verb, limit=40)!r}; see 'fwtop --help'", 2)
    if verb in _URGENT:  # before anything is imported, which takes longest
        hurry()
    name, module, arguments = named(verb, arguments)
    parser = _Parser(
        prog=f"fwtop {name}",
        description=textwrap.fill(module.HELP, 80),
        epilog=f"example: {module.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.arguments(parser)
    args = parser.parse_intermixed_args(arguments)
    return int(module.run(args))


def verb_module(verb: str) -> Any:  # noqa: ANN401 - a module or a Verb
    """Import a verb: HELP, EXAMPLE, arguments(parser) and run(args)."""
    home = _HOMES.get(verb, verb)
    module = importlib.import_module(f"fwtop.cli.{home}")
    return module.VERBS[verb] if home in _ROWS else module


def named(verb: str, arguments: list[str]) -> tuple[str, Any, list[str]]:
    """Return a verb's full name, what `verb_module` returns, and the rest: some verbs have two words."""
    module = verb_module(verb)
    if arguments and arguments[0] in getattr(module, "ACTIONS", ()):
        return f"{verb} {arguments[0]}", module.action(arguments[0]), arguments[1:]
    return verb, module, arguments


def _overview() -> str:
    verbs = "\n".join(f"  {verb:<10} {VERBS[verb]}" for verb in VERBS)
    return (
        "usage: sudo fwtop [VERB] [OPTIONS]\n\n"
        "See what is flooding this machine, and stop it with one key.\n\n"
        f"{verbs}\n\n"
        "Every verb has --help with an example. Exit status: 0 success, 1 failure, 2 wrong usage,\n"
        "3 a privilege or kernel feature is missing, 4 what --fail-on names was seen."
    )
