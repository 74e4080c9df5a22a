"""From a flood to a block with one key and back: what issue 2 says must be shown, on the real thing."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fwtop.lab.run import Lab
from tests.kernel.whole import Tmux, block_selected, console_pid, fwtop, fwtop_json, rules, watch_source

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("installed")]
CLONE = Path(__file__).resolve().parents[2]
Poll = Callable[..., Any]


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
    assert truth["arrived_packets"] == pytest.approx(truth["packets"], rel=0.02), "the lab, not fwtop"
    # Frames that find the victim's queue full are drops of its interface, which fwtop counts too.
    total = truth["packets"] + truth["link_full"]
    assert seen["totals"]["packets"] == pytest.approx(total, rel=0.02)
    lost = sum(row["packets"] for row in seen["ledger"] if row["layer"] == "nic")
    assert lost == pytest.approx(truth["link_full"], rel=0.02, abs=50)
    port = next(row["port"] for row in truth["ports"] if row["side"] == "dst")
    assert (seen["ports"][0]["side"], seen["ports"][0]["port"]) == ("dst", port)
    payload = truth["payloads"][0]["hex"]
    assert seen["payloads"][0]["hex"].startswith(payload) or payload.startswith(seen["payloads"][0]["hex"])
    assert [attack["kind"] for attack in seen["attacks"]] == truth["kinds"]
    unexplained = sum(abs(row["packets"]) for row in seen["ledger"] if row["layer"] == "unexplained")
    assert unexplained <= 0.005 * total


def test_enter_shows_a_decoded_packet_of_the_selected_source(lab: Lab, screen: Tmux) -> None:
    screen.wait_for("protect against")
    screen.keys("]")  # to Traffic
    screen.wait_for(lambda text: re.search(r"▸ \d+\.\d+\.\d+\.\d+", text))
    screen.keys("Home")
    screen.keys("r")
    screen.wait_for("Ethernet")
    console = console_pid(lab.victim)
    users = {
        owner(entry) for entry in Path("/proc").glob("[0-9]*") if b"fwtop.dissect" in command_line(entry)
    }
    assert users
    assert not users & {0, owner(Path(f"/proc/{console}"))}
    screen.keys("Escape")
    screen.wait_for(lambda text: "Ethernet" not in text)
    screen.keys("q")
    screen.wait_for("ended with 0")


def command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def owner(entry: Path) -> int:
    return int(re.findall(r"^Uid:\t(\d+)", (entry / "status").read_text(), re.M)[0])


def test_a_key_blocks_an_attacker_and_spares_everyone_else(lab: Lab, screen: Tmux, poll_until: Poll) -> None:
    source = block_selected(screen)
    passes = watch_source(lab, source)
    poll_until(lambda: not passes())
    screen.keys("y")
    poll_until(lambda: any(rule["state"] == "confirmed" and rule["packets"] > 0 for rule in rules(lab)))
    phases = map(str, itertools.count())

    def clients_fare_as_before() -> bool:
        """Look at a while that was not too busy: then clients lose packets with and without the rule."""
        phase = next(phases)
        lab.phase(phase)
        time.sleep(2.0)
        lab.phase("between")
        time.sleep(1.1)  # longer than any client's patience
        known = lab.results()["phases"]
        return set(known[phase]) >= set(known["during"]) and all(
            row["success"] >= known["during"][work]["success"] - 0.1 for work, row in known[phase].items()
        )

    poll_until(clients_fare_as_before)
    rule = next(rule for rule in rules(lab) if rule["state"] == "confirmed")
    shown = fwtop_json("snapshot", "--netns", lab.victim, "--seconds", "2", "--json", "--no-store")
    ours = [row for row in shown["ledger"] if row["rule"] == rule["id"]]
    assert ours, shown["ledger"]
    assert ours[0]["packets"] > 1000
    assert ours[0]["layer"] == "netfilter"
    fared = lab.results()
    assert fared["operator_session_cuts"] == 0
    assert list(rule["entries"]) == [source]
    screen.keys("q")
    screen.wait_for("ended with 0")
    assert not passes(), "a confirmed rule outlives the screen"
    fwtop("undo", rule["id"], "--netns", lab.victim)
    poll_until(passes)
