"""Records that are damaged, lost, without room or read-only: rules are known, go on, and end all the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from guardian_bench import SOON_SECONDS, VARIANTS, Bench, apply, rules_of, use_variant
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Keep, Plan, Status, Undo
from fwtop.model.rule import Kind, Match, Mode, RateLimit, Rule, Setting

pytestmark = pytest.mark.kernel
UDP = "net.netfilter.nf_conntrack_udp_timeout"
SYSCTL = Rule("", Kind.SYSCTL, Match(), "set", 600, settings=(Setting(UDP, 10),))
LIMIT = Rule("", Kind.HASHLIMIT, Match(protocol=6, dport=9), "limit", 600, limit=RateLimit(10, 10))
SYNPROXY = Rule("", Kind.SYNPROXY, Match(protocol=6, dport=9), "proxy", 600)
NFTABLES = Rule("", Kind.NFTABLES, Match(protocol=6, dport=9), "drop", 600)


def value(bench: Bench) -> int:
    return int(bench.pair.victim.run("sysctl", "-n", UDP).stdout)


def warnings(guardian: GuardianClient) -> str:
    return " ".join(guardian.demand(Status()).data["warnings"])


def changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def unknown_kind(path: Path) -> None:
    changed(path, rule=json.loads(path.read_text())["rule"] | {"kind": "teleport"})


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "kind": unknown_kind,
    "expires": lambda path: changed(path, expires="soon"),
    "infinite": lambda path: path.write_text(path.read_text().replace('"expires":', '"expires":9e999,"e":')),
    "packets": lambda path: changed(path, packets=-1),
    "state": lambda path: changed(path, state="paused"),
}


@pytest.mark.one_each
@pytest.mark.parametrize("alive", [False, True])
@pytest.mark.parametrize("how", DAMAGES)
def test_rule_whose_record_is_damaged_is_read_from_the_kernel(bench: Bench, how: str, alive: bool) -> None:
    """The others are as they were; and a guardian that runs ends all of them, whatever its records are."""
    before = bench.state()
    with bench.connect() as guardian:
        ids = [apply(guardian, rule) for rule in (bench.block_rule(4, 6), SYSCTL, LIMIT, NFTABLES)]
        told = {rule_id: item["rule"] for rule_id, item in rules_of(guardian).items()}
        for path in bench.directory.glob(f"state-*/rule-{ids[0]}.json"):
            DAMAGES[how](path)
        if alive:
            apply(guardian, bench.block_rule(6))
            guardian.demand(Undo((ids[0],)))
            assert ids[0] in rules_of(guardian, finished=True)
            guardian.demand(Undo(all=True))
            assert (bench.state(), value(bench)) == (before, 30)
            return
    bench.kill_guardian()
    with bench.connect() as successor:
        found = {rule_id: item["rule"] for rule_id, item in rules_of(successor).items()}
        assert set(found) == set(ids)
        assert {name: found[name] for name in ids[1:]} == {name: told[name] for name in ids[1:]}
        assert set(found[ids[0]]["match"]["sources"]) == {bench.attacker(4), bench.attacker(6)}
        assert not bench.path(4).passes()
        assert value(bench) == 10
        assert "is not understood" in warnings(successor)
        assert "is not understood" in " ".join(successor.demand(Plan(LIMIT.to_dict())).data["warnings"])
        assert apply(successor, bench.block_rule(6)) not in ids
        successor.demand(Undo((ids[0],)))
        assert bench.path(4).passes(wait_s=30)
        successor.demand(Undo(all=True))
    assert (bench.state(), value(bench)) == (before, 30)


def test_rules_without_any_record_are_read_from_the_kernel(bench: Bench) -> None:
    """Sets name the rules and say how long they last."""
    with bench.connect() as guardian:
        both, *others = (
            apply(guardian, rule) for rule in (bench.block_rule(4, 6), LIMIT, NFTABLES, SYNPROXY)
        )
    bench.kill_guardian()
    for left in bench.directory.glob("state-*"):
        shutil.rmtree(left)
    with bench.connect() as successor:
        found = rules_of(successor)
        assert set(found) == {both, *others}
        assert {entry["state"] for entry in found.values()} == {"confirmed"}
        assert set(found[both]["rule"]["match"]["sources"]) == {bench.attacker(4), bench.attacker(6)}
        assert not bench.path(4).passes()
        assert int(apply(successor, bench.block_rule(6))) > max(map(int, found))
        successor.demand(Undo((both,)))
        assert bench.path(4).passes(wait_s=30)
        successor.demand(Undo(all=True))
    assert "fwtop" not in str(bench.state()).lower()  # nobody knows any more who made table raw: it stays


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_recovered_rule_that_only_counts_is_told_as_such(bench: Bench, variant: str) -> None:
    use_variant(bench, variant)
    with bench.connect() as guardian:
        early = (Rule("", Kind.NFTABLES, Match(protocol=17, dport=port), "x", 600) for port in (8, 9))
        made = zip([*map(bench.block_rule, (4, 6)), *early], (Mode.DROP, Mode.COUNT) * 2, strict=True)
        modes = {apply(guardian, replace(rule, mode=mode)): mode for rule, mode in made}
    bench.kill_guardian()
    for left in bench.directory.glob("state-*"):
        shutil.rmtree(left)
    with bench.connect() as successor:
        assert {name: item["rule"]["mode"] for name, item in rules_of(successor).items()} == modes
        successor.demand(Undo(all=True))


def test_recovered_rule_ends_by_the_kernel_s_clock(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4, ttl=SOON_SECONDS))
    bench.kill_guardian()
    for left in bench.directory.glob("state-*"):
        shutil.rmtree(left)
    with bench.connect() as successor:
        assert len(rules_of(successor)) == 1
        poll_until(lambda: not rules_of(successor))


@pytest.mark.parametrize("text", ["max_blocked_share = 'all'", "max_bloked_share = 0.1", "]nonsense"])
def test_nonsense_in_guard_toml_is_told(bench: Bench, text: str) -> None:
    (bench.directory / "guard.toml").write_text(text)
    with bench.connect() as guardian:
        assert "guard.toml" in warnings(guardian)
        done = guardian.demand(Apply(bench.block_rule(4).to_dict(), 0)).data
        assert "guard.toml" in " ".join(done["warnings"])
        guardian.demand(Undo(all=True))


@pytest.fixture
def small_run(bench: Bench) -> Iterator[Path]:
    """A tmpfs that a megabyte fills, with the records on it."""
    place = bench.directory
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)], check=True, timeout=20)
    yield place
    bench.close()
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=20)


def fill(place: Path) -> Path:
    """Leave no room on a file system."""
    file = place / "log"
    with suppress(OSError), file.open("wb", buffering=0) as log:
        while log.write(bytes(4096)):
            pass
    return file


def test_full_run_keeps_no_rule_from_ending_and_room_brings_rules_back(
    bench: Bench, small_run: Path, poll_until
) -> None:
    before = bench.state()
    with bench.connect() as guardian:
        ids = [apply(guardian, rule) for rule in (bench.block_rule(4, 6), SYSCTL)]
        short = apply(guardian, replace(LIMIT, ttl_seconds=SOON_SECONDS))
        log = fill(small_run)
        with pytest.raises(FwtopError, match="make room"):
            apply(guardian, NFTABLES)
        guardian.demand(Keep(ids[0], 600))
        poll_until(lambda: short not in rules_of(guardian))
    bench.kill_guardian()
    with bench.connect() as successor:
        assert list(rules_of(successor)) == ids
        assert rules_of(successor)[ids[0]]["rule"]["ttl_seconds"] == 600
        assert rules_of(successor, finished=True)[short]["state"] == "expired"
        with pytest.raises(FwtopError, match="make room"):
            apply(successor, LIMIT)
        successor.demand(Undo(all=True))
        assert (bench.state(), value(bench)) == (before, 30)
        log.unlink()
        again = apply(successor, bench.block_rule(4, 6))
        assert "make room" not in warnings(successor)
    bench.kill_guardian()
    with bench.connect() as third:
        assert list(rules_of(third)) == [again]
        assert {item["state"] for item in rules_of(third, finished=True).values()} == {
            *("confirmed", "reverted", "expired"),
        }
        third.demand(Undo(all=True))


def test_guardian_that_starts_without_room_takes_rules_once_there_is_some(
    bench: Bench, small_run: Path
) -> None:
    log = fill(small_run)
    with bench.connect() as guardian:
        plan = guardian.demand(Plan(LIMIT.to_dict())).data
        assert "nothing was installed" in plan["refused"]
        assert "the journal can't be kept" in warnings(guardian)
        log.unlink()
        rule_id = apply(guardian, bench.block_rule(4))
        assert "the journal can't be kept" not in warnings(guardian)
    bench.kill_guardian()
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [rule_id]
        successor.demand(Undo(all=True))


def test_read_only_records_keep_no_rule(bench: Bench) -> None:
    before = bench.state()
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4, 6))
        apply(guardian, SYSCTL)
        with read_only(next(bench.directory.glob("state-*"))):
            with pytest.raises(FwtopError, match="Read-only"):
                apply(guardian, LIMIT)
            guardian.demand(Undo(all=True))
            assert (bench.state(), value(bench)) == (before, 30)
        assert rules_of(guardian) == {}
        assert {item["state"] for item in rules_of(guardian, finished=True).values()} == {"reverted"}
    bench.kill_guardian()
    with bench.connect() as successor:
        assert rules_of(successor) == {}


@contextmanager
def read_only(place: Path) -> Iterator[None]:
    """Let nobody write to a directory."""
    subprocess.run(["mount", "--bind", str(place), str(place)], check=True, timeout=20)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True, timeout=20)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=20)


@pytest.mark.parametrize("what", ["before", "setting"])
def test_former_state_that_is_not_understood_keeps_no_guardian_from_ending_rules(
    bench: Bench, what: str
) -> None:
    with bench.connect() as guardian:
        ids = [apply(guardian, bench.block_rule(4, 6)), apply(guardian, SYSCTL)]
    bench.kill_guardian()
    for path in bench.directory.glob(f"state-*/{what}-*.json"):
        changed(path, chains="gar[", old="many")
    with bench.connect() as successor:
        assert list(rules_of(successor)) == ids[: 2 if what == "before" else 1]
        assert "not understood" in warnings(successor)
        successor.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=30)
        assert "fwtop-" not in bench.pair.victim.run("ipset", "list", "-n").stdout
