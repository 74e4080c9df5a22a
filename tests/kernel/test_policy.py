"""Policies: tried and taken back, kept, put back after failures and crashes, restored after a restart."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import PORT, Bench, apply, rules_of

from fwtop.client.discovery import GuardianClient
from fwtop.guardian.failpoints import Failpoint
from fwtop.model.errors import FwtopError
from fwtop.model.harm import ClientHarm
from fwtop.model.protocol import Undo
from fwtop.model.rule import Kind, Level, Match, Preview, Protection, Rule
from fwtop.policy.document import Policy, read
from fwtop.policy.live import Live
from fwtop.policy.transaction import Planned, commit, measurable, restore, undo_interrupted
from fwtop.policy.versions import Versions, lists_of

pytestmark = pytest.mark.kernel
PAIR = "shared_pair"
OPEN_TO = 'schema = 1\n[list.office]\nentries = [{}]\n[[port]]\nservice = "{}/udp"\nacl = "office"\n'
BLOCK = '[list.bad]\nentries = ["{}"]\n[[block]]\nlist = "bad"\n'
LIMIT = '[[limit]]\nproto = "udp"\ndport = 9\nper = 24\nrate = "{}/s"\n'


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions("test", tmp_path / "policy")


def policy(tmp_path: Path, *parts: str) -> Policy:
    (tmp_path / "policy.toml").write_text("".join(parts))
    return read(tmp_path / "policy.toml")


def open_to(*addresses: str) -> str:
    return OPEN_TO.format(", ".join(f'"{address}"' for address in addresses), PORT)


def passing(bench: Bench) -> tuple[bool, bool]:
    return bench.path(4).passes(), bench.path(6).passes()


def lists_held(guardian: GuardianClient) -> set[str]:
    return Live(guardian).list_names()


def test_a_trial_ends_by_the_kernels_clock_and_leaves_the_old_policy(
    bench: Bench, versions: Versions, tmp_path: Path, poll_until: Callable[..., Any]
) -> None:
    old = policy(tmp_path, open_to(bench.attacker(4)), LIMIT.format(1000))
    new = policy(tmp_path, open_to(bench.attacker(6)), LIMIT.format(10), BLOCK.format("192.0.2.0/24"))
    with bench.connect() as guardian:
        live = Live(guardian)
        commit(live, versions, old, "x", force=False)
        assert passing(bench) == (True, False)
        change = live.difference(new, {"office"})
        assert [item.name for item in change.lists] == ["office"]
        assert (len(change.added), len(change.removed), change.new_lists) == (2, 1, ("bad",))
        live.put_on_trial(new, change, 5, force=False)  # looked at within it, on a busy machine, too
        assert passing(bench) == (False, True)
    bench.kill_guardian()  # nobody is left to undo it
    poll_until(lambda: passing(bench) == (True, False))
    with bench.connect() as guardian:
        undo_interrupted(Live(guardian), versions)
        assert lists_held(guardian) == {"office", "bad"}, "an unused list of the trial may stay"
        assert not Live(guardian).difference(old, {"office", "bad"}).added


def test_each_rule_of_a_policy_is_rehearsed(bench: Bench, versions: Versions, tmp_path: Path) -> None:
    cuts = '[[signature]]\nstring = "SSH-2.0"\n'
    with bench.connect() as guardian:
        with pytest.raises(FwtopError, match="new SSH logins would be dropped"):
            commit(
                Live(guardian),
                versions,
                policy(tmp_path, "schema = 1\n", LIMIT.format(10), cuts),
                "x",
                force=False,
            )
        assert rules_of(guardian) == {}


def test_a_plan_says_what_the_guard_would(bench: Bench, versions: Versions, tmp_path: Path) -> None:
    cuts = '[[signature]]\nstring = "SSH-2.0"\n'
    new = policy(tmp_path, "schema = 1\n", LIMIT.format(10), cuts, BLOCK.format("192.0.2.0/24"))
    with bench.connect() as guardian:
        planned = Planned.of(Live(guardian), new, versions.newest_lists())
        document = planned.document()
        assert document["new_lists"] == ("bad",)
        forced = {one["summary"]: one["needs_force"] for one in document["plans"] if one["needs_force"]}
        assert len(document["plans"]) == 3
        assert ["new SSH logins would be dropped" in why for why in forced.values()] == [True]
        assert [one["who"] for plan in document["plans"] for one in plan["losses"]] == ["logins"]
        assert all(plan["clients"].startswith("not known") for plan in document["plans"])
        clients = ClientHarm(50, 3, 3, protocol=17, port=9)
        lines = planned.lines(Preview(0.0, 0.0, 0.1, 1.0, 1.0, clients=clients))
        assert "3 of 50 clients of UDP 9 lose it (10.00 % of normal traffic)" in "\n".join(lines)
        assert any("needs --force: new SSH logins" in line for line in lines)
        assert {rule.kind for rule in measurable(new, planned.change)} == {rule.kind for rule in new.rules}
        assert (rules_of(guardian), lists_held(guardian)) == ({}, set())


def test_what_is_kept_replaces_the_old_policy_and_spares_temporary_rules(
    bench: Bench, versions: Versions, tmp_path: Path
) -> None:
    with bench.connect() as guardian:
        live = Live(guardian)
        first = policy(tmp_path, open_to(bench.attacker(4)), BLOCK.format("192.0.2.0/24"))
        commit(live, versions, first, "first", force=False)
        protected = live.rules()[0].id
        above = Protection(Level.OPEN, (), 100)
        temporary = Rule("", Kind.PROTECT, Match(protocol=17, dport=PORT), "x", 600, protection=above)
        temporary_id = apply(guardian, temporary)
        assert passing(bench) == (True, True)
        second = policy(tmp_path, open_to(bench.attacker(6)), LIMIT.format(1000))
        commit(live, versions, second, "second", force=False)
        assert passing(bench) == (True, True), "the temporary rule stands above"
        guardian.demand(Undo((temporary_id,)))
        assert passing(bench) == (False, True)
        assert {rule.kind for rule in live.rules()} == {Kind.PROTECT, Kind.HASHLIMIT}
        assert live.rules()[0].id == protected, "a rule that stays is the same one"
        assert lists_held(guardian) == {"office"}
        assert not live.difference(second, {"office"})
        commit(live, versions, versions.policy_of(versions.find(1)), "rollback to 1", force=False)
        assert passing(bench) == (True, False)
        assert lists_held(guardian) == {"office", "bad"}


def test_a_policy_that_fails_leaves_the_old_one(bench: Bench, versions: Versions, tmp_path: Path) -> None:
    """One of its rules is refused: what was put in before goes again, lists too."""
    with bench.connect() as guardian:
        live = Live(guardian)
        commit(live, versions, policy(tmp_path, open_to(bench.attacker(4))), "first", force=False)
        before = bench.state()
        new = policy(tmp_path, open_to(bench.attacker(6)), BLOCK.format("16.0.0.0/7"))
        with pytest.raises(FwtopError, match=r"block list bad: refused without .*; the old policy acts"):
            commit(live, versions, new, "second", force=False)
        assert passing(bench) == (True, False)
        assert lists_held(guardian) == {"office"}
        assert [version.note for version in versions.all()] == ["first"]
        assert versions.pending() is None
        assert bench.settled(before) == before


@pytest.mark.parametrize("failpoint", [Failpoint.LIST_CHANGED, Failpoint.INACTIVE])
def test_a_crash_in_the_middle_is_undone(
    bench: Bench, versions: Versions, tmp_path: Path, failpoint: Failpoint
) -> None:
    with bench.connect() as guardian:
        first = policy(tmp_path, open_to(bench.attacker(4)), BLOCK.format("192.0.2.0/24"))
        commit(Live(guardian), versions, first, "first", force=False)
    bench.kill_guardian()
    new = policy(tmp_path, open_to(bench.attacker(6)), LIMIT.format(1000))
    with bench.connect(crash_at=failpoint.value) as guardian, pytest.raises(FwtopError):
        commit(Live(guardian), versions, new, "second", force=False)
    assert versions.pending() is not None
    with bench.connect() as guardian:
        undo_interrupted(Live(guardian), versions)
        assert passing(bench) == (True, False)
        assert not Live(guardian).difference(first, lists_of(versions.all()))
        assert all(item["acting"] for item in rules_of(guardian).values())


@contextmanager
def restarted(bench: Bench) -> Iterator[None]:
    """Leave a machine as after a restart: nothing in the kernel, no guardian, no records of this boot."""
    with bench.connect() as guardian:
        guardian.demand(Undo(all=True))
    bench.kill_guardian()
    for left in (*bench.directory.glob("state-*"), *bench.directory.glob("lists-*")):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    yield


def test_the_policy_is_back_after_a_restart(
    bench: Bench, versions: Versions, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def connect() -> Iterator[Live]:
        with bench.connect() as guardian:
            yield Live(guardian)

    file = tmp_path / "policy.toml"
    assert restore(versions, tmp_path / "absent", connect) == 0
    assert "there is no policy" in capsys.readouterr().err
    policy(tmp_path, open_to(bench.attacker(4)))
    assert restore(versions, file, connect) == 0, "the file is the first policy"
    assert passing(bench) == (True, False)
    with connect() as live:
        second = policy(tmp_path, open_to(bench.attacker(6)), BLOCK.format("192.0.2.0/24"))
        commit(live, versions, second, "second", force=False)
    file.write_text("schema = ")
    with restarted(bench):
        assert passing(bench) == (True, True)
        assert restore(versions, file, connect) == 0
    assert passing(bench) == (False, True)
    told = capsys.readouterr()
    assert "policy 2 is restored: 2 rules, 2 lists" in told.out
    assert "was changed and not applied" in told.err
    (tmp_path / "policy/netns-test/2.json").write_text("{")
    with restarted(bench):
        assert restore(versions, file, connect) == 0
    assert passing(bench) == (True, False), "a broken policy gives way to the last good one"
    assert "policy file 2.json is damaged" in capsys.readouterr().err


def test_rules_of_a_policy_are_renewed_and_mended(bench: Bench, poll_until: Callable[..., Any]) -> None:
    match = bench.block_rule(4).match
    rule = Rule("", Kind.IPSET, match, "x", 9, created_by="policy", mended=True)
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        began = float(rules_of(guardian)[rule_id]["expires"])
        bench.pair.victim.run("iptables", "-t", "raw", "-F", "FWTOP-SOURCES")
        assert bench.path(4).passes(wait_s=30)
        poll_until(lambda: not bench.path(4).passes())
        poll_until(lambda: float(rules_of(guardian)[rule_id]["expires"]) > began + 2)
        shown = rules_of(guardian)[rule_id]
        assert (shown["state"], shown["acting"]) == ("confirmed", True)
