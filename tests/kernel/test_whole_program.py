"""From a flood to a block with one key and back: what issue 2 says must be shown, on the real thing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fwtop.lab.run import Lab
from fwtop.model import paths
from tests.kernel.whole import Tmux, console_pid, fwtop, fwtop_json, guardian_pid, kernel_state

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("installed")]
CLONE = Path(__file__).resolve().parents[2]
PPS = 100_000
Poll = Callable[..., Any]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab("few_sources") as running:
        yield running
        fwtop("undo", "--all", "--netns", running.victim)


@pytest.fixture
def screen(lab: Lab) -> Iterator[Tmux]:
    """fwtop's screen on a victim that is being flooded."""
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    lab.start_flood(PPS)
    command = f"SSH_CONNECTION='{lab.ssh_connection}' fwtop --netns {lab.victim}"
    terminal = Tmux(f"{command}; echo ended with $?; stty -a; sleep 600", lab.victim)
    yield terminal
    terminal.kill()


def rules(lab: Lab) -> list[dict[str, Any]]:
    return fwtop_json("status", "--json", "--all", "--netns", lab.victim)["mitigations"]


def rate_of(lab: Lab, source: str) -> float:
    """What the victim's own firewall still gets to see of a source, in packets, at this moment."""
    shown = subprocess.run(
        ["ip", "netns", "exec", lab.victim, "nft", "-j", "list", "chain", "inet", "probe", "input"],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout
    rows = [item["rule"]["expr"] for item in json.loads(shown)["nftables"] if "rule" in item]
    assert len(rows) == 1, source
    return next(part["counter"]["packets"] for part in rows[0] if "counter" in part)


def watch_source(lab: Lab, source: str) -> Callable[[], bool]:
    """Lay a foreign counter after fwtop's chain; returns whether the source's packets get through now."""
    text = (
        "table inet probe {\n chain input {\n type filter hook prerouting priority -150\n"
        f"ip saddr {source} counter\n }}\n}}\n"
    )
    subprocess.run(
        ["ip", "netns", "exec", lab.victim, "nft", "-f", "-"], input=text, text=True, check=True, timeout=10
    )
    last = [rate_of(lab, source)]

    def passes() -> bool:
        now = rate_of(lab, source)
        moved = now > last[0]
        last[0] = now
        return moved

    return passes


def block_selected(screen: Tmux) -> str:
    """Block the busiest source with the keys b and Enter; returns its address."""
    # The selection follows the busiest source until a key moves it: hold it there first.
    screen.wait_for(lambda text: re.search(r"▸ \d+\.\d+\.\d+\.\d+", text))
    screen.keys("Home")
    screen.keys("b")
    shown = screen.wait_for("would run")
    source = re.search(r"block (\d+\.\d+\.\d+\.\d+)", shown)
    assert source is not None, shown
    assert re.search(r"stops +\d", shown), shown
    assert re.search(r"harms +\d", shown), shown
    screen.wait_for("▸ Install")
    screen.keys("Enter")
    screen.wait_for("y keeps it")
    return source[1]


def test_make_demo_prints_the_observation_of_a_running_flood() -> None:
    # `make test` runs this: as a make within a make it would say which directory it enters.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "demo"],
        cwd=CLONE,
        env=own,
        capture_output=True,
        text=True,
        timeout=200,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    truth, seen = document["truth"], document["observation"]
    assert seen["totals"]["packets"] == pytest.approx(truth["packets"], rel=0.02)
    port = next(row["port"] for row in truth["ports"] if row["side"] == "dst")
    assert (seen["ports"][0]["side"], seen["ports"][0]["port"]) == ("dst", port)
    payload = truth["payloads"][0]["hex"]
    assert seen["payloads"][0]["hex"].startswith(payload) or payload.startswith(seen["payloads"][0]["hex"])
    assert [attack["kind"] for attack in seen["attacks"]] == truth["kinds"]
    unexplained = sum(abs(row["packets"]) for row in seen["ledger"] if row["layer"] == "unexplained")
    assert unexplained <= 0.005 * truth["packets"]


def test_a_key_blocks_an_attacker_and_spares_everyone_else(lab: Lab, screen: Tmux, poll_until: Poll) -> None:
    source = block_selected(screen)
    passes = watch_source(lab, source)
    poll_until(lambda: not passes())
    screen.keys("y")
    poll_until(lambda: any(rule["state"] == "confirmed" and rule["packets"] > 0 for rule in rules(lab)))
    lab.phase("blocked")
    rule = next(rule for rule in rules(lab) if rule["state"] == "confirmed")
    shown = fwtop_json("snapshot", "--netns", lab.victim, "--seconds", "2", "--json", "--no-store")
    ours = [row for row in shown["ledger"] if row["rule"] == rule["id"]]
    assert ours, shown["ledger"]
    assert ours[0]["packets"] > 1000
    assert ours[0]["layer"] == "netfilter"
    fared = lab.fare()
    assert fared["operator_session_cuts"] == 0
    for work, result in fared["phases"]["blocked"].items():
        assert result["tried"] > 0, work
        assert result["success"] == 1.0, (work, result)
    screen.keys("q")
    screen.wait_for("ended with 0")
    assert not passes(), "a confirmed rule outlives the screen"
    fwtop("undo", rule["id"], "--netns", lab.victim)
    poll_until(passes)


def test_a_killed_console_brings_the_traffic_back(lab: Lab, screen: Tmux, poll_until: Poll) -> None:
    passes = watch_source(lab, block_selected(screen))
    poll_until(lambda: not passes())
    console = console_pid(lab.victim)
    assert console is not None
    os.kill(console, signal.SIGKILL)
    poll_until(passes, 60)
    assert {rule["state"] for rule in rules(lab)} == {"reverted"}
    ended = screen.wait_for("ended with")
    assert "SIGKILL" in ended
    assert re.search(r"[^-]icanon.* echo ", ended, re.S), "the launcher gives the terminal back as it was"


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
    poll_until(passes, 60)
    assert guardian_pid(lab.victim) is None, "nothing of fwtop ran when the rule ended"
    subprocess.run(["ip", "netns", "exec", lab.victim, "nft", "delete", "table", "inet", "probe"], check=True)
    fwtop("undo", "--all", "--netns", lab.victim)
    assert kernel_state(lab.victim) == before


def test_undo_all_leaves_the_kernel_as_it_was(lab: Lab) -> None:
    before = kernel_state(lab.victim)
    for arguments in (
        ("block", "198.51.100.0/24", "2001:db8::/32"),
        ("limit", "--proto", "udp", "--dport", "27015", "--per", "24", "--rate", "1000/s"),
        ("match", "--string", "flood:", "--proto", "udp"),
        ("notrack", "--proto", "udp", "--dport", "27015"),
    ):
        done = fwtop(*arguments, "--netns", lab.victim, "--ttl", "5m", "--yes")
        assert done.returncode == 0, (arguments, done.stderr)
    assert kernel_state(lab.victim) != before
    assert fwtop("undo", "--all", "--netns", lab.victim).returncode == 0
    assert kernel_state(lab.victim) == before


def test_the_console_has_no_privileges_and_never_loads_the_privileged_parts(screen: Tmux, lab: Lab) -> None:
    screen.wait_for("ATTACK")
    pid = console_pid(lab.victim)
    assert pid is not None
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities], 16) == 0, capabilities
    assert status["NoNewPrivs"] == "1"
    assert "0" not in status["Uid"].split()
    assert status["Groups"].strip() == ""
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "libbcc" not in mapped
    assert "LLVM" not in mapped


