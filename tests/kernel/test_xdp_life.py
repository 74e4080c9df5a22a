"""The life of compiled rules: replaced, confirmed, expired in the kernel, adopted, crashes, cleanup."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import struct
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest
from guardian_bench import PORT, apply, kill, rules_of, seen_in_time
from msgspec.structs import replace
from xdp_bench import XdpBench, xdp

from fwtop.client import discovery
from fwtop.client.discovery import GuardianClient
from fwtop.guardian.mechanisms.compiled import loader
from fwtop.kernel.namespaces import inside
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.paths import RUN_DIRECTORY
from fwtop.model.protocol import Keep, Plan, Undo
from fwtop.model.rule import Kind, Match, Range, Rule
from fwtop.xdp.messages import Apply, Compile, Loaded, Open

pytestmark = pytest.mark.kernel
BENCH = XdpBench


def netns_inode(bench: XdpBench) -> int:
    return os.stat(f"/run/netns/{bench.netns}").st_ino


def compile_ahead(guardian: GuardianClient, rule: Rule) -> None:
    """Have a rule compiled, so that installing it takes a moment."""
    guardian.demand(Undo((apply(guardian, replace(rule, ttl_seconds=600)),)))


@pytest.mark.one_each
@pytest.mark.parametrize("kind", [Kind.XDP, Kind.TC])
@pytest.mark.parametrize("family", [4, 6])
def test_a_rule_expires_in_the_kernel_without_any_process(
    bench: XdpBench, family: int, kind: Kind, poll_until
) -> None:
    path, rule = bench.path(family), replace(xdp(Match(protocol=17, dport=PORT)), kind=kind)
    made: list[str] = []

    def install(seconds: int) -> None:
        with bench.connect() as guardian:
            poll_until(lambda: not rules_of(guardian))
            made.append(apply(guardian, replace(rule, ttl_seconds=seconds)))
        bench.kill_guardian()

    with bench.connect() as guardian:
        compile_ahead(guardian, rule)
    assert seen_in_time(install, lambda: not path.passes())
    poll_until(path.passes)
    with bench.connect() as successor:
        assert rules_of(successor) == {}
        assert rules_of(successor, finished=True)[made[-1]]["state"] == "expired"
    assert "xdp" not in bench.links()


def test_the_loader_that_compiled_ahead_installs_or_another_one_if_it_died(
    bench: XdpBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Python took a tenth of a second of an attack to start, on a busy machine three."""
    with inside(bench.netns):
        ready, dead = (loader.Running(Compile((), (), at_tc=False)) for _ in range(2))
        dead._child.kill()
        assert loader.ask(Open(), ready=dead) == Loaded()
        monkeypatch.setattr(loader, "_LOADER", "fwtop.xdp.no_such_module")
        assert loader.ask(Open(), ready=ready) == Loaded()
        assert ready.over


def test_what_is_planned_again_is_not_compiled_again(bench: XdpBench) -> None:
    """A preview plans its rule anew whenever it is counted again."""
    order, ahead = Compile((), (), at_tc=False), loader.Precompiler()
    with inside(bench.netns):
        ahead.start(order)
        begun = ahead._child
        ahead.start(order, instead=True)
        ready = ahead.take(Apply((), (), ()))
        assert ready is not None
        assert ready is begun
        ahead.start(order)
        other = ahead.take(Apply((), (Prefix.parse("192.0.2.0/24"),), ()))
        assert other is None, "others may pass: that is other code"
        ready.close(patience=0.0)


def test_the_guardian_reverts_a_provisional_rule(bench: XdpBench, poll_until) -> None:
    path, rule = bench.path(4), xdp(Match(protocol=17, dport=PORT))
    with bench.connect() as guardian:
        compile_ahead(guardian, rule)

        def install(seconds: int) -> None:
            poll_until(lambda: not rules_of(guardian))
            apply(guardian, rule, seconds)

        assert seen_in_time(install, lambda: not path.passes())
        poll_until(path.passes)


def test_the_kernel_reverts_a_provisional_rule_and_not_a_confirmed_one(bench: XdpBench, poll_until) -> None:
    rule = xdp(Match(family=6, protocol=17, dport=PORT))

    def install(seconds: int) -> None:
        with bench.connect() as guardian:
            poll_until(lambda: list(rules_of(guardian)) == [kept])
            apply(guardian, rule, seconds)
        bench.kill_guardian()

    with bench.connect() as guardian:
        kept = apply(guardian, xdp(Match(family=4, protocol=17, dport=PORT)), 30)
        guardian.demand(Keep(kept))
        compile_ahead(guardian, rule)
    assert seen_in_time(install, lambda: not bench.path(6).passes())
    poll_until(bench.path(6).passes)
    assert not bench.path(4).passes()


