"""One roll-out on the lab's fleet: an attack, a rule on trial, perhaps harm or deaths, and the outcome."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from fwtop.client.program import connect
from fwtop.lab.fleet import READY_SECONDS, SOURCES, FleetLab, Member
from fwtop.lab.processes import end
from fwtop.model.errors import FwtopError

_PPS = 20_000
_SEEN_SECONDS = 60.0  # in which an attack must be seen
_CALM_SECONDS, _KNOWN_SECONDS = 8.0, 35.0  # before the attack; until clients count as long known
_MEASURE_SECONDS = 4.0
_FLOOD_SECONDS = 240.0  # at most


class Trial(Struct):
    """What is to happen during the roll-out."""

    harm: str = ""  # this machine's clients move to where the rule blocks
    kill: frozenset[str] = frozenset()  # of "broker", "coordinator": once all that are meant have it on trial
    trial_seconds: int = 20


def play(lab: FleetLab, trial: Trial, say: Callable[[str], None]) -> dict[str, Any]:
    """Attack, roll one rule out, and return what became of it, by the lab's own counters."""
    say(f"calm, for {_KNOWN_SECONDS if trial.harm else _CALM_SECONDS:.0f} s: clients become known")
    time.sleep(_KNOWN_SECONDS if trial.harm else _CALM_SECONDS)
    before = _measured(lab, "calm")
    targets = [one for one in lab.machines if one.attacked]
    for one in targets:
        one.lab.ask(do="flood", on=True, pps=_PPS, seconds=_FLOOD_SECONDS)
    say(f"attack on {', '.join(one.name for one in targets)}")
    seen = _await_seen(lab, {one.name for one in targets})
    say(f"seen on all of them after {seen:.1f} s")
    rollout = _roll_out(lab, trial, say)
    for one in lab.machines:
        _note_state(one, rollout["rollout"])
    now = _measured(lab, "at the end")
    for one in targets:
        one.lab.ask(do="flood", on=False)
    rows = [
        {
            "name": one.name,
            "attacked": one.attacked,
            "arrives_pps": round(now[one.name]["arrives"], 1),
            "reaches_pps": round(now[one.name]["reaches"], 1),
            "clients_before": round(before[one.name]["clients"], 2),
            "clients_now": round(now[one.name]["clients"], 2),
            "rules": one.rules,
            "state": one.state,
        }
        for one in lab.machines
    ]
    sent = {one.name: one.lab.ask(do="truth")["attack"] for one in targets}
    phases = {one.name: one.lab.ask(do="results")["phases"] for one in lab.machines}
    truth = {"sources": SOURCES, "pps": _PPS, "sent": sent, "clients": phases, "killed": sorted(trial.kill)}
    return {"servers": 1, "machines": rows, "rollout": rollout, "truth": truth}


def _measured(lab: FleetLab, phase: str) -> dict[str, dict[str, float]]:
    """Count for some seconds what arrives, what reaches, and how many requests of clients succeed."""
    lab.all_do(do="phase", name=phase)
    began = lab.all_do(do="counters")
    time.sleep(_MEASURE_SECONDS)
    ended = lab.all_do(do="counters")
    lab.all_do(do="phase", name=f"{phase}, later")
    found = {}
    for one, first, last in zip(lab.machines, began, ended, strict=True):
        seconds = last["at"] - first["at"]
        works = one.lab.ask(do="results")["phases"].get(phase, {})
        succeeded = sum(row["succeeded"] for name, row in works.items() if name != "operator")
        found[one.name] = {
            "arrives": (last["arrived"] - first["arrived"]) / seconds,
            "reaches": (last["delivered"] - first["delivered"]) / seconds,
            "clients": succeeded / seconds,
        }
    return found


def _await_seen(lab: FleetLab, names: set[str]) -> float:
    """Wait until all these machines tell of an attack; return the seconds. Raises FwtopError."""
    began = time.monotonic()
    while time.monotonic() < began + _SEEN_SECONDS:
        if names <= {name for name, one in lab.heard().items() if one.attacked}:
            return time.monotonic() - began
    raise FwtopError(f"the attack was not seen on all of {', '.join(sorted(names))}; the lab is taken down")


