"""fwtop bench: benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fwtop.cli.options import EndingSignals, positive
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

if TYPE_CHECKING:
    from fwtop.bench.frame import Document

HELP = "Benchmark fwtop on this machine. Floods stay within the lab's network namespaces."
EXAMPLE = "sudo fwtop bench ladder --quick"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("table", nargs="?", metavar="TABLE", help="a table's name, or 'list'")
    parser.add_argument(
        "captures",
        nargs="*",
        metavar="CAPTURE",
        help="harm: run only these trials; night, proposals, walk, accuracy: run only these scenarios; "
        "accuracy: also judge these captures (FILE=kind,kind labels them); "
        "fit: write the weights to this file, not to fwtop's own; day: keep the sessions in this folder",
    )
    parser.add_argument(
        "--corpus",
        action="store_true",
        help="accuracy: judge generated, labelled windows of traffic; needs no root",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="with --corpus: generate windows that nothing was tuned on"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure the per-packet cost of each kind of rule here; proposals are ranked by it",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also draw the table to this file")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="reduced run, a minute or two per table")
    parser.add_argument("--rounds", type=positive, metavar="N", help="number of measurements per row")


def run(args: argparse.Namespace) -> int:
    """Measure one table and print it, or list them."""
    from fwtop.bench.catalogue import find
    from fwtop.bench.catalogue import run as measure
    from fwtop.bench.frame import Options

    if args.table == "list":
        return _list(as_json=args.json)
    table = find(_name(args))
    if args.captures and table.name not in ("accuracy", "day", "fit", "harm", "night", "proposals", "walk"):
        raise FwtopError(f"table {table.name} takes no captures; nothing was measured", 2)
    if args.corpus and (table.name != "accuracy" or args.captures):
        raise FwtopError("--corpus goes with table accuracy alone; nothing was measured", 2)
    if args.seed is not None and not args.corpus:
        raise FwtopError("--seed goes with --corpus; nothing was measured", 2)
    if table.needs_root and not args.corpus and os.geteuid() != 0:
        raise FwtopError(
            f"table {table.name} needs root to make namespaces; nothing was measured; use sudo", 3
        )
    with EndingSignals():
        document = measure(
            table, Options(args.rounds, args.quick, tuple(args.captures), args.corpus, args.seed)
        )
    if args.calibrate:
        document = _kept(document)
    if args.svg is not None:
        _draw(document, args.svg)
    _print(document, as_json=args.json)
    return 0


def _list(*, as_json: bool) -> int:
    from fwtop.bench.catalogue import TABLES

    if as_json:
        print(json.dumps([{"table": table.name, "title": table.title} for table in TABLES]))
    else:
        for table in TABLES:
            print(f"{table.name:<10} {table.title}")
    return 0


def _name(args: argparse.Namespace) -> str:
    """Return the table that is meant; --calibrate means one, and goes with no other."""
    if args.calibrate and args.table not in (None, "calibrate"):
        raise FwtopError(
            f"--calibrate is a table of its own, not {safe_text(args.table, limit=40)!r}; nothing measured",
            2,
        )
    if args.table is None and not args.calibrate:
        raise FwtopError("which table? see 'fwtop bench list'; nothing was measured", 2)
    return "calibrate" if args.calibrate else str(args.table)


def _kept(document: Document) -> Document:
    from fwtop.bench.tables.rules.calibrate import keep

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
