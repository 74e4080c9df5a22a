"""False alarms on a host that real programs use, watched live by a recorder for an hour.

Each minute starts the same programs at other moments, so that what runs at once differs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benches.everyday import EverydayLab
from fwtop.bench.frame import Document, Options, Result, progress, until
from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import fwtop_argv
from fwtop.lab.processes import Program
from fwtop.model.errors import FwtopError

_MINUTES, _QUICK_MINUTES = 60, 2
_SEED = 12
_READY_SECONDS = 30.0


class Watched(Struct, frozen=True):
    """What the recorder saw: windows, those in which an attack went on, and each attack once."""

    windows: int
    alarmed: int
    packets: float
    alarms: tuple[str, ...]

    @staticmethod
    def of(lines: Iterable[str]) -> Watched:
        """Read the recorder's lines."""
        windows, alarmed, packets = 0, 0, 0.0
        alarms: dict[tuple[str, str], str] = {}
        for line in lines:
            seen = json.loads(line)
            going_on = [attack for attack in seen["attacks"] if attack["ended"] is None]
            windows, alarmed = windows + 1, alarmed + bool(going_on)
            packets = max(packets, float(seen["totals"]["pps"]))
            alarms |= {(one["kind"], one["since"]): _alarm(one) for one in going_on}
        return Watched(windows, alarmed, packets, tuple(alarms.values()))


def _alarm(attack: dict[str, Any]) -> str:
    return (
        f"{attack['since']}: {attack['kind']}, {attack['confidence']:.0%} sure, "
        f"{attack['pps']:,.0f} packets/s, {attack['share']:.0%} of the traffic: "
        f"{'; '.join(attack['evidence'][:2])}"
    )


def run(options: Options) -> Document:
    """Watch; `rounds` is the number of minutes."""
    minutes = options.choose(_MINUTES, _QUICK_MINUTES)
    with tempfile.TemporaryDirectory(prefix="fwtop-") as folder, EverydayLab(_SEED) as lab:
        lines = Path(folder) / "lines"
        argv = ("record", "--netns", lab.victim, "--no-alarms", "--jsonl", str(lines))
        try:
            with Program(fwtop_argv(*argv)):
                if not until(lambda: lines.exists() and lines.stat().st_size > 0, _READY_SECONDS):
                    raise FwtopError("the recorder did not start; the lab is taken down")
                for number in range(1, minutes + 1):
                    for program in lab.minute():
                        progress(f"minute {number} of {minutes}: {program}")
            progress("")
        finally:
            forget_session(lab)
        watched = Watched.of(lines.read_text(encoding="utf-8").splitlines())
        return Document("hour", 1, _results(watched, minutes), tuple(_notes(lab, watched.alarms)))


def _results(watched: Watched, minutes: int) -> tuple[Result, ...]:
    figures = (
        ("false alarms", "attacks", len(watched.alarms)),
        ("windows in which one went on", "windows", watched.alarmed),
        ("windows judged", "windows", watched.windows),
        ("watched", "minutes", minutes),
        ("most packets/s in a window", "packets/s", watched.packets),
    )
    return tuple(Result(name, unit, (float(value),)) for name, unit, value in figures)


def _notes(lab: EverydayLab, alarms: Sequence[str]) -> list[str]:
    started = ", ".join(f"{program} {count:,}" for program, count in sorted(lab.started.items()))
    failed = ", ".join(f"{program} {count:,}" for program, count in sorted(lab.failed.items()) if count)
    return [
        *alarms,
        f"started: {started}",
        *([f"of these ended with an error: {failed}"] if failed else []),
        *([f"not installed, and so left out: {', '.join(lab.missing)}"] if lab.missing else []),
    ]
