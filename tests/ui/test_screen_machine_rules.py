"""The Rules tab's list of every rule and set on the machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from screen_factory import provisional, snapshot
from screen_parts import NOW
from screen_run import LARGE, SMALL, Run, running

from fwtop.model.rule import State
from fwtop.model.ruleset import IPSET, IPTABLES_LEGACY, NFT, ListedRule, ListedSet, Ruleset
from fwtop.model.traffic.snapshot import NOTHING
from fwtop.ui.actions.desk import MachineRulesWatch

LIST = "machine_rules"


def rule(number: int, packets: int | None, source: str = NFT) -> ListedRule:
    size = None if packets is None else packets * 60
    text = f"udp dport {number} counter drop"
    return ListedRule(f"{source} {number}", source, "inet", "web in", text, False, packets, size)


def listed_set(entries: int, size: int = 100) -> ListedSet:
    return ListedSet("ipset bad", IPSET, "ip", "bad", "hash:net", False, entries, size)


def machine(at: float, *counts: int, entries: int = 5) -> Ruleset:
    rules = tuple(rule(4000 + number, count) for number, count in enumerate(counts))
    quiet = rule(9, None, IPTABLES_LEGACY)
    return Ruleset(NOW + at, (*rules, quiet), (listed_set(entries),), (), len(rules) + 1)


async def read(run: Run, *readings: Ruleset) -> None:
    """Have the screen take one reading after another, as if the time in between had passed."""
    for found in readings:
        run.feed.controls.machine = found
        run.app.main.view.machine._asked = float("-inf")
        run.clock[0] += 4  # rows may change places
        await run.send(snapshot() if run.app.main.desk.snapshot is NOTHING else run.app.main.desk.snapshot)
    run.clock[0] += 4
    await run.send(snapshot() if run.app.main.desk.snapshot is NOTHING else run.app.main.desk.snapshot)


def lines_with(run: Run, word: str) -> list[str]:
    return [line for line in run.lines() if word in line]


async def test_the_busiest_rule_is_first_with_its_rate_and_history() -> None:
    async with running(snapshot(), LARGE, at=LIST) as run:
        await read(run, machine(0, 10, 10), machine(2, 10, 410), machine(4, 10, 1010))
        (busy,) = lines_with(run, "dport 4001")
        (idle,) = lines_with(run, "dport 4000")
        assert "300" in busy
        assert "▆█" in busy
        assert run.lines().index(busy) < run.lines().index(idle)
        assert "iptables-legacy inet web in" in run.text()
        assert "hash:net, 5 of 100 entries" in run.text()


@pytest.mark.parametrize("size", [SMALL, LARGE, (60, 15), (120, 40), (80, 20)])
async def test_the_list_is_reached_by_keys_in_any_size(size: tuple[int, int]) -> None:
    async with running(provisional(), size) as run:
        await read(run, machine(0, 1), machine(2, 3))
        await run.press("m", "tab")
        assert run.app.main.tabs.panel.spec.name == LIST
        assert "dport 4000" in run.text()
        assert all(len(line) == size[0] for line in run.lines())
        await run.press("tab")
        assert run.app.main.tabs.panel.spec.name == "all_rules"


async def test_a_set_that_is_nearly_full_is_logged_with_the_command_once() -> None:
    async with running(snapshot(), LARGE, at=LIST) as run:
        await read(run, machine(0, 1, entries=50), machine(2, 1, entries=95), machine(4, 1, entries=96))
        entries = [entry for entry in run.app.main.desk.log.entries if entry.kind == "firewall"]
        assert len(entries) == 1
        assert "ipset set bad is 95 % full" in entries[0].text
        assert "ipset swap bad-more bad" in entries[0].text
        assert "95 % full" in run.text(), "as a toast"
        await read(run, machine(6, 1, entries=10))
        assert "no longer" in run.app.main.desk.log.entries[-1].text


async def test_an_abnormal_rate_stands_first_and_is_logged() -> None:
    async with running(snapshot(), LARGE, at=LIST) as run:
        counts = [200 * number for number in range(20)] + [3800 + 20_000 * number for number in range(1, 4)]
        await read(run, *(machine(2 * at, count, 500_000 * at) for at, count in enumerate(counts)))
        (line,) = lines_with(run, "far more than usual")
        assert "dport 4000" in line
        assert run.lines().index(line) < run.lines().index(lines_with(run, "dport 4001")[0])
        (entry,) = [entry for entry in run.app.main.desk.log.entries if entry.kind == "firewall"]
        assert "counts 10.0k packets a second, usually 100" in entry.text
        assert "nft list chain inet web in" in entry.text


async def test_a_rule_of_fwtop_that_is_not_in_effect_is_logged_with_its_repair() -> None:
    shot = provisional()
    broken = replace(
        shot.mitigations[0], acting=False, not_acting="chain FWTOP is gone", state=State.CONFIRMED
    )
    async with running(replace(shot, mitigations=(broken,)), LARGE, at=LIST) as run:
        await read(run, machine(0, 1))
        texts = [entry.text for entry in run.app.main.desk.log.entries if entry.kind == "firewall"]
        wanted = f"rule {broken.rule.id} is not in effect: chain FWTOP is gone; fwtop repair {broken.rule.id}"
        assert wanted in texts


async def test_details_and_the_filter_work_on_its_rows() -> None:
    async with running(snapshot(), LARGE, at=LIST) as run:
        await read(run, machine(0, 10), machine(2, 410))
        await run.press("enter")
        assert "somebody else" in run.text()
        assert "200 packets a second" in run.text()
        await run.press("escape", "/", *"hash:net", "enter")
        assert not lines_with(run, "dport 4000")
        assert lines_with(run, "hash:net")
        await run.press("enter")
        assert "no limit" not in run.text()


async def test_no_rule_is_made_of_its_rows() -> None:
    async with running(snapshot(), LARGE, at=LIST) as run:
        await read(run, machine(0, 10))
        for key in "blsxn":
            await run.press(key)
            assert run.dialog == "MainScreen"
        assert run.feed.controls.verbs() == []


async def test_it_asks_often_only_while_it_is_shown() -> None:
    started: list[str] = []
    desk = SimpleNamespace(begin=lambda work, statuses, group: started.append(group))
    watch = MachineRulesWatch(desk, lambda _: None)
    watch.refresh((), shown=False)
    assert not started  # first come numbers, for which the machine may have little time left
    watch.refresh((), shown=True)
    watch._asking = False
    watch.refresh((), shown=True)
    assert len(started) == 1
    watch._asked -= 5.0
    watch.refresh((), shown=False)
    assert len(started) == 1
    watch.refresh((), shown=True)
    assert len(started) == 2
