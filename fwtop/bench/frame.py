"""The frame of every table: rows measured in alternating rounds, medians, and ratios round by round.

A machine's speed drifts while a table runs, so rows take turns (A B A B …) and are compared within a round:
the ratio of a row is the median of its rounds' ratios, not the ratio of medians.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fwtop.model.costs import machine_name


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    rounds: int | None = None  # None: the table's own number
    quick: bool = False  # a reduced run, under a minute a table
    captures: tuple[str, ...] = ()

    def choose(self, whole: int, quick: int) -> int:
        """Return the rounds that were asked for, else those of a whole or a quick run."""
        return self.rounds or (quick if self.quick else whole)


@dataclass(frozen=True, slots=True)
class Row:
    """One way of doing something; `measure` does it once and returns its figure in `unit`."""

    name: str
    unit: str
    measure: Callable[[], float]
    versus: str | None = None  # the row that this one is compared with
    published: float | None = None  # the same ratio in the published table, for the reader's comparison


@dataclass(frozen=True, slots=True)
class Result:
    """A row's figures, one a round."""

    name: str
    unit: str
    values: tuple[float, ...]
    ratio: float | None = None
    versus: str | None = None
    published: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a row of INTERFACE.md, with the published ratio beside it where there is one."""
        figures = {
            "name": self.name,
            "unit": self.unit,
            "median": statistics.median(self.values),
            "low": min(self.values),
            "high": max(self.values),
            "ratio": self.ratio,
            "versus": self.versus,
        }
        return figures if self.published is None else {**figures, "published_ratio": self.published}


@dataclass(frozen=True, slots=True)
class Document:
    """A whole table, and what a reader should know about it."""

    table: str
    rounds: int
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()
    machine: str = field(default_factory=machine_name)
    kernel: str = field(default_factory=platform.release)
    lines: tuple[str, ...] = ()  # for people instead of the rows, where a table of its own says it better

    def to_json(self) -> dict[str, Any]:
        """Return the document of INTERFACE.md."""
        return {
            "table": self.table,
            "machine": self.machine,
            "kernel": self.kernel,
            "rounds": self.rounds,
            "rows": [result.to_json() for result in self.results],
            "notes": list(self.notes),
        }


def measure(rows: Sequence[Row], rounds: int, *, warm: bool = False) -> tuple[Result, ...]:
    """Measure rows in alternating rounds; `warm` runs each once before, uncounted."""
    values: dict[str, list[float]] = {row.name: [] for row in rows}
    if warm:
        for row in rows:
            progress(f"warming up: {row.name}")
            row.measure()
    for number in range(1, rounds + 1):
        for row in rows:
            progress(f"round {number} of {rounds}: {row.name}")
            values[row.name].append(row.measure())
    progress("")
    return tuple(
        Result(row.name, row.unit, tuple(values[row.name]), *_compared(row, values), row.published)
        for row in rows
    )


def _compared(row: Row, values: dict[str, list[float]]) -> tuple[float | None, str | None]:
    """Return the median of the rounds' ratios; none where nothing was measured to compare with."""
    if row.versus is None or row.versus not in values:
        return None, None
    return median_ratio(values[row.name], values[row.versus]), row.versus


def median_ratio(own: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the median of the quotients of two rows, round by round; None where none can be formed."""
    quotients = [mine / base for mine, base in zip(own, other, strict=True) if base]
    return statistics.median(quotients) if quotients else None


def progress(text: str) -> None:
    """Say on standard error what is being done: on one line of a terminal, else a line each."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def until(predicate: Callable[[], bool], seconds: float, every: float = 0.01) -> bool:
    """Wait until something is so; False when it was not within so many seconds."""
    end = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True
