"""Alarms about rules and sets: when they begin and end, and the commands that mend them."""

from __future__ import annotations

import subprocess

import pytest

from fwtop.analysis.rule_readings import (
    RATE_HIGH,
    RATE_LOW,
    SET_FULL,
    RatedRule,
    RuleAlarms,
    rate_alarm,
    set_alarm,
)
from fwtop.model.ruleset import (
    IPSET,
    IPTABLES_LEGACY,
    IPTABLES_NFT,
    NFT,
    ROUTE,
    TC,
    ListedRule,
    ListedSet,
    Ruleset,
)
from fwtop.netfilter.listing.reader import ANSWERED_RULES, cut, encoded


def rated(abnormal: str = "", *, source: str = NFT, family: str = "inet", place: str = "t c") -> RatedRule:
    rule = ListedRule("k", source, family, place, "drop", False, 5, 5)
    return RatedRule(rule, 7000.0, None, (), 100.0, abnormal)


def a_set(entries: int, name: str = "bad", source: str = IPSET) -> ListedSet:
    return ListedSet(f"ipset {name}", source, "ip", name, "hash:ip", False, entries, 1000)


def test_an_alarm_begins_once_and_ends_once() -> None:
    alarms = RuleAlarms()
    steps = [alarms.take([rated(state)], []) for state in ("", "high", "high", "")]
    assert [[(change.began, change.alarm.kind) for change in step] for step in steps] == [
        [],
        [(True, RATE_HIGH)],
        [],
        [(False, RATE_HIGH)],
    ]


@pytest.mark.parametrize(
    ("source", "text", "ours", "told"),
    [
        (IPTABLES_NFT, "-j FWTOP", True, False),
        (IPTABLES_LEGACY, "-m set --match-set fwtop-known4 src -g FWTOP-ROLES", True, False),
        (IPTABLES_NFT, "-i lo -j RETURN", True, False),
        (NFT, 'udp dport 9 jump r1-4 comment "fwtop-1"', True, False),
        (NFT, "meta protocol ip goto rules4", True, False),
        (TC, "program 7 fwtop_ingress", True, False),
        (IPTABLES_NFT, "-m set --match-set fwtop-1-4 src -j DROP", True, True),
        (NFT, "meta protocol @r1-on counter drop", True, True),
        (IPTABLES_NFT, "-j ufw-before-input", False, True),
        (NFT, "jump filter_INPUT", False, True),
    ],
)
def test_what_leads_to_fwtops_rules_counts_all_traffic_and_is_not_told(
    source: str, text: str, ours: bool, told: bool
) -> None:
    rule = ListedRule("k", source, "ip", "raw FWTOP", text, ours, 5, 5)
    changes = RuleAlarms().take([RatedRule(rule, 7000.0, None, (), 100.0, "high")], [])
    assert bool(changes) == told


def test_a_set_about_the_limit_does_not_flicker() -> None:
    alarms = RuleAlarms()
    steps = [alarms.take([], [a_set(count)]) for count in (899, 900, 880, 900, 860, 849)]
    assert [[change.began for change in step] for step in steps] == [[], [True], [], [], [], [False]]


def test_a_set_that_is_gone_ends_its_alarm() -> None:
    alarms = RuleAlarms()
    assert alarms.take([], [a_set(990)])[0].alarm.kind == SET_FULL
    assert [change.began for change in alarms.take([], [])] == [False]


@pytest.mark.parametrize(
    ("item", "command"),
    [
        (rated("low"), "nft list chain inet t c"),
        (
            rated("low", source=IPTABLES_LEGACY, family="ip", place="raw PREROUTING"),
            "iptables-legacy -t raw -nvL PREROUTING",
        ),
        (
            rated("high", source=IPTABLES_NFT, family="ip6", place="filter INPUT"),
            "ip6tables-nft -t filter -nvL INPUT",
        ),
        (rated("high", source=ROUTE, place="main"), ""),
        (rated("high", place="t c·"), ""),
        (rated("high", place="t ;reboot"), "nft list chain inet t ';reboot'"),
    ],
)
def test_the_command_shows_the_chain_and_never_what_was_replaced(item: RatedRule, command: str) -> None:
    alarm = rate_alarm(item)
    assert alarm.mend == command
    assert alarm.kind == (RATE_HIGH if item.abnormal == "high" else RATE_LOW)


@pytest.mark.parametrize("name", ["bad", "a.b*c", "x'$(reboot)`y", "w" * 31, "a/b&c"])
def test_the_command_for_a_full_set_makes_a_larger_copy(name: str) -> None:
    saved = f"create {name} hash:ip family inet maxelem 1000\nadd {name} 192.0.2.1\nadd {name}2 192.0.2.2\n"
    mend = set_alarm(a_set(950, name)).mend
    sed = mend.split(" | ")[1]
    done = subprocess.run(["sh", "-c", sed], input=saved, capture_output=True, text=True, check=True)
    larger = f"{name[:26]}-more"
    assert done.stdout.splitlines() == [
        f"create {larger} hash:ip family inet maxelem 2000",
        f"add {larger} 192.0.2.1",
        f"add {name}2 192.0.2.2",
    ]


@pytest.mark.parametrize("name", ["a·b", "-x", "cut…"])
def test_there_is_no_command_for_a_name_that_is_not_the_kernels(name: str) -> None:
    assert set_alarm(a_set(950, name)).mend == ""


def test_a_long_rule_set_is_cut_to_what_matters() -> None:
    rules = tuple(
        ListedRule(f"k{number}", NFT, "ip", "t c", "x" * 400, number == 3, number, None)
        for number in range(9000)
    )
    found = Ruleset(1.0, rules, tuple(a_set(1, f"s{number}") for number in range(2000)), (), 9000)
    before = {f"k{number}": number for number in range(9000)} | {"k7": 2}
    shown = cut(found, before, 100)
    keys = [rule.key for rule in shown.rules]
    assert len(keys) == 100
    assert {"k3", "k7", "k8999"} <= set(keys)
    assert keys == sorted(keys, key=lambda key: int(key[1:]))
    assert any("9,000" in note for note in shown.notes)
    assert any("2,000 sets" in note for note in shown.notes)


def test_an_answer_fits_into_a_message_whatever_the_texts() -> None:
    rules = tuple(
        ListedRule(f"{'·' * 150}{number}", NFT, "ip", "·" * 64, "·" * 400, False, 1, 1)
        for number in range(3000)
    )
    assert len(encoded(Ruleset(1.0, rules, (), (), 3000), {})) < 1 << 20
    few = Ruleset(1.0, rules[:5], (), (), 5)
    assert cut(few, {}, ANSWERED_RULES) == few
