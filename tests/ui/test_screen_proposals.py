"""The list of proposals: one line each, what is folded, what a filter hides, whose number is 1."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace
from screen_factory import SCENES, snapshot
from screen_run import LARGE, SMALL, Run, running

from fwtop.lab import scenario
from fwtop.model.rule import Kind, Match, Preview, Rule, Setting
from fwtop.model.traffic.severity import Harm
from fwtop.model.traffic.snapshot import Origin, Proposal, Snapshot
from fwtop.ui.lists.attacks import Part, stopped
from fwtop.ui.lists.numbers import ProposalList, covered_by
from fwtop.ui.lists.proposals import PROPOSAL_VIEW, against_words, in_brief
from fwtop.ui.lists.rows import Fold
from fwtop.ui.lists.table import CellContext, columns_now, fit_columns, row_lines
from tests.golden.snapshots import observed

SIZES = (SMALL, (100, 30), LARGE)


def listed(run: Run) -> list[str]:
    """Return the keys of the proposals in the list by their numbers."""
    return [one.key for one in run.app.main.desk.proposals.listed]


def rows(run: Run) -> list[str]:
    return [item.key for item in run.app.main.tabs.panels["proposals"].rows.items]  # type: ignore[attr-defined]


def offering(*keys: str, base: Snapshot | None = None, rule: bool = True) -> Snapshot:
    """A scene with proposals of these keys, which block different ports, against its first attack."""
    shot = base or snapshot()
    incident = shot.judgement.attacks[0].id
    made = [
        Proposal(
            number, "xdp", "", 0.9, 0.0, key=key, incident=incident,
            rule=Rule("", Kind.XDP, Match(protocol=17, dport=1000 + ord(key)), f"drop {key}", 600),
        )
        for number, key in enumerate(keys, 1)
    ]  # fmt: skip
    return replace(shot, judgement=replace(shot.judgement, proposals=tuple(made)))


@pytest.mark.one_each
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", ["few_sources", "spoofed", "vectors", "conntrack_full", "poison"])
async def test_each_has_one_line_and_the_selected_one_its_reasons(scene: str, size: tuple[int, int]) -> None:
    async with running(SCENES[scene](), size, at="proposals") as run:
        panel = run.app.main.tabs.panel
        for _ in range(len(panel.rows.items)):
            lines = panel._line_items
            assert {lines.count(place) for place in set(lines) - {panel.rows.selected}} <= {1}
            assert lines.count(panel.rows.selected) <= 3
            run.clock[0] += 3.0
            await run.press("down")


async def test_what_an_active_rule_does_is_not_listed() -> None:
    async with running(SCENES["vectors"]()) as run:
        shot = run.app.main.desk.snapshot
        done = [one.key for one in shot.judgement.proposals if covered_by(one, shot)]
        assert done
        assert not set(done) & set(listed(run))
        assert "B: rule 118" in run.text()


async def test_attacks_that_do_not_reach_you_are_folded_with_how_many_and_enter_unfolds() -> None:
    shot = SCENES["vectors"]()
    first, *others = shot.judgement.attacks
    stopped = [replace(one, other_share=1.0, kernel_share=0.0, mine_share=0.0) for one in others]
    shot = replace(shot, judgement=replace(shot.judgement, attacks=(first, *stopped)), mitigations=())
    async with running(shot, at="proposals") as run:
        folds = [item for item in run.app.main.tabs.panel.rows.items if isinstance(item, Fold)]
        inside = [one.key for fold in folds for one in fold.rows if fold.key == "stopped"]
        assert inside
        assert not set(inside) & set(rows(run))
        assert "B, C don't reach you: " in run.text()
        numbers = [one.number for one in run.app.main.desk.proposals.listed]
        assert numbers == list(range(1, len(numbers) + 1))
        await run.press("end", "enter")
        assert set(inside) <= set(rows(run))
        await run.press("enter")
        assert not set(inside) & set(rows(run))


async def test_an_attack_that_stops_for_a_moment_keeps_its_place_and_several_then_share_a_line() -> None:
    shot = replace(SCENES["vectors"](), mitigations=())
    first, *others = shot.judgement.attacks
    stopped = [replace(one, other_share=1.0, kernel_share=0.0, mine_share=0.0) for one in others]
    still = replace(shot, judgement=replace(shot.judgement, attacks=(first, *stopped)))
    async with running(shot, (120, 40)) as run:
        before = listed(run)
        run.clock[0] += 10
        await run.send(still)
        assert listed(run) == before
        assert "2 don't reach you" not in run.text()
        run.clock[0] += 3
        await run.send(still)
        assert listed(run) != before
        assert "2 don't reach you  Enter unfolds" in run.text()
        await run.go("attacks")
        assert "udp/27015" not in run.text()
        await run.press("end", "enter")
        assert "udp/27015" in run.text()
        await run.send(shot)
        assert "don't reach you" not in run.text()


async def test_what_an_attack_left_behind_gives_1_to_the_next_attack_at_once() -> None:
    shot = SCENES["vectors"]()
    first, *others = (replace(one, mine_share=0.0, other_share=0.0) for one in shot.judgement.attacks)
    left = replace(first, severity=replace(first.severity, harm=Harm.UNUSUAL))
    alone = replace(shot, judgement=replace(shot.judgement, attacks=(left,)), mitigations=())
    both = replace(alone, judgement=replace(shot.judgement, attacks=(left, *others)))
    async with running(alone, (120, 40)) as run:
        assert run.app.main.desk.proposals.listed[0].incident == left.id
        run.clock[0] += 10
        await run.send(both)
        assert run.app.main.desk.proposals.listed[0].incident != left.id
        assert "A is no attack: " in run.text()


async def test_of_a_whole_capture_an_attack_that_ended_is_as_good_as_another() -> None:
    shot = SCENES["spoofed"]()
    first, second = shot.judgement.attacks
    ended = replace(first, ended=shot.started)
    shot = replace(shot, judgement=replace(shot.judgement, attacks=(ended, second)))
    async with running(replace(shot, origin=Origin("capture", file="x.pcap"))) as run:
        assert "protect against A, B" in run.text()
    async with running(shot) as run:
        assert "A paused: 2 proposals" in run.text()


async def test_reliefs_share_a_line_and_keep_their_numbers() -> None:
    shot = offering("a")
    names = ("net.netfilter.nf_conntrack_max", "net.ipv4.tcp_max_syn_backlog")
    reliefs = tuple(
        Proposal(
            number, "sysctl", "", 0.0, 0.0, key=name, incident=shot.judgement.attacks[0].id,
            rule=Rule("", Kind.SYSCTL, Match(), "more room", 600, settings=(Setting(name, 4096),)),
        )
        for number, name in enumerate(names, 2)
    )  # fmt: skip
    shot = replace(shot, judgement=replace(shot.judgement, proposals=(*shot.judgement.proposals, *reliefs)))
    async with running(shot) as run:
        assert "relief: 2 set conntrack max to 4,096  3 set tcp max syn backlog to 4,096" in run.text()
        await run.press("3")
        assert run.dialog == "RuleDialog"
        assert "preview of proposal 3" in run.text()


async def test_a_filter_hides_attacks_with_a_word_and_no_proposal() -> None:
    async with running(snapshot()) as run:
        before = listed(run)
        await run.press(*"/zzz", "enter")
        assert rows(run)
        assert listed(run) == before
        assert "/zzz hides 1" in run.text()
        await run.press("1")
        assert run.dialog == "RuleDialog"


async def test_a_better_one_is_marked_and_takes_1_when_the_operator_moves() -> None:
    async with running(offering("a", "b"), at="proposals") as run:
        run.clock[0] += 10
        await run.send(offering("b", "a"))
        assert listed(run) == ["a", "b"]
        assert "▲ better  drop UDP" in run.text()
        better = run.app.main.desk.proposals.helpful()[0]
        assert f"press {better.number} Enter" in run.text(), "the number that helps most, not the lowest"
        assert better.number != 1
        await run.press("down")
        assert listed(run) == ["b", "a"]
        assert run.selected_key() == "b", "the next row as it was seen"
        assert "▲ better" not in run.text()


async def test_no_number_changes_under_a_dialog_and_the_list_is_drawn_anew_on_another_tab() -> None:
    async with running(offering("a", "b"), at="proposals") as run:
        run.clock[0] += 10
        await run.press("1")
        run.clock[0] += 10
        await run.send(offering("c", "b"))
        assert listed(run) == ["a", "b", "c"]
        await run.press("escape")
        run.clock[0] += 3
        await run.send(offering("c", "b"))
        assert listed(run) == ["b", "c"]
        await run.press("]")
        run.clock[0] += 3
        await run.press("[")
        assert listed(run) == ["c", "b"]


async def test_a_key_means_the_proposal_that_was_seen() -> None:
    async with running(offering("a", "b"), at="proposals") as run:
        run.clock[0] += 10
        await run.send(offering("b"))
        assert listed(run) == ["b"]
        await run.press("1")
        assert run.dialog == "MainScreen"
        assert "proposal 1 is gone; look again" in run.status
        run.clock[0] += 3
        await run.press("1")
        assert "preview of proposal 1" in run.text()


async def test_a_set_speaks_of_its_rules_in_the_plural() -> None:
    async with running(SCENES["spoofed"]()) as run:
        await run.press("A")
        assert "install 2 rules against A, B" in run.text()
        assert "2 rules are removed after 30 s unless you press y" in run.text()
        await run.press("tab")
        assert "Commands" in run.text()


async def test_a_set_lists_its_rules_by_the_letters_of_their_attacks() -> None:
    shot = SCENES["spoofed"]()
    turned = tuple(
        replace(one, letter=letter) for one, letter in zip(shot.judgement.attacks, "BA", strict=True)
    )
    async with running(replace(shot, judgement=replace(shot.judgement, attacks=turned)), (120, 40)) as run:
        await run.press("A")
        assert re.findall(r"│ ([AB])  ", run.text()) == ["A", "B"]


def test_a_set_says_what_it_stops_in_the_order_of_its_rules() -> None:
    """Previews have their attacks by what they stop of each."""
    shares = (("A", "C", "B"), ("B", "C", "A"), ("C", "B", "A"))
    made = [
        Preview(1.0, 1.0, 0.0, 0.0, 1.0, attacks=((first, 1.0), (second, 0.1), (third, 0.0)))
        for first, second, third in shares
    ]
    parts = [
        Part(Rule("", Kind.XDP, Match(), "", 600), letter, one)
        for letter, one in zip("ABC", made, strict=True)
    ]
    assert list(stopped(parts).items()) == [("A", 1.0), ("B", 1.0), ("C", 1.0)]


@pytest.mark.one_each("0")
@pytest.mark.parametrize("third", range(3))
def test_no_proposal_of_the_labs_scenarios_wraps_or_is_cut_at_80_columns(third: int) -> None:
    told = set()
    for name in scenario.names()[third::3]:
        shot, proposals = observed(scenario.load(name)), ProposalList()
        proposals.take(shot, 0, 0.0)
        context = CellContext(0.0, snapshot=shot, proposals=proposals, width=78)
        layout = fit_columns(columns_now(PROPOSAL_VIEW, proposals.listed, context, 78), 78)
        room = next(width for column, width in layout if column.grow)
        for item in proposals.listed:
            (line,) = row_lines(layout, item, context)
            said = in_brief(item, room)
            assert said in "".join(text for text, _ in line), (name, said)
            told.add(said)
    assert len(told) > 30


def test_the_title_says_which_rules_do_it_already() -> None:
    def title(covered: dict[str, str], *letters: str, stopped: str = "ABC", width: int = 120) -> str:
        shown = SimpleNamespace(covered=covered, letters=lambda: letters, stopped_by_rules=frozenset(stopped))
        return against_words(cast(CellContext, SimpleNamespace(proposals=shown, width=width)))

    assert title({}, "A") == "protect against A"
    assert title({"A": "7"}) == "protect against A: rule 7 does it"
    assert title({"B": "7", "C": "7"}) == "protect against B, C: rule 7 does it"
    assert title({"B": "7"}, "A", "C") == "protect against A–C; B: rule 7 does it"
    assert title({"B": "7", "C": "8"}, "A") == "protect against A–C; B, C: 2 rules do it"
    assert title({"A": "7"}, stopped="") == "protect against A: rule 7 is in force"
    assert title({"B": "7", "C": "8"}, "A", stopped="B") == "protect against A–C; B, C: 2 rules are in force"
    assert title({"A": "7"}, width=78) == "protect against A: rule 7 does it"
    assert title({"B": "7", "C": "8"}, "A", stopped="B", width=78) == "against B, C: 2 rules are in force"
