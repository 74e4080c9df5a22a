"""Latency (P6, P7): start to first numbers, an attack's first packet to its name, key to the first drop.

Each round opens one screen on a terminal of 200×50, starts the lab's attack, and presses `b` and Enter on the
busiest source. The last figure is the time from Enter until the kernel's rule counter moves.
"""

from __future__ import annotations

import contextlib
import time

from fwtop.bench.frame import Document, Options, Row, measure, until
from fwtop.bench.programs import Terminal, fwtop_argv, run_fwtop
from fwtop.kernel.namespaces import inside
from fwtop.lab.run import Lab
from fwtop.model.errors import FwtopError
from fwtop.netfilter import nf_tables
from fwtop.rules.kind import PREROUTING, SOURCE_CHAINS

_SCENARIO = "few_sources"
_TITLE = "UDP flood"  # the name of that attack on the screen
_PATIENCE_SECONDS = 20.0
_CALM_SECONDS = 2.0  # before the attack
_SEEN_SECONDS = 2.0  # until an attacker has been under the cursor: keys act on the row that was seen
_TRAFFIC_TAB = "]"  # the next one; the cursor is on its busiest source


def run(options: Options) -> Document:
    """Measure the table."""
    rounds = options.choose(5, 2)
    with Lab(_SCENARIO) as lab, contextlib.closing(_ScreenRun(lab)) as screen:
        rows = [
            Row("start to the first numbers", "s", screen.start),
            Row("attack's first packet to its name", "s", screen.attack),
            Row("Enter to the first packet dropped", "s", screen.block),
        ]
        return Document("react", rounds, measure(rows, rounds))


class _ScreenRun:
    """One screen; `start`, `attack` and `block` are called in this order in every round."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._stack = contextlib.ExitStack()

    def start(self) -> float:
        """Open the screen; return the seconds until numbers appear."""
        argv = fwtop_argv("watch", "--netns", self._lab.victim, "--no-store")
        terminal = Terminal(argv, {"SSH_CONNECTION": self._lab.ssh_connection})
        self._terminal = self._stack.enter_context(terminal)
        shown = terminal.wait_for(" pps", _PATIENCE_SECONDS)
        return shown - terminal.started

    def attack(self) -> float:
        """Start the flood; return the seconds until its name appears."""
        time.sleep(_CALM_SECONDS)
        self._terminal.forget()
        started = time.monotonic()
        self._lab.start_flood()
        return self._terminal.wait_for(_TITLE, _PATIENCE_SECONDS) - started

    def block(self) -> float:
        """Block the busiest source; return the seconds until the kernel counts a drop. Then clean up."""
        self._terminal.press(_TRAFFIC_TAB)
        time.sleep(_SEEN_SECONDS)
        self._terminal.press("b")
        self._terminal.wait_for("matches now", _PATIENCE_SECONDS)
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
        """Ask the kernel: starting iptables-save time and again would slow down what is measured."""
        with inside(self._lab.victim):
            rules = nf_tables.rules("ip raw", SOURCE_CHAINS[PREROUTING])
            return any(rule.packets for rule in rules)

    def close(self) -> None:
        """Close the screen, also after an incomplete round."""
        self._stack.close()
