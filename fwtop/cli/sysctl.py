"""fwtop sysctl: change kernel settings that help under attack, and restore them later."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fwtop.cli.mitigation import add_rule_options, carry_out
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule, Setting
from fwtop.model.text import safe_text
from fwtop.model.tunables import SHORT_NAMES, TUNABLES, Tunable

HELP = "Show kernel settings that help under attack, or change some for a limited time."
EXAMPLE = "fwtop sysctl syncookies=on conntrack_max=1000000 --ttl 1h --yes"
_WORDS = {"on": 1, "always": 2}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    which = "setting to change (default: show all)"
    parser.add_argument("setting", nargs="*", metavar="NAME=VALUE", help=which)
    add_rule_options(parser, families=False)


def run(args: argparse.Namespace) -> int:
    """Show the settings, or install a rule that changes some."""
    if not args.setting:
        return _show(args.netns, as_json=args.json)
    return carry_out(args, [rule_of(args)])


def rule_of(args: argparse.Namespace) -> Rule:
    """Return the requested rule; raises FwtopError (code 2)."""
    settings = tuple(setting(text) for text in args.setting)
    if len({item.name for item in settings}) < len(settings):
        raise FwtopError("a setting is named twice; nothing was changed", 2)
    what = ", ".join(f"{TUNABLES[item.name].short} to {item.value}" for item in settings)
    return Rule("", Kind.SYSCTL, Match(), f"set {what}", args.ttl, created_by="cli", settings=settings)


def setting(text: str) -> Setting:
    """Read NAME=VALUE, the name short or dotted; raises FwtopError (code 2)."""
    name, equals, value = text.partition("=")
    tunable = SHORT_NAMES.get(name) or TUNABLES.get(name)
    if tunable is None:
        raise FwtopError(
            f"{safe_text(name, limit=60)!r} is not a setting that fwtop changes; 'fwtop sysctl' lists them", 2
        )
    number = _WORDS.get(value, int(value) if value.isascii() and value.isdigit() else -1)
    if not equals or not tunable.low <= number <= tunable.high:
        raise FwtopError(
            f"{tunable.short} takes a number from {tunable.low} to {tunable.high}; nothing was changed", 2
        )
    return Setting(tunable.name, number)


def _show(netns: str | None, *, as_json: bool) -> int:
    from fwtop.kernel import namespaces

    namespaces.enter_named(netns)
    values = {item.short: _value(item) for item in TUNABLES.values()}
    if as_json:
        print(json.dumps({"settings": values}))
        return 0
    for item in TUNABLES.values():
        value = values[item.short]
        print(f"{item.short:<38} {'-' if value is None else value:>10}  {item.text}")
    return 0


def _value(tunable: Tunable) -> int | None:
    try:
        return int(Path(tunable.path).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None