def test_a_recreated_interface_gets_the_rules_again(bench: XdpBench, poll_until) -> None:
    victim, attacker = bench.pair.victim, bench.pair.attacker
    with bench.connect() as guardian:
        rule_id = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert "xdp" in bench.links()
        victim.run("ip", "link", "del", "v0")
        poll_until(lambda: "; v0 is gone: the rules are put on again" in rules_of(guardian)[rule_id]["note"])
        peer = ("peer", "name", "a0", "netns", attacker.netns)
        victim.run("ip", "link", "add", "v0", "type", "veth", *peer)
        victim.run("ip", "address", "add", f"{victim.ipv4}/24", "dev", "v0")
        victim.run("ip", "link", "set", "v0", "up")
        attacker.run("ip", "address", "add", f"{attacker.ipv4}/24", "dev", "a0")
        attacker.run("ip", "link", "set", "a0", "up")
        poll_until(lambda: "xdp" in bench.links())
        assert not bench.path(4).passes()
        victim.run("ip", "link", "set", "v0", "down")
        poll_until(lambda: rules_of(guardian)[rule_id]["note"] == "XDP in the driver of v0; v0 is down")
        victim.run("ip", "link", "set", "v0", "name", "other0", "mtu", "1400", "up")
        poll_until(lambda: rules_of(guardian)[rule_id]["note"] == "XDP in the driver of other0")
        assert not bench.path(4).passes()
        poll_until(lambda: rules_of(guardian)[rule_id]["packets"] >= 2)
        guardian.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=30)


def test_undo_all_removes_the_pins_of_dead_namespaces(bench: XdpBench, tmp_path: Path, poll_until) -> None:
    """A rule was confirmed; guardian and namespace ended without undoing it."""
    (tmp_path / "other").mkdir()
    run = partial(subprocess.run, check=True)
    run(["ip", "netns", "add", f"{bench.netns}-gone"])
    number = os.stat(f"/run/netns/{bench.netns}-gone").st_ino
    options = {"run_directory": tmp_path / "other", "guardian_arguments": bench.arguments()}
    run(["ip", "-n", f"{bench.netns}-gone", "link", "set", "lo", "up"])
    run(["ip", "-n", f"{bench.netns}-gone", "link", "add", "v0", "up", "type", "veth", "peer", "name", "p0"])
    with discovery.connect(netns=f"{bench.netns}-gone", **options) as guardian:
        apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        pid = int(guardian.about["pid"])
    kill(pid)
    pins = Path(f"/sys/fs/bpf/fwtop/{number}")
    assert pins.exists()
    with bench.connect() as guardian:
        guardian.demand(Undo(all=True))
        assert pins.exists()  # the namespace is there
        run(["ip", "netns", "del", f"{bench.netns}-gone"])
        poll_until(lambda: guardian.demand(Undo(all=True)) and not pins.exists())


def test_pins_of_a_former_namespace_with_the_same_inode_are_removed(bench: XdpBench, poll_until) -> None:
    path, owner = bench.path(4), Path(f"/sys/fs/bpf/fwtop/{netns_inode(bench)}/owner")
    with bench.connect() as guardian:
        apply(guardian, xdp(Match(protocol=17, dport=PORT)))
    bench.kill_guardian()
    assert not path.passes()
    cookie = owner.readlink()
    owner.unlink()
    owner.symlink_to("1")  # as if another namespace had left them, whose records are elsewhere
    bench.directory /= "other"
    bench.directory.mkdir()
    with bench.connect() as guardian:
        poll_until(path.passes)
        assert rules_of(guardian) == {}
        apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert not path.passes()
        assert owner.readlink() == cookie
        guardian.demand(Undo(all=True))
    assert not owner.parent.exists()


def test_a_new_guardian_adopts_rules_and_their_counts(bench: XdpBench, poll_until) -> None:
    path = bench.path(4)

    def counted(guardian: GuardianClient, packets: int) -> None:
        poll_until(lambda: rules_of(guardian)[first]["packets"] == packets)

    with bench.connect() as guardian:
        first = apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        assert not path.passes()
    bench.kill_guardian()
    assert not path.passes()
    with bench.connect() as successor:
        counted(successor, 2)
        second = apply(successor, xdp(Match(protocol=17, dport=PORT + 1)))
        assert not path.passes()
        counted(successor, 3)
        successor.demand(Undo((second,)))
        assert not path.passes()
        counted(successor, 4)
        successor.demand(Undo((first,)))
        assert path.passes(wait_s=30)


