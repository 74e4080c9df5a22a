"""The journal keeps what was intended and how it ended, whatever happens between."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from fwtop.guardian.objects.sysctls import Changed
from fwtop.guardian.records.journal import Journal, boot_id
from fwtop.guardian.records.runtime import RuntimeCopy
from fwtop.guardian.rules import timers
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule, State

RULE = Rule(
    "", Kind.IPSET, Match(sources=(Prefix.parse("192.0.2.0/24"), Prefix.parse("2001:db8::1"))), "block", 60
)


@pytest.fixture
def journal(tmp_path: Path):
    made = Journal(tmp_path / "state/journal.db", 1)
    yield made
    made.close()


def test_file_is_roots_alone(tmp_path: Path, journal: Journal) -> None:
    assert stat.S_IMODE((tmp_path / "state/journal.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "rule",
    [RULE, replace(RULE, kind=Kind.STRING, match=Match(payload=(PayloadMatch(b"\0\xff", 3, b"\1\2"),)))],
)
def test_entry_comes_back_as_it_was(journal: Journal, rule: Rule) -> None:
    entry = journal.intend(rule, "nft", 100.0, 30.0)
    assert journal.open_entries() == [entry]
    done = replace(entry, state=State.PROVISIONAL, packets=5, bytes=500, note="x")
    journal.update(done)
    assert journal.open_entries() == [done]
    over = replace(done, state=State.REVERTED, ended=1.5)
    journal.update(over)
    assert (journal.open_entries(), journal.finished_entries()) == ([], [over])


def test_namespaces_do_not_see_each_other(tmp_path: Path, journal: Journal) -> None:
    first = journal.intend(RULE, "nft", 1.0, None)
    other = Journal(tmp_path / "state/journal.db", 2)
    try:
        assert other.open_entries() == []
        assert other.intend(RULE, "nft", 1.0, None).rule.id != first.rule.id
    finally:
        other.close()
    assert [entry.rule.id for entry in journal.open_entries()] == [first.rule.id]


def test_table_before_is_remembered_and_forgotten(journal: Journal) -> None:
    everything = journal.former.before(4)
    journal.former.remember_before(4, None)
    journal.former.remember_before(6, frozenset({"PREROUTING"}))
    assert (journal.former.before(4), journal.former.before(6)) == (None, frozenset({"PREROUTING"}))
    journal.former.forget_before(4)
    assert journal.former.before(4) == everything


def test_unwritable_place_refuses_in_one_line_until_it_is_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file/journal.db", 1)
    assert "nothing was installed" in journal.trouble()
    with pytest.raises(FwtopError, match="nothing was installed"):
        journal.intend(RULE, "nft", 100.0, None)
    (tmp_path / "file").unlink()
    entry = journal.intend(RULE, "nft", 100.0, None)
    assert (journal.trouble(), journal.open_entries()) == ("", [entry])
    journal.close()


DAMAGES = {
    "garbage": lambda data: os.urandom(len(data)),
    "half": lambda data: data[: len(data) // 2],
    "header": lambda data: bytes(100) + data[100:],
    "empty": lambda data: b"",
    "middle": lambda data: data[:4096] + os.urandom(len(data) - 4096),
}
CHANGED = Changed("1", "net.ipv4.tcp_syncookies", 0, 1, done=True)


def damage(path: Path, how: str) -> None:
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(DAMAGES[how](path.read_bytes()))


@pytest.mark.parametrize("while_open", [False, True])
@pytest.mark.parametrize(
    ("how", "count"), [*((how, 3) for how in DAMAGES), ("removed", 3), (next(iter(DAMAGES)), 6000)]
)
def test_damaged_file_is_set_aside_and_written_anew(
    tmp_path: Path, how: str, while_open: bool, count: int
) -> None:
    path = tmp_path / "journal.db"
    runtime = RuntimeCopy(tmp_path / "run", 1, boot_id())
    journal = Journal(path, 1, runtime)
    sources = tuple(Prefix(4, number, 32) for number in range(count))
    over = journal.intend(RULE, "nft", 1.0, None)
    journal.update(replace(over, state=State.REVERTED, ended=1.0))
    rule = replace(RULE, match=Match(sources=sources))
    entry = replace(journal.intend(rule, "nft", 100.0, 30.0), state=State.PROVISIONAL)
    journal.update(entry)
    journal.former.remember_setting(CHANGED)
    journal.former.remember_before(4, None)
    assert journal.trouble() == ""  # all is written by then
    if while_open:
        damage(path, how)
    journal.close()
    if not while_open:
        damage(path, how)
    journal = Journal(path, 1, runtime)
    assert journal.open_entries() == [entry]
    assert (journal.former.settings(), journal.former.before(4)) == ([CHANGED], None)
    assert int(journal.intend(RULE, "nft", 1.0, None).rule.id) > int(entry.rule.id)
    aside = list(tmp_path.glob("journal.db.damaged-*"))
    assert len(journal.warnings) == len(aside) <= 1
    assert aside or how in ("empty", "removed")
    journal.close()


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_mended_while_the_guardian_runs(tmp_path: Path, how: str) -> None:
    path = tmp_path / "journal.db"
    journal = Journal(path, 1, RuntimeCopy(tmp_path / "run", 1, boot_id()))
    entry = journal.intend(RULE, "nft", 100.0, None)
    journal.former.remember_setting(CHANGED)
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    with sqlite3.connect(path) as other, contextlib.suppress(sqlite3.Error):
        other.execute("PRAGMA user_version=2")  # a change: what is cached is not asked any more
    assert journal.former.settings() == [CHANGED]
    journal.update(replace(entry, state=State.CONFIRMED))
    assert [item.state for item in journal.open_entries()] == [State.CONFIRMED]
    journal.close()


def test_old_values_are_known_when_the_disk_can_not_be_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db", 1, RuntimeCopy(tmp_path / "run", 1, boot_id()))
    journal.intend(RULE, "nft", 100.0, None)
    journal.former.remember_setting(CHANGED)
    journal._db._db.set_progress_handler(lambda: 1, 1)  # every statement fails, as on a disk that does
    assert (journal.former.settings(), journal.finished_entries()) == ([CHANGED], [])
    journal.former.forget_setting(CHANGED)
    assert journal.former.settings() == []
    assert journal.warnings


def test_row_of_an_unknown_kind_does_not_hide_the_others(tmp_path: Path, journal: Journal) -> None:
    first, second = (journal.intend(RULE, "nft", 1.0, None) for _ in range(2))
    with sqlite3.connect(tmp_path / "state/journal.db") as db:
        db.execute("UPDATE rules SET rule=replace(rule, 'ipset', 'teleport') WHERE id=?", (first.rule.id,))
    assert journal.open_entries() == [second]
    assert "rule 1" in journal.warnings[0]


def test_runtime_copy_is_roots_alone_and_of_one_boot(tmp_path: Path) -> None:
    RuntimeCopy(tmp_path, 7, "before").put("rule-1", {"x": 1}, b"list")
    directory = tmp_path / "state-7-0"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    now = RuntimeCopy(tmp_path, 7, "now")
    assert list(now.records("rule")) == []
    assert not directory.exists()
    now.put("rule-2", {"x": 2}, b"list")
    assert (list(now.records("rule")), now.numbers()) == ([("rule-2", {"x": 2}, b"list")], {2})


def test_finished_rules_are_pruned_while_the_guardian_runs(tmp_path: Path, journal: Journal) -> None:
    entry = journal.intend(RULE, "nft", 1.0, None)
    over = replace(entry, state=State.EXPIRED, ended=1.0)
    journal.update(over)
    rows = "boot, netns, variant, rule, sources, state, expires"
    with sqlite3.connect(tmp_path / "state/journal.db") as db:
        for _ in range(1500):
            db.execute(f"INSERT INTO rules ({rows}) SELECT {rows} FROM rules WHERE id=1")  # noqa: S608
    assert len(journal.finished_entries(limit=2000)) == 1501
    for _ in range(50):
        journal.update(over)
    assert len(journal.finished_entries(limit=2000)) == 1000


def test_clock_ends_the_unconfirmed_before_the_expired(journal: Journal) -> None:
    provisional = replace(journal.intend(RULE, "nft", 100.0, 30.0), state=State.PROVISIONAL)
    confirmed = replace(journal.intend(RULE, "nft", 50.0, None), state=State.CONFIRMED)
    both = [provisional, confirmed]
    assert timers.next_deadline(both) == 30.0
    assert timers.due(both, 29.9) == []
    assert [(entry, state) for entry, state, _ in timers.due(both, 30.0)] == [(provisional, State.REVERTED)]
    ended = timers.due(both, 100.0)
    assert [state for _, state, _ in ended] == [State.EXPIRED, State.EXPIRED]


def test_kernel_outlasts_the_guardians_clock_by_a_little() -> None:
    assert timers.kernel_timeout(30) == 32


@pytest.mark.parametrize("count", [1000, 6000])
def test_long_list_of_a_finished_rule_is_cut(journal: Journal, count: int) -> None:
    sources = tuple(Prefix(4, number, 32) for number in range(count))
    entry = journal.intend(replace(RULE, match=Match(sources=sources)), "nft", 1.0, None)
    assert journal.open_entries()[0].rule.match.sources == sources
    journal.update(replace(entry, state=State.EXPIRED, ended=1.0))
    assert journal.finished_entries()[0].rule.match.sources == sources[:200]
