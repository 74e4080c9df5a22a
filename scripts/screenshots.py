#!/usr/bin/env python3
"""Make screenshots/*.svg from the running program: real floods in lab namespaces, real keys, real screen.

Every picture is what tmux shows of `fwtop lab SCENARIO` at that moment. Needs root, tmux and the
installed program (make setup). `screenshots.py NAME…` makes only those.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

CLONE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CLONE))

from fwtop.model import paths  # noqa: E402 - the clone isn't installed into this environment
from fwtop.ui.picture import SVG_FORMAT  # noqa: E402

TARGET = CLONE / "screenshots"
DEADLINE_SECONDS = 40.0
SETTLED_SECONDS = 4.0  # after the attack is named, so that rates and shares are those of a whole window


@dataclass(frozen=True)
class Step:
    """Press `keys` (tmux's names), wait until the screen matches `until`, then take `picture` if named."""

    until: str
    keys: tuple[str, ...] = ()
    picture: str = ""
    settle: bool = False


@dataclass(frozen=True)
class Shot:
    """One run of a scenario in a terminal of one size."""

    scenario: str
    columns: int
    rows: int
    steps: tuple[Step, ...]


NAMED = r"(?i)flood|amplification"
SHOTS = (
    Shot(
        "few_sources",
        200,
        50,
        (
            Step(NAMED, picture="few_sources-200x50", settle=True),
            Step(r"would run", ("b",), "few_sources-preview-200x50"),
            Step(r"unconfirmed", ("Enter",), "few_sources-installed-200x50", settle=True),
            Step(r"rule \d+ is confirmed", ("y",), "few_sources-kept-200x50", settle=True),
        ),
    ),
    Shot("dns_amplification", 120, 40, (Step(NAMED, picture="dns_amplification-120x40", settle=True),)),
    Shot(
        "syn_flood",
        80,
        24,
        (
            Step(NAMED, picture="syn_flood-80x24", settle=True),
            Step(r"block what is selected", ("?",), "help-80x24"),
        ),
    ),
)


class Terminal:
    """A tmux server of our own with one window, gone when the block ends."""

    def __init__(self, columns: int, rows: int, argv: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fwtop-pictures-")
        self._socket = str(Path(self._folder.name) / "tmux")
        size = ["-x", str(columns), "-y", str(rows)]
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, *argv, environment=environment)
        self._tmux("set-option", "-g", "status", "off")
        self._tmux("set-option", "-g", "remain-on-exit", "on")
        self._tmux("resize-window", *size)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        """End the program, and the server only after it: the lab takes its namespaces down at its end."""
        self.press("q")
        if not self._ended(within=8.0):  # it asks, as a rule is unconfirmed
            os.kill(int(self._tmux("display-message", "-p", "#{pane_pid}")), signal.SIGTERM)
            self._ended(within=15.0)
        self._tmux("kill-server")
        self._folder.cleanup()

    def _ended(self, within: float) -> bool:
        end = time.monotonic() + within
        while self._tmux("display-message", "-p", "#{pane_dead}").strip() == "0":
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def _tmux(self, *words: str, environment: dict[str, str] | None = None) -> str:
        argv = ["tmux", "-S", self._socket, *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False, env=environment)
        return done.stdout

    def press(self, *keys: str) -> None:
        """Type keys."""
        for key in keys:
            self._tmux("send-keys", key)

    def screen(self, *, colours: bool = False) -> str:
        """Return what is on the screen."""
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def wait(self, pattern: str) -> None:
        """Wait until the screen matches."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not re.search(pattern, self.screen()):
            if time.monotonic() > end:
                raise SystemExit(f"screenshots: {pattern!r} did not appear; the screen was:\n{self.screen()}")
            time.sleep(0.1)


def write_picture(name: str, columns: int, screen: str) -> None:
    """Write the screen with its colours as an SVG."""
    console = Console(width=columns, record=True, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    console.print(Text.from_ansi(screen.rstrip("\n"), no_wrap=True, end=""))
    svg = console.export_svg(title="sudo fwtop", theme=MONOKAI, code_format=SVG_FORMAT, unique_id="fwtop")
    console.file.close()
    TARGET.mkdir(exist_ok=True)
    (TARGET / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(f"screenshots/{name}.svg", file=sys.stderr)


def take(shot: Shot, wanted: set[str]) -> None:
    """Run one scenario and take its pictures."""
    with Terminal(shot.columns, shot.rows, [str(paths.COMMAND), "lab", shot.scenario]) as terminal:
        for step in shot.steps:
            terminal.press(*step.keys)
            terminal.wait(step.until)
            if step.settle:
                time.sleep(SETTLED_SECONDS)
            if step.picture and (not wanted or step.picture in wanted):
                write_picture(step.picture, shot.columns, terminal.screen(colours=True))


def main(wanted: set[str]) -> None:
    """Take all pictures, or the wanted ones."""
    if os.geteuid() != 0:
        raise SystemExit("screenshots: the lab needs root; nothing was started: sudo make screenshots")
    if shutil.which("tmux") is None:
        raise SystemExit("screenshots: tmux is missing; nothing was started: apt-get install tmux")
    names = {step.picture for shot in SHOTS for step in shot.steps if step.picture}
    if wanted - names:
        raise SystemExit(
            f"screenshots: no such picture: {', '.join(wanted - names)}; there are: {', '.join(names)}"
        )
    for shot in SHOTS:
        if not wanted or any(step.picture in wanted for step in shot.steps):
            take(shot, wanted)


if __name__ == "__main__":
    main(set(sys.argv[1:]))
