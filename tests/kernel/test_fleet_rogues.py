"""Servers, machines and clocks that nobody should trust: rules stay, nothing unsigned acts, and it is said.

All cases share one fleet of two machines that are attacked; each leaves it as it found it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from fleet_lab import (
    SAID,
    TRIAL,
    Run,
    as_broker,
    attacked_fleet,
    kept,
    kill,
    later,
    patched,
    rules,
    soon,
    stages,
    status,
    undo,
    until,
    with_code,
)
from msgspec.structs import replace

from fwtop.fleet.broker import Broker
from fwtop.fleet.document import Sealed, read_document
from fwtop.fleet.transport import WANTED, Entry
from fwtop.fleet.view import FLOODS
from fwtop.fleet.wanted import CONFIRMED, DOCUMENT, STARTED, UNDO, Started, encoded
from fwtop.kernel.programs import module_argv
from fwtop.lab.fleet import SOURCES, FleetLab
from fwtop.lab.processes import end
from fwtop.model import paths
from fwtop.model.wire import of_json

pytestmark = [pytest.mark.kernel, pytest.mark.matrix]
NONE = [0, 0]


@pytest.fixture(scope="module")
def fleet() -> Iterator[FleetLab]:
    with attacked_fleet() as lab:
        yield lab


def board(lab: FleetLab) -> dict[str, Entry]:
    found: dict[str, Entry] = {}

    async def read(broker: Broker) -> None:
        found.update(await broker.read(WANTED))

    as_broker(lab, read)
    return found


def putting(entries: dict[str, bytes]) -> Callable[[Broker], Awaitable[None]]:
    async def put(broker: Broker) -> None:
        for name, content in entries.items():
            await broker.put(WANTED, name, content, seconds=60)

    return put


def heard(lab: FleetLab, text: str) -> None:
    """Wait until status says something."""
    until(lambda: text in status(lab)[1])


def test_servers_that_invent_and_replay_have_nothing_kept(fleet):
    rollout = kept(fleet, "block", SOURCES)
    seen = {name: entry.document for name, entry in board(fleet).items() if name.startswith(rollout)}
    undo(fleet, rollout)
    one = of_json(Sealed, seen[f"{rollout}.{DOCUMENT}"])
    other = replace(one, text=one.text.replace(rollout, "another1"))
    everyone = encoded(Started(99, (), everyone=True))
    as_broker(fleet, putting({
        f"another1.{DOCUMENT}": encoded(other), f"another1.{STARTED}": everyone,  # text that nobody signed
        f"another2.{DOCUMENT}": encoded(one), f"another2.{STARTED}": everyone,  # under another name
        **seen, f"{rollout}.{STARTED}": everyone,  # what was undone, replayed with its confirmation
        f"another3.{CONFIRMED}": seen[f"{rollout}.{CONFIRMED}"], f"another3.{UNDO}": b"\x00\xff" * 1000,
    }))  # fmt: skip
    heard(fleet, "roll-out another1: the signature")
    assert rules(fleet) == NONE
    gone = putting({f"{rollout}.{UNDO}": b"{}", f"another1.{STARTED}": encoded(Started(100))})
    as_broker(fleet, gone)
    assert rules(fleet) == NONE


def test_servers_that_start_what_was_only_previewed_can_not_keep_it(fleet):
    saved = fleet.directory / "previewed"
    code = (
        "import fwtop.fleet.rollout as r, fwtop.fleet.wanted as w\n"
        f"r.Question.new = staticmethod(lambda s=None, **k: (open({str(saved)!r}, 'wb').write(w.encoded(s)),"
        " w.Question('n', s))[1])"
    )
    given = ("block", SOURCES, "--on", "web", "--preview", "--trial", f"{TRIAL}s", "--key", str(fleet.key))
    assert patched(fleet, code, *given)[0] == 0
    sealed = of_json(Sealed, saved.read_bytes())
    name = read_document(sealed.text.encode()).rollout
    started = {f"{name}.{DOCUMENT}": encoded(sealed), f"{name}.{STARTED}": encoded(Started(1, (), True))}
    as_broker(fleet, putting(started))
    until(lambda: stages(fleet) == ["trial"] * 2)
    until(lambda: rules(fleet) == NONE, TRIAL + 10)
    assert stages(fleet) == ["reverted"] * 2


def test_servers_that_hold_everything_back_have_a_trial_revert_and_what_is_kept_stays(fleet):
    before = kept(fleet, "block", "192.0.2.0/24")
    run = Run(fleet, "block", SOURCES)
    until(lambda: "trial" in stages(fleet))
    os.kill(fleet.broker.pid, signal.SIGSTOP)
    try:
        assert run.ended()[0] == 1
        assert status(fleet)[2] < SAID
        until(lambda: "trial" not in stages(fleet), TRIAL + 10)
    finally:
        os.kill(fleet.broker.pid, signal.SIGCONT)
    fleet.await_watched()  # what was held back arrives late: a trial that begins then ends by itself as well
    until(lambda: rules(fleet) == [1, 1], TRIAL + 10)
    undo(fleet, before)


@pytest.mark.parametrize(("hours", "said"), [(1, "set the clock that is wrong"), (-1, "nothing was changed")])
def test_a_clock_that_is_an_hour_off_is_said_and_nothing_is_done(fleet, hours: int, said: str):
    began = time.monotonic()
    status_, told = patched(
        fleet, later(hours), "block", SOURCES, "--on", "web", "--yes", "--ttl", "20m", "--key", str(fleet.key)
    )
    assert (status_, time.monotonic() - began < SAID) == (1, True), told
    assert (told.count("refuses: web-"), said in told) == (2, True), told
    assert rules(fleet) == NONE


def test_a_machine_with_another_clock_and_one_with_anothers_key_are_named(fleet):
    one = fleet.machines[0]
    argv = with_code(module_argv("fwtop", "fleet", "node", "--netns", one.victim), later(1))
    twin = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
    try:
        heard(fleet, "web-1: two machines answer with its key")
        run = Run(fleet, "block", SOURCES)
        assert run.ended()[0] == 0
        assert "refuses: web-1: two machines answer with its key" in run.said()
        kill(one.node)
        heard(fleet, "web-1: its clock is off by +36")
    finally:
        end(twin)
        fleet.start_node(one)
    fleet.await_watched()
    undo(fleet, fleet.stages()["web-2"][-1]["rollout"])


FLOOD = """
import asyncio, sys
from pathlib import Path
from fwtop.fleet.broker import Broker
from fwtop.fleet.machine import read_node
from fwtop.kernel.namespaces import inside

