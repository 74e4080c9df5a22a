"""Sysctls are given back in time though the guardian is stopped, hangs, or is gone with its watchdog."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from guardian_bench import SOON_SECONDS, Bench, apply, kill, rules_of

from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Connect, Keep
from fwtop.model.rule import Kind, Match, Rule, Setting
from tests.kernel.conftest import made_pair
from tests.kernel.fuse_server import fuse_file

pytestmark = pytest.mark.kernel
UDP, ICMP = "net.netfilter.nf_conntrack_udp_timeout", "net.netfilter.nf_conntrack_icmp_timeout"
LATE = "as the guardian was stopped or hung"


def rule(ttl: int, name: str = UDP) -> Rule:
    return Rule("", Kind.SYSCTL, Match(), "set", ttl, settings=(Setting(name, 10),))


def value(bench: Bench, name: str = UDP) -> int:
    return int(bench.pair.victim.run("sysctl", "-n", name).stdout)


def kill_both(bench: Bench, poll_until) -> None:
    """Kill the guardian after its watchdog, before it can start another one."""
    pid = next(iter(bench.pids))
    os.kill(pid, signal.SIGSTOP)
    os.kill(bench.the_watchdog(poll_until), signal.SIGKILL)
    kill(pid)
    poll_until(lambda: not bench.watchdogs())


def test_stopped_guardian_s_value_is_given_back_and_it_agrees_once_it_goes_on(
    bench: Bench, poll_until
) -> None:
    with bench.connect() as guardian:
        first = apply(guardian, rule(SOON_SECONDS))
        second = apply(guardian, rule(SOON_SECONDS + 2, ICMP))
        pid = int(guardian.about["pid"])
        os.kill(pid, signal.SIGSTOP)
        poll_until(lambda: (value(bench), value(bench, ICMP)) == (30, 30))
        bench.pair.victim.run("sysctl", "-qw", f"{UDP}=10")  # somebody else's now
        os.kill(pid, signal.SIGCONT)
        poll_until(lambda: not rules_of(guardian))
        over = rules_of(guardian, finished=True)
        assert {over[name]["state"] for name in (first, second)} == {"expired"}
        assert all(LATE in over[name]["note"] for name in (first, second))
        assert (value(bench), value(bench, ICMP)) == (10, 30)
        third = apply(guardian, rule(1, ICMP))
        poll_until(lambda: third not in rules_of(guardian))
        assert LATE not in rules_of(guardian, finished=True)[third]["note"]
    poll_until(lambda: not bench.watchdogs())


def test_unconfirmed_value_of_a_stopped_guardian_is_given_back(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        apply(guardian, rule(3600), SOON_SECONDS)
        kept = apply(guardian, rule(3600, ICMP), SOON_SECONDS)
        guardian.demand(Keep(kept, 3600))
        pid = int(guardian.about["pid"])
        os.kill(pid, signal.SIGSTOP)
        poll_until(lambda: value(bench) == 30)
        assert value(bench, ICMP) == 10
        kill(pid)
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [kept]
        assert value(bench, ICMP) == 10


def test_worker_that_hangs_is_taken_for_dead_while_the_event_loop_lives(bench: Bench, poll_until) -> None:
    """The worker looks at the allow-list every few seconds: here on a file system that does not answer."""
    (bench.directory / "fuse").mkdir()
    with bench.connect() as guardian, fuse_file(bench.directory / "fuse") as file:
        rule_id = apply(guardian, rule(SOON_SECONDS))
        (bench.directory / "link").symlink_to(file.path)
        (bench.directory / "link").rename(bench.directory / "allow")
        file.stall("lookup", "getattr")
        poll_until(lambda: value(bench) == 30)
        assert guardian.demand(Connect())
        file.abort()
        poll_until(lambda: rule_id not in rules_of(guardian))
        assert LATE in rules_of(guardian, finished=True)[rule_id]["note"]


def test_next_guardian_of_any_namespace_gives_back_what_nobody_else_does(
    bench: Bench, tmp_path: Path, poll_until
) -> None:
    with bench.connect() as guardian:
        apply(guardian, rule(SOON_SECONDS))
        lasting = apply(guardian, rule(3600, ICMP))
    kill_both(bench, poll_until)
    assert (value(bench), value(bench, ICMP)) == (10, 10)
    with made_pair() as other:
        elsewhere = Bench(other, tmp_path)

        def given_back() -> bool:
            with elsewhere.connect() as guardian:
                kill(int(guardian.about["pid"]))
            return value(bench) == 30

        poll_until(given_back)
        elsewhere.close()
    assert value(bench, ICMP) == 10
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [lasting]


def test_timer_gives_back_in_a_namespace_without_a_name(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        apply(guardian, rule(2))
    kill_both(bench, poll_until)
    argv = ["ip", "netns", "exec", bench.netns, "sleep", "600"]
    with subprocess.Popen(argv) as inside:
        try:
            poll_until(lambda: Path(f"/proc/{inside.pid}/comm").read_text() == "sleep\n")
            subprocess.run(["ip", "netns", "delete", bench.netns], check=True, timeout=60)
            poll_until(lambda: timer(bench) and read(inside.pid) == 30)
        finally:
            inside.kill()


def timer(bench: Bench) -> bool:
    argv = [sys.executable, "-m", "fwtop.guardian", "--overdue=everywhere"]
    subprocess.run([*argv, f"--run-directory={bench.directory}"], check=True, timeout=60)
    return True


def read(pid: int) -> int:
    argv = ["nsenter", f"--net=/proc/{pid}/ns/net", "sysctl", "-n", UDP]
    return int(subprocess.run(argv, check=True, timeout=60, capture_output=True).stdout)


def test_command_says_that_the_guardian_is_stopped_and_gives_back(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        apply(guardian, rule(2))
        pid = int(guardian.about["pid"])
        os.kill(pid, signal.SIGSTOP)
        os.kill(bench.the_watchdog(poll_until), signal.SIGKILL)
        poll_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

        def given_back() -> bool:
            with pytest.raises(FwtopError, match=f"process {pid}, is stopped.*kill -CONT {pid}"):
                bench.connect()
            return value(bench) == 30

        poll_until(given_back)
        os.kill(pid, signal.SIGCONT)
        poll_until(lambda: not rules_of(guardian))
