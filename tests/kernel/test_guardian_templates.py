"""Rules that a program reads and writes back: whole or refused, with the time they have, and never twice."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from guardian_bench import Bench, apply, rules_of
from msgspec.structs import replace

from fwtop.client import program
from fwtop.client.program import Program
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Keep, ListChange, ListShow, Plan, Undo
from fwtop.model.rule import Kind, Match, RateLimit, Rule, Setting

pytestmark = pytest.mark.kernel
PAIR = "shared_pair"


@pytest.fixture
def fwtop(bench: Bench, poll_until) -> Iterator[Program]:
    bench.connect().close()
    if not bench.servers:
        bench.serve_stream(poll_until)
    with program.connect(bench.netns, run_directory=bench.directory) as connected:
        yield connected


def listed(count: int) -> Rule:
    sources = tuple(Prefix(4, (11 << 24) + 16 * number, 32) for number in range(count))
    return Rule("", Kind.IPSET, Match(sources=sources), "a list", 600)


@pytest.mark.parametrize("count", [1_000, 6_000])
def test_a_rule_read_and_written_back_is_whole_or_refused(count: int, bench: Bench, fwtop: Program) -> None:
    """As docs/API.md recommends; from `status` alone 200 sources would be left."""
    rule_id = fwtop.apply(listed(count).to_dict(), confirm_seconds=0)["rule"]["id"]
    [shown] = fwtop.status()["rules"]
    assert len(shown["rule"]["match"]["sources"]) == 200
    assert shown["rule"]["match"]["sources_left"] == count - 200
    with pytest.raises(
        FwtopError, match=f"match.sources_left: {count - 200} sources are left out here; 'ruleread'"
    ):
        fwtop.apply({**shown["rule"], "replaces": rule_id, "ttl_seconds": 900}, confirm_seconds=0)
    assert list(rules_of_program(fwtop)) == [rule_id]
    whole = fwtop.rule(rule_id)
    successor = fwtop.apply({**whole, "replaces": rule_id, "ttl_seconds": 900}, confirm_seconds=0)
    [now] = fwtop.status()["rules"]
    assert now["sources_total"] == count
    assert (now["rule"]["id"], now["rule"]["ttl_seconds"]) == (successor["rule"]["id"], 900)
    entries = bench.pair.victim.run("ipset", "list", f"fwtop-{now['rule']['id']}-4").stdout
    assert f"Number of entries: {count}" in entries


def rules_of_program(fwtop: Program) -> dict[str, dict]:
    return {item["rule"]["id"]: item for item in fwtop.status()["rules"]}


def test_what_is_not_kept_of_an_ended_rule_is_told(fwtop: Program, poll_until) -> None:
    rule_id = fwtop.apply(listed(1_000).to_dict(), confirm_seconds=0)["rule"]["id"]
    fwtop.undo(rule_id)

    def ended() -> dict:
        return next(item for item in fwtop.status(finished=True)["rules"] if item["rule"]["id"] == rule_id)

    assert poll_until(lambda: len(ended()["rule"]["match"]["sources"]) == 200)
    assert ended()["sources_total"] == 1_000
    with pytest.raises(FwtopError, match="has ended, and 800 of its sources are not kept"):
        poll_until(lambda: not fwtop.rule(rule_id))
    with pytest.raises(FwtopError, match="sources are left out here"):
        fwtop.apply(ended()["rule"])


def test_a_rule_on_a_list_is_read_and_written_back(fwtop: Program) -> None:
    fwtop.change_list("create", "bots", ["192.0.2.0/24"])
    rule = {"kind": "ipset", "origin": "list:bots", "match": {}, "summary": "bots", "ttl_seconds": 600}
    rule_id = fwtop.apply(rule, confirm_seconds=0)["rule"]["id"]
    assert fwtop.rule(rule_id)["match"]["sources"] == []
    fwtop.apply({**fwtop.rule(rule_id), "replaces": rule_id}, confirm_seconds=0)
    with pytest.raises(FwtopError, match=r"match\.sources: those of a rule on a list are the list's"):
        fwtop.apply({**rule, "match": {"sources": ["192.0.2.7"]}})
    fwtop.undo(*rules_of_program(fwtop))
    fwtop.change_list("delete", "bots")


def test_keep_sets_the_time_that_is_told(bench: Bench) -> None:
    with bench.connect() as guardian:
        rule_id = apply(guardian, bench.block_rule(4, ttl=300))
        status = guardian.demand(Keep(rule_id, 900)).data["status"]
        assert status["rule"]["ttl_seconds"] == 900
    bench.kill_guardian()
    with bench.connect() as successor:
        assert rules_of(successor)[rule_id]["rule"]["ttl_seconds"] == 900
        again = successor.demand(Keep(rule_id)).data["status"]
        assert again["expires"] - again["counted_at"] > 800, "for as long as it was kept before"


DOUBLES = {
    "sources": Rule("", Kind.IPSET, listed(3).match, "x", 600),
    "in another order": replace(listed(3), match=Match(sources=listed(3).match.sources[::-1])),
    "of a file": replace(listed(6_000), origin="@list"),
    "fields": Rule("", Kind.XDP, Match(protocol=17, dport=9), "x", 600),
    "a limit": Rule("", Kind.HASHLIMIT, Match(protocol=17, dport=9), "x", 600, limit=RateLimit(100, 100)),
    "a setting": Rule("", Kind.SYSCTL, Match(), "x", 600, settings=(Setting("net.ipv4.tcp_syncookies", 1),)),
}


@pytest.mark.one_each("in another order", "of a file", "a setting")
@pytest.mark.parametrize("case", DOUBLES)
def test_the_same_rule_is_not_installed_twice(case: str, bench: Bench) -> None:
    rule = DOUBLES[case]
    with bench.connect() as guardian:
        first = replace(rule, match=listed(3).match) if case == "in another order" else rule
        rule_id = guardian.apply(first, 0).data["status"]["rule"]["id"]
        with pytest.raises(
            FwtopError, match=f"refused: rule {rule_id} does this already: 'fwtop keep {rule_id}'"
        ):
            guardian.apply(replace(rule, summary="y", ttl_seconds=90), 0)
        if case != "of a file":
            assert f"rule {rule_id} does this" in guardian.demand(Plan(rule.to_dict())).data["refused"]
        assert list(rules_of(guardian)) == [rule_id]
        if rule.kind is Kind.SYSCTL:  # which can't be replaced while it lasts
            return
        successor = guardian.apply(replace(rule, replaces=rule_id), 0).data["status"]["rule"]["id"]
        assert list(rules_of(guardian)) == [successor]
        if rule.origin is not None:  # the file has changed since
            guardian.apply(replace(rule, match=Match(sources=listed(5_999).match.sources)), 0)


@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.XDP])
def test_the_busiest_entries_are_those_of_the_list(kind: Kind, bench: Bench) -> None:
    path, mine = bench.path(4), bench.attacker(4)
    with bench.connect() as guardian:
        guardian.demand(ListChange("bots", "create", entries=(mine, "192.0.2.1")))
        rule_id = apply(guardian, Rule("", kind, Match(), "bots", 600, origin="list:bots"))
        assert not path.passes()
        assert guardian.demand(ListShow("bots")).data["lists"][0]["busiest"] == {mine: 1}
        guardian.demand(ListChange("bots", "remove", entries=(mine,)))
        assert guardian.demand(ListShow("bots")).data["lists"][0]["busiest"] == {}
        assert mine not in rules_of(guardian)[rule_id]["entries"]
        guardian.demand(Undo((rule_id,)))
        guardian.demand(ListChange("bots", "delete"))


def test_a_plan_of_a_cut_rule_is_refused(bench: Bench) -> None:
    rule = json.loads(json.dumps(listed(3).to_dict()))
    rule["match"]["sources_left"] = 5
    with bench.connect() as guardian:
        for request in (Plan(rule), Apply(rule, 0)):
            assert "match.sources_left: 5 sources" in guardian.request(request).error
