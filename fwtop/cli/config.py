"""fwtop config: the settings of the screen, where each comes from, and what is wrong in a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fwtop.cli.files import read_config, screen_files
from fwtop.cli.options import flag, option
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.sandbox.confine import drop_privileges

HELP = (
    "Show the settings of the screen and the file each comes from: /etc/fwtop/screen.toml, or your own "
    "~/.config/fwtop/screen.toml, which takes precedence."
)
EXAMPLE = "fwtop config --check ~/.config/fwtop/screen.toml"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    what = parser.add_mutually_exclusive_group()
    option(what, "--check", "FILE", "report errors in this file", Path)
    flag(what, "--sample", "print a documented file of all defaults")
    flag(parser, "--json", "print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the settings; the files are parsed without root. 1: the checked file has errors."""
    files = screen_files()
    if args.check is not None:
        checked = read_config(args.check)
        if checked is None:
            raise FwtopError(f"{safe_text(args.check)}: there is no such file", 2)
        files = (checked,)
    drop_privileges()
    from fwtop.ui import settings
    from fwtop.ui.settings import read_settings

    if args.sample and not args.json:
        print(settings.sample(), end="")
        return 0
    effective = read_settings(() if args.sample else files)
    if args.json:
        print(json.dumps(settings.as_json(effective)))
    elif args.check is not None:
        print("\n".join(effective.wrong) or f"{safe_text(args.check)}: good")
    else:
        print(settings.show(effective), end="")
    return int(args.check is not None and bool(effective.wrong))
