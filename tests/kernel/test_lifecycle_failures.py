"""An installation that fails late leaves nothing in the kernel, or a rule that is ended at the next tick."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.failpoints import Failpoints
from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
from fwtop.guardian.mechanisms.kernel import Kernel
from fwtop.guardian.records.files import Records
from fwtop.guardian.records.journal import Journal
from fwtop.guardian.rules import lifecycle
from fwtop.guardian.rules.lifecycle import Lifecycle
from fwtop.guardian.rules.state import GuardianState
from fwtop.kernel.namespaces import boot_id
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule, State
from fwtop.netfilter import iptables
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
RULE = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("10.77.0.2"),)), "x", 300)


@pytest.fixture
def state(netns_pair, tmp_path: Path) -> Iterator[GuardianState]:
    """A guardian's state, used in this process inside the victim's namespace."""
    with inside(netns_pair.victim.netns):
        journal, failpoints = Journal(Records(tmp_path, 1, boot_id())), Failpoints(None)
        compiled = CompiledRules(failpoints, 0)
        kernel = Kernel(Chains(iptables.choose().variant), journal.former, failpoints, compiled, list)
        yield GuardianState(journal, kernel, lambda: AllowList(()))
        kernel.remove(kernel.rule_ids())


def fail(*_: object) -> None:
    raise FwtopError("ipset restore failed: Cannot allocate memory")


def install(life: Lifecycle) -> None:
    with pytest.raises(FwtopError, match="Cannot allocate memory"):
        life.apply(RULE.to_dict(), RULE.match.sources, 300, force=False, owner=None)


def test_rule_that_could_not_be_renewed_is_removed(state: GuardianState, monkeypatch) -> None:
    life = Lifecycle(state, Failpoints(None))
    monkeypatch.setattr(lifecycle, "_LONG_SECONDS", -1)
    monkeypatch.setattr(state.kernel, "renew", fail)
    install(life)
    assert not life.active
    assert not state.kernel.rule_ids()
    assert [entry.state for entry in state.journal.finished_entries()] == [State.REVERTED]


def test_rule_that_cannot_be_removed_either_is_known_and_due(state: GuardianState, monkeypatch) -> None:
    life = Lifecycle(state, Failpoints(None))
    monkeypatch.setattr(lifecycle, "_LONG_SECONDS", -1)
    monkeypatch.setattr(state.kernel, "renew", fail)
    with monkeypatch.context() as broken:
        broken.setattr(state.kernel, "remove", fail)
        install(life)
        assert [entry.state for entry in life.active.values()] == [State.PROVISIONAL]
    life.tick()
    assert not life.active
    assert not state.kernel.rule_ids()


def test_mechanism_that_fails_unexpectedly_does_not_stop_the_others(
    state: GuardianState, monkeypatch
) -> None:
    def surprise(*_: object) -> None:
        raise ValueError("surprise")

    life = Lifecycle(state, Failpoints(None))
    life.apply(RULE.to_dict(), RULE.match.sources, 300, force=False, owner=None)
    with monkeypatch.context() as broken:
        for name in ("refresh_allow", "disable"):
            broken.setattr(state.kernel.compiled, name, surprise)
        seen: list[AllowList] = []
        broken.setattr(state.kernel.tables, "refresh_allow", seen.append)
        with pytest.raises(FwtopError, match="ValueError: surprise"):
            state.kernel.refresh_allow(state.allow)
        assert seen
        life.undo((), everything=True)
    assert not state.kernel.rule_ids()
