"""Another list for a live rule: what both hold is blocked in every moment, the rest while it is listed."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guardian_bench import PORT, Bench, Path4or6, apply, inside, rules_of
from msgspec.structs import replace

from fwtop.guardian.failpoints import Failpoint
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Keep, Undo
from fwtop.model.rule import Kind, Match, Rule
from tests.kernel.conftest import NetnsPair

pytestmark = pytest.mark.kernel
PAIR = "shared_pair"
THIRD = "10.77.0.3"
KINDS = (Kind.IPSET, Kind.XDP, Kind.TC, Kind.NFTABLES)
FILLING = tuple(Prefix(4, (203 << 24) + (n << 8), 24) for n in range(100))  # too many to compile


MANY = (  # so many that they travel in a memory file, and go into sets without timeouts or into maps
    *(Prefix(4, (203 << 24) + (n << 8), 24) for n in range(6000)),
    *(Prefix(6, (0x20010DB9 << 96) + (n << 64), 64) for n in range(2000)),
)


def listing(kind: Kind, *addresses: str) -> Rule:
    """Return a rule with a list that holds some of the attacker's addresses."""
    sources = (*FILLING, *map(Prefix.parse, addresses))
    return Rule("", kind, Match(sources=sources), "a list", 600)


@contextmanager
def flooded(path: Path4or6) -> Iterator[None]:
    """Send all the time, from before to after; none of it may arrive."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(0.001):
            path.send()

    thread = threading.Thread(target=send)
    before = path.serial
    thread.start()
    try:
        yield
        while path.serial <= before + 20 and thread.is_alive():  # enough of them, on a busy machine, too
            thread.join(timeout=0.001)
    finally:
        over.set()
        thread.join()
    assert path.serial > before + 20
    assert not path.passes()
    path.receiver.setblocking(False)
    with pytest.raises(BlockingIOError):
        path.receiver.recv(100)


@pytest.fixture(scope="module")
def third(shared_pair: NetnsPair) -> Iterator[Path4or6]:
    """From another address of the attacker's."""
    shared_pair.attacker.run("ip", "address", "add", f"{THIRD}/24", "dev", shared_pair.attacker.interface)
    path = Path4or6(shared_pair, 4, port=PORT + 1)
    path.sender.close()
    with inside(shared_pair.attacker.netns):
        path.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    path.sender.bind((THIRD, 0))
    path.sender.connect(path.receiver.getsockname())
    yield path
    path.close()


@pytest.mark.one_each("ipset", "xdp", "nftables")
@pytest.mark.parametrize("kind", KINDS)
def test_no_packet_comes_between_two_lists(bench: Bench, third: Path4or6, kind: Kind) -> None:
    in_both, in_new, in_old = bench.path(4), bench.path(6), third
    with bench.connect() as guardian:
        old = apply(guardian, listing(kind, bench.attacker(4), THIRD))
        assert not in_both.passes()
        assert not in_old.passes()
        assert in_new.passes(wait_s=30)
        with flooded(in_both):
            new = apply(guardian, replace(listing(kind, bench.attacker(4), bench.attacker(6)), replaces=old))
        assert not in_new.passes()
        assert in_old.passes(wait_s=30)
        rules = rules_of(guardian, finished=True)
        assert rules[old]["note"] == f"replaced by rule {new}"
        assert rules[old]["packets"] >= 2
        guardian.demand(Undo((new,)))


def test_the_old_list_stays_until_the_new_one_is_confirmed(bench: Bench) -> None:
    with bench.connect() as guardian:
        old = apply(guardian, listing(Kind.IPSET, bench.attacker(4)))
        new = apply(guardian, replace(listing(Kind.IPSET, bench.attacker(6)), replaces=old), 30)
        assert {old, new} == set(rules_of(guardian))
        assert not bench.path(4).passes()
        guardian.demand(Keep(new))
        assert list(rules_of(guardian)) == [new]
        assert bench.path(4).passes(wait_s=30)
        with pytest.raises(FwtopError, match=f"rule {old} ended at .*: replaced by rule {new}; nothing"):
            apply(guardian, replace(listing(Kind.IPSET, bench.attacker(4)), replaces=old))
        guardian.demand(Undo((new,)))