def _roll_out(lab: FleetLab, trial: Trial, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the coordinator, do to it what is asked, and return the outcome."""
    arguments = ["block", SOURCES, "--on", "web", "--yes", "--json", "--key", str(lab.key)]
    arguments += ["--trial", f"{trial.trial_seconds}s"]
    log = lab.directory / "coordinator.log"

    def said() -> list[str]:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()

    lab.all_do(do="phase", name="trial")
    with tempfile.TemporaryFile() as out, log.open("wb+") as told:
        process = lab.coordinator(*arguments, stdout=out, stderr=told)
        try:
            _until(lambda: process.poll() is not None or any(line.startswith("wave 1") for line in said()))
            for one in lab.machines:
                if one.name == trial.harm:
                    one.lab.ask(do="move")
                    say(f"the clients of {one.name} move to {SOURCES}, which the rule blocks")
            if trial.kill:
                return _killed(lab, trial, process, said, say)
            process.wait(READY_SECONDS)
            out.seek(0)
            text = out.read().decode()
        finally:
            end(process)
        for line in said():
            say(line)
    if not text.strip():
        raise FwtopError(f"the coordinator failed: {said()[-1:] or 'no message'}; the lab is taken down")
    return _outcome(json.loads(text))


def _outcome(said: dict[str, Any]) -> dict[str, Any]:
    if "rollout" not in said:
        raise FwtopError(f"the coordinator failed: {said.get('error')}; the lab is taken down")
    names = (
        "rollout",
        "previewed",
        "applied",
        "refused",
        "seconds_to_first",
        "seconds_to_all",
        "outcome",
        "reason",
    )
    return {name: said["rollout"][name] for name in names}


def _killed(
    lab: FleetLab,
    trial: Trial,
    process: subprocess.Popen[bytes],
    said: Callable[[], list[str]],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Kill what is to be killed once all that are meant have it on trial; wait for the kernels' clocks."""
    began = time.monotonic()

    def on_trial() -> dict[str, str]:
        stages = lab.stages()
        return {
            name: rows[-1]["stage"] for name, rows in stages.items() if rows and rows[-1]["stage"] == "trial"
        }

    _until(lambda: process.poll() is not None or bool(on_trial()))
    first = round(time.monotonic() - began, 2)
    _until(lambda: process.poll() is not None or len(on_trial()) >= lab.attacked)
    applied = len(on_trial())
    seconds = round(time.monotonic() - began, 2)
    if not applied:
        line = f"the coordinator ended before any machine was on trial: {said()[-1:]}"
        raise FwtopError(f"{line}; the lab is taken down")
    if "broker" in trial.kill and lab.broker is not None:
        os.kill(lab.broker.pid, signal.SIGKILL)
    if "coordinator" in trial.kill:
        for pid in (process.pid, *_children(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    say(f"killed {' and '.join(sorted(trial.kill))} with {applied} machines on trial")
    _until(lambda: not on_trial())
    reverted = time.monotonic() - killed
    say(f"everything has reverted {reverted:.1f} s later, by the machines' own clocks")
    rollout = next(rows[-1]["rollout"] for rows in lab.stages().values() if rows)
    who = " and ".join(sorted(trial.kill))
    return {
        "rollout": rollout, "previewed": len(lab.machines_of("web")), "applied": applied, "refused": 0,
        "seconds_to_first": first, "seconds_to_all": seconds, "outcome": "reverted",
        "reason": f"{who} killed; reverted by the machines' own clocks after {reverted:.1f} s",
    }  # fmt: skip


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        ]
    return []


def _note_state(one: Member, rollout: str) -> None:
    """Take what became of the roll-out on a machine from its guardian."""
    with connect(one.victim) as guardian:
        rows = [row for row in guardian.request("fleetstatus")["rollouts"] if row["rollout"] == rollout]
        active = {row["rule"]["id"]: row for row in guardian.status()["rules"]}
    if rows and rows[-1]["stage"] in ("kept", "reverted", "undone"):
        one.state = "kept" if rows[-1]["stage"] == "kept" else "reverted"
        one.rules = [active[number]["rule"]["summary"] for number in rows[-1]["rules"] if number in active]


def _until(happened: Callable[[], bool]) -> None:
    """Wait for something; raises FwtopError after two minutes."""
    limit = time.monotonic() + READY_SECONDS
    while not happened():
        if time.monotonic() > limit:
            raise FwtopError("the fleet did not get as far in two minutes; the lab is taken down")
        time.sleep(0.05)