def test_no_mode_of_the_console_imports_bcc_scapy_or_pyroute2() -> None:
    code = (
        "import sys, fwtop.console.__main__, fwtop.console.screen, fwtop.console.record, "
        "fwtop.console.observe, fwtop.console.trial, fwtop.console.stored_screen; "
        "print([name for name in ('bcc', 'scapy', 'pyroute2', 'fwtop.mitigate') if name in sys.modules])"
    )
    done = subprocess.run(
        [str(paths.INSTALLED_PYTHON), "-I", "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_the_screen_survives_resizing_and_leaves_a_clean_terminal(
    lab: Lab, size: tuple[int, int], tmp_path: Path, poll_until: Poll
) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux")
    lab.start_flood(PPS)
    terminal = Tmux(
        f"stty -a > {tmp_path}/before; fwtop --netns {lab.victim} --no-store; echo ended with $?; "
        f"stty -a > {tmp_path}/after; sleep 600",
        f"{lab.victim}-{size[0]}",
        width=size[0],
        height=size[1],
    )
    try:
        terminal.wait_for("UDP flood")
        terminal.resize(70, 18)
        terminal.wait_for("UDP flood")
        terminal.resize(200, 50)
        terminal.wait_for("UDP flood")
        pid = console_pid(lab.victim)
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        shown = terminal.wait_for("ended with")
        assert "UDP flood" not in shown, "the alternate screen was left"
        before, after = tmp_path / "before", tmp_path / "after"
        poll_until(lambda: after.exists() and after.read_text())
        assert _settings(before) == _settings(after)
    finally:
        terminal.kill()


def _settings(saved: Path) -> list[str]:
    """Return what `stty -a` said but for the size, which also decides where it breaks its lines."""
    return re.sub(r"(rows|columns) \d+;", "", saved.read_text()).split()
