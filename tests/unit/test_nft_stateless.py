"""Stateless equivalents of nft's rules on connection states, and what has none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fwtop.model.rule import Match
from fwtop.netfilter import nft, nft_stateless
from fwtop.netfilter.nft_listed import Listed, of_items

WEB, DNS = Match(protocol=6, dport=80), Match(protocol=17, dport=53)
FLAGS = "tcp flags & (fin|syn|rst|ack)"
STATE = {"ct": {"key": "state"}}
ACCEPT, DROP, JUMP = {"accept": None}, {"drop": None}, {"jump": {"target": "x"}}
ESTABLISHED, NEW = ["established", "related"], "new"


def condition(left: Any, right: Any, op: str = "in") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def port(protocol: str, right: Any, field: str = "dport") -> dict[str, Any]:
    return condition({"payload": {"protocol": protocol, "field": field}}, right, "==")


def state(right: Any, op: str = "in") -> dict[str, Any]:
    return condition(STATE, right, op)


def listed(*rules: list[Any], hook: str = "input", kind: str = "filter", family: str = "inet") -> Listed:
    """Return a chain with these rules, and one that nothing leads to."""
    place = {"family": family, "table": "t"}
    items: list[Any] = [{"chain": {**place, "name": "c", "type": kind, "hook": hook}}]
    items += [{"chain": {**place, "name": name}} for name in ("inner", "unused")]
    items += [{"set": {**place, "name": "open", "type": "inet_service", "elem": [{"range": [79, 81]}]}}]
    items += [{"map": {**place, "name": "by", "type": "inet_service", "map": "verdict",
                       "elem": [[80, {"jump": {"target": "inner"}}], [443, DROP]]}}]  # fmt: skip
    for handle, expressions in enumerate(rules):
        chain = expressions[0] if isinstance(expressions[0], str) else "c"
        body = [part for part in expressions if not isinstance(part, str)]
        items.append({"rule": {**place, "chain": chain, "handle": handle, "expr": body}})
    return of_items(nft.parse(json.dumps({"nftables": [{"metainfo": {}}, *items]})))


def beside(found: Listed, service: Match = WEB) -> list[str]:
    """Return what is put in behind others' lines."""
    return [item.text for item in nft_stateless.inserts(found, [service]) if not item.before]


@pytest.mark.parametrize(
    ("rule", "service", "expected"),
    [
        ([state(ESTABLISHED), ACCEPT], WEB, [f"{FLAGS} != syn accept"]),
        ([state({"set": ESTABLISHED}, "=="), ACCEPT], WEB, [f"{FLAGS} != syn accept"]),
        ([state(NEW), port("tcp", {"set": [80, 443]}), ACCEPT], WEB, [f"{FLAGS} == syn accept"]),
        ([state(["new", "established"]), ACCEPT], WEB, ["accept"]),
        ([state(NEW), port("th", "@open"), {"counter": {"packets": 7, "bytes": 9}}, ACCEPT], WEB,
         [f"{FLAGS} == syn counter accept"]),
        ([{"vmap": {"key": STATE, "data": {"set": [["established", ACCEPT], ["new", JUMP],
                                                   ["invalid", DROP]]}}}], WEB,
         [f"{FLAGS} == syn jump x", f"{FLAGS} != syn accept"]),
        ([condition({"payload": {"protocol": "ip", "field": "protocol"}}, 6, "=="), state(NEW), ACCEPT], WEB,
         [f"{FLAGS} == syn ip protocol 6 accept"]),
        # Not about it, or nothing that an untracked packet can be told by:
        ([state(NEW), port("tcp", {"range": [81, 90]}), ACCEPT], WEB, []),
        ([state(NEW), port("tcp", 80, "sport"), condition({"meta": {"key": "l4proto"}}, "udp", "=="), ACCEPT],
         WEB, []),
        ([state("invalid"), DROP], WEB, []),
        ([state(["new", "untracked"]), port("tcp", 80), ACCEPT], WEB, []),
        # Each datagram is judged as a new one:
        ([state(ESTABLISHED), ACCEPT], DNS, []),
        ([state(NEW), port("udp", 53), ACCEPT], DNS, ["accept"]),
    ],
)  # fmt: skip
def test_each_line_on_states_gets_its_stateless_equivalents(
    rule: list[Any], service: Match, expected: list[str]
) -> None:
    head = f"{'tcp' if service is WEB else 'udp'} dport {service.dport} "
    found = listed(rule)
    assert beside(found, service) == [head + text for text in expected]
    assert nft_stateless.obstacles(found, service) == []


