"""A journal that is damaged, lost, full or read-only: rules are known, go on, and end all the same."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guardian_bench import Bench, apply, kill, rules_of

from fwtop.client.discovery import GuardianClient
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Plan, Status, Undo
from fwtop.model.rule import Kind, Match, RateLimit, Rule, Setting

pytestmark = pytest.mark.kernel
UDP = "net.netfilter.nf_conntrack_udp_timeout"
SYSCTL = Rule("", Kind.SYSCTL, Match(), "set", 60, settings=(Setting(UDP, 10),))
LIMIT = Rule("", Kind.HASHLIMIT, Match(protocol=6, dport=9), "limit", 60, limit=RateLimit(10, 10))
SYNPROXY = Rule("", Kind.SYNPROXY, Match(protocol=6, dport=9), "proxy", 60)
NFTABLES = Rule("", Kind.NFTABLES, Match(protocol=6, dport=9), "drop", 60)


def value(bench: Bench) -> int:
    return int(bench.pair.victim.run("sysctl", "-n", UDP).stdout)


def warnings(guardian: GuardianClient) -> str:
    return " ".join(guardian.demand(Status()).data["warnings"])


def unknown_kind(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("UPDATE rules SET rule=replace(rule, '\"ipset\"', '\"teleport\"')")


def no_such_column(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("ALTER TABLE rules RENAME COLUMN state TO condition")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(os.urandom(50_000)),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "header": lambda path: path.write_bytes(bytes(100) + path.read_bytes()[100:]),
    "kind": unknown_kind,
    "column": no_such_column,
    "removed": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.one_each
@pytest.mark.parametrize("alive", [False, True])
@pytest.mark.parametrize("how", DAMAGES)
def test_rules_outlive_a_damaged_journal(bench: Bench, how: str, alive: bool) -> None:
    before = bench.state()
    path = bench.directory / "journal.db"
    with bench.connect() as guardian:
        ids = [apply(guardian, rule) for rule in (bench.block_rule(4, 6), SYSCTL, LIMIT, NFTABLES)]
        told = {rule_id: item["rule"] for rule_id, item in rules_of(guardian).items()}
        if alive:
            DAMAGES[how](path)
    bench.kill_guardian()
    if not alive:
        DAMAGES[how](path)
    with bench.connect() as successor:
        assert {rule_id: item["rule"] for rule_id, item in rules_of(successor).items()} == told
        assert not bench.path(4).passes()
        assert value(bench) == 10
        if how in ("garbage", "half", "header", "column") and not alive:
            assert "was damaged" in warnings(successor)
            assert "was damaged" in " ".join(successor.demand(Plan(SYSCTL.to_dict())).data["warnings"])
        assert apply(successor, bench.block_rule(6)) not in ids
        successor.demand(Undo((ids[0],)))
        assert bench.path(4).passes(wait_s=10)
        successor.demand(Undo(all=True))
    assert (bench.state(), value(bench)) == (before, 30)


@pytest.mark.parametrize("how", ["garbage", "half", "header", "column"])
def test_running_guardian_ends_rules_whatever_happens_to_its_journal(bench: Bench, how: str) -> None:
    before = bench.state()
    with bench.connect() as guardian:
        rule_id = apply(guardian, bench.block_rule(4, 6))
        apply(guardian, SYSCTL)
        DAMAGES[how](bench.directory / "journal.db")
        other = apply(guardian, bench.block_rule(6))
        guardian.demand(Undo((rule_id,)))
        assert other in rules_of(guardian, finished=True)
        guardian.demand(Undo(all=True))
    assert (bench.state(), value(bench)) == (before, 30)


@pytest.mark.parametrize("content", [b"nothing of the kind" * 1000, b""])
def test_rules_without_any_record_are_read_from_the_kernel(bench: Bench, content: bytes) -> None:
    """Neither the journal nor the copy in /run is left: sets name the rules and say how long they last."""
    with bench.connect() as guardian:
        both, *others = (
            apply(guardian, rule) for rule in (bench.block_rule(4, 6), LIMIT, NFTABLES, SYNPROXY)
        )
    bench.kill_guardian()
    (bench.directory / "journal.db").write_bytes(content)
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
        assert bench.path(4).passes(wait_s=10)
        successor.demand(Undo(all=True))
    assert "fwtop" not in str(bench.state()).lower()  # nobody knows any more who made table raw: it stays


def test_recovered_rule_ends_by_the_kernel_s_clock(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4, ttl=5))
    bench.kill_guardian()
    (bench.directory / "journal.db").unlink()
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
def small_disk(bench: Bench) -> Iterator[Path]:
    """A file system that a few hundred kilobytes fill, with the journal on it."""
    place = bench.directory / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(place)], check=True, timeout=20)
    bench.journal = place / "journal.db"
    yield place
    bench.close()
    subprocess.run(["umount", "-l", str(place)], check=True, timeout=20)


def fill(place: Path) -> Path:
    """Leave no room on a file system."""
    file = place / "log"
    try:
        with file.open("wb", buffering=0) as log:
            while log.write(bytes(4096)):
                pass
    except OSError:
        pass
    return file


@pytest.mark.parametrize("copied", [True, False])
def test_full_disk_keeps_no_rule_and_room_brings_them_back(
    bench: Bench, small_disk: Path, copied: bool
) -> None:
    """Without the copy below /run only the file, which can be read, knows the old value of a sysctl."""
    before = bench.state()
    with bench.connect() as guardian:
        ids = [apply(guardian, rule) for rule in (bench.block_rule(4, 6), SYSCTL)]
    log = fill(small_disk)
    bench.kill_guardian()
    for left in bench.directory.glob("state-*") if not copied else ():
        shutil.rmtree(left)
    with bench.connect() as successor:
        assert list(rules_of(successor)) == ids
        with pytest.raises(FwtopError, match=r"make room|make it writable"):
            apply(successor, LIMIT)
        successor.demand(Undo(all=True))
        assert (bench.state(), value(bench)) == (before, 30)
        log.unlink()
        again = apply(successor, bench.block_rule(4, 6))
    bench.kill_guardian()
    with bench.connect() as third:
        assert list(rules_of(third)) == [again]
        assert {item["state"] for item in rules_of(third, finished=True).values()} == {
            "confirmed",
            "reverted",
        }
        third.demand(Undo(all=True))


def test_guardian_that_starts_on_a_full_disk_takes_rules_once_there_is_room(
    bench: Bench, small_disk: Path
) -> None:
    log = fill(small_disk)
    with bench.connect() as guardian:
        plan = guardian.demand(Plan(LIMIT.to_dict())).data
        assert "nothing was installed" in plan["refused"]
        assert "cannot keep the journal" in warnings(guardian)
        log.unlink()
        rule_id = apply(guardian, bench.block_rule(4))
        assert "cannot keep the journal" not in warnings(guardian)
    bench.kill_guardian()
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [rule_id]
        successor.demand(Undo(all=True))


@pytest.mark.parametrize("copied", [True, False])
def test_read_only_disk_keeps_no_rule(bench: Bench, small_disk: Path, poll_until, copied: bool) -> None:
    before = bench.state()
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4, 6))
        apply(guardian, SYSCTL)
        pid = int(guardian.about["pid"])
    kill(pid)
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    poll_until(
        lambda: subprocess.run(remount, timeout=20, check=False).returncode == 0
    )  # its files close late
    for left in bench.directory.glob("state-*") if not copied else ():
        shutil.rmtree(left)
    with bench.connect() as successor:
        assert len(rules_of(successor)) == 2
        assert "readonly" in warnings(successor) or "read-only" in warnings(successor).lower()
        successor.demand(Undo(all=True))
    assert (bench.state(), value(bench)) == (before, 30)


ROWS = {
    "expires": "UPDATE rules SET expires='soon'",
    "confirm_by": "UPDATE rules SET confirm_by='soon', state='provisional'",
    "infinite": "UPDATE rules SET expires=9e999",
    "packets": "UPDATE rules SET packets=x'00'",
    "state": "UPDATE rules SET state='paused'",
    "before": "UPDATE before SET chains='gar['",
    "before a number": "UPDATE before SET chains='7'",
    "setting": "UPDATE settings SET old='many'",
}


@pytest.mark.one_each
@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("what", ROWS)
def test_row_that_is_not_understood_keeps_no_guardian_from_ending_rules(
    bench: Bench, what: str, copied: bool
) -> None:
    """SQLite keeps any text in any column. The copy below /run makes it good; without that it is told."""
    with bench.connect() as guardian:
        ids = [apply(guardian, bench.block_rule(4, 6)), apply(guardian, SYSCTL)]
    bench.kill_guardian()
    with sqlite3.connect(bench.directory / "journal.db") as db:
        db.execute(ROWS[what])
    for left in bench.directory.glob("state-*") if not copied else ():
        shutil.rmtree(left)
    with bench.connect() as successor:
        known = {"before": 2, "before a number": 2, "setting": 1}.get(what, 0)
        assert list(rules_of(successor)) == (ids if copied else ids[:known])
        successor.demand(Undo(all=True))
        assert bench.path(4).passes(wait_s=10)
        assert "fwtop-" not in bench.pair.victim.run("ipset", "list", "-n").stdout
        if copied:
            assert value(bench) == 30
        elif what not in ("infinite", "state"):
            assert "not understood" in warnings(successor)
