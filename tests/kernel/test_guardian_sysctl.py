"""Sysctls as rules: changed, shown, and given back by undo, by expiry, and after any crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from guardian_bench import SOON_SECONDS, Bench, apply, kill, rules_of

from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.settings import Settings
from fwtop.guardian.records.files import Records
from fwtop.guardian.records.former import FormerState
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Keep, Plan, Undo, Why
from fwtop.model.rule import Kind, Match, Rule, Setting

pytestmark = pytest.mark.kernel
COOKIES, UDP = "net.ipv4.tcp_syncookies", "net.netfilter.nf_conntrack_udp_timeout"
MAX = "net.netfilter.nf_conntrack_max"


def rule(ttl: int = 600, **values: int) -> Rule:
    named = {"cookies": COOKIES, "udp": UDP, "most": MAX}
    settings = tuple(Setting(named[name], value) for name, value in values.items())
    return Rule("", Kind.SYSCTL, Match(), "set", ttl, settings=settings)


def values(bench: Bench) -> tuple[int, int]:
    read = bench.pair.victim.run("sysctl", "-n", COOKIES, UDP).stdout.split()
    return int(read[0]), int(read[1])


def test_changed_at_once_and_given_back_by_undo(bench: Bench) -> None:
    bench.pair.victim.run("sysctl", "-qw", f"{COOKIES}=0")
    assert values(bench) == (0, 30)
    with bench.connect() as guardian:
        plan = guardian.demand(Plan(rule(cookies=1, udp=10).to_dict())).data
        assert plan["commands"] == [f"sysctl -w {COOKIES}=1  # now 0", f"sysctl -w {UDP}=10  # now 30"]
        assert any("no clock in the kernel" in warning for warning in plan["warnings"])
        assert (plan["refused"], plan["needs_force"]) == (None, "")
        assert values(bench) == (0, 30)
        rule_id = apply(guardian, rule(cookies=1, udp=10))
        assert values(bench) == (1, 10)
        said = guardian.demand(Why(rule_id)).data["sentences"]
        assert said[-1] == f"rule {rule_id} changed {COOKIES} from 0 to 1, still so"
        with pytest.raises(FwtopError, match=f"rule {rule_id} changed {UDP} already"):
            apply(guardian, rule(udp=5))
        guardian.demand(Undo((rule_id,)))
        assert values(bench) == (0, 30)


def test_expiry_and_missing_confirmation_give_back_and_keep_keeps(bench: Bench, poll_until) -> None:
    with bench.connect() as cli, bench.connect("console") as guardian:
        apply(cli, rule(ttl=1, udp=10))
        poll_until(lambda: values(bench)[1] == 30)
        lost = apply(guardian, rule(udp=11), SOON_SECONDS)
        assert values(bench)[1] == 11
        poll_until(lambda: values(bench)[1] == 30)
        assert rules_of(guardian, finished=True)[lost]["note"] == "not confirmed in time"
        kept = apply(guardian, rule(udp=12), 60)
        guardian.demand(Keep(kept, 600))
    with bench.connect() as guardian:
        assert (list(rules_of(guardian)), values(bench)[1]) == ([kept], 12)


def test_what_somebody_else_set_meanwhile_stays(bench: Bench) -> None:
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule(udp=10))
        bench.pair.victim.run("sysctl", "-qw", f"{UDP}=20")
        assert "somebody set it to 20" in guardian.demand(Why(rule_id)).data["sentences"][0]
        guardian.demand(Undo((rule_id,)))
    assert values(bench)[1] == 20


def test_watchdog_of_a_killed_guardian_has_the_value_given_back(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        apply(guardian, rule(ttl=SOON_SECONDS, udp=10))
        pid = int(guardian.about["pid"])
    kill(pid)
    assert values(bench)[1] == 10  # no clock in the kernel, and no guardian
    poll_until(lambda: values(bench)[1] == 30)


def test_unconfirmed_value_of_a_killed_guardian_is_given_back_in_its_time(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        apply(guardian, rule(ttl=3600, udp=10), SOON_SECONDS)
        pid = int(guardian.about["pid"])
    kill(pid)
    assert values(bench)[1] == 10
    poll_until(lambda: values(bench)[1] == 30)
    with bench.connect() as successor:
        assert rules_of(successor, finished=True)["1"]["note"] == "not confirmed in time"


def test_a_watchdog_that_was_killed_gets_a_successor(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        apply(guardian, rule(ttl=3600, udp=10))
        first = bench.the_watchdog(poll_until)
        os.kill(first, signal.SIGKILL)
        poll_until(lambda: {first}.isdisjoint(bench.watchdogs()))
        second = bench.the_watchdog(poll_until)
        os.kill(second, signal.SIGKILL)
        poll_until(lambda: {second}.isdisjoint(bench.watchdogs()))
        apply(guardian, rule(ttl=SOON_SECONDS, cookies=2))
        pid = int(guardian.about["pid"])
        assert bench.the_watchdog(poll_until)
        assert values(bench) == (2, 10)
    kill(pid)
    poll_until(lambda: values(bench) == (1, 10))  # only what is over


def test_watchdog_ends_with_a_guardian_that_has_nothing_left(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule(udp=10))
        assert bench.the_watchdog(poll_until)
        guardian.demand(Undo((rule_id,)))
    poll_until(lambda: not bench.watchdogs())


@pytest.mark.one_each("setting", "installed")
@pytest.mark.parametrize("failpoint", [Failpoint.INTENT, Failpoint.SETTING, Failpoint.INSTALLED])
def test_crash_while_changing(bench: Bench, failpoint: Failpoint) -> None:
    bench.pair.victim.run("sysctl", "-qw", f"{COOKIES}=0")
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian, pytest.raises(FwtopError, match="ended before it answered"):
        apply(guardian, rule(cookies=1, udp=10))
    with bench.connect() as successor:
        if failpoint is Failpoint.INSTALLED:
            assert values(bench) == (1, 10)
            successor.demand(Undo(all=True))
        assert rules_of(successor) == {}
        assert values(bench) == (0, 30)


@pytest.mark.one_each("restored", "undone")
@pytest.mark.parametrize(
    "failpoint", [Failpoint.UNDO, Failpoint.RESTORED, Failpoint.CHAINS_REMOVED, Failpoint.UNDONE]
)
def test_crash_while_giving_back(bench: Bench, failpoint: Failpoint) -> None:
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian:
        apply(guardian, rule(cookies=2, udp=10))
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Undo(all=True))
    with bench.connect() as successor:
        assert rules_of(successor) == {}
    assert values(bench) == (1, 30)


def test_only_the_initial_namespace_takes_conntrack_max(bench: Bench) -> None:
    with bench.connect() as guardian:
        plan = guardian.demand(Plan(rule(udp=10, most=1 << 24).to_dict())).data
        assert "initial network namespace only" in plan["refused"]
        assert plan["code"] == 3
        with pytest.raises(FwtopError, match="initial network namespace only"):
            apply(guardian, rule(udp=10, most=1 << 24))
    assert values(bench)[1] == 30


def test_initial_namespace_s_table_is_raised_and_given_back(tmp_path: Path) -> None:
    file = Path("/proc/sys/net/netfilter/nf_conntrack_max")
    before = int(file.read_text())
    sysctls = Settings(FormerState(Records(tmp_path, 1, ""), print), Failpoints())
    try:
        sysctls.write("7", (Setting(MAX, before + 1),))
        assert int(file.read_text()) == before + 1
    finally:
        sysctls.remove({"7"})
    assert int(file.read_text()) == before


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ((Setting(UDP, 31),), "can only be shortened"),
        ((Setting("kernel.panic", 1),), "not a setting to change"),
        ((Setting(UDP, 0),), "from 1 to"),
        ((Setting(UDP, True),), "whole number"),
        ((Setting(UDP, 9), Setting(UDP, 8)), "named twice"),
        ((), "settings"),
    ],
)
def test_what_would_help_the_attack_or_is_no_setting_is_refused(
    bench: Bench, settings: tuple[Setting, ...], why: str
) -> None:
    wanted = Rule("", Kind.SYSCTL, Match(), "set", 600, settings=settings)
    with bench.connect() as guardian:
        answer = guardian.request(Apply(wanted.to_dict(), 0))
        assert not answer.ok
        assert why in answer.error
    assert values(bench)[1] == 30


def test_command_line_shows_changes_and_undoes(bench: Bench) -> None:
    def fwtop(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "fwtop", *words, "--netns", bench.netns]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
        )

    shown = json.loads(fwtop("sysctl", "--json").stdout)["settings"]
    assert (shown["syncookies"], shown["conntrack_udp_timeout"]) == (1, 30)
    done = fwtop("sysctl", "syncookies=always", "conntrack_udp_timeout=9", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    try:
        assert values(bench) == (2, 9)
        assert "changed" in fwtop("why", json.loads(done.stdout)["status"]["id"]).stdout
    finally:
        assert fwtop("undo", "--all").returncode == 0
    assert values(bench) == (1, 30)
    for words in (("panic=1",), ("syncookies",), ("syncookies=off",), ("syncookies=on", "syncookies=always")):
        assert fwtop("sysctl", *words, "--yes").returncode == 2
