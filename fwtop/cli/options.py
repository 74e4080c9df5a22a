"""Arguments that several verbs share, and how their values are read."""

from __future__ import annotations

import argparse
import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_TTL_SECONDS = 2_147_483  # what an ipset timeout holds (ipset(8))


def add_interfaces(parser: argparse.ArgumentParser) -> None:
    """Add -i and --netns."""
    add_interface(parser, "watch")
    add_netns(parser)


def add_interface(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add -i; `verb` says what is done with an interface."""
    parser.add_argument(
        "-i",
        "--interface",
        action="append",
        default=[],
        metavar="IF",
        help=f"{verb} this interface; may be given several times (default: those with a default route)",
    )


def add_netns(parser: argparse.ArgumentParser) -> None:
    """Add --netns."""
    parser.add_argument("--netns", metavar="NAME", help="work in this named network namespace")


def add_observation(parser: argparse.ArgumentParser) -> None:
    """Add --json, --top and --geoip."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--top", type=positive, default=50, metavar="N", help="entries of each list (default 50)"
    )
    add_geoip(parser)


def add_geoip(parser: argparse.ArgumentParser) -> None:
    """Add --geoip."""
    parser.add_argument(
        "--geoip",
        metavar="FILE",
        help="an mmdb database of your own for countries and AS names, or a directory of them",
    )


def positive(text: str) -> int:
    """Read a whole number above 0."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number above 0")
    return int(text)


def seconds(text: str) -> float:
    """Read a length of time in seconds, up to a day; a unit (5s, 2m) may follow."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    value = float(match[1]) * _UNITS[match[2] or "s"] if match else 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a time between 0 and a day, like 5, 30s or 2m"
        )
    return value


def ttl(text: str) -> int:
    """Read a time to live like 30s, 10m, 2h or 1d; returns seconds."""
    match = re.fullmatch(r"(\d+)([smhd])", text, re.ASCII)
    value = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < value <= MAX_TTL_SECONDS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a time like 30s, 10m, 2h or 1d (24d at most)")
    return value
