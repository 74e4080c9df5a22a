"""Observers are attached on old and new kernels, and detached when the process that holds them ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import Bench

from fwtop.model.paths import ROOT
from fwtop.observe import older_kernels
from tests.kernel.conftest import Host, NetnsPair, ip
from tests.kernel.observing import Observer, observing, samples, send
from tests.kernel.wire import inside, meet

pytestmark = pytest.mark.kernel
FLOOD = """
import socket, sys
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    sender.sendto(b"attack", (sys.argv[1], int(sys.argv[2])))
"""


def attached(host: Host) -> str:
    """Everything that observing could leave behind."""
    tc = (
        host.run("tc", "qdisc").stdout
        + host.run("tc", "filter", "show", "dev", host.interface, "ingress").stdout
    )
    return tc + host.run("nft", "list", "ruleset").stdout


def something_is_left(host: Host) -> bool:
    with inside(host.netns):
        return older_kernels.are_left()


def loaded_programs() -> set[int]:
    """Ids of all BPF programs in the kernel."""
    listed = subprocess.run(["bpftool", "-j", "prog"], capture_output=True, text=True, timeout=60, check=True)
    return {int(program["id"]) for program in json.loads(listed.stdout)}


def programs_of(process: int) -> set[int]:
    """Ids of the BPF programs that a process holds."""
    found: set[int] = set()
    for entry in Path(f"/proc/{process}/fdinfo").iterdir():
        lines = entry.read_text().splitlines()
        found |= {int(line.split()[1]) for line in lines if line.startswith("prog_id:")}
    return found


def test_nothing_stays_attached_when_the_holders_are_killed(netns_pair: NetnsPair, poll_until: Any) -> None:
    before = attached(netns_pair.victim)
    observer = Observer(netns_pair.victim, [netns_pair.victim.interface])
    ours = programs_of(observer.process.pid)
    if not observer.detaches_on_close:
        observer.close()
        pytest.skip("before Linux 6.6 the filter at tc stays until the guardian takes it off")
    assert len(ours) == 3
    observer.process.send_signal(signal.SIGKILL)
    observer.close()
    poll_until(lambda: not ours & loaded_programs())
    assert attached(netns_pair.victim) == before


def test_detach_removes_the_filter_of_older_kernels(netns_pair: NetnsPair) -> None:
    before = attached(netns_pair.victim)
    with observing(netns_pair.victim, without="tcx") as observer:
        assert observer.ready["ingress"] == "clsact"
        assert "fwtop_ingress" in attached(netns_pair.victim)
    assert something_is_left(netns_pair.victim)
    netns_pair.victim.run(sys.executable, "-m", "fwtop.observe.loader", "--detach", "0")
    assert attached(netns_pair.victim) == before
    assert not something_is_left(netns_pair.victim)


def test_a_foreign_clsact_and_its_filters_stay(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    victim.run("tc", "qdisc", "add", "dev", victim.interface, "clsact")
    match = ["u32", "match", "u32", "0", "0", "flowid", "1:1"]
    victim.run(
        "tc", "filter", "add", "dev", victim.interface, "ingress", "protocol", "all", "pref", "5", *match
    )
    before = attached(victim)
    with observing(victim, without="tcx"):
        assert "fwtop_ingress" in attached(victim)
    assert something_is_left(victim)
    victim.run(sys.executable, "-m", "fwtop.observe.loader", "--detach", "all")
    assert attached(victim) == before
    assert not something_is_left(victim)


def test_windows_give_the_full_totals(netns_pair: NetnsPair, poll_until: Any) -> None:
    """When observing everything costs too much, an unprivileged process detaches and attaches again."""
    meet(netns_pair)
    every_second = "-p udp --dport 9 -m statistic --mode nth --every 2 --packet 0 -j DROP"
    netns_pair.victim.run("iptables", "-t", "raw", "-A", "PREROUTING", *every_second.split())
    observer = Observer(netns_pair.victim, [netns_pair.victim.interface], windows="1")
    if not observer.detaches_on_close:
        observer.close()
        pytest.skip("only links (Linux 6.6) can be closed and opened again without privilege")
    flood = [sys.executable, "-c", FLOOD, netns_pair.victim.ipv4, "9"]
    answers: list[dict[str, Any]] = []
    try:
        before = observer.ask("poll")["link_packets"]
        with subprocess.Popen(["ip", "netns", "exec", netns_pair.attacker.netns, *flood]) as sender:
            try:  # on a busy machine it takes its time until a window was open and shut again
                poll_until(lambda: answers.append(observer.ask("watch 1")) or is_in_windows(answers), 300)
            finally:
                sender.kill()
        answers.append(observer.ask("watch 1"))
    finally:
        observer.close()
    arrived = answers[-1]["link_packets"] - before
    counted = {name: sum(answer[name] for answer in answers) for name in ("arrived", "accepted")}
    dropped = sum(answer["drops"].get("netfilter/NETFILTER_DROP/before", 0) for answer in answers)
    assert counted["arrived"] == pytest.approx(arrived, rel=0.01)
    assert dropped == pytest.approx(arrived / 2, rel=0.03)
    assert counted["accepted"] == pytest.approx(arrived / 2, rel=0.03)


def is_in_windows(answers: list[dict[str, Any]]) -> bool:
    """Whether a flood was observed in windows most of the time, and samples stand for all of it.

    After windows that came late, as on a busy machine, samples of later ones stand for the rest.
    """
    scaled = sum(answer["arrived"] for answer in answers if answer["watched"] < 0.9)
    arrived, weight = (sum(answer[name] for answer in answers) for name in ("arrived", "ingress_weight"))
    shown = weight == pytest.approx(arrived, rel=0.15)
    return len(answers) > 2 and scaled > 100_000 and scaled > arrived / 2 and shown


def logged(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for answer in answers for row in samples(answer, hook="ACCEPTED", dport=4242)]


def test_accepted_packets_by_nflog_on_older_kernels(netns_pair: NetnsPair, poll_until: Any) -> None:
    meet(netns_pair)
    before = attached(netns_pair.victim)
    with observing(netns_pair.victim, without="netfilter") as observer:
        assert "table inet fwtop" in attached(netns_pair.victim)
        send(netns_pair, 4242, 2000, "logged")
        answers = [observer.ask("wait 2000")]
        seldom = 128  # packets that may wait to be logged
        poll_until(
            lambda: (
                answers.append(observer.ask("watch 0.5"))
                or sum(row["weight"] for row in logged(answers)) >= 2000 - seldom
            )
        )
    assert sum(row["weight"] for row in logged(answers)) <= 2000 + seldom
    assert {row["payload"] for row in logged(answers)} == {b"logged".hex()}
    assert sum(answer["accepted"] for answer in answers) == pytest.approx(2000, abs=150)
    answer = answers[0]
    assert answer["drops"]["socket/NO_SOCKET/after"] == 2000
    if observer.ready["ingress"] == "clsact":
        netns_pair.victim.run(sys.executable, "-m", "fwtop.observe.loader", "--detach", "0")
    assert attached(netns_pair.victim) == before  # the table went with the socket that owned it


def test_a_guardian_removes_what_a_killed_one_left(
    netns_pair: NetnsPair, bench: Bench, poll_until: Any
) -> None:
    victim = netns_pair.victim
    victim.run("nft", "table inet mine { }")
    before = attached(victim)
    assert not something_is_left(victim)
    with observing(victim, without="tcx"):
        pass
    victim.run("nft", "table inet fwtop { chain input { type filter hook input priority 5; }; }")
    victim.run("nft", "table inet fwtop_3 { }")
    assert something_is_left(victim)
    with bench.connect():
        poll_until(lambda: attached(victim) == before)
    assert not something_is_left(victim)


def test_default_interfaces_are_those_with_a_default_route(netns_pair: NetnsPair) -> None:
    ip("-n", netns_pair.victim.netns, "route", "add", "default", "via", netns_pair.attacker.ipv4)
    with observing(netns_pair.victim, []) as observer:
        assert observer.ready["interfaces"] == ["v0"]
        assert set(observer.ready["own"]) == {netns_pair.victim.ipv4, netns_pair.victim.ipv6}


def test_an_unknown_interface_is_refused_with_a_list_of_the_known_ones(netns_pair: NetnsPair) -> None:
    observer = Observer(netns_pair.victim, ["eth9"])
    observer.close()
    assert observer.ready["code"] == 2
    assert "'eth9'" in observer.ready["error"]
    assert "lo, v0" in observer.ready["error"]


def test_the_loader_without_privilege_says_what_it_needs(netns_pair: NetnsPair) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Root's files can be read without any capability, also where the clone is below /root
    argv = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", sys.executable]
    done = subprocess.run(
        [*argv, "-m", "tests.kernel.observer_process", "lo"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 3
    assert "root" in json.loads(done.stdout)["error"]
    assert not done.stderr