def test_answers_are_let_out_where_output_asks_for_states() -> None:
    found = listed([state(ESTABLISHED), ACCEPT], [state(NEW), ACCEPT], hook="output")
    assert beside(found) == ["tcp sport 80 accept"]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ([state("established", "!="), DROP], "a rule on states"),
        ([condition({"&": [STATE, ["new", "established"]]}, "new", "=="), ACCEPT], "a rule on states"),
        ([port("tcp", 80), {"ct count": {"val": 9, "inv": True}}, DROP], "counts or marks"),
        ([{"mangle": {"key": {"ct": {"key": "mark"}}, "value": 1}}], "counts or marks"),
        ([port("tcp", 80), {"ct helper": "ftp"}], "a helper"),
        ([condition({"ct": {"key": "helper"}}, "ftp", "=="), ACCEPT], "a helper"),
        ([port("tcp", 80), {"dnat": {"addr": "192.0.2.1"}}], "NAT"),
        ([{"xt": {"type": "match", "name": "connlimit"}}, DROP], "counts or marks"),
    ],
)
def test_what_has_no_equivalent_is_an_obstacle_with_its_rule(rule: list[Any], said: str) -> None:
    found = listed(rule)
    (reason,) = nft_stateless.obstacles(found, WEB)
    assert said in reason
    assert "in nftables' inet t c" in reason
    assert nft_stateless.inserts(found, [WEB]) == []


@pytest.mark.parametrize(
    "rule",
    [
        [state(["established", "untracked"]), ACCEPT],
        [state(["invalid", "untracked"]), DROP],
        [{"vmap": {"key": STATE, "data": {"set": [["new", DROP], ["untracked", ACCEPT]]}}}],
    ],
)
def test_what_is_about_untracked_packets_must_be_about_new_ones_too(rule: list[Any]) -> None:
    """What lets known connections in would let new ones in, and what drops the untracked all."""
    (reason,) = nft_stateless.obstacles(listed(rule), WEB)
    assert reason.startswith("a rule on untracked packets")


@pytest.mark.parametrize(
    "rule",
    [
        [port("tcp", 22), {"ct count": {"val": 9, "inv": True}}, DROP],  # another port's
        [condition({"ct": {"key": "status"}}, "dnat"), ACCEPT],  # the rule that translates would matter
        ["unused", {"ct helper": "ftp"}],  # no packet gets there
        [{"notrack": None}],
        [state(["new", "untracked"]), ACCEPT],  # as firewalld had it
        [state(["invalid", "untracked"]), port("tcp", 22), DROP],
    ],
)
def test_what_its_packets_cannot_meet_is_none(rule: list[Any]) -> None:
    assert nft_stateless.obstacles(listed(rule), WEB) == []


def test_chains_behind_a_map_are_converted_and_its_ports_are_named() -> None:
    by_port = {"vmap": {"key": {"payload": {"protocol": "tcp", "field": "dport"}}, "data": "@by"}}
    found = listed([by_port], ["inner", state(NEW), ACCEPT])
    assert beside(found) == [f"tcp dport 80 {FLAGS} == syn accept"]
    assert nft_stateless.names(found, WEB)
    assert not nft_stateless.names(found, Match(protocol=6, dport=443))


def test_errors_come_before_the_line_that_would_drop_them_as_invalid() -> None:
    found = listed([state("invalid"), DROP], [state(ESTABLISHED), ACCEPT])
    errors = [item for item in nft_stateless.inserts(found, [WEB]) if item.before]
    assert {item.line.handle for item in errors} == {0}
    text = " ".join(item.text for item in errors)
    assert all(name in text for name in ("destination-unreachable", "packet-too-big", "nd-neighbor-solicit"))


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ([port("tcp", "@open"), ACCEPT], True),
        ([port("th", {"set": [80]}), ACCEPT], True),
        ([port("tcp", 80), DROP], False),
        ([port("udp", 80), ACCEPT], False),
        ([ACCEPT], False),
    ],
)
def test_service_needs_a_rule_that_names_its_port(rule: list[Any], named: bool) -> None:
    assert nft_stateless.names(listed(rule), WEB) is named


@pytest.mark.parametrize(
    ("rule", "hook", "family", "untracked"),
    [
        ([port("tcp", {"set": [80, 443]}), {"notrack": None}], "prerouting", "inet", True),
        ([port("tcp", 22), {"notrack": None}], "prerouting", "inet", False),
        ([port("tcp", 80), {"notrack": None}], "output", "inet", False),
        ([port("tcp", 80), {"notrack": None}], "prerouting", "ip", False),
        ([condition({"payload": {"protocol": "ip", "field": "saddr"}}, "192.0.2.1", "=="),
          port("tcp", 80), {"notrack": None}], "prerouting", "inet", False),
    ],
)  # fmt: skip
def test_service_is_untracked_already_only_if_all_its_packets_are(
    rule: list[Any], hook: str, family: str, untracked: bool
) -> None:
    assert bool(nft_stateless.already_untracked(listed(rule, hook=hook, family=family), WEB)) == untracked


def test_lines_are_put_in_from_below_so_that_none_moves_the_place_of_another() -> None:
    found = listed(
        [port("tcp", 9), DROP], [state(ESTABLISHED), ACCEPT], [port("tcp", 80), state(NEW), ACCEPT]
    )
    verbs = [
        (verb, rule["rule"]["index"])
        for command in nft_stateless.commands(nft_stateless.inserts(found, [WEB]))
        for verb, rule in command.items()
    ]
    assert verbs == [("add", 2), ("add", 1), *[("insert", 1)] * 3]
