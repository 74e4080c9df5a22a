"""Faults of a fleet, on real machines: what is on trial reverts, what is kept stays, and it is said.

All cases share one fleet of two machines that are attacked; each leaves it as it found it.
"""

import asyncio
import shutil
import signal
import subprocess
import time

import pytest
from fleet_lab import (
    SAID,
    TRIAL,
    Run,
    as_broker,
    attacked_fleet,
    full_link,
    kept,
    kill,
    kill_guardian,
    patched,
    reverts_while,
    rules,
    small_disk,
    soon,
    stages,
    status,
    undo,
    until,
    without_broker,
)

from fwtop.fleet.broker import Broker
from fwtop.fleet.machine import read_node
from fwtop.fleet.transport import WANTED
from fwtop.kernel.namespaces import inside
from fwtop.kernel.programs import module_argv
from fwtop.lab.fleet import SOURCES
from fwtop.model import paths
from fwtop.model.errors import FwtopError

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def fleet():
    with attacked_fleet() as lab:
        yield lab


@pytest.mark.matrix  # test_fleet_page keeps and undoes
def test_it_is_kept_everywhere_and_undone_everywhere(fleet):
    rollout = kept(fleet, "block", SOURCES)
    until(lambda: "kept on 2" in status(fleet)[1])
    undo(fleet, rollout)


def test_a_killed_broker_has_a_trial_revert_and_what_is_kept_stays(fleet):
    reverts_while(fleet, without_broker(fleet))


@pytest.mark.matrix  # more than a minute; a killed broker is said in the same way
def test_a_full_disk_of_the_server_is_said_within_seconds_and_rules_in_force_stay(fleet):
    stuck = "could not write (no space left on device), and takes nothing any more"
    before, limit = kept(fleet, "block", "192.0.2.0/24"), soon(fleet)
    with small_disk(fleet) as fill:
        fill()
        code, said, seconds = status(fleet)
        assert (code, "no room on a disk" in said, seconds < limit) == (1, True, True), said
        began = time.monotonic()
        run = Run(fleet, "block", SOURCES)
        assert (run.ended()[0], time.monotonic() - began < limit) == (1, True)
        assert "no room on a disk" in run.said()
        fill()  # nothing was put: with room again all is well
        run = Run(fleet, "block", SOURCES, trial=5, measure=30)
        until(lambda: "trial" in stages(fleet))
        fill()
        began = time.monotonic()
        with pytest.raises(FwtopError, match="no space left on device"):
            as_broker(fleet, lambda broker: broker.put(WANTED, "another.document", bytes(8192), seconds=1))
        code, outcome = run.ended()
        assert (code, stuck in outcome["rollout"]["reason"], time.monotonic() - began < limit) == (
            1,
            True,
            True,
        )
        until(lambda: "trial" not in stages(fleet), TRIAL + 5)
        assert rules(fleet) == [1, 1]
        fill()
        code, said, seconds = status(fleet)
        assert (code, f"{stuck}: make room" in said, seconds < limit) == (1, True, True), said
        code, told = patched(fleet, "", "undo", before, "--key", str(fleet.key))
        assert (code, told.count(": undone"), stuck in told) == (1, 2, True), told  # those connected heard it
        assert rules(fleet) == [0, 0]
    assert stuck not in status(fleet)[1]


@pytest.mark.matrix  # the guardians' clocks end it, as they do without a broker
def test_a_killed_coordinator_has_a_trial_revert(fleet):
    run = Run(fleet, "block", SOURCES)
    until(lambda: "trial" in stages(fleet))
    kill(run.process)
    until(lambda: "trial" not in stages(fleet), TRIAL * 2 + 5)
    assert rules(fleet) == [0, 0]


@pytest.mark.matrix  # test_fleet_rollout interrupts one
def test_an_interrupted_coordinator_takes_it_back_at_once(fleet):
    run = Run(fleet, "block", SOURCES, trial=60)
    until(lambda: "trial" in stages(fleet))
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(30) != 0
    until(lambda: not any(rules(fleet)), 30)


@pytest.mark.matrix
def test_a_machine_that_is_cut_off_reverts_by_itself_and_is_said_to_be_silent(fleet):
    lonely = fleet.machines[1]
    run = Run(fleet, "block", SOURCES)
    until(lambda: stages(fleet)[1] == "trial")
    fleet.link(lonely, up=False)
    until(lambda: stages(fleet)[1] != "trial", TRIAL * 2 + 5)
    code, said, seconds = status(fleet)
    fleet.link(lonely, up=True)
    assert (code, seconds < SAID) == (1, True)
    assert "web-2 is silent" in said
    run.ended()
    fleet.await_watched()
    for rows in fleet.stages().values():
        if rows and rows[-1]["stage"] == "kept":
            undo(fleet, rows[-1]["rollout"])
            break
    until(lambda: not any(rules(fleet)))


