#!/usr/bin/env python3
"""Run the tests that `make test` leaves to the matrix, part by part, and keep a table of how each part ended.

`make test-matrix` runs what has not passed yet with the code as it is, so a run that was cut off goes on. The
table, tests/matrix.md, is committed: each row names the commit and the machine that it was seen on. Names of
parts as arguments have only these run.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CLONE = Path(__file__).resolve().parent.parent
TABLE = "tests/matrix.md"
COLUMNS = ("part", "result", "seconds", "commit", "day", "machine")
HEAD = f"""# What was run of the matrix

`make test-matrix` writes this: what `make test` leaves out, long runs, and all tests on bare Debians.

| {" | ".join(COLUMNS)} |
|{"---|" * len(COLUMNS)}
"""
LONG = {"STEPS": "100000", "TRANSACTIONS": "10000"}  # of the monkey at the keyboard, and of lists
COUNTED = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


class Part(NamedTuple):
    """What is run at once, and gets a row."""

    name: str
    argv: Sequence[str]


class Row(NamedTuple):
    """How a part ended; the names of the fields are the table's columns."""

    part: str
    result: str
    seconds: str
    commit: str
    day: str
    machine: str


def git(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=CLONE, capture_output=True, text=True, check=check)


def unchanged_since(commit: str) -> bool:
    """Say whether all but pages is the same as in that commit."""
    return git("diff", "--quiet", commit, "HEAD", "--", ".", ":(exclude)*.md", check=False).returncode == 0


def machine() -> str:
    system = platform.freedesktop_os_release()
    name = f"{system['NAME'].split()[0]} {system['VERSION_ID']}"
    return f"{os.cpu_count()} × {platform.machine()}, {name}, Linux {platform.release()}"


def parts() -> list[Part]:
    """Return each file that has tests for the matrix, then what stands in no file."""
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-m",
        "matrix",
        "-p",
        "no:cacheprovider",
        "tests",
    ]
    shown = subprocess.run(argv, cwd=CLONE, capture_output=True, text=True, check=True).stdout
    files = sorted({line.partition("::")[0] for line in shown.splitlines() if "::" in line})
    return [
        *(Part(name, ["scripts/test.sh", "-q", "-m", "matrix", name]) for name in files),
        Part("10,000 changes of a list", ["scripts/test.sh", "-q", "tests/kernel/test_list_transactions.py"]),
        Part("Debian 12, bare", ["env", "SUITE=bookworm", "scripts/test-fresh.sh"]),
        Part("Debian 13, bare", ["env", "SUITE=trixie", "scripts/test-fresh.sh"]),
    ]


def read(path: Path) -> dict[str, Row]:
    """Return the table's rows by part."""
    lines = path.read_text().splitlines() if path.is_file() else []
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: Row(*row) for row in cells if len(row) == len(COLUMNS) and row[0] != COLUMNS[0]}


def write(path: Path, rows: dict[str, Row], order: Sequence[str]) -> None:
    """Write the table whole or not at all, in the order of the parts; rows of parts that are gone go."""
    new = path.with_suffix(".tmp")
    new.write_text(HEAD + "".join(f"| {' | '.join(rows[name])} |\n" for name in order if name in rows))
    new.replace(path)


def run(part: Part) -> str:
    """Run a part, showing what it prints; return its counts, and what failed or was skipped."""
    counts: Counter[str] = Counter()
    told: list[str] = []
    with subprocess.Popen(
        part.argv, cwd=CLONE, env=LONG | os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, errors="replace",
    ) as process:  # fmt: skip
        assert process.stdout is not None  # noqa: S101 - a pipe
        for line in process.stdout:
            sys.stdout.write(line)
            if re.search(r"\d (passed|failed|skipped|errors?)\b.* in [\d.]+s", line):
                for count, word in COUNTED.findall(line):
                    counts[word.rstrip("s") if word.startswith("error") else word] += int(count)
            elif line.startswith(("FAILED ", "ERROR ", "SKIPPED ", "MAY PASS ALONE ")):
                told.append(line.strip().replace("|", "¦")[:160])
    ended = "passed" if process.returncode == 0 else f"FAILED with status {process.returncode}"
    numbers = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return "; ".join([f"{ended}: {numbers}", *dict.fromkeys(told)])


def run_all(known: Sequence[Part], table: Path, names: Sequence[str] = ()) -> int:
    """Run what has not passed with this code, a row at a time; return the exit status."""
    rows, order = read(table), [part.name for part in known]
    wanted = [part for part in known if part.name in names or not names]
    commit = git("rev-parse", "--short=10", "HEAD").stdout.strip()
    for number, part in enumerate(wanted, 1):
        row = rows.get(part.name)
        if row is not None and row.result.startswith("passed") and unchanged_since(row.commit):
            continue
        print(f"\nmatrix: {number} of {len(wanted)}: {part.name}", flush=True)
        began = time.monotonic()
        result = run(part)
        seconds = f"{time.monotonic() - began:.0f}"
        rows[part.name] = Row(part.name, result, seconds, commit, time.strftime("%Y-%m-%d"), machine())
        write(table, rows, order)
    asked = [part.name for part in wanted]
    failed = [name for name in asked if not rows[name].result.startswith("passed")]
    print(f"\nmatrix: {len(asked) - len(failed)} of {len(asked)} parts passed; {table.name} says how")
    print("".join(f"  {name}: {rows[name].result}\n" for name in failed), end="")
    return 1 if failed else 0


def main() -> int:
    if changed := git("status", "--porcelain", "--", ".", f":(exclude){TABLE}").stdout:
        print(
            f"matrix: its rows name commits, so commit or stash these first:\n{changed}",
            end="",
            file=sys.stderr,
        )
        return 2
    known, names = parts(), sys.argv[1:]
    if unknown := set(names) - {part.name for part in known}:
        print(f"matrix: no part is called {', '.join(sorted(unknown))}; nothing was run", file=sys.stderr)
        return 2
    return run_all(known, CLONE / TABLE, names)


if __name__ == "__main__":
    sys.exit(main())
