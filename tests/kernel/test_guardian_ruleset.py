"""The guardian tells every rule on the machine, read by a child; nobody waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import Bench, apply

from fwtop.model.protocol import Rules, Status
from fwtop.model.ruleset import IPSET, IPTABLES_LEGACY, IPTABLES_NFT, Ruleset
from fwtop.model.wire import of_plain
from tests.kernel.wire import send_datagrams

pytestmark = pytest.mark.kernel


def children(name: str) -> list[int]:
    """The processes of a module, of this test's guardians or any other's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def child_of(guardian: int) -> int | None:
    for pid in children("fwtop.netfilter.listing.reader"):
        stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        if int(stat[1]) == guardian:
            return pid
    return None


def asked(client: Any) -> Ruleset | None:
    data = client.demand(Rules()).data["ruleset"]
    return None if data is None else of_plain(Ruleset, data)


def test_foreign_and_own_rules_are_told_with_growing_counters(bench: Bench, poll_until: Any) -> None:
    victim, attacker = bench.pair.victim, bench.pair.attacker
    for program in ("iptables-legacy", "iptables-nft"):
        victim.run(program, "-A", "INPUT", "-p", "udp", "--dport", "4000")
    victim.run("ipset", "create", "theirs", "hash:ip")
    with bench.connect(role="console") as console:

        def counted(packets: int) -> bool:
            found = asked(console)
            rules = [rule for rule in found.rules if "--dport 4000" in rule.text] if found else []
            return [(rule.source, rule.packets) for rule in rules] == [
                (IPTABLES_LEGACY, packets),
                (IPTABLES_NFT, packets),
            ]

        assert poll_until(lambda: counted(0), every_s=0.1)
        send_datagrams(attacker, victim.ipv4, 4000, 5, "x")
        assert poll_until(lambda: counted(5), every_s=0.1)
        apply(console, bench.block_rule(4, 6), 300)

        def complete() -> bool:
            found = asked(console)
            sets = {(item.name, item.ours) for item in found.sets if item.source == IPSET} if found else set()
            own = found is not None and any(rule.ours for rule in found.rules)
            return own and ("theirs", False) in sets and any(ours for _, ours in sets)

        assert poll_until(complete, every_s=0.1)


def test_a_child_that_is_killed_or_stopped_holds_nobody_up(bench: Bench, poll_until: Any) -> None:
    with bench.connect(role="console") as console:
        guardian = int(str(console.about["pid"]))
        assert poll_until(lambda: asked(console) is not None, every_s=0.1)
        first = child_of(guardian)
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        assert asked(console) is not None, "nobody waits for the child"
        assert console.demand(Status()).ok
        os.kill(first, signal.SIGKILL)
        assert poll_until(lambda: asked(console) and child_of(guardian) not in (None, first), every_s=0.2)


def test_no_child_is_left_when_the_guardian_ends(bench: Bench, poll_until: Any) -> None:
    with bench.connect(role="console") as console:
        guardian = int(str(console.about["pid"]))
        assert poll_until(lambda: asked(console) is not None, every_s=0.1)
        child = child_of(guardian)
        assert child is not None
    assert poll_until(lambda: not Path(f"/proc/{guardian}").exists(), every_s=0.1)
    assert poll_until(lambda: not Path(f"/proc/{child}").exists(), every_s=0.1)


def test_twenty_thousand_rules_are_cut_to_an_answer(bench: Bench, poll_until: Any) -> None:
    lines = [f"-A INPUT -s 10.{n >> 8}.{n & 255}.1/32 -j DROP" for n in range(20_000)]
    subprocess.run(
        ["ip", "netns", "exec", bench.netns, "iptables-legacy-restore", "-w"],
        input="\n".join(["*filter", *lines, "COMMIT", ""]),
        text=True,
        timeout=60,
        check=True,
    )
    with bench.connect(role="console") as console:
        assert poll_until(lambda: asked(console) is not None, every_s=0.1)
        found = asked(console)
        assert found is not None
        assert found.rules_total >= 20_000
        assert 1000 <= len(found.rules) <= 1500
        assert any("fwtop rules" in note for note in found.notes)
