"""The recorder as a systemd service: its unit, what it tells systemd, how it gets a guardian."""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from stored_samples import START, attack, snapshot

from fwtop.cli import recorder
from fwtop.cli.recorder import service_manager
from fwtop.client import discovery
from fwtop.console.headless import _GuardianLost
from fwtop.console.publish.outputs import ServiceState
from fwtop.model.errors import FwtopError
from fwtop.model.paths import ROOT, SERVICE_UNIT

UNIT = ROOT / "scripts/files/fwtop.service"
LARGEST_EXPOSURE = 2.0


def test_the_sandbox_of_the_unit_is_as_tight_as_promised() -> None:
    argv = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(UNIT)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    found = re.search(r"Overall exposure level for fwtop\.service: (\d+\.\d+)", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) <= LARGEST_EXPOSURE
    assert "Unknown" not in done.stderr  # a misspelt setting would be ignored


@pytest.mark.parametrize("prefix", ["", "\0"])
def test_systemd_is_told_once_that_it_runs_and_on_each_tick_that_it_is_not_stuck(
    prefix: str, tmp_path: Path
) -> None:
    path = prefix + str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        descriptor = service_manager({"NOTIFY_SOCKET": path.replace("\0", "@")})
        assert descriptor is not None
        with socket.socket(fileno=descriptor):
            state = ServiceState(descriptor)
            state.take(snapshot(START), session="a")
            state.take(snapshot(START + 1), session="a")
            flood = attack()
            state.take(snapshot(START + 2, attacks=(flood,)), session="")
            state.close()
            told = [manager.recv(4096).decode() for _ in range(4)]
    assert told[:2] == ["WATCHDOG=1\nREADY=1\nSTATUS=no attack; session a", "WATCHDOG=1"]
    assert told[2:] == [f"WATCHDOG=1\nSTATUS={flood.title}; not stored", "STOPPING=1"]


def test_a_manager_that_is_gone_or_never_reads_neither_ends_nor_delays_a_recording(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        descriptor = service_manager({"NOTIFY_SOCKET": path})
        assert descriptor is not None
        with socket.socket(fileno=descriptor):
            state = ServiceState(descriptor)
            for number in range(1000):  # more than its queue holds
                state.take(snapshot(START + number), session="a")
            manager.close()
            state.take(snapshot(START), session="b")
    assert service_manager({}) is None
    with pytest.raises(FwtopError, match="NOTIFY_SOCKET can't be used"):
        service_manager({"NOTIFY_SOCKET": path})


def test_a_recording_without_a_guardian_ends_to_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fwtop.console.headless.time.monotonic", lambda: now[0])
    lost = _GuardianLost()
    gone = []
    for guardian in ("lost: x", "ready", "lost: x", "lost: x"):
        gone.append(lost.for_good(replace(snapshot(START), guardian=guardian)))
        now[0] += 4.0
    now[0] += 4.0
    assert gone == [False] * 4
    assert lost.for_good(replace(snapshot(START), guardian="lost: x"))
    assert "the guardian has ended" in lost.line


@pytest.mark.parametrize(
    ("status", "booted", "needed"),
    [
        ("NoNewPrivs:\t1\nSeccomp:\t0\n", True, True),
        ("NoNewPrivs:\t0\nSeccomp:\t2\n", True, True),
        ("NoNewPrivs:\t0\nSeccomp:\t0\n", True, False),
        ("NoNewPrivs:\t1\nSeccomp:\t2\n", False, False),
    ],
)
def test_only_the_confined_have_systemd_start_the_guardian(
    status: str, booted: bool, needed: bool, tmp_path: Path
) -> None:
    assert discovery.needs_unit(status, tmp_path if booted else tmp_path / "none") is needed


def test_what_is_wrong_with_the_guardians_unit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert argv[argv.index("--") + 1 :][:2] == ["python", "-m"]
        assert argv[-2] == "--netns-path"
        return subprocess.CompletedProcess(argv, 1, "", "Job for fwtop failed\nsee more\n")

    monkeypatch.setattr(subprocess, "run", refuse)
    with (
        open("/proc/self/ns/net") as netns,
        pytest.raises(FwtopError, match=r"Job .*journalctl -u fwtop-g"),
    ):
        discovery.start_unit(["python", "-m", "x"], netns.fileno(), 1.0)


@pytest.mark.parametrize(
    ("shown", "line", "is_wrong"),
    [
        (
            "UnitFileState=enabled\nActiveState=active\nStatusText=no attack; a\nMemoryCurrent=41943040",
            "recording, starts at boot; no attack; a; 40 MiB",
            False,
        ),
        (
            "UnitFileState=disabled\nActiveState=inactive\nMemoryCurrent=[not set]\nResult=success",
            "off, doesn't start at boot; to record from now on: sudo fwtop service enable",
            False,
        ),
        (
            "UnitFileState=enabled\nActiveState=activating\nResult=watchdog",
            "activating (watchdog), starts at boot; see: journalctl -u fwtop",
            True,
        ),
    ],
)
def test_the_state_of_the_service_is_one_line(shown: str, line: str, is_wrong: bool) -> None:
    assert recorder.told(shown) == (line, line.startswith("recording"), is_wrong)


@pytest.mark.parametrize(("booted", "told"), [(False, "systemd doesn't run"), (True, "run 'make setup'")])
def test_without_systemd_or_unit_nothing_is_changed(
    booted: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SYSTEMD_BOOTED", tmp_path if booted else tmp_path / "none")
    monkeypatch.setattr(recorder, "SERVICE_UNIT", tmp_path / SERVICE_UNIT.name)
    with pytest.raises(FwtopError, match=told) as error:
        recorder.VERBS["service"].run(argparse.Namespace(what="enable"))
    assert error.value.code == 3
    assert "nothing was changed" in str(error.value)
