"""`python -m benches TABLE`: measure a developers' table, as `fwtop bench` measures the operator's."""

from __future__ import annotations

import argparse
import sys

from benches.catalogue import TABLES
from fwtop.cli.trying import add_table, measure
from fwtop.model.errors import FwtopError


def main(arguments: list[str]) -> int:
    """Measure one table and print it, or list them; return the exit status."""
    parser = argparse.ArgumentParser(
        "python -m benches", description="Measure what developers want to know. Run it in the clone."
    )
    takes = "; ".join(f"{table.name}: {table.takes}" for table in TABLES if table.takes)
    add_table(parser, takes)
    parser.add_argument(
        "--seed", type=int, metavar="N", help="naming, corpus, anger: draw what nothing was tuned on"
    )
    args = parser.parse_intermixed_args(arguments)
    try:
        if args.seed is not None and args.table not in ("naming", "corpus", "anger"):
            raise FwtopError("--seed goes with naming, corpus and anger; nothing was measured", 2)
        return measure(args, TABLES, "python -m benches", seed=args.seed)
    except FwtopError as error:
        print(f"benches: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
