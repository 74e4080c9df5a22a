#!/usr/bin/env python3
"""Make screenshots/*.svg from the running program: real floods in lab namespaces, real keys, real screen.

Every picture is what tmux shows of `fwtop lab SCENARIO` at that moment; the walk is a film of it. Needs root,
tmux, and the programs that `make setup` installs. `screenshots.py NAME…` makes only those.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec import Struct

CLONE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CLONE))

from animation import PICTURE_THEME, Frame, animated_svg, asciicast  # noqa: E402 - the clone isn't installed into this environment

from fwtop.kernel.programs import module_argv  # noqa: E402

TARGET = CLONE / "screenshots"
DEADLINE_SECONDS = 90.0
FRAME_SECONDS, LAST_SECONDS = 0.5, 5.0  # between frames of a film; of its last one
SETTLED_SECONDS = 4.0  # after the attack is named, so that rates and shares are those of a whole window
QUIET_SECONDS = 14.0  # the same, and no message of its beginning covers the graph


class Step(Struct, frozen=True):
    """Press `keys` (tmux's names), wait until the screen matches `until`, then take `picture` if named.

    `stay` is how long the screen stays before that: figures settle, and a film's spectators read. `proposal`
    is in the line of the proposal whose number is pressed instead of keys.
    """

    until: str
    keys: tuple[str, ...] = ()
    picture: str = ""
    stay: float = 0.0
    proposal: str = ""


class Shot(Struct, frozen=True):
    """One run of a scenario, or of a command, in a terminal of one size; with `film`, it is filmed."""

    scenario: str
    columns: int
    rows: int
    steps: tuple[Step, ...]
    film: str = ""
    script: str = ""  # of a shell, instead of the scenario; it ends with a key

    @property
    def names(self) -> set[str]:
        """What it makes."""
        return {step.picture for step in self.steps if step.picture} | ({self.film} if self.film else set())


NAMED = r"UNPROTECTED|PARTLY|ALREADY"
EFFECT = r"TRIAL.*(✔|= (>?9\d(\.\d)?|100) %)"
# firewalld's own rules, and a web and a DNS server behind them.
STATELESS = f"""
at=fwtop-picture-$$; trap 'kill $!; ip netns del $at' EXIT
ip netns add $at; ip -n $at link set lo up
ip netns exec $at nft -f {CLONE}/tests/kernel/rulesets/firewalld-1.3.3.nft
ip netns exec $at {sys.executable} -c 'import socket, time
web, names = socket.create_server(("", 80)), socket.socket(type=socket.SOCK_DGRAM)
names.bind(("", 5353)); time.sleep(600)' &
until ip netns exec $at ss -lun | grep -q :5353; do :; done
{shlex.join(module_argv("fwtop", "harden", "stateless"))} --netns $at; read -rsn1
"""
SHOTS = (
    Shot(
        "syn_flood",
        120,
        36,
        (
            Step(r"REACHES YOU"),
            Step(NAMED, stay=3.0),
            Step(r"Install", ("1",), stay=2.0),
            Step(EFFECT, ("Enter",), stay=1.0),
            Step(r"(?m)^ ?PROTECTED", ("y",), stay=6.0),
        ),
        film="walk",
    ),
    Shot(
        "few_sources",
        200,
        50,
        (Step(NAMED, stay=SETTLED_SECONDS, picture="overview-200x50"),),
    ),
    Shot(
        "mixed_vectors",
        120,
        40,
        (
            Step(NAMED, stay=QUIET_SECONDS),
            Step(r"▸ Install all", ("A",), "set-120x40", 1.0),
            Step(EFFECT, ("Enter",)),
            Step(r"(?m)^ ?PROTECTED", ("y",), stay=SETTLED_SECONDS),
            Step(r"signature", ("]",)),
            Step(r"rule \d+", ("]",), stay=2.0),
            Step(r"HELD", ("Up",), "packets-120x40", 2.0),
            Step(r"conntrack", ("]",), "path-120x40", 1.0),
        ),
    ),
    Shot(
        "conntrack_exhaustion",
        120,
        36,
        (Step(r"conntrack playbook", stay=SETTLED_SECONDS, picture="playbook-conntrack-120x36"),),
    ),
    Shot(
        "dns_query_flood",
        120,
        36,
        (
            Step(r"resolver playbook", stay=SETTLED_SECONDS),
            Step(r"Install", picture="playbook-resolver-120x36", stay=2.0, proposal="resolver playbook"),
        ),
    ),
    Shot(
        "stateless",
        120,
        30,
        (Step(r"stays as it is", stay=1.0, picture="playbook-stateless-120x30"),),
        script=STATELESS,
    ),
    Shot("syn_flood", 80, 24, (Step(NAMED, stay=QUIET_SECONDS, picture="syn_flood-80x24"),)),
)


def _with_styles(screen: str) -> str:
    """Begin each line with the style that the one before it ended in: tmux writes only changes of style."""
    lines, style = [], ""
    for line in screen.split("\n"):
        lines.append(style + line)
        for code in re.findall(r"\x1b\[[\d;]*m", line):
            style = code if re.match(r"\x1b\[0?[;m]", code) else style + code
    return "\n".join(lines)


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

    def number_of(self, proposal: str) -> str:
        """Return the number of the proposal with these words in its first line."""
        found = re.search(rf"(?m)^\W*([1-9]) .*{re.escape(proposal)}", self.screen())
        if found is None:
            raise SystemExit(f"screenshots: no proposal {proposal!r}; the screen was:\n{self.screen()}")
        return found[1]

    def screen(self, *, colours: bool = False) -> str:
        """Return what is on the screen."""
        return _with_styles(self._tmux("capture-pane", "-p", *(["-e", "-N"] if colours else [])))

    def wait(self, pattern: str, film: Film | None) -> None:
        """Wait until the screen matches."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not re.search(pattern, self.screen()):
            if film is not None:
                film.look(self)
            if time.monotonic() > end:
                raise SystemExit(f"screenshots: {pattern!r} did not appear; the screen was:\n{self.screen()}")
            time.sleep(0.1)


class Film:
    """Frames of a screen, taken when it has changed and the last one is old enough."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self._begun = 0.0

    def look(self, terminal: Terminal) -> None:
        """Take a frame if it is time."""
        now = time.monotonic()
        if self.frames and now - self._begun - self.frames[-1].at < FRAME_SECONDS:
            return
        lines = tuple(terminal.screen(colours=True).rstrip("\n").split("\n"))
        if not self.frames:
            self._begun = now
        if not self.frames or lines != self.frames[-1].lines:
            self.frames.append(Frame(now - self._begun, lines))

    def write(self, name: str, columns: int, rows: int) -> None:
        """Write it in both formats."""
        svg = animated_svg(self.frames, columns, rows, PICTURE_THEME, LAST_SECONDS)
        _write(f"{name}.svg", svg)
        _write(f"{name}.cast", asciicast(self.frames, columns, rows, "sudo fwtop"))


def write_picture(name: str, shot: Shot, screen: str) -> None:
    """Write the screen with its colours as an SVG."""
    frame = Frame(0.0, tuple(screen.rstrip("\n").split("\n")))
    _write(f"{name}.svg", animated_svg([frame], shot.columns, shot.rows, PICTURE_THEME, LAST_SECONDS))


def _write(name: str, text: str) -> None:
    TARGET.mkdir(exist_ok=True)
    (TARGET / name).write_text(text, encoding="utf-8")
    print(f"screenshots/{name}: {len(text.encode()) // 1024} KiB", file=sys.stderr)


def take(shot: Shot, wanted: set[str]) -> None:
    """Run one scenario and take its pictures."""
    film = Film() if shot.film else None
    argv = ["bash", "-c", shot.script] if shot.script else module_argv("fwtop", "lab", shot.scenario)
    with Terminal(shot.columns, shot.rows, argv) as terminal:
        for step in shot.steps:
            terminal.press(*(terminal.number_of(step.proposal) if step.proposal else step.keys))
            terminal.wait(step.until, film)
            end = time.monotonic() + step.stay
            while time.monotonic() < end:
                if film is not None:
                    film.look(terminal)
                time.sleep(0.1)
            if step.picture and (not wanted or step.picture in wanted):
                write_picture(step.picture, shot, terminal.screen(colours=True))
    if film is not None:
        film.write(shot.film, shot.columns, shot.rows)


def main(wanted: set[str]) -> None:
    """Take all pictures, or the wanted ones."""
    if os.geteuid() != 0:
        raise SystemExit("screenshots: the lab needs root; nothing was started: sudo make screenshots")
    if shutil.which("tmux") is None:
        raise SystemExit("screenshots: tmux is missing; nothing was started: apt-get install tmux")
    names = {name for shot in SHOTS for name in shot.names}
    if wanted - names:
        raise SystemExit(
            f"screenshots: no such picture: {', '.join(wanted - names)}; there are: {', '.join(names)}"
        )
    for shot in SHOTS:
        if not wanted or wanted & shot.names:
            take(shot, wanted)


if __name__ == "__main__":
    main(set(sys.argv[1:]))
