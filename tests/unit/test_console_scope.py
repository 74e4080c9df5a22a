"""What rules of a console add up to, and how many it may have."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.records.journal import Entry
from fwtop.guardian.rules.guard import made_by_consoles, why_not_for_console
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_rows import PrefixRows
from fwtop.model.console_scope import CONSOLE, MAX_RULES
from fwtop.model.rule import Kind, Match, Range, RateLimit, Rule, State
from fwtop.rehearsal.breadth import why_broad_together
from fwtop.rehearsal.host import Host

NOBODY = AllowList(())


def why_broad(rule: Rule, active: dict[str, Entry], allow: AllowList) -> str | None:
    found = why_broad_together(rule, made_by_consoles(active), Host(allow))
    return found and found.words


def rule(first: int = 20, count: int = 31, kind: Kind = Kind.IPSET, **conditions: object) -> Rule:
    sources = tuple(Prefix(4, (first + at) << 24, 8) for at in range(count))
    match = Match(sources=sources, **conditions)
    return Rule("", kind, match, "x", 600, origin="country:XX", created_by=f"{CONSOLE}key")


def active(*rules: Rule) -> dict[str, Entry]:
    ends = time.monotonic() + 600
    named = [replace(item, id=str(number)) for number, item in enumerate(rules)]
    return {item.id: Entry(item, "nft", State.CONFIRMED, ends) for item in named}


WIDE = {
    "the same conditions": (rule(60), [rule()]),
    "a wider one before": (rule(60, protocol=6), [rule()]),
    "a narrower one before": (rule(60), [rule(protocol=6)]),
    "four of them": (rule(116, 12), [rule(20, 12), rule(52, 12), rule(84, 12)]),
    "a long list": (rule(60), [replace(rule(), match=Match(sources=PrefixRows.of(rule().match.sources)))]),
    "a playbook": (rule(60), [Rule("", Kind.HARDEN, Match(), "x", 600, created_by=CONSOLE, parts=(rule(),))]),
}
NARROW = {
    "the same sources": (rule(), [rule()]),
    "another port of each": (rule(60, protocol=6, dport=80), [rule(protocol=6, dport=443)]),
    "a limit that leaves enough": (
        rule(60),
        [replace(rule(kind=Kind.HASHLIMIT), limit=RateLimit(1000, 1000))],
    ),
    "the operator's own": (rule(60), [replace(rule(), created_by="cli")]),
}


@pytest.mark.parametrize("case", WIDE)
def test_rules_that_are_narrow_alone_are_too_wide_together(case: str) -> None:
    new, others = WIDE[case]
    assert why_broad(new, {}, NOBODY) is None
    assert "from more than an eighth of all addresses" in why_broad(new, active(*others), NOBODY)


@pytest.mark.parametrize("case", NARROW)
def test_rules_that_do_not_add_up_are_not_added_up(case: str) -> None:
    new, others = NARROW[case]
    assert why_broad(new, active(*others), NOBODY) is None


def test_ranges_add_up_unless_most_is_left() -> None:
    def sized(low: int, high: int) -> Rule:
        return replace(rule(kind=Kind.XDP), match=Match(protocol=17, ip_length=Range(low, high)))

    before = active(sized(40, 480), sized(900, 1500))
    assert "all UDP" in why_broad(sized(481, 899), before, NOBODY)
    assert why_broad(sized(1490, 1500), active(sized(40, 50)), NOBODY) is None


def test_the_number_of_a_consoles_rules_is_bounded() -> None:
    assert MAX_RULES > 64, "so many automatic rules there may be, and keys have room beside them"
    others = active(*[rule()] * MAX_RULES)
    assert "undo some first" in (why_not_for_console(rule(60), others) or "")
    assert why_not_for_console(rule(60), dict(list(others.items())[1:])) is None
