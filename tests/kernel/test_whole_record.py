"""What a recording gives to other programs, each in one lab."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fwtop.analysis.memory import Baseline
from fwtop.bench.measured_harm import forget_session
from fwtop.bench.programs import Terminal
from fwtop.console.live import WITHOUT_GUARDIAN
from fwtop.kernel.programs import module_argv
from fwtop.lab.run import Lab
from fwtop.model.text import safe_text
from fwtop.model.traffic.session import SessionInfo
from fwtop.store.baselines import BaselineStore
from fwtop.store.reader import list_sessions, replay
from tests.kernel.whole import guardian_pid

pytestmark = pytest.mark.kernel
Poll = Callable[..., Any]
Metrics = dict[tuple[str, ...], float]
PPS = 5_000  # how fast is of no matter here: leave the CPU to the tests beside


def fwtop(*arguments: str) -> None:
    """Run a verb that must succeed, of this clone."""
    argv = module_argv("fwtop", *arguments)
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def running() -> Iterator[Lab]:
    with Lab("few_sources") as lab:
        yield lab


@pytest.fixture
def lab(running: Lab) -> Iterator[Lab]:
    """The file's lab, without a flood, rules and stored sessions again after each test."""
    running.phase("before")
    yield running
    running.stop()
    fwtop("undo", "--all", "--netns", running.victim)
    forget_session(running)


