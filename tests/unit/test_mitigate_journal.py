"""The journal keeps what was intended and how it ended, whatever happens between."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from fwtop.mitigate import timers
from fwtop.mitigate.journal import Journal
from fwtop.model.address import Prefix
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
    everything = journal.before(4)
    journal.remember_before(4, None)
    journal.remember_before(6, frozenset({"PREROUTING"}))
    assert (journal.before(4), journal.before(6)) == (None, frozenset({"PREROUTING"}))
    journal.forget_before(4)
    assert journal.before(4) == everything


def test_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FwtopError, match="nothing was installed"):
        Journal(tmp_path / "file/journal.db", 1)


def test_foreign_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(os.urandom(5000))
    with pytest.raises(FwtopError, match="nothing was installed"):
        Journal(tmp_path / "journal.db", 1)


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
