"""The journal keeps what was intended and how it ended, whatever happens between."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from msgspec.structs import replace

from fwtop.guardian.records import files
from fwtop.guardian.records.files import Numbers, Records
from fwtop.guardian.records.former import Changed
from fwtop.guardian.records.journal import Entry, Journal, next_deadline, rules_due
from fwtop.kernel.namespaces import boot_id
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, PayloadMatch, Rule, State

RULE = Rule(
    "", Kind.IPSET, Match(sources=(Prefix.parse("192.0.2.0/24"), Prefix.parse("2001:db8::1"))), "block", 60
)
CHANGED = Changed("1", "net.ipv4.tcp_syncookies", 0, 1, done=True)


def opened(path: Path, netns: int = 1) -> Journal:
    return Journal(Records(path, netns, boot_id()))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return opened(tmp_path)


@contextmanager
def full(room: int = 0) -> Iterator[None]:
    """Have no record fit any more; the reserve, once removed, leaves room for as many as `room`."""
    made, left = files._made, [0]
    unlink = Path.unlink

    def freeing(path: Path, missing_ok: bool = False) -> None:
        left[0] += room if path.name == "reserve" else 0
        unlink(path, missing_ok)

    @contextmanager
    def none(path: Path) -> Iterator[int]:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        with made(path) as file:
            yield file

    with mock.patch.object(files, "_made", none), mock.patch.object(Path, "unlink", freeing):
        yield


def test_records_are_roots_alone_and_of_one_boot(tmp_path: Path) -> None:
    Records(tmp_path, 7, "before").put("rule-1", {"x": 1}, b"list")
    directory = tmp_path / "state-7-0"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    now = Records(tmp_path, 7, "now")
    assert list(now.records("rule")) == []
    assert list(directory.iterdir()) == []
    now.put("rule-2", {"x": 2}, b"list")
    assert (list(now.records("rule")), now.listed("rule-2")) == ([("rule-2", {"x": 2})], b"list")


def test_directory_goes_where_nothing_is_recorded(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    assert journal.trouble() == ""
    assert (tmp_path / "state-1-0/reserve").stat().st_blocks
    journal.close()
    assert not (tmp_path / "state-1-0").exists()


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
    assert journal.find(entry.rule.id) == over


def test_namespaces_do_not_see_each_other(tmp_path: Path, journal: Journal) -> None:
    first = journal.intend(RULE, "nft", 1.0, None)
    other = opened(tmp_path, 2)
    assert other.open_entries() == []
    assert other.intend(RULE, "nft", 1.0, None).rule.id != first.rule.id
    assert [entry.rule.id for entry in journal.open_entries()] == [first.rule.id]


def test_what_was_before_is_remembered_and_forgotten(tmp_path: Path, journal: Journal) -> None:
    everything = journal.former.before(4)
    journal.former.remember_before(4, None)
    journal.former.remember_before(6, frozenset({"PREROUTING"}))
    journal.former.remember_setting(CHANGED)
    journal.former.keep_contents({"nft/4": ["a", "b"]})
    former = opened(tmp_path).former
    assert (former.before(4), former.before(6)) == (None, frozenset({"PREROUTING"}))
    assert (former.settings(), former.contents()) == ([CHANGED], {"nft/4": ["a", "b"]})
    former.forget_before(4)
    former.forget_setting(CHANGED)
    former = opened(tmp_path).former
    assert (former.before(4), former.settings()) == (everything, [])


def test_numbers_go_on_after_a_restart_of_the_machine(tmp_path: Path) -> None:
    lasting = tmp_path / "lib"
    numbers = Numbers(tmp_path / "run", lasting)
    assert [numbers.take() for _ in range(3)] == [1, 2, 3]
    assert numbers._keeper is not None
    numbers._keeper.join()
    numbers._keep()
    numbers._keeper.join()
    again = Numbers(tmp_path / "run of the next boot", lasting)
    assert again.take() == 4
    (lasting / "last-rule").write_text("garbage")
    assert again.take() == 5
    assert Numbers(tmp_path / "a third", lasting / "last-rule" / "no directory").take() == 1


def test_number_of_a_rule_found_is_not_given_again(tmp_path: Path, journal: Journal) -> None:
    journal.record(Entry(replace(RULE, id="7"), "nft", State.CONFIRMED, 100.0))
    (tmp_path / "last-rule").unlink()
    assert journal.intend(RULE, "nft", 1.0, None).rule.id == "8"


DAMAGES = {
    "garbage": lambda data: os.urandom(len(data)),
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "number": lambda data: b"7",
    "kind": lambda data: data.replace(b'"ipset"', b'"teleport"'),
    "expires": lambda data: data.replace(b'"expires":100.0', b'"expires":"soon"'),
    "infinite": lambda data: data.replace(b'"expires":100.0', b'"expires":9e999'),
    "packets": lambda data: data.replace(b'"packets":0', b'"packets":-1'),
    "state": lambda data: data.replace(b'"intent"', b'"paused"'),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_record_that_is_not_understood_does_not_hide_the_others(tmp_path: Path, how: str) -> None:
    journal = opened(tmp_path)
    first, second = (journal.intend(RULE, "nft", 100.0, None) for _ in range(2))
    path = tmp_path / f"state-1-0/rule-{first.rule.id}.json"
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    journal = opened(tmp_path)
    assert not journal.lost
    assert journal.open_entries() == [second]
    assert journal.lost
    assert "rule-1 is not understood" in journal.warnings[0]


@pytest.mark.parametrize(
    "text", [b"garbage", b'{"boot": "BOOT", "chains": "gar["}', b'{"boot": "BOOT", "old": "x"}']
)
def test_former_state_that_is_not_understood_is_told(tmp_path: Path, text: bytes) -> None:
    journal = opened(tmp_path)
    everything = journal.former.before(4)
    journal.former.remember_before(4, None)
    journal.former.remember_setting(CHANGED)
    for path in (tmp_path / "state-1-0").glob("*-*.json"):
        path.write_bytes(text.replace(b"BOOT", boot_id().encode()))
    journal = opened(tmp_path)
    assert (journal.former.before(4), journal.former.settings()) == (everything, [])
    assert [("not understood" in line) for line in journal.warnings] == [True, True]


@pytest.mark.parametrize("count", [200, 201, 6000])
def test_long_list_of_a_finished_rule_is_cut(tmp_path: Path, count: int) -> None:
    journal = opened(tmp_path)
    sources = tuple(Prefix(4, number, 32) for number in range(count))
    entry = journal.intend(replace(RULE, match=Match(sources=sources)), "nft", 1.0, None)
    assert tuple(journal.open_entries()[0].rule.match.sources) == sources
    journal.update(replace(entry, state=State.EXPIRED, ended=1.0))
    (over,) = journal.finished_entries()
    assert (over.rule.match.sources, over.sources_cut) == (sources[:200], count - 200)
    assert not list(tmp_path.glob("state-*/*.list"))


def test_lost_list_is_no_empty_list(tmp_path: Path) -> None:
    sources = tuple(Prefix(4, number, 32) for number in range(300))
    opened(tmp_path).intend(replace(RULE, match=Match(sources=sources)), "nft", 1.0, None)
    for path in tmp_path.glob("state-*/*.list"):
        path.unlink()
    journal = opened(tmp_path)
    assert journal.open_entries() == []
    assert "sources are missing" in journal.warnings[0]


def test_rule_that_can_not_be_recorded_is_refused_in_one_line_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = opened(tmp_path / "file")
    assert "nothing was installed" in journal.trouble()
    with pytest.raises(FwtopError, match="nothing was installed"):
        journal.intend(RULE, "nft", 100.0, None)
    (tmp_path / "file").unlink()
    entry = journal.intend(RULE, "nft", 100.0, None)
    assert (journal.trouble(), journal.open_entries()) == ("", [entry])


def test_reserve_takes_the_ends_of_rules_and_no_new_ones(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    first, second = (journal.intend(RULE, "nft", 100.0, None) for _ in range(2))
    with full(room=2):
        with pytest.raises(FwtopError, match="nothing was installed"):
            journal.intend(RULE, "nft", 100.0, None)
        with pytest.raises(FwtopError, match="can't be recorded"):
            journal.former.remember_setting(replace(CHANGED, done=False))
        for entry in (first, second):
            journal.update(replace(entry, state=State.REVERTED, ended=1.0))
        assert "make room" in journal.trouble()
    assert [entry.state for entry in journal.finished_entries()] == [State.REVERTED] * 2
    assert journal.trouble() == ""


def test_rule_that_ends_without_any_room_is_over_and_told_of_later(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    entry = journal.intend(RULE, "nft", 100.0, None)
    over = replace(entry, state=State.REVERTED, ended=1.0)
    with full():
        journal.update(over)
        assert opened(tmp_path).open_entries() == []
    assert journal.trouble() == ""
    assert journal.finished_entries() == [over]


def test_end_counts_where_a_crash_left_the_record_of_the_active_rule(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    entry = journal.intend(RULE, "nft", 100.0, None)
    left = (tmp_path / "state-1-0/rule-1.json").read_bytes()
    over = replace(entry, state=State.REVERTED, ended=1.0)
    journal.update(over)
    (tmp_path / "state-1-0/rule-1.json").write_bytes(left)
    (tmp_path / "state-1-0/rule-9.json.new").write_bytes(left[:9])
    journal = opened(tmp_path)
    assert (journal.open_entries(), journal.find("1")) == ([], over)
    assert {path.name for path in (tmp_path / "state-1-0").iterdir()} == {"over-1.json", "reserve"}


def test_finished_rules_are_pruned_while_the_guardian_runs(journal: Journal) -> None:
    for _ in range(250):
        entry = journal.intend(RULE, "nft", 1.0, None)
        journal.update(replace(entry, state=State.EXPIRED, ended=1.0))
    assert len(journal.finished_entries()) == 50
    found = journal.finished_entries(limit=1000)
    assert [entry.rule.id for entry in found] == [str(number) for number in range(250, 50, -1)]


def test_clock_ends_the_unconfirmed_before_the_expired(journal: Journal) -> None:
    provisional = replace(journal.intend(RULE, "nft", 100.0, 30.0), state=State.PROVISIONAL)
    confirmed = replace(journal.intend(RULE, "nft", 50.0, None), state=State.CONFIRMED)
    both = [provisional, confirmed]
    assert next_deadline(both) == 30.0
    assert rules_due(both, 29.9) == []
    assert [(entry, state) for entry, state, _ in rules_due(both, 30.0)] == [(provisional, State.REVERTED)]
    ended = rules_due(both, 100.0)
    assert [state for _, state, _ in ended] == [State.EXPIRED, State.EXPIRED]
