"""SIGKILL at every step of an install, a keep and an undo: the next start leaves no half rule."""

from __future__ import annotations

import pytest
from mitigate_bench import Bench, apply, rules_of

from fwtop.mitigate.steps import Step
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Keep, Undo

pytestmark = pytest.mark.kernel
INSTALL = (Step.INTENT, Step.ALLOW, Step.SETS, Step.CHAIN_V4, Step.CHAIN_V6, Step.INSTALLED)
KEEP = (Step.RENEWED, Step.KEPT)
UNDO = (Step.UNDO, Step.UNCHAINED, Step.UNSET, Step.UNDONE)
COMPILED = (Step.COMPILED, Step.ARMED, Step.DISARMED, Step.UNLOADED)  # test_xdp_life.py tries these
TABLES = (Step.NFT, Step.UNNFT)  # tried in test_mitigate_nftables.py
SYSCTL = (Step.SETTING, Step.RESTORED)  # tried in test_mitigate_sysctl.py


def test_every_step_is_tried() -> None:
    assert set(INSTALL + KEEP + UNDO + COMPILED + TABLES + SYSCTL) == set(Step)


@pytest.mark.parametrize("step", INSTALL)
def test_crash_while_installing(bench: Bench, step: Step) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=step.value)
    with guardian, pytest.raises(FwtopError, match="ended before it answered"):
        apply(guardian, bench.block_rule(4, 6))
    with bench.connect() as successor:
        if step is Step.INSTALLED:
            assert rules_of(successor)["1"]["state"] == "confirmed"
            assert not bench.path(4).passes()
            successor.demand(Undo(all=True))
        else:
            assert rules_of(successor) == {}
            assert rules_of(successor, finished=True)["1"]["state"] == "reverted"
        assert bench.path(4).passes(wait_s=10)
    assert bench.state() == before


@pytest.mark.parametrize("step", UNDO)
def test_crash_while_undoing(bench: Bench, step: Step) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=step.value)
    with guardian:
        apply(guardian, bench.block_rule(4, 6))
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Undo(all=True))
    with bench.connect() as successor:
        assert rules_of(successor) == {}
        assert rules_of(successor, finished=True)["1"]["state"] == "reverted"
        assert bench.path(4).passes(wait_s=10)
    assert bench.state() == before


@pytest.mark.parametrize("step", UNDO)
def test_crash_while_undoing_one_of_two(bench: Bench, step: Step) -> None:
    guardian = bench.connect(crash_at=step.value)
    with guardian:
        gone, stays = apply(guardian, bench.block_rule(4)), apply(guardian, bench.block_rule(6))
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Undo((gone,)))
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [stays]
        assert bench.path(4).passes(wait_s=10)
        assert not bench.path(6).passes()


@pytest.mark.parametrize("step", KEEP)
def test_crash_while_keeping(bench: Bench, step: Step, poll_until) -> None:
    guardian = bench.connect(crash_at=step.value)
    with guardian:
        rule_id = apply(guardian, bench.block_rule(4), 2)
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Keep(rule_id))
    with bench.connect() as successor:
        if step is Step.KEPT:
            assert rules_of(successor)[rule_id]["state"] == "confirmed"
        else:  # nobody was told that it is kept: it ends as unconfirmed rules do
            assert rules_of(successor)[rule_id]["state"] == "provisional"
            poll_until(lambda: bench.path(4).passes())