async def flood():
    with inside(sys.argv[2]):
        broker = await Broker.connect(read_node(Path(sys.argv[1])).access)
    while True:
        for _ in range(2_560):
            await broker.publish("web-2", bytes(4_096))
        print("10 MiB", flush=True)
        await asyncio.sleep(0.5)

asyncio.run(flood())
"""


def test_a_machine_that_sends_a_hundred_megabytes_is_named_and_holds_nobody_up(fleet):
    began = time.monotonic()
    before = kept(fleet, "block", SOURCES)
    quiet, limit = time.monotonic() - began, soon(fleet)
    undo(fleet, before)
    sent, where = fleet.directory / "flood", paths.fleet_directory(fleet.machines[1].victim)
    with sent.open("wb") as out:
        rogue = subprocess.Popen([sys.executable, "-c", FLOOD, where, fleet.hub], stdout=out)
    try:
        until(lambda: sent.read_text().count("MiB") >= 2)
        code, said, seconds = status(fleet)
        assert (code, "web-2 sent the servers" in said, seconds < limit) == (1, True, True), said
        began = time.monotonic()
        run = Run(fleet, "block", SOURCES)
        code, outcome = run.ended()
        seconds = time.monotonic() - began
        assert (code, outcome["rollout"]["machines"]["web-1"]) == (0, "kept"), run.said()
        assert f"web-2: {FLOODS}" in run.said()  # in the preview or later, with its next burst
        assert seconds < quiet + limit
        until(lambda: sent.read_text().count("MiB") >= 10)
    finally:
        end(rogue)
    undo(fleet, outcome["rollout"]["rollout"])
    print(f"kept after {quiet:.1f} s without the flood, {seconds:.1f} s with it")


def test_a_document_of_a_newer_program_is_unsupported_before_the_first_wave(fleet):
    code = (
        "import fwtop.cli.fleet.rollout as r; from msgspec.structs import replace\n"
        "seal = r.seal; r.seal = lambda document, keys: seal(replace(document, schema=99), keys)"
    )
    status_, told = patched(fleet, code, "block", SOURCES, "--on", "web", "--yes", "--key", str(fleet.key))
    assert (status_, told.count("upgrade fwtop on this machine")) == (1, 2), told
    assert "wave" not in told
    assert stages(fleet).count("trial") == 0
