"""fwtop bench: benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fwtop.cli.options import ending_by_signals, flag, option, positive
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

if TYPE_CHECKING:
    from fwtop.bench.frame import Document, Table

HELP = "Benchmark fwtop on this machine. Floods stay within the lab's network namespaces."
EXAMPLE = "sudo fwtop bench ladder --quick"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_table(
        parser,
        "harm: run only these trials; accuracy: only these scenarios, or judge these captures "
        "(FILE=kind,kind labels one)",
    )
    calibrate = "measure the per-packet cost of each kind of rule here; proposals are ranked by it"
    flag(parser, "--calibrate", calibrate)


def add_table(parser: argparse.ArgumentParser, takes: str) -> None:
    """Add a table's name, what it takes, and how it is measured and printed."""
    parser.add_argument("table", nargs="?", metavar="TABLE", help="a table's name, or 'list'")
    parser.add_argument("captures", nargs="*", metavar="CAPTURE", help=takes)
    option(parser, "--svg", "FILE", "also draw the table to this file", Path)
    flag(parser, "--json", "print one JSON document")
    flag(parser, "--quick", "reduced run, a minute or two per table")
    option(parser, "--rounds", "N", "number of measurements per row", positive)


def run(args: argparse.Namespace) -> int:
    """Measure one table and print it, or list them."""
    from fwtop.bench.frame import TABLES

    if args.calibrate and args.table not in (None, "calibrate"):
        name = safe_text(args.table, limit=40)
        raise FwtopError(f"--calibrate is a table of its own, not {name!r}; nothing measured", 2)
    args.table = "calibrate" if args.calibrate else args.table
    return measure(args, TABLES, "fwtop bench", seed=None)


def measure(args: argparse.Namespace, tables: Sequence[Table], command: str, *, seed: int | None) -> int:
    """Measure a table of a list and print it, or print the list."""
    from fwtop.bench.frame import Options, find
    from fwtop.bench.frame import run as measured

    if args.table == "list":
        return _list(tables, as_json=args.json)
    if args.table is None:
        raise FwtopError(f"which table? see '{command} list'; nothing was measured", 2)
    table = find(args.table, tables, command)
    if args.captures and not table.takes:
        raise FwtopError(f"table {table.name} takes no captures; nothing was measured", 2)
    if table.needs_root and os.geteuid() != 0:
        raise FwtopError(
            f"table {table.name} needs root to make namespaces; nothing was measured; use sudo", 3
        )
    with ending_by_signals():
        document = measured(table, Options(args.rounds, args.quick, tuple(args.captures), seed))
    if getattr(args, "calibrate", False):
        document = _kept(document)
    if args.svg is not None:
        _draw(document, args.svg)
    _print(document, as_json=args.json)
    return 0


def _list(tables: Sequence[Table], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([{"table": table.name, "title": table.title} for table in tables]))
    else:
        for table in tables:
            print(f"{table.name:<10} {table.title}")
    return 0


def _kept(document: Document) -> Document:
    from fwtop.bench.tables.calibrate import keep

    return replace(document, notes=(*document.notes, keep(document)))


def _print(document: Document, *, as_json: bool) -> None:
    from fwtop.bench.frame import render

    if as_json:
        json.dump(document.to_json(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(render(document))


def _draw(document: Document, path: Path) -> None:
    from fwtop.bench.picture import draw

    try:
        path.write_text(document.picture or draw(document), encoding="utf-8")
    except OSError as error:
        print(f"fwtop: {safe_text(path)}: {error.strerror}; the table was not drawn", file=sys.stderr)
