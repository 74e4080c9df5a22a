"""A fleet of attacked machines in namespaces, its operator at work, and what its machines' guardians say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fwtop.client import discovery
from fwtop.client.discovery import GuardianClient
from fwtop.client.program import connect
from fwtop.fleet.broker import Broker
from fwtop.guardian.fleet.record import RECORD, Known
from fwtop.kernel.namespaces import inside
from fwtop.kernel.programs import module_argv
from fwtop.lab.fleet import SOURCES, FleetLab, Member
from fwtop.lab.processes import end
from fwtop.model import paths
from fwtop.model.wire import of_json, to_json
from tests.kernel.nursery import start_guardian

TRIAL = 8  # seconds
SAID = 40.0  # seconds in which who asks is told what is wrong, however busy the machine is


@contextlib.contextmanager
def attacked_fleet() -> Iterator[FleetLab]:
    """Make two machines that are attacked, and see it."""
    with FleetLab(lambda _: None, names=("web-1", "web-2"), attacked=2) as lab:
        lab.all_do(do="flood", on=True, pps=2_000, seconds=900)
        until(lambda: sum(one.attacked for one in lab.heard().values()) == 2)
        yield lab


def until(happened: Callable[[], bool], seconds: float = 60.0) -> float:
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return time.monotonic() - began


class Run:
    """A coordinator at work."""

    def __init__(
        self,
        lab: FleetLab,
        *arguments: str,
        trial: int = TRIAL,
        key: Path | None = None,
        measure: int = 1,
        code: str = "",
    ) -> None:
        """`code` is run first in its process."""
        self.out, self.told = lab.directory / "out", lab.directory / "told"
        given = [*arguments, "--on", "web", "--yes", "--json", "--key", str(key or lab.key)]
        given += ["--trial", f"{trial}s", "--measure", f"{measure}s"]
        with self.out.open("wb") as out, self.told.open("wb") as told:
            self.process = subprocess.Popen(
                _operators(lab, code, *given), stdin=subprocess.DEVNULL, stdout=out, stderr=told
            )

    def ended(self) -> tuple[int, dict[str, Any]]:
        status = self.process.wait(90)
        text = self.out.read_text()
        return status, json.loads(text) if text else {}

    def said(self) -> str:
        return self.told.read_text()


def stages(lab: FleetLab) -> list[str]:
    return [rows[-1]["stage"] if rows else "" for rows in lab.stages().values()]


def rules(lab: FleetLab, machines: Sequence[Member] = ()) -> list[int]:
    """Count the rules that each machine's guardian has in force."""
    found = []
    for one in machines or lab.machines:
        with connect(one.victim) as guardian:
            found.append(len(guardian.status()["rules"]))
    return found


def kept(lab: FleetLab, *arguments: str) -> str:
    """Have a rule rolled out and kept; return the roll-out's id."""
    status, outcome = Run(lab, *arguments).ended()
    assert (status, outcome["rollout"]["outcome"]) == (0, "kept"), outcome
    until(lambda: stages(lab) == ["kept"] * len(lab.machines))  # who is late is said, and is kept as well
    return outcome["rollout"]["rollout"]


def undo(lab: FleetLab, rollout: str, *, left: int = 0) -> None:
    process = lab.coordinator(
        "undo", rollout, "--key", str(lab.key), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    until(lambda: rules(lab) == [left] * len(lab.machines))


def status(lab: FleetLab) -> tuple[int, str, float]:
    """Return the exit status of `fleet status`, what it says, and how long that took."""
    began = time.monotonic()
    process = lab.coordinator("status", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said.decode(), time.monotonic() - began


def soon(lab: FleetLab) -> float:
    """Return the seconds in which it must be said where nothing has to be waited for: more if all is busy."""
    return max(10.0, 4 * status(lab)[2])


def kill(process: subprocess.Popen) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def as_broker(lab: FleetLab, work: Callable[[Broker], Awaitable[object]]) -> None:
    """Do what whoever has the servers could: publish anything under any name."""

    async def worked() -> None:
        with inside(lab.hub):
            async with await Broker.connect(lab.file.access) as broker:
                await work(broker)

    asyncio.run(worked())


@contextlib.contextmanager
def small_disk(lab: FleetLab) -> Iterator[Callable[[], None]]:
    """Have the server store on a small disk of its own; yields what fills it, or makes room again."""
    store = lab.directory / "store"
    filler = store / "filler"

    def fill() -> None:
        if filler.exists():
            filler.unlink()
            return
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))

    with without_broker(lab):
        shutil.copytree(store, lab.directory / "saved")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "fwtop-test", store], check=True)
        shutil.copytree(lab.directory / "saved", store, dirs_exist_ok=True)
    try:
        yield fill
    finally:
        with without_broker(lab):
            subprocess.run(["umount", "-l", store], check=True)


