"""How soon (P6, P7): numbers after the start, an attack's name after its first packet, drops after the key.

Each round is one sitting at the screen on a terminal of 200×50: start it, let the lab attack, press `b` and
Enter on the greatest source. The key's time runs from Enter until the kernel's own counter has moved.
"""

from __future__ import annotations

import contextlib
import re
import time

from fwtop.bench.frame import Document, Options, Row, measure, until
from fwtop.bench.programs import fwtop_argv, run_fwtop
from fwtop.bench.terminal import Terminal
from fwtop.lab.namespaces import run as run_tool
from fwtop.lab.run import Lab
from fwtop.model.errors import FwtopError

_SCENARIO = "few_sources"
_TITLE = "UDP flood"  # as fwtop names that scenario's attack on the screen
_PATIENCE_SECONDS = 20.0
_CALM_SECONDS = 2.0  # watched before the attack
_DROPPED = re.compile(r"^\[([1-9]\d*):\d+\] .*-j DROP", re.MULTILINE)


def run(options: Options) -> Document:
    """Measure the table."""
    rounds = options.choose(5, 2)
    with Lab(_SCENARIO) as lab, contextlib.closing(_Sitting(lab)) as sitting:
        rows = [
            Row("start to the first numbers", "s", sitting.start),
            Row("attack's first packet to its name", "s", sitting.attack),
            Row("Enter to the first packet dropped", "s", sitting.block),
        ]
        return Document("react", rounds, measure(rows, rounds))


class _Sitting:
    """One operator at one screen; the three steps follow each other in every round."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._stack = contextlib.ExitStack()

    def start(self) -> float:
        """Open the screen."""
        argv = fwtop_argv("watch", "--netns", self._lab.victim, "--no-store")
        terminal = Terminal(argv, {"SSH_CONNECTION": self._lab.ssh_connection})
        self._terminal = self._stack.enter_context(terminal)
        shown = terminal.wait_for(" pps", _PATIENCE_SECONDS)
        return shown - terminal.started

    def attack(self) -> float:
        """Begin the flood."""
        time.sleep(_CALM_SECONDS)
        self._terminal.forget()
        started = time.monotonic()
        self._lab.start_flood()
        return self._terminal.wait_for(_TITLE, _PATIENCE_SECONDS) - started

    def block(self) -> float:
        """Block the greatest source, wait until the kernel counts what it dropped, and clear up."""
        self._terminal.press("b")
        self._terminal.wait_for("would run", _PATIENCE_SECONDS)
        pressed = time.monotonic()
        self._terminal.press("\r")
        if not until(self._has_dropped, _PATIENCE_SECONDS, every=0.001):
            raise FwtopError("nothing was dropped after Enter; the lab is taken down")
        taken = time.monotonic() - pressed
        self._lab.stop()
        run_fwtop("undo", "--all", "--netns", self._lab.victim)
        self._stack.close()
        return taken

    def _has_dropped(self) -> bool:
        saved = run_tool("ip", "netns", "exec", self._lab.victim, "iptables-save", "-c", "-t", "raw")
        return _DROPPED.search(saved) is not None

    def close(self) -> None:
        """Close the screen, wherever the round was left."""
        self._stack.close()
