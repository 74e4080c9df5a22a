"""However fwtop ends, killed or told to, what it changed is given back; and its console has no rights."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fwtop.lab.run import Lab
from fwtop.model import paths
from tests.kernel.whole import (
    Tmux,
    block_selected,
    console_pid,
    fwtop,
    guardian_pid,
    kernel_state,
    rules,
    watch_source,
)

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("installed")]
Poll = Callable[..., Any]
PPS = 8_000  # how fast is of no matter here: leave the CPU to the tests beside


def test_a_killed_console_brings_the_traffic_back(lab: Lab, screen: Tmux, poll_until: Poll) -> None:
    passes = watch_source(lab, block_selected(screen))
    poll_until(lambda: not passes())
    console = console_pid(lab.victim)
    assert console is not None
    os.kill(console, signal.SIGKILL)
    poll_until(passes, 60, every_s=0.1)
    assert {rule["state"] for rule in rules(lab)} == {"reverted"}
    ended = screen.wait_for("that was all")
    assert "ended with" in ended
    assert "SIGKILL" in ended
    assert re.search(r"[^-]icanon.* echo ", ended, re.S), "the launcher gives the terminal back as it was"


@pytest.mark.matrix  # half a minute; test_xdp_life and test_guardian_block end rules so, too
def test_with_both_processes_killed_the_rule_expires_in_the_kernel(
    lab: Lab, screen: Tmux, poll_until: Poll
) -> None:
    before = kernel_state(lab.victim)
    passes = watch_source(lab, block_selected(screen))
    poll_until(lambda: not passes())
    guardian, console = guardian_pid(lab.victim), console_pid(lab.victim)
    assert guardian is not None
    assert console is not None
    os.kill(guardian, signal.SIGKILL)
    os.kill(console, signal.SIGKILL)
    lab.stop()
    lab.start_flood(200)  # a trickle tells as well, for the half minute that the rule lasts
    lab.pause_clients()
    poll_until(passes, 120, every_s=0.5)
    assert guardian_pid(lab.victim) is None, "nothing of fwtop ran when the rule ended"
    subprocess.run(["ip", "netns", "exec", lab.victim, "nft", "delete", "table", "inet", "probe"], check=True)
    fwtop("undo", "--all", "--netns", lab.victim)
    assert kernel_state(lab.victim) == before


def test_undo_all_leaves_the_kernel_as_it_was(lab: Lab) -> None:
    before = kernel_state(lab.victim)
    for arguments in (
        ("block", "198.51.100.0/24", "2001:db8::/48"),
        ("limit", "--proto", "udp", "--dport", "27015", "--per", "24", "--rate", "1000/s"),
        ("match", "--string", "flood:", "--proto", "udp"),
        ("notrack", "--proto", "udp", "--dport", "27015"),
    ):
        done = fwtop(*arguments, "--netns", lab.victim, "--ttl", "5m", "--yes", "--force")
        assert done.returncode == 0, (arguments, done.stderr)
    assert kernel_state(lab.victim) != before
    assert fwtop("undo", "--all", "--netns", lab.victim).returncode == 0
    assert kernel_state(lab.victim) == before


def test_the_console_has_no_privileges_nor_privileged_parts_and_ends_with_its_launcher(
    screen: Tmux, lab: Lab, poll_until: Poll
) -> None:
    screen.wait_for("flood")
    pid = console_pid(lab.victim)
    assert pid is not None
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities], 16) == 0, capabilities
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert Path(f"/proc/{pid}/environ").stat().st_uid == 0, "it is not dumpable"
    held = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            held.add(os.readlink(link))
    assert not [name for name in held if "kallsyms" in name]
    threads = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    assert all("Seccomp:\t2" in text for text in threads)
    assert "0" not in status["Uid"].split()
    assert status["Groups"].strip() == ""
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "libbcc" not in mapped
    assert "LLVM" not in mapped
    os.kill(int(status["PPid"]), signal.SIGKILL)
    poll_until(lambda: console_pid(lab.victim) is None)


def test_no_mode_of_the_console_imports_bcc_scapy_or_pyroute2() -> None:
    code = (
        "import sys, fwtop.console.__main__, fwtop.console.feed, fwtop.console.headless, "
        "fwtop.console.playback.screens; "
        "print([name for name in ('bcc', 'scapy', 'pyroute2') if name in sys.modules])"
    )
    done = subprocess.run(
        [str(paths.INSTALLED_PYTHON), "-I", "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.one_each("size0")
@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_the_screen_survives_resizing_and_leaves_a_clean_terminal(
    lab: Lab, size: tuple[int, int], tmp_path: Path, poll_until: Poll
) -> None:
    lab.start_flood(PPS)
    terminal = Tmux(
        f"stty -a > {tmp_path}/before; fwtop --netns {lab.victim} --no-store; echo ended with $?; "
        f"stty -a > {tmp_path}/written; mv {tmp_path}/written {tmp_path}/after; sleep 600",
        f"{lab.victim}-{size[0]}",
        width=size[0],
        height=size[1],
    )
    try:
        terminal.wait_for("UDP flood")
        terminal.resize(220, 50)
        terminal.wait_for(lambda text: max(map(len, text.splitlines())) > 200)
        terminal.resize(70, 18)  # the last: tmux 3.3 keeps what was drawn on a screen that has become wider
        terminal.wait_for("UDP flood")
        pid = console_pid(lab.victim)
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        shown = terminal.wait_for("ended with")
        assert "UDP flood" not in shown, "the alternate screen was left"
        before, after = tmp_path / "before", tmp_path / "after"
        poll_until(after.exists)
        assert _settings(before) == _settings(after)
    finally:
        terminal.kill()


def _settings(saved: Path) -> list[str]:
    """Return what `stty -a` said but for the size, which also decides where it breaks its lines."""
    return re.sub(r"(rows|columns) \d+;", "", saved.read_text()).split()