@pytest.mark.parametrize("failpoint", [Failpoint.SETS, Failpoint.INSTALLED, Failpoint.CHAINS_REMOVED])
def test_a_crash_leaves_one_of_both_lists(bench: Bench, failpoint: Failpoint) -> None:
    with bench.connect() as guardian:
        old = apply(guardian, listing(Kind.IPSET, bench.attacker(4)))
    bench.kill_guardian()
    with bench.connect(crash_at=failpoint.value) as guardian, pytest.raises(FwtopError, match="ended before"):
        apply(guardian, replace(listing(Kind.IPSET, bench.attacker(4), bench.attacker(6)), replaces=old))
    with bench.connect() as successor:
        active = list(rules_of(successor))
        assert len(active) == 1
        assert (active == [old]) == (failpoint is Failpoint.SETS)
        assert not bench.path(4).passes()
        assert bench.path(6).passes(wait_s=0.3) == (failpoint is Failpoint.SETS)
        successor.demand(Undo(all=True))


@pytest.mark.one_each("xdp-compiled")
@pytest.mark.parametrize(
    ("kind", "failpoint"), [(Kind.IPSET, Failpoint.SETS), (Kind.XDP, Failpoint.COMPILED)]
)
def test_a_long_list_of_both_families_is_replaced_whole_or_not_at_all(
    bench: Bench, kind: Kind, failpoint: Failpoint
) -> None:
    both = [Prefix.parse(bench.attacker(family)) for family in (4, 6)]
    rule = Rule("", kind, Match(sources=(*MANY, *both)), "both families", 600)
    with bench.connect() as guardian:
        old = apply(guardian, rule)
    bench.kill_guardian()
    with bench.connect(crash_at=failpoint.value) as guardian, pytest.raises(FwtopError, match="ended before"):
        apply(guardian, replace(rule, match=Match(sources=MANY), replaces=old))
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [old]
        with flooded(bench.path(4)), flooded(bench.path(6)):
            new = apply(successor, replace(rule, replaces=old))
        assert list(rules_of(successor)) == [new]
        successor.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=30)
        assert bench.path(6).passes(wait_s=30)


def test_the_command_keeps_kind_and_time_and_leaves_all_as_it_was_when_it_cant(
    bench: Bench, tmp_path: Path
) -> None:
    def fwtop(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["/usr/local/bin/fwtop", *words, "--netns", bench.netns]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    old, new, bad = (tmp_path / name for name in ("old", "new", "bad"))
    old.write_text(f"{bench.attacker(4)}\n192.0.2.0/24\n")
    new.write_text(f"{bench.attacker(4)}\n{bench.attacker(6)}\n")
    bad.write_text(f"{bench.attacker(4)}\nsomething\n")
    try:
        made = fwtop("block", f"@{old}", "--via", "nftables", "--ttl", "5m", "--yes", "--json")
        first = json.loads(made.stdout)["status"]["id"]
        failed = fwtop("block", f"@{bad}", "--replace", first, "--yes")
        assert failed.returncode == 2
        assert failed.stderr.startswith(f"fwtop: {bad}: not an address or prefix: line 2: 'something'")
        assert len(failed.stderr.splitlines()) == 1
        assert fwtop("block", f"@{new}", "--replace", "999", "--yes").returncode == 2
        assert not bench.path(4).passes()
        second = json.loads(fwtop("block", f"@{new}", "--replace", first, "--yes", "--json").stdout)["status"]
        rules = json.loads(fwtop("status", "--json").stdout)["mitigations"]
        assert [(rule["id"], rule["kind"]) for rule in rules] == [(second["id"], "nftables")]
        assert not bench.path(4).passes()
        assert not bench.path(6).passes()
    finally:
        fwtop("undo", "--all")
