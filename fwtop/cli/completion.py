"""Completion for bash, zsh and fish from the table of verbs: `python -m fwtop.cli.completion DIRECTORY`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fwtop import __version__
from fwtop.bench.frame import TABLES
from fwtop.cli.main import DEFAULT_VERB, VERBS, verb_module
from fwtop.lab import scenario

FILES = {"bash": "fwtop.bash", "zsh": "_fwtop", "fish": "fwtop.fish"}
_FILES = ("FILE", "CAPTURE", "PATH", "FILE|-", "FILE|URL")
_DIRECTORIES = ("DIR",)
_LISTED = {
    "interface": "command ls /sys/class/net",
    "netns": "command ls /run/netns 2>/dev/null",
}  # now, not then
_EXAMPLES = {
    "match_protocol": ("tcp", "udp", "icmp", "icmpv6", "gre"),
    "ttl": ("30s", "10m", "2h", "1d"),
    "scenario": ("list", *scenario.names()),
    "table": ("list", *(table.name for table in TABLES)),
}


def parser() -> argparse.ArgumentParser:
    """Return the whole command line as one parser, which is only read."""
    whole = argparse.ArgumentParser("fwtop", description="See what is flooding this machine, and stop it.")
    whole.add_argument("--version", "-V", action="version", version=__version__)
    verb_module(DEFAULT_VERB).arguments(whole)
    verbs = whole.add_subparsers()
    for verb, text in VERBS.items():
        one = verbs.add_parser(verb, help=text, description=text)
        verb_module(verb).arguments(one)
        _complete(one)
    _complete(whole)
    return whole


def _complete(one: argparse.ArgumentParser) -> None:
    """Say what the shell offers for each argument that has no choices of its own."""
    import shtab

    for action in one._actions:
        if action.choices is not None:
            continue
        if action.dest in _LISTED:
            action.complete = shtab.cmd(_LISTED[action.dest])  # type: ignore[attr-defined]
        elif action.dest in _EXAMPLES:
            action.choices = _EXAMPLES[action.dest]
        elif action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _DIRECTORIES:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]


def write(directory: Path) -> None:
    """Write the file of each shell."""
    import shtab

    directory.mkdir(parents=True, exist_ok=True)
    whole = parser()
    for shell, name in FILES.items():
        (directory / name).write_text(shtab.complete(whole, shell), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
