"""Which numbers proposals have, while others come, go and get better, and while keys are pressed."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from screen_factory import snapshot

from fwtop.model.rule import Match, Mode
from fwtop.model.traffic.snapshot import Incident, Proposal, Snapshot
from fwtop.ui.lists.numbers import RECENT_SECONDS, Numbers, ProposalList

SCENE = snapshot()
BEST = SCENE.judgement.proposals[0]
RULE, ATTACK = BEST.rule, SCENE.judgement.incident(BEST.incident)
assert RULE is not None
assert ATTACK is not None
# What is proposed, the best first, and behind "|" what stands aside; what happens at that time; the numbers
# that the screen gives from 1 on, and what is marked as better than the first.
RUNS = """
better ones are marked, and take 1 when the operator moves
 0.0  a b c
10.0  b a c              →  a b c     better b
20.0  b a c              →  a b c     better b
30.0  b a c     moves    →  b a c
30.5  c b a              →  b a c     better c
31.0  c b a     moves    →  b a c     better c
33.1  c b a              →  b a c     better c
34.0  c b a     moves    →  c b a

a new one comes last, and one that goes leaves no hole
 0.0  a b
10.0  x a b              →  a b x     better x
11.0  x b                →  b x       better x
12.0  x b d              →  b x d     better x
13.0  -                  →  -
14.0  q r                →  q r

nothing moves within two seconds of a key, nor under a dialog
 0.0  a b c
10.0  a b c     key
10.5  b c                →  a b c
11.0  b c d              →  a b c d
11.9  b c d     key      →  a b c d
13.8  b c d              →  a b c d
14.0  b c d              →  b c d
15.0  c d       dialog   →  b c d
25.0  e d       dialog   →  b c d e
26.0  e d                →  b c d e
27.1  e d                →  d e       better e

the first seconds are still counting
 0.0  a b
 1.0  b a                →  b a
 2.9  a b                →  a b
 3.1  b a                →  a b       better b

the first seconds don't move under a key either
 0.0  a b
 0.5  a b       key
 1.0  b a                →  a b       better b
 2.4  b a                →  a b       better b
 2.6  b a                →  b a

what nothing keeps is in order at once, but for a key
 0.0  a b
10.0  b a      due       →  b a
11.0  b a      key
12.0  a b      due       →  b a       better a
13.1  a b      due       →  a b

an attack that is out of the way makes room
 0.0  a b | r
10.0  x | r a b          →  r x a b   better x
11.0  x | r a b  moves   →  x r a b
14.0  a b x | r          →  x r a b   better a

but not near a key
 0.0  a b
10.0  a b       key
11.0  x | a b            →  a b x     better x
12.0  x | a b            →  x a b

what stands aside keeps its number until the list is drawn anew
 0.0  a | r