@pytest.mark.matrix
def test_a_machine_that_was_off_gets_what_was_kept_when_it_comes_back(fleet):
    late = fleet.machines[1]
    kill(late.node)
    status_, outcome = Run(fleet, "block", SOURCES, "--everywhere").ended()
    assert (status_, outcome["preview"]["silent"]) == (0, ["web-2"])
    assert rules(fleet) == [1, 0]
    fleet.start_node(late)
    until(lambda: rules(fleet) == [1, 1])
    undo(fleet, outcome["rollout"]["rollout"])


@pytest.mark.matrix
def test_a_machine_that_comes_back_from_an_old_snapshot_gets_what_is_kept_and_nothing_that_is_over(fleet):
    late = fleet.machines[1]
    undone = kept(fleet, "block", "192.0.2.0/24")
    records, snapshot = paths.fleet_records(late.victim), fleet.directory / "snapshot"
    kill(late.node)
    kill_guardian(late)
    shutil.copytree(records, snapshot)
    fleet.start_watcher(late)
    fleet.start_node(late)
    fleet.await_watched()
    undo(fleet, undone)
    stays = kept(fleet, "block", SOURCES, "--everywhere")
    kill(late.node)
    kill_guardian(late)
    status_, outcome = Run(fleet, "block", "198.51.100.0/24", "--everywhere", "--ttl", "20s").ended()
    assert (status_, outcome["preview"]["silent"]) == (0, ["web-2"])
    until(lambda: rules(fleet, fleet.machines[:1]) == [1])  # that one is over
    shutil.rmtree(records)
    shutil.copytree(snapshot, records)
    fleet.start_watcher(late)
    fleet.start_node(late)
    fleet.await_watched()
    until(lambda: rules(fleet) == [1, 1])
    held = {row["rollout"]: row["stage"] for row in fleet.stages()["web-2"]}
    assert (held[undone], held[stays]) == ("undone", "kept")
    assert [one for one, stage in held.items() if stage == "kept"] == [stays]
    undo(fleet, stays)


@pytest.mark.matrix
def test_a_flood_that_fills_the_link_to_the_servers_changes_no_rule_and_is_said(fleet):
    before = kept(fleet, "block", "192.0.2.0/24")
    with full_link(fleet, fleet.machines[1]):
        until(lambda: "web-2 is silent" in status(fleet)[1], SAID)
        code, outcome = Run(fleet, "block", SOURCES).ended()
        # A packet in twenty comes through: it may have heard of it, and then must have taken it back.
        until(lambda: "trial" not in stages(fleet), TRIAL * 2 + 10)
        assert min(rules(fleet)) >= 1
    fleet.await_watched()
    if code == 0:
        undo(fleet, outcome["rollout"]["rollout"], left=1)
    undo(fleet, before)


@pytest.mark.matrix  # test_fleet_rollout has refusals of machines, test_guardian_guard what is refused
def test_what_every_guard_refuses_is_nobodys_turn(fleet):
    run = Run(fleet, "block", "0.0.0.0/1", "128.0.0.0/1")
    assert run.ended()[0] == 1
    assert run.said().count("refuses: web-") == 2
    assert rules(fleet) == [0, 0]


@pytest.mark.matrix  # test_fleet_refusals has what the guardian does not take
def test_a_key_that_the_machines_do_not_know_signs_nothing(fleet):
    stranger = fleet.directory / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger], check=True)
    run = Run(fleet, "block", SOURCES, key=stranger)
    assert run.ended()[0] == 1
    assert run.said().count("refuses: web-") == 2
    assert rules(fleet) == [0, 0]


def test_a_rogue_machine_can_not_speak_for_another(fleet):
    rogue = read_node(paths.fleet_directory(fleet.machines[1].victim))

    async def forge() -> list[str]:
        with inside(fleet.hub):
            broker = await Broker.connect(rogue.access)
        own = b"x" * 200
        await broker.publish("web-1", own)
        # A server answers to whatever subject a request names: signatures hold where rights don't.
        get = "$JS.API.DIRECT.GET.FLEET_WANTED"
        await broker._client.publish(get, b'{"multi_last":["fleet.wanted.>"]}', reply="fleet.summary.web-1")
        with pytest.raises(Exception, match="ermissions"):
            await broker.put("wanted", "r1.document", b"{}")
        await broker.close()
        return broker.complaints

    assert any("fleet.summary.web-1" in said for said in asyncio.run(forge()))
    assert fleet.heard()["web-1"].attacked


@pytest.mark.matrix
def test_a_guardian_that_is_gone_is_said_and_its_rules_stay(fleet):
    rollout = kept(fleet, "block", SOURCES)
    one = fleet.machines[0]
    listed = ["ip", "netns", "exec", one.victim, "ipset", "list", "-n"]
    sets = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    assert sets
    kill_guardian(one)
    assert subprocess.run(listed, check=True, capture_output=True, text=True).stdout == sets
    subprocess.run(module_argv("fwtop", "status", "--netns", one.victim), check=True, capture_output=True)
    assert rules(fleet) == [1, 1]
    fleet.start_watcher(one)
    fleet.await_watched()
    undo(fleet, rollout)
