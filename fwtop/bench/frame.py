"""What all tables share: rows measured in alternating rounds, and what of this machine distorts them.

A machine's speed drifts while a table runs, so rows alternate (A B A B …) and are compared within a round:
a row's ratio is the median of the per-round ratios, not the ratio of the medians.
"""

from __future__ import annotations

import importlib
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.kernel.receive_path import PacketSockets
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.rules.costs import machine_name

CPU = Path("/sys/devices/system/cpu")
_PROCESSORS = Path("/proc/cpuinfo")
_BUSY = 0.5  # processes ready to run, for each CPU
_LONGEST = 60


def distortions(cpu: Path = CPU, processors: Path = _PROCESSORS) -> Iterator[str]:
    """Yield a line for each thing that makes figures differ between machines, or between runs."""
    weak = _listed(cpu / "vulnerabilities")
    if on := [path.name for path in weak if _read(path).startswith("Mitigation")]:
        names = ", ".join(on)
        yield f"mitigations of the CPU are on, which make indirect and system calls cost more: {names}"
    turbo = {"intel_pstate/no_turbo": "0", "cpufreq/boost": "1"}
    if any(_read(cpu / name) == on for name, on in turbo.items()):
        yield "turbo is on: the clock depends on heat, and on how many cores work"
    yield from _frequency(cpu / "cpu0/cpufreq")
    if " hypervisor" in _read(processors, 8192):
        yield "a virtual machine: its host sets the clock, and other guests share the cores and their caches"
    for item in PacketSockets().read():
        name, where = safe_text(item.process, limit=_LONGEST), safe_text(item.interface or "all interfaces")
        yield f"{name} (PID {item.pid}) has a packet socket on {where}: each packet there is copied for it"
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > _BUSY * cores:
        yield f"other processes were busy: load {load:.1f} on {cores} CPUs"


def _frequency(scaling: Path) -> Iterator[str]:
    governor = _read(scaling / "scaling_governor")
    if governor in ("", "performance"):
        return
    low, high = (_read(scaling / f"scaling_{name}_freq") for name in ("min", "max"))
    span = f", {int(low) // 1000:,} to {int(high) // 1000:,} MHz" if low.isdigit() and high.isdigit() else ""
    yield f"the clock follows the load (governor {safe_text(governor, limit=_LONGEST)}{span})"


