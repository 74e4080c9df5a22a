"""One snapshot as a file, for the export key: JSON as of `fwtop snapshot`, or CSV tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.observation import observation_json
from fwtop.report.facts.effects import RuleEffect
from fwtop.report.summary import Digest
from fwtop.report.wording import day_and_time, si
from fwtop.rules.command_line import command_line
from fwtop.store.exports import write_export

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def export_snapshot(snapshot: Snapshot, format: str, directories: Iterable[Path] | None = None) -> str:
    """Write a snapshot into a new file where reports go, and return its path.

    Raises FwtopError for an unknown format, or when the file can't be written.
    """
    writers = {"json": _json, "csv": snapshot_csv}
    if format not in writers:
        raise FwtopError(
            f"a snapshot can be written as json or csv, not as {safe_text(format, limit=20)!r}", 2
        )
    return write_export(snapshot.at, format, writers[format](snapshot).encode(), directories)


def snapshot_csv(snapshot: Snapshot) -> str:
    """Write the snapshot's tables one below the other, each with its name in the first column.

    A cell that a spreadsheet would take for a formula begins with an apostrophe (CWE-1236).
    """
    return csv_text((), _tables(observation_json(snapshot, top=1_000)))


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write rows as CSV in which no cell is a formula."""
    out = io.StringIO()
    writer = csv.writer(out)
    for row in (head, *rows) if head else rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _json(snapshot: Snapshot) -> str:
    return json.dumps(observation_json(snapshot), indent=1, default=lambda value: value.item()) + "\n"


def _tables(data: dict[str, Any]) -> Iterable[Sequence[object]]:
    yield ("table", "name", "value")
    for name in ("host", "started", "seconds"):
        yield ("observation", name, data[name])
    for part in ("totals", "sampling", "conntrack"):
        for name, value in data[part].items():
            yield (part, name, value)
    tables = {f"sources.{name}": rows for name, rows in data["sources"].items()}
    tables |= {name: data[name] for name in ("ports", "payloads", "ledger", "attacks", "mitigations")}
    for name, rows in tables.items():
        if not rows:
            continue
        columns = list(rows[0])
        yield ()
        yield ("table", *columns)
        for row in rows:
            yield (name, *(row[column] for column in columns))


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, list):
        value = "; ".join(str(item) for item in value)
    if isinstance(value, str):
        shown = safe_text(value, limit=1_000)
        return f"'{shown}" if shown.lstrip().startswith(_FORMULA_STARTS) else shown
    return value


def rules_script(digest: Digest) -> str:
    """Write the rules that matched anything as `fwtop` commands; those that did nothing are left out."""
    info = digest.info
    lines = [
        "#!/bin/sh",
        f"# What helped in session {_comment(info.id)} on {_comment(info.host)}.",
        f"# {_comment(digest.headline)}; {day_and_time(info.started)}.",
        "# Each rule expires by itself; 'fwtop undo --all' removes all. Run as root.",
        "set -eu",
    ]
    helped = [effect for effect in digest.effects if effect.packets]
    for effect in helped:
        lines += ["", *_rule_lines(effect)]
    if not helped:
        lines += ["", "# No rule of that session matched anything."]
    return "\n".join(lines) + "\n"


def _rule_lines(effect: RuleEffect) -> list[str]:
    rule = effect.rule
    lines = [
        f"# Rule {_comment(rule.id)}: {_comment(rule.summary)}",
        f"# It stopped {si(effect.actual_pps)} packets a second, {si(effect.packets)} in total.",
    ]
    lines += [f"#   as run then: {_comment(command)}" for command in effect.commands]
    line = command_line(rule, max_sources=None)
    lines.append(f"{line} --yes" if line else "# It has a condition that no command line can say.")
    return lines


def _comment(text: str) -> str:
    """Keep a text within its comment: no line break or control character is left in it."""
    return safe_text(text, limit=400)
