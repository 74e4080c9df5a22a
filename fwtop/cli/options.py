"""Arguments that several verbs share, and parsers of their values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fwtop.model.text import safe_text
from fwtop.model.traffic.severity import Threshold

if TYPE_CHECKING:
    from fwtop.model.rule import Rule

T = TypeVar("T")


class Verb(NamedTuple):
    """A verb of those that share a module; others are a module each, with these names."""

    HELP: str
    EXAMPLE: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    rule_of: Callable[[argparse.Namespace], Rule] | None = None  # of one that makes a rule


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_TTL_SECONDS = 2_147_483  # what an ipset timeout holds (ipset(8))


def flag(to: argparse._ActionsContainer, name: str, help: str) -> None:
    """Add an option that is given or not."""
    to.add_argument(name, action="store_true", help=help)


def option(
    to: argparse._ActionsContainer,
    names: str,
    metavar: str,
    help: str,
    read: Callable[[str], Any] = str,
    *,
    default: Any = None,  # noqa: ANN401 - whatever `read` returns
) -> None:
    """Add an option that takes a value; its help says the default, if it does not itself."""
    told = "" if default is None or "default" in help else f" (default {default})"
    to.add_argument(*names.split(), metavar=metavar, help=f"{help}{told}", type=read, default=default)


def add_interfaces(parser: argparse.ArgumentParser) -> None:
    """Add -i and --netns."""
    add_interface(parser, "watch")
    add_netns(parser)


def add_interface(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add -i; `verb` says what is done with an interface."""
    interface = f"{verb} this interface; repeatable (default: those with a default route)"
    parser.add_argument("-i", "--interface", action="append", default=[], metavar="IF", help=interface)


def add_netns(parser: argparse.ArgumentParser) -> None:
    """Add --netns."""
    option(parser, "--netns", "NAME", "work in this named network namespace")


def add_observation(parser: argparse.ArgumentParser) -> None:
    """Add --json, --top, --geoip and --fail-on."""
    flag(parser, "--json", "print one JSON document")
    option(parser, "--top", "N", "entries of each list", positive, default=50)
    add_geoip(parser)
    told = "exit with status 4 if something of this class or worse is seen: attack, abuse or unusual"
    more = "; attack:0.5 asks for half of a resource, too"
    option(parser, "--fail-on", "CLASS", f"{told}{more}", read_as(Threshold.parse))


def add_geoip(parser: argparse.ArgumentParser) -> None:
    """Add --geoip."""
    option(parser, "--geoip", "FILE", "mmdb database with countries or AS names, or a directory of them")


def read_as(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a reader of an option whose ValueError argparse tells the operator; it hides what others say."""

    def told(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(safe_text(error)) from None

    return told


def whole(what: str, least: int, most: int) -> Callable[[str], int]:
    """Return a reader of a whole number; `what` it should be, for who gives something else."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text[:20]) <= most):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {what}")
        return int(text)

    return read


positive = whole("a whole number above 0", 1, 10**9 - 1)


def seconds(text: str) -> float:
    """Parse a duration of up to a day, with an optional unit (5, 5s, 2m); return seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    value = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a time between 0 and a day, like 5, 30s or 2m"
        )
    return value


def ttl(text: str) -> int:
    """Parse a time to live such as 30s, 10m, 2h or 1d; return seconds."""
    match = re.fullmatch(r"(\d+)([smhd])", text, re.ASCII)
    value = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < value <= MAX_TTL_SECONDS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a time like 30s, 10m, 2h or 1d (24d at most)")
    return value