@contextmanager
def recording(lab: Lab, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Record until the block ends."""
    process = subprocess.Popen(
        module_argv("fwtop", "record", "--netns", lab.victim, *options),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        print(process.communicate(timeout=120)[1])  # shown if the test failed


def scrape(path: Path) -> Metrics:
    """Read the metrics as Prometheus does; none before the socket is there."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(60)
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return {}
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: fwtop\r\n\r\n")
        with sock.makefile("rb") as file:
            head, _, body = file.read().partition(b"\r\n\r\n")
    if b" 200 OK" not in head:
        return {}
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def at_rest(lab: Lab, path: Path) -> Metrics:
    """Read the metrics when they no longer change, as nothing is sent; none while they do."""
    lab.pause_clients()
    first = scrape(path)
    time.sleep(2.5)  # they are written each second
    second = scrape(path)
    names = [name for name in first if name[0].endswith("packets_total")]
    return second if names and all(first[name] == second.get(name) for name in names) else {}


def test_metrics_count_what_the_lab_sent(lab: Lab, tmp_path: Path, poll_until: Poll) -> None:
    path = tmp_path / "s"
    with recording(lab, "--metrics", f"unix:{path}"):
        before = poll_until(lambda: at_rest(lab, path))
        lab.mark()
        arrived_before = lab.arrived()[0]
        lab.start_flood(PPS)
        poll_until(lambda: scrape(path).get(("fwtop_attacks",)))
        fwtop("drop", "--proto", "udp", "--via", "xdp", "--yes", "--force", "--netns", lab.victim)
        rules = poll_until(
            lambda: [labels for name, *labels in scrape(path) if name == "fwtop_rule_packets_total"]
        )
        assert [kind for _, kind in rules] == ["xdp"]
        poll_until(lambda: scrape(path).get(("fwtop_packets_total", "my_rules")))
        lab.stop()
        after = poll_until(lambda: at_rest(lab, path))
        sent = lab.arrived()[0] - arrived_before
    arrived = ("fwtop_arrived_packets_total",)
    assert after[arrived] - before[arrived] == pytest.approx(sent, rel=0.001, abs=20)
    ends = sum(value for (name, *_), value in after.items() if name == "fwtop_packets_total")
    assert ends == pytest.approx(after[arrived], rel=0.02)
    assert not [
        name for name in after if any("." in part for part in name[1:]) and name[0] != "fwtop_build_info"
    ]


def test_namespaces_without_a_name_lend_each_other_nothing() -> None:
    """In a process namespace of its own process 1 can be asked, whatever container this is."""
    asks = (
        "from fwtop.kernel.namespaces import lasting_name, temporary\n"
        "print(lasting_name())\n"
        "for _ in range(2):\n"
        "    with temporary(): print(lasting_name())\n"
    )
    first = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", '"$@"; exit', "sh"]
    done = subprocess.run(
        [*first, sys.executable, "-c", asks], capture_output=True, text=True, timeout=60, check=True
    )
    machine, *others = done.stdout.split()
    assert machine == "None"
    assert all(re.fullmatch(r"unnamed-[0-9a-f]{8}-\d+", name) for name in others)
    assert len(set(others)) == 2


def _sessions(netns: str) -> list[SessionInfo]:
    return [info for info in list_sessions() if info.netns == netns]


def test_json_lines_and_a_screen_tell_what_the_recorder_has_learnt(lab: Lab, poll_until: Poll) -> None:
    """Lines follow the flood, a screen takes over baseline and onset, and lines end with their reader.

    The recorder is told the namespace, the screen is started in it: that is the same one.
    """
    host = safe_text(socket.gethostname(), limit=64)
    forget_session(lab)  # those of other tests, whose namespaces had the same name
    before = BaselineStore().get(host, lab.victim)
    with recording(lab, "--jsonl", "-", "--top", "5") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
        for _ in process.stdout:
            if (learnt := BaselineStore().get(host, lab.victim)) != before:
                break
        assert learnt is not None
        assert Baseline.from_bytes(learnt).ready
        lab.start_flood(PPS)
        for line in process.stdout:
            document = json.loads(line)
            if document["attacks"]:
                break
        assert first["source"]["netns"] == document["source"]["netns"] == lab.victim
        assert len(document["sources"]["address"]) == 5
        poll_until(lambda: _sessions(lab.victim)[0].attacks)
        opened = time.time()
        inside = [shutil.which("ip") or "", "netns", "exec", lab.victim]
        with Terminal([*inside, *module_argv("fwtop", "watch")]):
            poll_until(lambda: len(_sessions(lab.victim)) > 1 and _sessions(lab.victim)[1].attacks)
        (path,) = {info.path for info in _sessions(lab.victim)} - {_sessions(lab.victim)[0].path}
        judged = [shown.judgement for shown in replay(path)]
        process.stdout.close()
        assert process.wait(120) == 0
        assert process.stderr.read().count("their reader closed the pipe") == 1
    assert all(judgement.baseline.startswith("baseline: ") for judgement in judged)
    begun = next(judgement for judgement in judged if judgement.attacks)
    assert all(attack.since < opened for attack in begun.attacks)
    assert begun.proposals
    assert not any(proposal.guess for proposal in begun.proposals)


def test_a_recorder_whose_guardian_is_killed_says_so_and_goes_on(lab: Lab) -> None:
    with recording(lab, "--jsonl", "-", "--no-alarms", "--no-store") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["notes"] == []
        guardian = guardian_pid(lab.victim)
        assert guardian is not None
        os.kill(guardian, signal.SIGKILL)
        notes = next(found for line in process.stdout if (found := json.loads(line)["notes"]))
        assert notes == [WITHOUT_GUARDIAN]
        assert WITHOUT_GUARDIAN in next(line for line in process.stderr if "guardian" in line)
        assert json.loads(process.stdout.readline())["totals"]["packets"] > 0


def test_alarms_of_an_attack_and_its_rule_reach_a_command(
    lab: Lab, open_path: Path, poll_until: Poll
) -> None:
    told, config = open_path / "told", open_path / "alarms.toml"  # the command is not run by root
    told.touch()
    told.chmod(0o666)
    code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
    command = json.dumps([sys.executable, "-c", code, str(told)])
    config.write_text(f"command = {command}\nbegan_seconds = 1\nended_seconds = 2\n")

    def alarms(event: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in told.read_text().splitlines()]
        return [alarm for alarm in found if alarm["event"] == event]

    fwtop("alarms", "test", "--alarms", str(config))
    assert len(alarms("test")) == 1
    full = ["create full hash:ip maxelem 9\n", *(f"add full 192.0.2.{number}\n" for number in range(9))]
    argv = ["ip", "netns", "exec", lab.victim, "ipset", "restore"]
    subprocess.run(argv, input="".join(full), text=True, check=True, timeout=20)
    with recording(lab, "--alarms", str(config)):
        lab.start_flood(PPS)
        (began,) = poll_until(lambda: alarms("attack_began"))
        fwtop("drop", "--proto", "udp", "--via", "xdp", "--yes", "--force", "--netns", lab.victim)
        (installed,) = poll_until(lambda: alarms("rule_installed"))
        fwtop("undo", "--all", "--netns", lab.victim)
        poll_until(lambda: alarms("rule_removed"))
        lab.stop()
        (ended,) = poll_until(lambda: alarms("attack_ended"))
        (nearly,) = poll_until(lambda: alarms("rules_alarm"))
    assert began["details"]["attack_kind"] == ended["details"]["attack_kind"] == "udp_flood"
    assert began["details"]["pps"] > PPS / 4
    assert nearly["message"] == "ipset set full is 100 % full: 9 of 9 entries"
    assert nearly["details"]["alarm_kind"] == "set_nearly_full"
    assert installed["details"]["rule_kind"] == "xdp"
