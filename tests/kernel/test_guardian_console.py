"""A console that was taken over gets what its keys need: each request of the protocol is tried as one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import get_args

import pytest
from guardian_bench import Bench, apply, rules_of
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.console_scope import MAX_TRIAL_SECONDS, MAX_TTL_SECONDS
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import (
    Apply,
    Changes,
    Connect,
    FleetConfirm,
    FleetDocument,
    FleetStatus,
    Hello,
    Keep,
    KnownClients,
    ListChange,
    ListRead,
    ListShow,
    ListTest,
    Plan,
    PolicyChange,
    PolicyRead,
    Renew,
    Repair,
    Request,
    Rescan,
    RuleChange,
    RuleMode,
    RuleRead,
    Rules,
    Seen,
    Status,
    Summary,
    Survey,
    Symbols,
    Tracked,
    Undo,
    Watch,
    Why,
)
from fwtop.model.rule import POLICY, POLICY_TRIAL, Kind, Level, Match, Mode, Protection, Range, Rule

pytestmark = pytest.mark.kernel
POLICY_TEXT = """schema = 1
[[port]]
service = ["80/tcp", "443/tcp"]
level = "closed"
priority = 1000
"""
RULE = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("192.0.2.7"),)), "x", 600, created_by="key")
CLOSED = Rule(
    "",
    Kind.PROTECT,
    Match(protocol=6, dport=443),
    "x",
    600,
    protection=Protection(Level.CLOSED, priority=1000),
)
OTHER = replace(RULE, match=Match(sources=(Prefix.parse("192.0.2.77"),)))
# Every request, the way the console is to get it or not.
SAMPLES: dict[type[Request], tuple[Request, bool]] = {
    Hello: (Hello("console"), False),  # a second one: nobody changes his role
    Connect: (Connect(), True),
    Watch: (Watch(("lo",)), True),
    Rescan: (Rescan(), True),
    Survey: (Survey(), True),
    Symbols: (Symbols(), True),
    Tracked: (Tracked((("192.0.2.1", 40_000, "192.0.2.2", 443),)), True),
    Rules: (Rules(), True),
    RuleRead: (RuleRead("1"), True),
    Status: (Status(), True),
    Why: (Why("1"), True),
    Plan: (Plan(RULE.to_dict()), True),
    Apply: (Apply(replace(RULE, match=Match(sources=(Prefix.parse("192.0.2.8"),))).to_dict(), 30), True),
    Keep: (Keep("1", 600), True),
    Repair: (Repair("1"), True),
    RuleMode: (RuleMode(("7",), Mode.COUNT), True),
    RuleChange: (RuleChange("1", RULE.to_dict()), True),
    Renew: (Renew("1"), False),
    Seen: (Seen(()), True),
    KnownClients: (KnownClients(()), True),
    Changes: (Changes(), False),
    Undo: (Undo(("1",)), True),
    ListChange: (ListChange("x", "create", entries=("192.0.2.1",)), False),
    ListShow: (ListShow(), False),
    ListTest: (ListTest("x", "192.0.2.1"), False),
    ListRead: (ListRead("read"), True),  # to compare samples with a rule on it
    PolicyRead: (PolicyRead("history"), False),
    PolicyChange: (PolicyChange("apply", POLICY_TEXT, confirm_seconds=0), False),
    Summary: (Summary(1.0, "CALM", 0.0, 0.0, 0.0, 0.0), True),
    FleetDocument: (FleetDocument("{}", ("",)), False),
    FleetConfirm: (FleetConfirm("{}", ""), False),
    FleetStatus: (FleetStatus(), False),
}


@pytest.fixture(scope="module")
def bench(shared_pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(shared_pair, tmp_path_factory.mktemp("guardian"))
    with made.connect():
        yield made
    made.close()


@pytest.fixture
def console(bench: Bench) -> Iterator[GuardianClient]:
    with bench.connect("console") as console:
        yield console
    with bench.connect() as cli:
        assert not cli.demand(ListShow()).data["lists"]
        cli.demand(Undo(all=True))


def refused(console: GuardianClient, request: Request) -> str:
    answer = console.request(request)
    assert not answer.ok, f"{request} was done"
    return answer.error


def test_a_console_gets_the_requests_of_its_table_and_no_other(bench: Bench, console: GuardianClient) -> None:
    assert set(SAMPLES) == set(get_args(Request)), "a new request needs a decision"
    assert {kind for kind, (_, allowed) in SAMPLES.items() if allowed} | {Hello} == {
        kind for kind in get_args(Request) if kind.for_console
    }
    with bench.connect() as cli:
        number = apply(cli, RULE)
        cli.demand(ListChange("read", "create", entries=("198.51.100.1",)))
        assert "only lists that rules are on" in refused(console, ListRead("read"))
        counting = apply(cli, replace(RULE, match=Match(), origin="list:read", mode=Mode.COUNT))
    of_rule = {
        RuleRead: RuleRead(number),
        Why: Why(number),
        Keep: Keep(number),
        Repair: Repair(number),
        RuleMode: RuleMode((number,), Mode.COUNT),
        RuleChange: RuleChange(number, replace(OTHER, mode=Mode.COUNT).to_dict()),
        Undo: Undo((number,)),
    }
    for kind, (sample, allowed) in SAMPLES.items():
        request = of_rule.get(kind, sample)
        answer, descriptors = console._connection.exchange(request, 60)
        for descriptor in descriptors:
            os.close(descriptor)
        assert answer.ok == allowed, f"{kind.__name__}: {answer.error}"
        if not allowed and kind is not Hello:
            assert answer.code == 3
            assert f"a screen may not ask for {kind.__name__.lower()}" in answer.error
            assert "in another terminal: sudo fwtop " in answer.error
    with bench.connect() as cli:
        cli.demand(Undo((counting,)))
        cli.demand(ListChange("read", "delete"))


WRONG = {
    "kept at once": (Apply(RULE.to_dict(), 0), "a screen's rules are on trial first"),
    "changed at once": (RuleChange("1", OTHER.to_dict(), 0), "a screen's rules are on trial first"),
    "a long trial": (Apply(RULE.to_dict(), MAX_TRIAL_SECONDS + 1), "a screen's rules are on trial first"),
    "23 days": (Apply(replace(RULE, ttl_seconds=23 * 86_400).to_dict(), 30), "--ttl 23d"),
    "a closed port": (
        Apply(CLOSED.to_dict(), 30),
        "sudo fwtop protect 443/tcp --level closed --priority 1000",
    ),
    "its plan": (Plan(CLOSED.to_dict()), ""),
    "mended": (Apply(replace(RULE, mended=True).to_dict(), 30), "mended: a screen may not"),
    "everything taken back": (Undo(all=True), "a screen takes rules back one by one"),
    "kept for long": (Keep("1", MAX_TTL_SECONDS + 1), "a screen's rules stay for a day at most"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_key_needs_is_refused_with_the_command_for_it(case: str, console: GuardianClient) -> None:
    request, said = WRONG[case]
    if isinstance(request, Plan):
        assert "may not protect ports; in another terminal" in console.demand(request).data["refused"]
        return
    error = refused(console, request)
    assert said in error
    assert not rules_of(console)


def slash_8s(first: int, count: int) -> tuple[Prefix, ...]:
    return tuple(Prefix(4, (first + at) << 24, 8) for at in range(count))


def test_rules_of_a_console_add_up(bench: Bench, console: GuardianClient) -> None:
    """Four of 31 /8s are as wide as one of 124, however each differs from the others."""
    first = replace(RULE, match=Match(sources=slash_8s(20, 31)), origin="country:XX")
    apply(console, first, 30)
    wider = [
        replace(first, match=Match(sources=slash_8s(60, 31))),
        replace(first, kind=Kind.XDP, match=Match(sources=slash_8s(60, 31), protocol=6)),
        replace(first, kind=Kind.NFTABLES, match=Match(sources=slash_8s(60, 31), family=4)),
    ]
    for rule in wider:
        plan = console.demand(Plan(rule.to_dict())).data
        assert "together with the active rules of screens" in plan["refused"]
        for force in (False, True):
            error = refused(console, Apply(rule.to_dict(), 30, force=force))
            assert "from more than an eighth of all addresses" in error
            assert "--force" in error
    with bench.connect() as cli:  # which is root's, and may
        apply(cli, wider[0])
    replaced = replace(first, match=Match(sources=slash_8s(100, 31)), replaces=next(iter(rules_of(console))))
    assert "from more than an eighth" in refused(console, Apply(replaced.to_dict(), 30)), (
        "both act for a while"
    )
    assert len(rules_of(console)) == 2


def test_ranges_of_a_console_add_up(console: GuardianClient) -> None:
    parts = [Range(40, 480), Range(481, 900), Range(901, 1500)]
    made = [replace(RULE, kind=Kind.XDP, match=Match(protocol=17, ip_length=part)) for part in parts]
    apply(console, made[0], 30)
    assert "it matches all UDP" in refused(console, Apply(made[1].to_dict(), 30))
    apply(console, replace(made[2], match=Match(protocol=17, ip_length=Range(1400, 1500))), 30)


@pytest.mark.parametrize("kind", ["policy", "trial", "port"])
def test_rules_of_policies_and_ports_are_not_a_consoles(
    kind: str, bench: Bench, console: GuardianClient
) -> None:
    owner = {"policy": POLICY, "trial": POLICY_TRIAL, "port": "cli"}[kind]
    rule = CLOSED if kind == "port" else RULE
    with bench.connect() as cli:
        number = apply(cli, replace(rule, created_by=owner))
    part = "a protected port" if kind == "port" else "the policy"
    successor = replace(RULE, match=Match(sources=(Prefix.parse("192.0.2.9"),)), replaces=number)
    for request, words in (
        (Undo((number,)), f"sudo fwtop undo {number}"),
        (Keep(number), f"sudo fwtop keep {number}"),
        (Apply(successor.to_dict(), 30), "sudo fwtop block 192.0.2.9"),
    ):
        error = refused(console, request)
        assert f"part of {part}" in error
        assert words in error
        assert f"--netns {bench.netns}" in error
    assert list(rules_of(console)) == [number]
    assert console.demand(Repair(number)), "to put something back harms nobody"


def test_the_history_says_who_asked(bench: Bench, console: GuardianClient) -> None:
    claims = ("key", "policy", "policy trial", "console: key", "program of user 0", "")
    mine: set[str] = set()
    for last, claim in enumerate(claims, 10):
        source = (Prefix(4, (192 << 24) + (2 << 8) + last, 32),)
        rule_id = apply(console, replace(RULE, match=Match(sources=source), created_by=claim), 30)
        console.demand(Undo((rule_id,)))
        mine.add(rule_id)
    with bench.connect() as cli:
        ended = {key: item for key, item in rules_of(cli, finished=True).items() if key in mine}
        made = [item["rule"]["created_by"] for item in ended.values() if item["note"] == "undone by console"]
    wanted = {f"console: {claim.removeprefix('console: ')}" for claim in claims}
    assert set(made) == wanted


def test_what_a_console_changes_is_as_before_once_it_has_gone(bench: Bench, poll_until) -> None:
    with bench.connect() as cli:
        number = apply(cli, RULE)
        with bench.connect("console") as console:
            status = console.demand(RuleChange(number, OTHER.to_dict(), 30)).data["status"]
            assert (status["rule"]["match"]["sources"], status["state"]) == (["192.0.2.77"], "provisional")
        poll_until(lambda: rules_of(cli)[number]["state"] == "confirmed")
        assert rules_of(cli)[number]["rule"]["match"] == RULE.to_dict()["match"] | {"family": None}
        cli.demand(Undo((number,)))


def test_a_policy_of_a_console_changes_nothing(bench: Bench, console: GuardianClient) -> None:
    with pytest.raises(FwtopError, match="a screen may not ask for policychange"):
        console.demand(PolicyChange("apply", POLICY_TEXT, confirm_seconds=0))
    assert not rules_of(console)
    assert "fwtop" not in bench.pair.victim.run("nft", "list", "ruleset").stdout
