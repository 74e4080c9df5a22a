"""A whole recorder whose disk becomes full under attack and gets room again, with mounts of its own."""

from __future__ import annotations

import json
import pwd
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fwtop.kernel.programs import module_argv
from fwtop.lab.run import Lab
from fwtop.model.paths import CONSOLE_USER, STATE_DIRECTORY

pytestmark = [pytest.mark.kernel, pytest.mark.matrix]
Poll = Callable[..., Any]
PPS = 20_000


def inside(recorder: int, *words: str) -> str:
    """Run a verb where the recorder's disk is seen."""
    done = subprocess.run(
        ["nsenter", "-t", str(recorder), "-m", *module_argv("fwtop", *words)],
        capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_rules_and_attacks_while_the_disk_is_full_are_in_the_report(tmp_path: Path, poll_until: Poll) -> None:
    user = pwd.getpwnam(CONSOLE_USER)
    options = f"size=4m,mode=700,uid={user.pw_uid},gid={user.pw_gid}"
    with Lab("few_sources") as lab:
        said, lines = tmp_path / "said", tmp_path / "lines"
        words = ("record", "--netns", lab.victim, "--no-alarms", "--jsonl", str(lines))
        record = shlex.join(module_argv("fwtop", *words))
        script = f"mount -t tmpfs -o {options} tmpfs {STATE_DIRECTORY} && exec {record}"

        def observed() -> dict[str, Any]:
            return dict(json.loads(lines.read_text().splitlines()[-1]))

        with said.open("wb") as output:
            process = subprocess.Popen(
                ["unshare", "-m", "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            poll_until(lambda: "recording session" in said.read_text())
            ballast = Path(f"/proc/{process.pid}/root{STATE_DIRECTORY}/ballast")
            fill(ballast)
            poll_until(
                lambda: re.search(r"not stored since \d\d:\d\d:\d\d: the disk is full; ", said.read_text())
            )
            lab.start_flood(PPS)
            netns = ("--netns", lab.victim)
            poll_until(lambda: observed()["attacks"])
            inside(process.pid, "drop", "--proto", "udp", "--via", "xdp", "--yes", "--force", *netns)
            (rule,) = poll_until(lambda: [one for one in observed()["mitigations"] if one["packets"]])
            inside(process.pid, "undo", "--all", *netns)
            poll_until(lambda: not observed()["mitigations"])
            lab.stop()
            ballast.unlink()
            poll_until(lambda: said.read_text().count("recording session") == 2)
            report = json.loads(inside(process.pid, "report", "--format", "json", "-o", "-"))
        finally:
            process.terminate()
            process.wait(30)
    print(json.dumps(report["events"], indent=1), said.read_text())  # shown if the test failed
    assert [span["kind"] for span in report["attacks"]] == ["udp_flood"]
    assert [one["id"] for one in report["rules"]] == [rule["id"]]
    assert report["rules"][0]["packets"] > 0
    kinds = [event["kind"] for event in report["events"]]
    assert kinds.index("storing_stopped") < kinds.index("attack_began") < kinds.index("rule_applied")
    assert kinds.index("rule_undone") < kinds.index("storing_resumed")
    assert any(note.startswith("Nothing was stored from ") for note in report["notes"])
