"""Running fwtop on the victim: one observation to compare with the truth, or the screen."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from typing import Any

from fwtop.kernel.programs import module_argv, run
from fwtop.lab.processes import READY_SECONDS, Program, end
from fwtop.lab.run import Lab
from fwtop.model.errors import FwtopError

_CALM_SECONDS = 1.0
_TAIL_SECONDS = 0.3


def observe(
    lab: Lab, seconds: float, pps: int | None = None, *, store: bool = False, watcher: list[str] | None = None
) -> dict[str, Any]:
    """Run the scenario once while fwtop watches; return scenario, truth and observation.

    Clients run for a second unwatched (phase "before"), pause until the watcher is counting, continue without
    attack (phase "watched") and then under attack (phase "during"). All traffic ends shortly before the
    watcher stops, so that the observation contains exactly the traffic that the truth counts. `watcher` is an
    argv to run instead of fwtop.
    """
    time.sleep(_CALM_SECONDS)
    lab.pause_clients()
    options = ["--netns", lab.victim, "--seconds", f"{seconds:g}", "--json"]
    argv = watcher or module_argv("fwtop", "snapshot", *options, *([] if store else ["--no-store"]))
    with Program(argv, ready=True, environment=_told(lab)) as watching:
        _play(lab, time.monotonic(), seconds, pps)
        truth = lab.truth()
        text = watching.finish(seconds + READY_SECONDS)
    try:
        return {"scenario": lab.name, "truth": truth, "observation": json.loads(text)}
    except ValueError:
        raise FwtopError("the watcher printed something that is not one JSON document") from None


def _play(lab: Lab, started: float, seconds: float, pps: int | None) -> None:
    lab.mark()
    lab.phase("watched")
    time.sleep(min(_CALM_SECONDS, seconds * 0.2))
    end = started + seconds - min(_TAIL_SECONDS, seconds * 0.2)
    lab.start_flood(pps, seconds=max(0.0, end - time.monotonic()))
    time.sleep(max(0.0, end - time.monotonic()))
    lab.stop()
    lab.pause_clients()


def show(lab: Lab, pps: int | None = None) -> int:
    """Open fwtop's screen on the victim and flood it until the screen closes; return fwtop's exit status."""
    lab.mark()
    lab.start_flood(pps)
    argv = module_argv("fwtop", "watch", "--netns", lab.victim)
    process = subprocess.Popen(argv, env={**os.environ, **_told(lab)})
    try:
        return process.wait()
    finally:
        end(process)
        _undo_all(lab)


def _undo_all(lab: Lab) -> None:
    """Undo confirmed rules: objects pinned in bpffs would outlive the victim's namespace."""
    with contextlib.suppress(FwtopError):
        run(module_argv("fwtop", "undo", "--all", "--netns", lab.victim), timeout=10)


def _told(lab: Lab) -> dict[str, str]:
    return {"SSH_CONNECTION": lab.ssh_connection}
