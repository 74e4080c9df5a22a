"""fwtop sessions: list stored sessions."""

from __future__ import annotations

import argparse
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fwtop.cli.recordings.stored import add_directory, run_unprivileged
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import SessionInfo
from fwtop.render.observation import rfc3339
from fwtop.store.reader import list_sessions

HELP = "List the stored sessions, the latest last; 'fwtop report ID' shows one in detail."
EXAMPLE = "fwtop sessions --json"

_HEADS = ("SESSION", "STARTED (UTC)", "LENGTH", "WHERE", "PEAK", "ATTACK", "RULES", "")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_directory(parser)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    directory: Path = args.directory
    told = run_unprivileged(lambda: [_entry(info) for info in list_sessions(directory)], read=(directory,))
    try:
        found = [_checked(entry) for entry in told]
    except (ValueError, TypeError, KeyError):
        raise FwtopError("the unprivileged reader gave no list of sessions; nothing was changed") from None
    if args.json:
        print(json.dumps({"schema": 1, "directory": str(directory), "sessions": found}, indent=1))
    elif found:
        print(_table([_HEADS, *(_row(entry) for entry in found)]))
    else:
        print(f"no session is stored in {directory} yet; 'sudo fwtop' or 'sudo fwtop record' makes one")
    return 0


def _entry(info: SessionInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "started": rfc3339(info.started),
        "seconds": round(info.seconds, 3),
        "state": info.state,
        "host": info.host,
        "interfaces": list(info.interfaces),
        "netns": info.netns,
        "version": info.version,
        "peak_pps": round(info.peak_pps, 3),
        "attacks": list(info.attacks),
        "rules": info.rules,
        "bytes": info.size_bytes,
    }


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of the reader's, which a hostile session may have taken over, for root's terminal."""
    texts = {name: safe_text(entry[name]) for name in ("id", "state", "host", "version")}
    lists = {name: [safe_text(item) for item in entry[name]] for name in ("interfaces", "attacks")}
    numbers = {name: float(entry[name]) for name in ("seconds", "peak_pps")}
    if not all(map(math.isfinite, numbers.values())):
        raise ValueError("not a number")
    datetime.fromisoformat(entry["started"])
    checked = {
        "started": safe_text(entry["started"]),
        "netns": safe_text(entry["netns"]) if entry["netns"] is not None else None,
        "rules": int(entry["rules"]),
        "bytes": int(entry["bytes"]),
        **texts, **lists, **numbers,
    }  # fmt: skip
    return {name: checked[name] for name in entry if name in checked}


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    if entry["state"] == "damaged":
        return (entry["id"], "", "", "", "", "", "", "damaged")
    started = datetime.fromisoformat(entry["started"]).astimezone(UTC)
    where = " ".join([entry["host"], "+".join(entry["interfaces"])]).strip()
    if entry["netns"]:
        where += f" ({entry['netns']})"
    attacks = entry["attacks"]
    more = f" +{len(attacks) - 1}" if len(attacks) > 1 else ""
    return (
        entry["id"],
        started.strftime("%Y-%m-%d %H:%M"),
        _length(entry["seconds"]),
        where[:40],
        _pps(entry["peak_pps"]),
        f"{attacks[0]}{more}" if attacks else "-",
        str(entry["rules"]) if entry["rules"] else "-",
        "" if entry["state"] == "clean" else entry["state"],
    )


def _length(seconds: float) -> str:
    whole = round(seconds)
    if whole < 3_600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 172_800:
        return f"{whole // 3_600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 86_400} days"


def _pps(number: float) -> str:
    for size, prefix in ((1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{prefix}pps"
    return f"{number:.0f} pps"


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
