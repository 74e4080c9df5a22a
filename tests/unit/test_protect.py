"""Protected ports without a kernel: what a rule consists of, in which order, and who would be cut off."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest
from msgspec.structs import replace

from fwtop.cli.rules import protect as verb
from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import Session
from fwtop.guardian.mechanisms.chains.table_raw import Listed, TableState, add_text
from fwtop.guardian.rules import guard
from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Level, Match, Protection, Rule
from fwtop.rehearsal.operators import why_locked_out
from fwtop.rules.kind import Surroundings
from fwtop.rules.kinds import command_line, protect
from fwtop.rules.kinds.protect import protection_text
from fwtop.rules.words import summarise

OFFICE = (Prefix.parse("198.51.100.0/24"),)
PEER = Prefix.parse("203.0.113.9")


def rule(level: Level = Level.PROTECTED, rule_id: str = "5", protocol: int = 6, **fields: Any) -> Rule:
    protection = Protection(level, fields.pop("lists", ("office",)), **fields)
    match = Match(protocol=protocol, dport=443)
    return Rule(rule_id, Kind.PROTECT, match, "x", 60, protection=protection)


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    verb.arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(("level", "filled"), [("open", {"on", "pass"}), ("protected", {"on"}),
                                               ("closed", {"on", "shut"})])  # fmt: skip
@pytest.mark.parametrize("protocol", [6, 17])
def test_a_level_is_which_enable_sets_are_filled(level: str, filled: set[str], protocol: int) -> None:
    made = protect.build(rule(Level(level), protocol=protocol), Surroundings(lists={"office": OFFICE}))
    own = [spec for spec in made.sets if not spec.shared and spec.seeds is None]
    assert {spec.name[len("fwtop-5-") : -1] for spec in own if spec.elements} == filled
    other = protect.build(rule(Level.OPEN, protocol=protocol), Surroundings(lists={"office": OFFICE}))
    assert made.lines == other.lines, "the lines of all levels are in"


@pytest.mark.parametrize(
    ("behind", "first"), [(frozenset(), 1), (frozenset({"7"}), 3), (frozenset({"7", "8"}), 4)]
)
def test_lines_come_behind_those_of_higher_priority(behind: frozenset[str], first: int) -> None:
    there = [Listed(rule_id, number, 0, 0) for number, rule_id in enumerate(("7", "7", "8", "3"), 1)]
    made = protect.build(rule(), Surroundings(lists={"office": OFFICE}, higher=behind))
    lines = [line for line in made.lines if line.family == 4]
    text = add_text(TableState(chains={"FWTOP-PORTS": there}), 4, lines)
    places = [int(line.split()[2]) for line in text.splitlines() if line.startswith("-I FWTOP-PORTS")]
    assert places == list(range(first, first + len(lines)))


def test_of_several_rules_on_ports_the_highest_comes_first_and_of_one_priority_the_newest() -> None:
    active = [rule(rule_id=name, priority=priority) for name, priority in (("1", 5), ("2", 9), ("3", 5))]
    assert guard.deciding_before(rule(rule_id="0", priority=5), active) == {"2"}
    assert guard.deciding_before(active[0], active) == {"2", "3"}
    assert guard.deciding_before(active[1], active) == frozenset()


@pytest.mark.parametrize(
    ("wanted", "listed", "cut"),
    [
        (rule(Level.OPEN), (), False),
        (rule(Level.CLOSED), (PEER,), True),
        (rule(Level.PROTECTED), OFFICE, True),
        (rule(Level.PROTECTED), (Prefix.parse("203.0.113.0/24"),), False),
        (rule(Level.CLOSED, protocol=17), (), False),
        (replace(rule(Level.CLOSED), match=Match(family=6, protocol=6, dport=443)), (), False),
    ],
)
def test_who_is_logged_in_must_be_able_to_log_in_again(
    wanted: Rule, listed: tuple[Prefix, ...], cut: bool
) -> None:
    session = Session(PEER, 50022, 443).allowed("ssh")
    why = why_locked_out(wanted, AllowList((session,)), lambda _: listed)
    assert (why is not None) == cut
    named = AllowList((session, AllowedPeer(PEER, reason="/etc/fwtop/allow")))
    assert why_locked_out(wanted, named, lambda _: listed) is None


@pytest.mark.parametrize(
    "words",
    ["443/tcp --acl office vpn", "53/udp -6 --level closed --strict --priority 7", "8080/tcp --level open"],
)
def test_the_command_line_of_a_rule_makes_it_again(words: str) -> None:
    made = verb.rules_of(arguments(*words.split()))[0]
    line = command_line(made)
    assert line is not None
    again = verb.rules_of(arguments(*shlex.split(line)[2:]))[0]
    assert again == made
    assert rule_of_wire(made.to_dict()) == made


def test_a_rule_is_named_by_its_level_and_lists() -> None:
    assert summarise(rule(lists=("office", "vpn"), strict=True)) == (
        "protected, open to lists office and vpn, strict: TCP to port 443"
    )
    assert protection_text(Protection(Level.CLOSED, (), 7)) == "closed, priority 7"


def test_another_level_keeps_the_access_lists_and_protected_needs_some() -> None:
    old = rule(rule_id="9", priority=verb.DEFAULT_PRIORITY)
    closed, bare = (
        verb.rules_of(arguments("443/tcp", "--level", level))[0] for level in ("closed", "protected")
    )
    new = verb.in_place_of(closed, [old])
    assert (new.replaces, new.protection) == ("9", Protection(Level.CLOSED, ("office",), 100))
    assert verb.in_place_of(bare, [old]).replaces == "9"
    with pytest.raises(FwtopError, match="needs --acl"):
        verb.in_place_of(bare, [replace(old, protection=None)])


def test_another_level_lasts_as_long_as_the_one_before_unless_said_otherwise() -> None:
    old = replace(rule(rule_id="9", priority=verb.DEFAULT_PRIORITY), ttl_seconds=86_400)
    closed = verb.rules_of(arguments("443/tcp", "--level", "closed"))[0]
    assert verb.in_place_of(closed, [old], keep_ttl=True).ttl_seconds == 86_400
    assert verb.in_place_of(closed, [old]).ttl_seconds == closed.ttl_seconds == 600


@pytest.mark.parametrize(("words", "strict"), [((), True), (("--no-strict",), False), (("--strict",), True)])
def test_another_level_is_as_strict_as_the_one_before_unless_said_otherwise(
    words: tuple[str, ...], strict: bool
) -> None:
    old = rule(rule_id="9", priority=verb.DEFAULT_PRIORITY, strict=True)
    args = arguments("443/tcp", "--level", "closed", *words)
    closed = verb.rules_of(args)[0]
    new = verb.in_place_of(closed, [old], keep_strict=args.strict is None)
    assert new.protection == Protection(Level.CLOSED, ("office",), 100, strict)


@pytest.mark.parametrize("wrong", [
    rule(lists=()), rule(priority=1001), rule(strict=1), rule(lists=("a",) * 2),
    replace(rule(), protection=None), replace(rule(), match=Match(protocol=6)),
])  # fmt: skip
def test_the_guardian_refuses_what_no_rule_can_be(wrong: Rule) -> None:
    with pytest.raises(FwtopError, match="not a rule"):
        rule_of_wire(wrong.to_dict())
