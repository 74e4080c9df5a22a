"""Captures for the accuracy table: what is in them, counted independently, and what fwtop says of it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from msgspec import Struct

from fwtop.bench.programs import fwtop_argv
from fwtop.bench.recorder import capture_records, parse
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_READ_SECONDS = 120
_NAMES = {6: "tcp", 17: "udp"}


class Case(Struct, frozen=True):
    """A capture, or what else was counted. `kinds` is None where the contents are unknown."""

    name: str
    kinds: tuple[str, ...] | None
    packets: int
    bytes: int
    sources: Mapping[str, int]
    ports: Mapping[tuple[str, str, int], int]
    observation: dict[str, Any]

    @property
    def one_in(self) -> float:
        """Packets per sample of the observation."""
        return float(self.observation["sampling"]["one_in"])

    @property
    def seen_kinds(self) -> tuple[str, ...]:
        """The attacks that fwtop named."""
        return tuple(attack["kind"] for attack in self.observation["attacks"])

    @property
    def named_kinds(self) -> tuple[str, ...]:
        """`seen_kinds` without those that are right, but not required."""
        return self.seen_kinds

    @property
    def unexplained(self) -> float:
        """The ledger's unexplained packets, as a share of the total."""
        rows = self.observation["ledger"]
        count = sum(abs(row["packets"]) for row in rows if row["layer"] == "unexplained")
        return count / self.packets if self.packets else 0.0

    @property
    def ledger(self) -> int:
        """Packets that the ledger accounts for."""
        return sum(row["packets"] for row in self.observation["ledger"] if row["layer"] != "unexplained")

    def intervals(self) -> list[Interval]:
        """Return the interval of every shown share whose true value is known."""
        found = [
            self.interval(row["key"], row, self.sources[row["key"]])
            for row in self.observation["sources"]["address"]
            if row["key"] in self.sources
        ]
        for row in self.observation["ports"]:
            key = (row["protocol"], row["side"], row["port"])
            if key in self.ports:
                found.append(self.interval("/".join(map(str, key)), row, self.ports[key]))
        return found

    def interval(self, name: str, row: dict[str, Any], count: int) -> Interval:
        """Return the interval of a shown share beside the true one, of so many packets."""
        return Interval(f"{self.name}: {name}", row["share_low"], row["share_high"], count / self.packets)


def read_capture(argument: str) -> Case:
    """Count a capture independently and by `fwtop read`; `argument` is FILE or FILE=kind,kind."""
    name, _, expected = argument.partition("=")
    path = Path(name)
    sources, ports = Counter[str](), Counter[tuple[str, str, int]]()
    packets = size = 0
    try:
        for data, length, link in capture_records(path):
            packets, size = packets + 1, size + length
            if (packet := parse(data, link)) is None:
                continue
            sources[packet.source] += 1
            if packet.sport is not None and packet.dport is not None:
                ports[_NAMES[packet.protocol], "src", packet.sport] += 1
                ports[_NAMES[packet.protocol], "dst", packet.dport] += 1
    except OSError as error:
        raise FwtopError(f"{safe_text(name)}: {error.strerror}; nothing was measured") from None
    kinds = tuple(kind for kind in expected.split(",") if kind and kind != "none") if expected else None
    return Case(path.name, kinds, packets, size, sources, ports, _read(path))


def _read(path: Path) -> dict[str, Any]:
    done = subprocess.run(
        fwtop_argv("read", str(path), "--json"), capture_output=True, timeout=_READ_SECONDS, check=False
    )
    if done.returncode:
        raise FwtopError(f"fwtop read {safe_text(path)}: {safe_text(done.stderr.decode('utf-8', 'replace'))}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


TOP_SOURCES = 20
_SAMPLES = 10
_STEP = 2e-6  # shares are printed with six decimals


class Recall(Struct, frozen=True):
    """How many of the true top entries were shown first."""

    found: int
    wanted: int
    missed: tuple[str, ...] = ()


def top_recall(
    true: Mapping[str, int], shown: Sequence[str], one_in: float, top: int = TOP_SOURCES
) -> Recall:
    """Compare the first `top` shown with the true `top`, within the resolution of 1-in-`one_in` sampling.

    Only sources with at least ten expected samples are required. A source as large as the smallest required
    one counts in its place (ties), and so does one within two standard errors of it.
    """
    resolved = _SAMPLES * one_in if one_in > 1 else 0.0
    ranked = sorted(
        ((key, count) for key, count in true.items() if count >= resolved), key=lambda item: -item[1]
    )
    wanted = min(top, len(ranked))
    if not wanted:
        return Recall(0, 0)
    least = ranked[wanted - 1][1]
    blur = 2 * sqrt(2 * least * max(0.0, one_in - 1))
    first = set(shown[:top])
    good = sum(1 for key in first if true.get(key, 0) >= max(1.0, least - blur))
    missed = tuple(key for key, _ in ranked[:wanted] if key not in first)
    return Recall(min(good, wanted), wanted, missed[: wanted - min(good, wanted)])


def strict_recall(true: Mapping[str, int], shown: Sequence[str], top: int = TOP_SOURCES) -> Recall:
    """Compare the first `top` shown with the true `top`; ties are interchangeable."""
    return top_recall(true, shown, 1.0, top)


class Interval(Struct, frozen=True):
    """The 95 % interval of a shown share, and the true share."""

    name: str
    low: float
    high: float
    true: float

    @property
    def is_exact(self) -> bool:
        """Whether the share is presented as exact: the interval is no wider than rounding."""
        return self.high - self.low <= 2 * _STEP

    def covers(self, slack: float = 0.0) -> bool:
        """Whether the true share is within the interval, plus or minus `slack`."""
        return self.low - _STEP - slack <= self.true <= self.high + _STEP + slack


def coverage(intervals: Sequence[Interval], slack: float = 0.0) -> float | None:
    """Return the share of intervals that cover the true value; None for an empty list."""
    if not intervals:
        return None
    return sum(interval.covers(slack) for interval in intervals) / len(intervals)


def relative_difference(seen: float, true: float) -> float:
    """Return |seen - true| / true; for a true 0, 1 if anything was seen."""
    return abs(seen - true) / true if true else float(seen != 0)


def named_rightly(expected: Sequence[str], seen: Sequence[str]) -> float:
    """Return the Jaccard index of expected and named kinds."""
    either = set(expected) | set(seen)
    return len(set(expected) & set(seen)) / len(either) if either else 1.0
