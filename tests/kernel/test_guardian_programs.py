"""Programs of ordinary users: the examples of docs/API.md run, and every scope is held to."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import socket
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import Bench
from msgspec.structs import replace
from program_bench import ACCESS, LISTS, NOBODY, NONE, POLICIES, READ, RULES, as_user, bench, open_to_groups

from fwtop.client import program
from fwtop.model.errors import FwtopError
from fwtop.model.messages import encode_request
from fwtop.model.protocol import (
    MAX_POLICY,
    PROGRAM,
    SCOPES,
    Apply,
    Connect,
    Hello,
    ListChange,
    ListShow,
    Status,
    Symbols,
    Undo,
    Watch,
)
from fwtop.model.rule import POLICY_TRIAL
from fwtop.policy.live import Live

pytestmark = pytest.mark.kernel
__all__ = ["bench", "open_to_groups"]
DOCUMENT = (Path(__file__).parents[2] / "docs/API.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT, re.S)
LEAST = re.findall(r'^\{"kind": .*\}$', DOCUMENT, re.M)
MAKERS = {f"program of user {NOBODY}", "policy", POLICY_TRIAL}
# What the examples of the document print, each of them one of these
SAID = (("198.51.100.0/24", "203.0.113.9"), ("'kept': 1", f"program of user {NOBODY}"), ("192.0.2.0/24",))


BLOCK = {"kind": "ipset", "match": {"sources": ["192.0.2.7"]}, "summary": "one", "ttl_seconds": 60}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_of_the_document_run(bench: Bench, open_to_groups: None, example: str) -> None:
    text = example.replace("/run/fwtop", str(bench.directory))
    text = text.replace(
        "connect()", f"connect(run_directory=__import__('pathlib').Path({str(bench.directory)!r}))"
    )

    def work() -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(text, "docs/API.md", "exec"), {})  # noqa: S102 - it is ours
        return out.getvalue()

    said = as_user(bench, [LISTS, RULES, POLICIES], work)
    assert "Traceback" not in said, said
    assert any(all(word in said for word in words) for words in SAID), said
    with bench.connect() as guardian:
        if "change_policy" in example:
            [active] = Live(guardian).rules()
            guardian.demand(Undo((active.id,)))
            guardian.change_list(ListChange("scanners", "delete"))
        assert guardian.demand(ListShow()).data["lists"] == []
        finished = guardian.demand(Status(finished=True)).data["rules"]
        assert {item["rule"]["created_by"] for item in finished} <= MAKERS


def test_what_a_plan_warns_of_the_rule_warns_of_too(bench: Bench, open_to_groups: None) -> None:
    rule = {
        "kind": "connlimit",
        "match": {"protocol": "tcp", "dport": 80},
        "summary": "few",
        "ttl_seconds": 60,
    }
    rule |= {"connections": {"most": 50}}
    with program.connect(bench.netns, run_directory=bench.directory) as fwtop:
        planned = fwtop.plan(rule)["warnings"]
        applied = fwtop.request("apply", rule=rule)
        assert planned == applied["warnings"] != []
        rule_id = applied["status"]["rule"]["id"]
        assert fwtop.keep(rule_id)["rule"]["id"] == rule_id
        fwtop.undo(rule_id)


@pytest.mark.parametrize("line", LEAST)
def test_the_least_of_each_kind_is_planned_and_needs_all_that_it_says(
    bench: Bench, open_to_groups: None, line: str
) -> None:
    rule = json.loads(line)
    with program.connect(bench.netns, run_directory=bench.directory) as fwtop:
        if "origin" in rule:
            fwtop.change_list("create", "bots", ["192.0.2.0/24"])
        plan = fwtop.plan(rule)
        assert (plan["refused"], bool(plan["commands"])) == (None, True)
        for path in [path for path in places(rule) if path[-1] not in ("dport", "protocol")]:
            less = deepcopy(rule)
            within: Any = less
            for step in path[:-1]:
                within = within[step]
            del within[path[-1]]
            with contextlib.suppress(FwtopError):
                assert fwtop.plan(less)["refused"], path
        if "origin" in rule:
            fwtop.change_list("delete", "bots")


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every field and every item within."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in inner for found in ((*path, key), *places(value, (*path, key)))]


REFUSED = [
    ("undo", {"ids": ["9999"]}, "ids"),
    ("rulemode", {"ids": ["9999"], "mode": "drop"}, "ids"),
    ("rulemode", {"ids": [], "mode": "count"}, "ids"),
    ("keep", {"id": "9999"}, "id"),
    ("plan", {"rule": {**BLOCK, "replaces": "9999"}}, "rule.replaces"),
    ("apply", {"rule": {**BLOCK, "origin": "list:none", "match": {}}}, "rule.origin"),
    ("listtest", {"name": "none", "entry": "192.0.2.1"}, "name"),
    ("policyread", {"action": "check", "text": "", "lists": {"a": ["x"]}}, "lists"),
    ("policyread", {"action": "check", "text": "schema = 2"}, "text"),
    ("policychange", {"action": "rollback", "version": 9999}, "version"),
    ("policychange", {"action": "keep"}, "action"),
    ("policyread", {"action": "check", "text": "#" * (MAX_POLICY + 1)}, "text"),
]


@pytest.mark.parametrize(("verb", "fields", "blamed"), REFUSED)
def test_a_refusal_blames_a_field_of_the_request(
    bench: Bench, open_to_groups: None, verb: str, fields: dict[str, Any], blamed: str
) -> None:
    with (
        program.connect(bench.netns, run_directory=bench.directory) as fwtop,
        pytest.raises(FwtopError) as caught,
    ):
        fwtop.request(verb, **fields)
    assert caught.value.field == blamed, caught.value


def test_what_is_refused_says_which_scope_is_missing(bench: Bench, open_to_groups: None) -> None:
    wide = bench.block_rule(4).to_dict() | {"match": {"sources": ["0.0.0.0/1"]}}
    requests = {
        "status": Status(),
        "lists": ListChange("x", "create"),
        "delete": ListChange("x", "delete"),
        "rules": Undo(("77",)),
        "force": Apply(wide, force=True),
        "connect": Connect(),
        "symbols": Symbols(),
    }

    def work() -> str:
        said = {}
        with program.connect(run_directory=bench.directory) as fwtop:
            for name, request in requests.items():
                try:
                    asked = json.loads(encode_request(request))
                    fwtop.request(asked.pop("verb"), **asked)
                    said[name] = "done"
                except FwtopError as error:
                    said[name] = str(error)
        return json.dumps(said)

    never = {name: f"{name} is not for programs; nothing was changed" for name in ("connect", "symbols")}
    no_force = "a program may not force: use the fwtop command; nothing was changed"

    def lacks(verb: str, scope: str) -> str:
        return f"{verb} needs the scope '{scope}', which you lack; nothing was changed"

    no_lists = {name: lacks("listchange", "lists") for name in ("lists", "delete")}
    no_rules = {"rules": lacks("undo", "rules"), "force": lacks("apply", "rules")}
    wanted = {
        READ: {"status": "done", **no_lists, **no_rules, **never},
        LISTS: {"status": "done", "lists": "done", "delete": "done", **no_rules, **never},
    }
    for group, expected in wanted.items():
        assert json.loads(as_user(bench, [group], work)) == expected
    with_rules = json.loads(as_user(bench, [RULES], work))
    assert with_rules["rules"].startswith("no active rule '77'")
    assert with_rules == {
        "status": "done",
        "rules": with_rules["rules"],
        "force": no_force,
        **no_lists,
        **never,
    }
    assert "no access: [access] in guard.toml gives none of your groups a scope" in as_user(
        bench, [NONE], work
    )


def test_a_grant_taken_back_is_gone_at_once_and_strangers_keep_nobody_out(
    bench: Bench, open_to_groups: None
) -> None:
    path = next(bench.directory.glob("*.api"))

    def crowd() -> str:
        """Connect a hundred times at once: those beyond what one user gets are told so, and closed."""
        held = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(100)]
        for one in held:
            one.connect(str(path))
            one.settimeout(60)
        hello = encode_request(Hello(PROGRAM, version=1), 5)
        said = Counter()
        for one in held[::-1]:
            one.send(hello)
            answer = json.loads(one.recv(1 << 16))
            said[f"{answer['ok']} {answer['number']} {answer.get('error', '')}".strip()] += 1
            if not answer["ok"] and one.recv(1) != b"":
                said["open"] += 1
        held[0].send(encode_request(Watch()))
        return json.dumps(said)

    many = "False 5 a user's programs have at most 8 connections: close some"
    assert json.loads(as_user(bench, [READ], crowd)) == {"True 5": 8, many: 92}
    with program.connect(bench.netns, run_directory=bench.directory) as fwtop:
        assert fwtop.scopes == SCOPES, "root needs no grant"

    def work() -> str:
        with program.connect(run_directory=bench.directory) as fwtop:
            before = bool(fwtop.status())
            os.write(told, b"x")
            os.read(go, 1)
            try:
                fwtop.status()
            except FwtopError as error:
                return f"{before} {error}"
        return "still there"

    (waiting, told), (go, release) = os.pipe(), os.pipe()
    if not (helper := os.fork()):  # takes the grant back while the program is connected
        os.read(waiting, 1)
        (bench.directory / "guard.toml").write_text("")
        os.write(release, b"x")
        os._exit(0)
    assert as_user(bench, [READ], work) == (
        "True status needs the scope 'read', which you lack; nothing was changed"
    )
    os.waitpid(helper, 0)
    (bench.directory / "guard.toml").write_text(ACCESS)
    wrong = replace(Hello(PROGRAM, version=9))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
        for hello, words in ((wrong, "version 1, not 9"), (Hello("cli"), "for programs")):
            sock.send(encode_request(hello))
            assert words in json.loads(sock.recv(1 << 16))["error"]
