"""Running fwtop on the victim: one observation to compare with the truth, or the screen."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from typing import IO, Any

from fwtop.kernel.programs import module_argv
from fwtop.lab.run import Lab
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_READY_SECONDS = 120.0  # while the watcher lives: starting takes that long on a very busy machine
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
    with _Watcher(argv, _environment(lab)) as watching:
        watching.wait_ready()
        started = time.monotonic()
        _play(lab, started, seconds, pps)
        truth = lab.truth()
        observation = watching.finish(seconds + _READY_SECONDS)
    return {"scenario": lab.name, "truth": truth, "observation": observation}


class _Watcher:
    """The observing child, which writes a line to the descriptor FWTOP_READY_FD once it is counting."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self._files = contextlib.ExitStack()
        self._said = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._answer = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._ready, writer = os.pipe()
        self._files.callback(os.close, self._ready)
        try:
            self._process = subprocess.Popen(
                argv,
                env=environment | {"FWTOP_READY_FD": str(writer)},
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=self._answer,
                stderr=self._said,
            )
        except OSError:
            self._files.close()
            raise
        finally:
            os.close(writer)

    def __enter__(self) -> _Watcher:
        return self

    def __exit__(self, *error: object) -> None:
        _end(self._process)
        self._files.close()

    def wait_ready(self) -> None:
        """Wait until the watcher is counting; raises FwtopError if it exits first."""
        end = time.monotonic() + _READY_SECONDS
        while time.monotonic() < end:
            if select.select([self._ready], [], [], 0.1)[0]:
                if os.read(self._ready, 64):
                    return
                self._process.wait(timeout=5)
            if self._process.poll() is not None:
                raise self._failure()
        raise FwtopError(f"the watcher was not ready within {_READY_SECONDS:.0f} s; the lab is taken down")

    def finish(self, timeout: float) -> Any:  # noqa: ANN401 - whatever JSON holds
        """Wait for the watcher to exit and return the JSON document that it printed."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise FwtopError("the watcher did not end in time; the lab is taken down") from None
        if self._process.returncode:
            raise self._failure()
        try:
            return json.loads(_text(self._answer))
        except ValueError:
            raise FwtopError("the watcher printed something that is not one JSON document") from None

    def _failure(self) -> FwtopError:
        status = self._process.returncode
        last = _text(self._said).strip().splitlines()[-1:] or [f"exit status {status}"]
        reason = safe_text(last[0].removeprefix("fwtop: "))
        return FwtopError(f"watching the victim failed: {reason}", status if 0 < status < 128 else 1)


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
    process = subprocess.Popen(argv, env=_environment(lab))
    try:
        return process.wait()
    finally:
        _end(process)
        _undo_all(lab)


def _undo_all(lab: Lab) -> None:
    """Undo confirmed rules: objects pinned in bpffs would outlive the victim's namespace."""
    argv = module_argv("fwtop", "undo", "--all", "--netns", lab.victim)
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=False,
        )


def _environment(lab: Lab) -> dict[str, str]:
    return {**os.environ, "SSH_CONNECTION": lab.ssh_connection}


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=5)
    if process.poll() is None:
        process.kill()
        process.wait(timeout=5)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
