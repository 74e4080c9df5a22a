"""A lab leaves nothing behind however it ends, and its sender sends nowhere else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_bench import HEAD

from fwtop.kernel import namespaces as entering
from fwtop.kernel.programs import module_argv
from fwtop.lab import namespaces, scenario
from fwtop.lab.run import Lab
from fwtop.model import paths
from fwtop.model.errors import FwtopError

pytestmark = pytest.mark.kernel

DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from fwtop.cli.main import main
from fwtop.lab import watch

def observe(lab, seconds, pps, *, store):
    lab.start_flood(1000)
    print(lab.victim, lab.attacker, flush=True)
    while True:
        lab.arrived()

watch.observe = observe
sys.exit(main(["lab", "few_sources", "--json"]))
"""


def existing() -> set[str]:
    return {entry.name for entry in entering.NETNS.iterdir()} if entering.NETNS.is_dir() else set()


@pytest.fixture
def driver() -> Iterator[tuple[subprocess.Popen[str], set[str]]]:
    """A flooding lab in a child process, and the names of its namespaces."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(paths.ROOT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    names = set(process.stdout.readline().split())
    assert len(names) == 2
    yield process, names
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=60)
    namespaces.remove_stale()


@pytest.mark.one_each("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_removes_everything(
    driver: tuple[subprocess.Popen[str], set[str]], number: signal.Signals
) -> None:
    process, names = driver
    assert names <= existing()
    inside = set(namespaces.processes_in(sorted(names))) - {process.pid}
    assert len(inside) == 3  # servers, sender, clients
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert said == f"fwtop: ended by {number.name}; the lab was taken down\n"
    assert process.returncode == 1
    assert not names & existing()
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
    assert not (namespaces.LOCKS / str(process.pid)).exists()


def test_the_next_start_removes_a_killed_lab_but_no_live_one(
    driver: tuple[subprocess.Popen[str], set[str]], poll_until: Callable[..., object]
) -> None:
    process, names = driver
    with Lab("calm"):
        assert names <= existing(), "a live lab was taken for a stale one"
    inside = set(namespaces.processes_in(sorted(names))) - {process.pid}
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    poll_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside))
    with Lab("calm"):  # or one that another test started first
        assert not names & existing()


def test_an_exception_removes_everything() -> None:
    names = {namespaces.name(role, os.getpid()) for role in namespaces.ROLES}

    def fail() -> None:
        with Lab("calm"):
            assert names <= existing()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not names & existing()


def test_a_failed_setup_leaves_nothing() -> None:
    broken = scenario.parse(HEAD, "broken")
    with pytest.raises(FwtopError), Lab(broken, source=HEAD + "speed = 1\n") as lab:
        pytest.fail(f"{lab.victim} was set up")
    assert not {namespaces.name(role, os.getpid()) for role in namespaces.ROLES} & existing()


def run_sender(netns: str | None) -> dict[str, object]:
    inside = ["ip", "netns", "exec", netns] if netns else []
    setup = {"victim": "02" * 6, "attacker": "04" * 6, "name": "t", "text": HEAD}
    done = subprocess.run(
        [*inside, *module_argv("fwtop.lab.sender")],
        input=json.dumps(setup) + "\n" + json.dumps({"do": "start", "pps": 10}) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_sender_refuses_the_initial_namespace() -> None:
    assert "runs only inside a lab's own namespace" in str(run_sender(None)["error"])


@pytest.mark.parametrize(
    ("name", "link", "reason"),
    [
        ("fwtop-test-{pid}-attacker", "alias", "runs only inside a lab's own namespace"),
        ("fwtop-lab-{pid}-attacker", "no alias", "lab0 is not this lab's veth"),
        ("fwtop-lab-{pid}-attacker", "not a veth", "lab0 is not this lab's veth"),
        ("fwtop-lab-{pid}-victim", "alias", "runs only inside a lab's own namespace"),
    ],
)
def test_the_sender_refuses_foreign_namespaces(name: str, link: str, reason: str) -> None:
    netns = name.format(pid=os.getpid())  # a lab that starts meanwhile ends those of dead processes
    kind = "type bridge" if link == "not a veth" else "type veth peer name lab1"
    alias = [] if link == "no alias" else [f"link set lab0 alias {netns}"]
    subprocess.run(["ip", "netns", "add", netns], check=True, timeout=60)
    try:
        batch = "\n".join([f"link add lab0 {kind}", "link set lab0 up", *alias, ""])
        subprocess.run(["ip", "-n", netns, "-batch", "-"], input=batch, text=True, check=True, timeout=60)
        assert reason in str(run_sender(netns)["error"])
    finally:
        subprocess.run(["ip", "netns", "delete", netns], check=True, timeout=60)


def test_a_lab_that_starts_is_never_taken_for_a_stale_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(namespaces, "LOCKS", tmp_path)
    monkeypatch.setattr(namespaces, "NETNS", tmp_path / "none")
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            namespaces.remove_stale()

    others = [threading.Thread(target=look) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for _ in range(500):
            lock = namespaces.hold_lock(os.getpid())
            time.sleep(0)  # let the others look
            assert (tmp_path / str(os.getpid())).stat().st_ino == os.fstat(lock).st_ino
            namespaces.release_lock(os.getpid(), lock)
    finally:
        ended.set()
        for other in others:
            other.join()
