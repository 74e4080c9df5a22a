"""Verbs on what is stored: a list of the sessions, and averages of the last hour, day and 15 days."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from fwtop.cli.options import Verb, flag, option
from fwtop.cli.sessions.stored import StoredSession, add_directory, run_unprivileged, sanitised
from fwtop.kernel.namespaces import lasting_name
from fwtop.model.errors import FwtopError
from fwtop.model.paths import STATE_DIRECTORY
from fwtop.model.text import aligned
from fwtop.model.wire import of_plain, plain
from fwtop.render.numbers import si
from fwtop.render.observation import rfc3339
from fwtop.render.trends import trends_json, trends_text
from fwtop.store.history import FILE_NAME
from fwtop.store.reader import list_sessions
from fwtop.store.trends import read_trends

_HEADS = ("SESSION", "STARTED (UTC)", "LENGTH", "WHERE", "PEAK", "ATTACK", "RULES", "")


def _sessions_arguments(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--json", "print one JSON document")
    add_directory(parser)


class Entry(Struct, frozen=True):
    """A session of the list, as JSON has it."""

    id: str
    started: str
    seconds: float
    state: str
    host: str
    interfaces: tuple[str, ...]
    netns: str | None
    version: str
    peak_pps: float
    attacks: tuple[str, ...]
    rules: int
    bytes: int


def _sessions(args: argparse.Namespace) -> int:
    directory: Path = args.directory
    told = run_unprivileged(lambda: _entries(directory), read=(directory,))
    try:
        found = of_plain(tuple[Entry, ...], sanitised(told))
        rows = [_row(entry) for entry in found]
    except (ValueError, OverflowError):
        raise FwtopError("the unprivileged reader gave no list of sessions; nothing was changed") from None
    if args.json:
        print(json.dumps({"schema": 1, "directory": str(directory), "sessions": plain(found)}, indent=1))
    elif found:
        print("\n".join(aligned([_HEADS, *rows])))
    else:
        print(f"no session is stored in {directory} yet; 'sudo fwtop' or 'sudo fwtop record' makes one")
    return 0


def _entries(directory: Path) -> Any:  # noqa: ANN401 - JSON
    return plain(
        tuple(
            Entry(
                *(info.id, rfc3339(info.started), round(info.seconds, 3), info.state, info.host),
                *(info.interfaces, info.netns, info.version, round(info.peak_pps, 3), info.attacks),
                *(info.rules, info.size_bytes),
            )
            for info in list_sessions(directory)
        )
    )


def _row(entry: Entry) -> tuple[str, ...]:
    started = datetime.fromisoformat(entry.started).astimezone(UTC)
    if entry.state == "damaged":
        return (entry.id, "", "", "", "", "", "", "damaged")
    where = " ".join([entry.host, "+".join(entry.interfaces)]).strip()
    if entry.netns:
        where += f" ({entry.netns})"
    more = f" +{len(entry.attacks) - 1}" if len(entry.attacks) > 1 else ""
    return (
        entry.id,
        started.strftime("%Y-%m-%d %H:%M"),
        _length(entry.seconds),
        where[:40],
        si(entry.peak_pps, "pps"),
        f"{entry.attacks[0]}{more}" if entry.attacks else "-",
        str(entry.rules) if entry.rules else "-",
        "" if entry.state == "clean" else entry.state,
    )


def _length(seconds: float) -> str:
    whole = round(seconds)
    if whole < 3_600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 172_800:
        return f"{whole // 3_600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 86_400} days"


def _trends_arguments(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--json", "print one JSON document")
    interface = "the history of these interfaces; repeatable (default: those recorded last)"
    parser.add_argument("-i", "--interface", action="append", metavar="IF", help=interface)
    option(parser, "--netns", "NAME", "the history of this network namespace")
    directory = f"where {FILE_NAME} is (default {STATE_DIRECTORY})"
    option(parser, "--directory", "DIR", directory, Path, default=STATE_DIRECTORY)


def _trends(args: argparse.Namespace) -> int:
    """Print the trends, read without root."""
    directory: Path = args.directory
    path, now = directory / FILE_NAME, time.time()
    # Elsewhere the file is the caller's: it is opened with the caller's rights, and a copy is read.
    netns = args.netns or lasting_name()
    own = directory == STATE_DIRECTORY or not path.is_file()
    located = nullcontext(path) if own else StoredSession(str(path.absolute()), directory).located()

    def document() -> dict[str, Any]:
        with located as place:
            return trends_json(read_trends(place, now, interfaces=args.interface, netns=netns))

    told = run_unprivileged(document)
    try:
        checked = sanitised(told)
        text = json.dumps(checked, indent=1) + "\n" if args.json else trends_text(checked)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise FwtopError("the unprivileged reader gave no trends; nothing was changed") from None
    print(text, end="")
    return 0


VERBS = {
    "sessions": Verb(
        "List the stored sessions, the latest last; 'fwtop report ID' shows one in detail.",
        "fwtop sessions --json",
        _sessions_arguments,
        _sessions,
    ),
    "trends": Verb(
        "Show the averages of the last hour, day and 15 days: traffic, sources, target ports and addresses. "
        "Every screen and 'fwtop record' adds to them.",
        "fwtop trends --json | jq '.countries[0]'",
        _trends_arguments,
        _trends,
    ),
}