def test_no_packet_slips_through_while_programs_are_replaced(bench: XdpBench, poll_until) -> None:
    """While another rule is added and removed, every packet meets a program with the first."""
    path = bench.path(4)
    with bench.connect() as guardian:
        apply(guardian, xdp(Match(protocol=17, dport=PORT)))
        over, sent = threading.Event(), 0

        def flood() -> None:
            nonlocal sent
            while not over.wait(0.0002):
                path.send()
                sent += 1

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            for _ in range(3):
                other = apply(guardian, xdp(Match(protocol=17, dport=9)))
                guardian.demand(Undo((other,)))
        finally:
            over.set()
            thread.join()
        assert sent > 100
        poll_until(lambda: next(iter(rules_of(guardian).values()))["packets"] >= sent)
        assert next(iter(rules_of(guardian).values()))["packets"] == sent
    path.receiver.setblocking(False)
    with pytest.raises(BlockingIOError):
        path.receiver.recv(100)


def test_the_code_compiled_for_a_plan_is_reused(bench: XdpBench, poll_until) -> None:
    length = 0

    def kept() -> set[str]:
        """Cached programs that compare with this length, as other tests' guardians compile, too."""
        found = set()
        for path in RUN_DIRECTORY.glob("rules-*"):
            with contextlib.suppress(FileNotFoundError):  # only the latest few stay
                [coded] = json.loads(path.read_text()).values()
                code = base64.b64decode(coded)
                if {length, length + 1} & {number for (number,) in struct.iter_unpack("<4xi", code)}:
                    found.add(path.name)
        return found

    while not length or kept():  # a number that no other program has
        length = random.Random().randrange(1000, 60_000)
    rule = xdp(Match(protocol=17, dport=PORT, ip_length=Range(0, length)))
    with bench.connect() as guardian:
        guardian.demand(Plan(rule.to_dict()))
        poll_until(kept)
        compiled = kept()
        apply(guardian, rule)
        assert kept() == compiled
        assert len(compiled) == 1
        assert not bench.path(4).passes()


INSTALL = ("intent", "compiled", "enabled", "installed")
UNDO = ("undo", "disabled", "unloaded", "undone")


@pytest.mark.parametrize("step", INSTALL)
def test_crash_while_installing(bench: XdpBench, step: str) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=step)
    with guardian, pytest.raises(FwtopError, match="ended before it answered"):
        apply(guardian, xdp(Match(protocol=17, dport=PORT)))
    with bench.connect() as successor:
        if step == "installed":
            assert not bench.path(4).passes()
            successor.demand(Undo(all=True))
        else:
            assert rules_of(successor) == {}
        assert bench.path(4).passes(wait_s=30)
    assert bench.settled(before) == before


@pytest.mark.one_each("disabled", "undone")
@pytest.mark.parametrize("step", UNDO)
def test_crash_while_undoing_one_of_two(bench: XdpBench, step: str) -> None:
    guardian = bench.connect(crash_at=step)
    with guardian:
        stays = apply(guardian, xdp(Match(family=6, protocol=17, dport=PORT)))
        gone = apply(guardian, xdp(Match(family=4, protocol=17, dport=PORT)))
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Undo((gone,)))
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [stays]
        assert bench.path(4).passes(wait_s=30)
        assert not bench.path(6).passes()


def test_rules_planned_as_a_set_are_compiled_once(bench: XdpBench, poll_until) -> None:
    """The first installation loads them all, the others without effect until each is installed."""
    four, six = (xdp(Match(family=family, protocol=17, dport=PORT)) for family in (4, 6))
    with bench.connect() as guardian:
        for rule, follows in ((four, False), (six, True)):
            guardian.demand(Plan(rule.to_dict(), follows=follows))
        apply(guardian, four)
        program = program_id(bench)
        assert not bench.path(4).passes()
        assert bench.path(6).passes(wait_s=30), "the second is only planned"
        second = apply(guardian, six)
        assert program_id(bench) == program
        assert not bench.path(6).passes()
        poll_until(lambda: rules_of(guardian)[second]["packets"] > 0)
        guardian.demand(Undo((second,)))
        assert program_id(bench) != program
        assert bench.path(6).passes(wait_s=30)
        assert not bench.path(4).passes()


def program_id(bench: XdpBench) -> str:
    words = bench.links().split()
    return words[words.index("prog/xdp") + 2]