FULL = """
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    for _ in range(4):
        sender.sendto(bytes(1000), (sys.argv[1], 27015))
    time.sleep(0.001)
"""


@contextlib.contextmanager
def full_link(lab: FleetLab, one: Member) -> Iterator[None]:
    """Have the link on which a machine reaches the servers carry a tenth of what a flood sends over it."""
    number = lab.machines.index(one)
    there = ("ip", "netns", "exec", lab.hub)
    port = ("dev", f"port{number}")
    slow = ("handle", "1:", "tbf", "rate", "1mbit", "burst", "3kb", "limit", "30kb")
    subprocess.run([*there, "tc", "qdisc", "add", *port, "root", *slow], check=True)
    few = ("parent", "1:1", "pfifo", "limit", "3")  # packets: small ones are lost as often as large ones
    subprocess.run([*there, "tc", "qdisc", "add", *port, *few], check=True)
    flood = subprocess.Popen([*there, sys.executable, "-c", FULL, f"10.77.1.{1 + number}"])
    try:
        yield
        counted = subprocess.check_output([*there, "tc", "-s", "-j", "qdisc", "show", *port], text=True)
        [about] = [row for row in json.loads(counted) if row["kind"] == "tbf"]
        assert about["drops"] > 5 * about["packets"], about
    finally:
        end(flood)
        subprocess.run([*there, "tc", "qdisc", "del", *port, "root"], check=True)


def kill_guardian(one: Member) -> None:
    with connect(one.victim) as guardian:
        pid = guardian.guardian["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())


@contextlib.contextmanager
def without_broker(lab: FleetLab) -> Iterator[None]:
    assert lab.broker is not None
    kill(lab.broker)
    try:
        yield
    finally:
        lab.start_broker()
        lab.await_watched()


def reverts_while(lab: FleetLab, gone: contextlib.AbstractContextManager[None], **options: Any) -> None:
    """Check that a trial without its servers reverts and this is said, and that what was kept stays."""
    before = kept(lab, "block", "192.0.2.0/24")
    run = Run(lab, "block", SOURCES, **options)
    until(lambda: "trial" in stages(lab))
    with gone:
        code, outcome = run.ended()
        assert code == 1
        assert "ends on each machine within" in outcome["rollout"]["reason"]
        code, said, seconds = status(lab)
        assert (code, "rules in force stay" in said, seconds < SAID) == (1, True, True), said
        until(lambda: "trial" not in stages(lab), TRIAL + 5)
        assert rules(lab) == [1, 1]
    undo(lab, before)


def with_code(argv: list[str], code: str) -> list[str]:
    """Return a command of fwtop's that first runs some code of the test."""
    at = argv.index("-c") + 1
    path = "import sys; sys.path.insert(0, sys.argv[1])"
    return [*argv[:at], f"{path}\n{code}\nsys.path.pop(0)\n{argv[at]}", *argv[at + 1 :]]


def _operators(lab: FleetLab, code: str, *arguments: str) -> list[str]:
    argv = module_argv("fwtop", "fleet", *arguments, "--fleet", str(lab.directory / "fleet/operator"))
    return ["ip", "netns", "exec", lab.hub, *with_code(argv, code)]


def patched(lab: FleetLab, code: str, *arguments: str) -> tuple[int, str]:
    """Run `fwtop fleet …` of the operator after some code of the test; return its status and what it says."""
    done = subprocess.run(
        _operators(lab, code, *arguments),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def later(hours: float) -> str:
    """Return code that has a process's clock go ahead."""
    return f"import time; real = time.time; time.time = lambda: real() + {hours * 3600}"


def start_ahead(one: Member, hours: float) -> GuardianClient:
    """Start the guardian of a machine that has none, with its clock ahead; it ends once nobody needs it."""

    def started(argv: list[str], netns: int) -> subprocess.CompletedProcess[bytes]:
        return start_guardian(with_code(argv, later(hours)), netns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "run_starter", started)
        return discovery.connect(netns=one.victim)


def stop_programs(one: Member) -> None:
    """End a machine's node and watcher, which would start another guardian."""
    assert one.node is not None
    assert one.watcher is not None
    end(one.node)
    end(one.watcher)


def reboot(one: Member) -> None:
    """End a machine's programs and all that its kernel has of them; its disk stays."""
    record = paths.fleet_records(one.victim) / RECORD
    stop_programs(one)
    before = of_json(Known, record.read_bytes())
    with connect(one.victim) as guardian:
        guardian.request("undo", all=True)
        until(lambda: not guardian.status()["rules"])
    kill_guardian(one)
    rollouts = {name: replace(rollout, boot="the one before") for name, rollout in before.rollouts.items()}
    record.write_bytes(to_json(replace(before, rollouts=rollouts)))