def _listed(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def _read(path: Path, most: int = 200) -> str:
    """Return the beginning of a file, "" where there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(most).strip()
    except OSError:
        return ""


class Options(Struct, frozen=True):
    """Options of the command line."""

    rounds: int | None = None  # None: the table's default
    quick: bool = False  # a shortened run: a minute or two per table
    captures: tuple[str, ...] = ()  # positional arguments: captures, scenarios or trials
    seed: int | None = None  # of the corpus: which windows are drawn; None: the usual ones

    def choose(self, full: int, quick: int) -> int:
        """Return the number of rounds: as requested, else the default of a full or quick run."""
        return self.rounds or (quick if self.quick else full)


class Row(Struct, frozen=True):
    """One row of a table; `measure` runs it once and returns its figure in `unit`."""

    name: str
    unit: str
    measure: Callable[[], float]
    versus: str | None = None  # name of the row that this one is divided by
    published: float | None = None  # the same ratio in the published table


class Result(Struct, frozen=True):
    """A row's figures, one per round."""

    name: str
    unit: str
    values: tuple[float, ...]
    ratio: float | None = None
    versus: str | None = None
    published: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a row of docs/JSON.md; `published_ratio` is present only where one was published."""
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


class Document(Struct, frozen=True):
    """A measured table with notes for the reader."""

    table: str
    rounds: int
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()
    machine: str = field(default_factory=machine_name)
    kernel: str = field(default_factory=platform.release)
    lines: tuple[str, ...] = ()  # replaces the rows in text output
    picture: str = ""  # replaces the drawn rows: an SVG

    def to_json(self) -> dict[str, Any]:
        """Return the document of docs/JSON.md."""
        return {
            "table": self.table,
            "machine": self.machine,
            "kernel": self.kernel,
            "rounds": self.rounds,
            "rows": [result.to_json() for result in self.results],
            "notes": list(self.notes),
        }


def measure(rows: Sequence[Row], rounds: int, *, warm: bool = False) -> tuple[Result, ...]:
    """Measure rows in alternating rounds; with `warm`, run each once first and discard the result."""
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
    """Return the ratio and the name of the row it refers to, or two Nones."""
    if row.versus is None or row.versus not in values:
        return None, None
    return median_ratio(values[row.name], values[row.versus]), row.versus


def median_ratio(own: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the median of the per-round quotients of two rows; None if every divisor is 0."""
    quotients = [mine / base for mine, base in zip(own, other, strict=True) if base]
    return statistics.median(quotients) if quotients else None


def progress(text: str) -> None:
    """Report progress on standard error: overwriting one line on a terminal, else a line each."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def until(predicate: Callable[[], object], seconds: float, every: float = 0.01) -> bool:
    """Poll a predicate until it holds; False on timeout."""
    end = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


def render(document: Document) -> str:
    """Format heading, rows and notes as aligned text."""
    plural = "" if document.rounds == 1 else "s"
    heading = (
        f"{document.table} · {document.machine} · kernel {document.kernel} · {document.rounds} round{plural}"
    )
    lines = document.lines or _lines(document)
    return "\n".join([heading, "", *lines, *([""] if document.notes else []), *document.notes]) + "\n"


def _lines(document: Document) -> list[str]:
    has_ratio = any(result.ratio is not None for result in document.results)
    has_published = any(result.published is not None for result in document.results)
    titles = ["", "median", "low", "high", "unit"]
    titles += ["ratio"] if has_ratio else []
    titles += ["published"] if has_published else []
    titles += ["to"] if has_ratio else []
    rows = [titles]
    for result in document.results:
        figures = result.to_json()
        cells = [result.name, *(number(figures[name]) for name in ("median", "low", "high")), result.unit]
        cells += [_ratio(result.ratio)] if has_ratio else []
        cells += [_ratio(result.published)] if has_published else []
        cells += [result.versus or ""] if has_ratio else []
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    left = {0, 4, len(titles) - 1} if has_ratio else {0, 4}
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def number(value: float) -> str:
    """Format a figure with about four significant digits."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


class Table(Struct, frozen=True):
    """One table; its module, of the same name in `home`, defines `run(options: Options) -> Document`."""

    name: str
    title: str
    takes: str = ""  # what words after its name are, "" for none
    needs_root: bool = True
    of_speed: bool = True  # its figures are speeds or times of this machine
    home: str = "fwtop.bench.tables"


TABLES = (
    Table(
        "accuracy",
        "fwtop's observations of captures against an independent count",
        "captures (FILE=kind,kind labels one)",
        of_speed=False,
    ),
    Table("react", "latency: start to first numbers, attack to its name, key to the first drop"),
    Table("ladder", "packets per second that one core drops, by hook (Cloudflare)"),
    Table("rules", "packets per second through one core, by rule, and fwtop's against bare ones (Strongarm)"),
    Table("calibrate", "cost of a packet by kind of rule; --calibrate stores it for the proposals"),
    Table(
        "harm",
        "a rule's predicted harm to legitimate clients against the measured harm",
        "trials",
        of_speed=False,
    ),
)


def find(name: str, tables: Sequence[Table] = TABLES, command: str = "fwtop bench") -> Table:
    """Return a table by name; raises FwtopError (2)."""
    for table in tables:
        if table.name == name:
            return table
    raise FwtopError(f"there is no table {safe_text(name, limit=40)!r}; '{command} list' names them", 2)


def run(table: Table, options: Options) -> Document:
    """Measure a table."""
    module = importlib.import_module(f"{table.home}.{table.name}")
    told = (*distortions(),) if table.of_speed else ()  # before it keeps the machine busy
    document: Document = module.run(options)
    return replace(document, notes=(*document.notes, *told))