10.0  a b | r            →  a r b
20.0  a b | r   moves    →  a b r
"""


def _runs() -> dict[str, list[str]]:
    blocks = (block.splitlines() for block in RUNS.strip().split("\n\n"))
    return {title: lines for title, *lines in blocks}


@pytest.mark.parametrize("title", _runs())
def test_numbers_go_with_their_proposals(title: str) -> None:
    numbers = Numbers()
    for line in _runs()[title]:
        given_, _, then = line.partition("→")
        at, *words = given_.split()
        event = words.pop() if words[-1] in ("moves", "key", "dialog", "due") else ""
        listed = " ".join(words).replace("-", "")
        first, _, aside = listed.partition("|")
        if event in ("moves", "key"):
            numbers.press(float(at))
        numbers.take(
            first.split(), aside.split(), float(at),
            anew=event == "moves", due=event == "due", held=event == "dialog",
        )  # fmt: skip
        order, _, better = then.partition("better")
        if then:
            assert (" ".join(numbers.order) or "-", numbers.better) == (order.strip(), better.strip()), line


@given(st.lists(st.tuples(st.permutations("abcdef"), st.integers(0, 6), st.floats(0.05, 1.5)), max_size=40))
@settings(deadline=None)
def test_a_number_means_what_was_shown_under_it_in_the_last_second(
    ticks: list[tuple[list[str], int, float]],
) -> None:
    numbers, now = Numbers(), 0.0
    shown: list[tuple[float, float, dict[int, str]]] = []  # from, until, what
    for order, count, step in ticks:
        numbers.take(order[:count], (), now)
        shown = [(since, min(until, now), what) for since, until, what in shown]
        shown.append((now, inf, dict(enumerate(numbers.order, 1))))
        pressed = now + step
        for number in range(1, 8):
            meant = numbers.meant(number, pressed)
            recent = {what.get(number) for _, until, what in shown if until > pressed - RECENT_SECONDS}
            assert meant in recent
            assert len(recent) > 1 or recent == {meant}
        now = pressed


@given(
    st.lists(
        st.tuples(
            st.permutations("abcdef"), st.integers(0, 6), st.integers(0, 6), st.floats(0.05, 4),
            st.sampled_from(["", "key", "moves", "dialog"]),
        ),
        max_size=40,
    )
)  # fmt: skip
@settings(deadline=None)
def test_numbers_have_no_holes_and_do_not_move_near_a_key(
    ticks: list[tuple[list[str], int, int, float, str]],
) -> None:
    numbers, now, pressed = Numbers(), 0.0, -inf
    for order, count, split, step, event in ticks:
        now += step
        before, last = numbers.order, pressed
        if event in ("key", "moves"):
            numbers.press(now)
        if event:
            pressed = now
        listed = order[:count]
        numbers.take(listed[:split], listed[split:], now, anew=event == "moves", held=event == "dialog")
        assert len(set(numbers.order)) == len(numbers.order)
        assert set(listed) <= set(numbers.order)
        quiet = now - (last if event == "moves" else pressed) >= 2.0 and event != "dialog"
        if quiet:
            assert set(numbers.order) == set(listed)
        elif listed:
            assert numbers.order[: len(before)] == before


def judged(*proposals: Proposal, attacks: Sequence[Incident] = SCENE.judgement.attacks) -> Snapshot:
    judgement = replace(SCENE.judgement, attacks=tuple(attacks), proposals=proposals)
    return replace(SCENE, judgement=judgement)


def test_one_rule_against_two_attacks_is_listed_once_and_says_so() -> None:
    other = replace(ATTACK, id=900, letter="Z")
    twin = replace(BEST, key="twin", incident=other.id)
    both = judged(*SCENE.judgement.proposals, twin, attacks=(*SCENE.judgement.attacks, other))
    made = ProposalList()
    made.take(both, 0, 0.0)
    assert "twin" not in [one.key for one in made.listed]
    assert list(made.shared.values()) == ["Z"]
    assert "Z" in made.letters()
    made.take(both, other.id, 10.0)
    assert "twin" in [one.key for one in made.listed], "of the chosen attack its own is listed"


def test_what_has_paused_makes_room_for_what_another_firewall_stops() -> None:
    """Otherwise 1 would be against an attack that is over, while another goes on."""
    stopped = replace(ATTACK, id=900, letter="Z", other_share=1.0, mine_share=0.0, kernel_share=0.0)
    gre = replace(BEST, key="gre", incident=900, rule=replace(RULE, match=Match(protocol=47)))
    proposals = (*SCENE.judgement.proposals, gre)
    made = ProposalList()
    made.take(judged(*proposals, attacks=(ATTACK, stopped)), 0, 0.0)
    assert made.listed[0].key == BEST.key
    for at in (10.0, 20.0):
        made.take(judged(*proposals, attacks=(replace(ATTACK, paused=SCENE.at), stopped)), 0, at)
    assert made.listed[0].key == "gre"


def test_what_a_rule_stops_makes_room_at_once_for_the_next_attack() -> None:
    """It was out of the way since long: 1 stayed against it for 2.5 s of the second attack."""
    held = replace(ATTACK, mine_share=1.0, other_share=0.0, kernel_share=0.0)
    second = replace(ATTACK, id=900, letter="Z", mine_share=0.0, other_share=0.0, kernel_share=0.0)
    new = replace(BEST, key="new", incident=900, rule=replace(RULE, match=Match(protocol=47)))
    made = ProposalList()
    for at in (0.0, 5.0):
        made.take(judged(BEST, attacks=(held,)), 0, at)
    made.take(judged(new, BEST, attacks=(second, held)), 0, 10.0)
    assert made.listed[0].key == "new"


def test_one_that_would_cut_clients_loses_its_place_at_once_to_one_that_would_not() -> None:
    clean = replace(BEST, key="clean", collateral_share=0.0)
    cuts = replace(BEST, key="cuts", collateral_share=0.12, rule=replace(RULE, match=Match(protocol=6)))
    made = ProposalList()
    for at, proposals in ((0.0, (cuts, clean)), (10.0, (cuts, clean)), (11.0, (clean, cuts))):
        made.take(judged(*proposals), 0, at)
    assert made.listed[0].key == "clean"
    other = replace(BEST, key="other", rule=replace(RULE, match=Match(protocol=17)))
    made.take(judged(other, clean), 0, 20.0)
    assert made.listed[0].key == "clean", "a better one that harms as little waits"
    made.take(judged(other, clean), 0, 30.0, seen=False)
    assert made.listed[0].key == "other", "but not for who doesn't see the list"


def test_what_is_folded_has_no_number_before_what_is_not() -> None:
    """Once a rule did what was first, 1 was relief at the end of the list, which began with 4."""
    relief = replace(BEST, key="relief", rule=replace(RULE, mode=Mode.COUNT))
    other = replace(BEST, key="other", rule=replace(RULE, match=Match(protocol=17)))
    made = ProposalList()
    for at, proposals in ((0.0, (BEST, relief)), (10.0, (BEST, relief, other)), (20.0, (other, relief))):
        made.take(judged(*proposals), 0, at)
    assert [one.key for one in made.listed] == ["other", "relief"]
