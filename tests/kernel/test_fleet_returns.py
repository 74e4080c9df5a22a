"""Machines that come back to a fleet late or in the midst of a wave, and leaders who die or are cut off.

All cases share one fleet of two machines that are attacked; each leaves it as it found it.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator

import pytest
from fleet_lab import (
    SAID,
    Run,
    attacked_fleet,
    kept,
    kill_guardian,
    later,
    reboot,
    reverts_while,
    rules,
    stages,
    start_ahead,
    status,
    stop_programs,
    undo,
    until,
    with_code,
)

from fwtop.kernel.programs import module_argv
from fwtop.lab.fleet import SOURCES, FleetLab
from fwtop.lab.processes import end

pytestmark = [pytest.mark.kernel, pytest.mark.matrix]


@pytest.fixture(scope="module")
def fleet() -> Iterator[FleetLab]:
    with attacked_fleet() as lab:
        yield lab


@pytest.mark.parametrize("hours", [1, 24])
def test_a_machine_that_comes_back_later_or_with_its_clock_ahead_takes_nothing_that_is_over(
    fleet, hours: int
):
    """By its clock what was kept for ten minutes is over, on its disk and on the servers."""
    before, late = kept(fleet, "block", SOURCES, "--everywhere"), fleet.machines[1]
    reboot(late)
    argv = with_code(module_argv("fwtop", "fleet", "node", "--netns", late.victim), later(hours))
    with start_ahead(late, hours):
        fleet.start_watcher(late)
        began, node = time.monotonic(), subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        try:
            until(lambda: f"web-2: its clock is off by +{hours * 360}"[:-1] in status(fleet)[1], SAID)
            print(f"said after {time.monotonic() - began:.1f} s")
            until(lambda: "kept on 1, expired on 1" in status(fleet)[1], SAID)
            code, outcome = Run(fleet, "block", "192.0.2.0/24").ended()
            assert (code, outcome["rollout"]["applied"]) == (0, 1)
            assert rules(fleet) == [2, 0]
        finally:
            end(node)
            stop_programs(late)
    kill_guardian(late)
    fleet.start_watcher(late)
    fleet.start_node(late)
    fleet.await_watched()
    undo(fleet, outcome["rollout"]["rollout"], left=1)
    undo(fleet, before)


def test_a_machine_that_reboots_in_a_wave_has_what_was_decided_when_it_is_back(fleet):
    late = fleet.machines[1]
    run = Run(fleet, "block", SOURCES, trial=30, measure=6)
    until(lambda: stages(fleet)[1] == "trial")
    reboot(late)
    fleet.start_watcher(late)
    fleet.start_node(late)
    code, outcome = run.ended()
    until(lambda: "trial" not in stages(fleet), 70)
    assert rules(fleet) == ([1, 1] if code == 0 else [0, 0]), run.said()
    if code == 0:
        undo(fleet, outcome["rollout"]["rollout"])
    else:
        assert "web-2" in outcome["rollout"]["reason"]


STEPS = {  # which of the leader's methods is not come back from, at which call; and whether it was decided
    "before its document is there": ("_put", 1, False),
    "before the first wave": ("_start", 1, False),
    "in the first wave": ("_look_at_gates", 1, False),
    "before the second wave": ("_wave", 2, False),
    "in the second wave": ("_start", 2, False),
    "before it is kept": ("_keep", 1, False),
    "as it is kept": ("_report", 1, True),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_leader_killed_in_any_step_leaves_all_kept_or_nothing(fleet, step: str):
    method, call, decided = STEPS[step]
    code = f"""
import os
from fwtop.fleet.rollout import Leader
plain, calls = Leader.{method}, []
def last(self, *given, **more):
    calls.append(given)
    if len(calls) == {call}:
        os.kill(os.getpid(), 9)
    return plain(self, *given, **more)
Leader.{method} = last
"""
    run = Run(fleet, "block", SOURCES, trial=20, measure=1, code=code)
    assert run.process.wait(60) == -9, run.said()
    ended = time.monotonic()
    until(lambda: "trial" not in stages(fleet), 2 * 20 + 5)
    print(f"{step}: over after {time.monotonic() - ended:.1f} s")
    assert rules(fleet) == ([1, 1] if decided else [0, 0])
    if decided:
        undo(fleet, fleet.stages()["web-1"][-1]["rollout"])


@contextlib.contextmanager
def cut_off(lab: FleetLab) -> Iterator[None]:
    """Let the operator's place reach no server; the machines still do."""
    rule = ("ip", "netns", "exec", lab.hub, "iptables")
    about = ("OUTPUT", "-o", "lo", "-p", "tcp", "--dport", "4222", "-j", "DROP")
    subprocess.run([*rule, "-I", *about], check=True)
    try:
        yield
    finally:
        subprocess.run([*rule, "-D", *about], check=True)


def test_a_leader_that_is_cut_off_has_a_trial_revert_and_says_so(fleet):
    reverts_while(fleet, cut_off(fleet), measure=30)
