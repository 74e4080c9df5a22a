"""What programs may ask: the table in guard.toml, and the verbs that docs/API.md names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from fwtop.guardian.limits import Access, read_limits
from fwtop.guardian.serving.programs import refusal
from fwtop.model import console_scope
from fwtop.model.protocol import (
    SCOPES,
    Apply,
    Connect,
    KnownClients,
    ListChange,
    Request,
    Rescan,
    Seen,
    Summary,
    Symbols,
    Tracked,
    Verb,
    Watch,
)
from fwtop.model.rule import Rule

DOCUMENT = (Path(__file__).parents[2] / "docs/API.md").read_text()


def access_of(table: str, tmp_path: Path) -> tuple[Access, tuple[str, ...]]:
    (tmp_path / "group").write_text("root:x:0:\nsoc:x:700:ann,bob\nbroken\nbots:x:701:\n")
    (tmp_path / "guard.toml").write_text(table)
    limits, wrong = read_limits(tmp_path / "guard.toml", tmp_path / "group")
    return limits.access, wrong


def test_scopes_go_with_groups_and_who_may_change_may_read(tmp_path: Path) -> None:
    access, wrong = access_of("[access]\nread = ['soc']\nlists = [701, 'bots']\nrules = []\n", tmp_path)
    assert not wrong
    assert access.granted
    assert access.scopes(1000, {700}) == ("read",)
    assert access.scopes(1000, {701, 5}) == ("read", "lists")
    assert access.scopes(1000, {5}) == ()
    assert access.scopes(0, ()) == SCOPES
    assert Access.__struct_fields__ == SCOPES


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("access = 'all'", ":1: access must be a table; it is ignored"),
        ("[access]\nwrite = ['root']", ":2: access.write is unknown; there are read, lists"),
        ("[access]\nread = 'root'", ":2: access.read must be a list of groups; it is ignored"),
        ("[access]\nrules = ['no-such-group']", ':2: access.rules: there is no group "no-such-group" in'),
        ("[access]\nrules = [-1]", ":2: access.rules: there is no group -1 in"),
        ("[access]\nrules = [true]", "no group true"),
        ("[access]\nrules = [[1]]", "no group [1]"),
    ],
)
def test_what_is_wrong_is_told_and_grants_nothing(table: str, words: str, tmp_path: Path) -> None:
    access, [line] = access_of(table, tmp_path)
    assert words in line
    assert not access.granted


def test_the_file_of_limits_has_the_table(tmp_path: Path) -> None:
    path = tmp_path / "guard.toml"
    path.write_text("max_blocked_share = 0.25\n[access]\nread = [12, 'no-such-group']\nlists = 3\n")
    limits, warnings = read_limits(path)
    assert len(warnings) == 2
    assert (limits.max_blocked_share, limits.access.scopes(9, {12})) == (0.25, ("read",))


def test_each_verb_of_the_document_has_its_scope_and_fields() -> None:
    rows = re.findall(r"^\| `(\w+)` \|\s+(\w*)\s*\| (.*?) ?\|", DOCUMENT, re.M)
    told = {verb: scope or None for verb, scope, _ in rows}
    kinds = {cls.__name__.lower(): cls for cls in get_args(Request)}
    of_root = (Watch, Connect, Symbols, Rescan, Seen, KnownClients, Summary, Tracked)
    assert set(told) == set(kinds) - {cls.__name__.lower() for cls in of_root}
    for verb, _, fields in rows:
        assert kinds[verb].scope == told[verb] or verb == "hello"
        named = set(re.findall(r"`(\w+)`", fields))
        assert named <= set(kinds[verb].__struct_fields__)


VERBS = {cls.__name__: cls for cls in get_args(Request)}
GRANTED = {  # said here once more: nothing is granted by a change of a class alone
    "for_console": "Seen KnownClients Summary Hello Connect Watch Rescan Survey Symbols Tracked Rules"
    " RuleRead ListRead Status Why Plan Apply Keep Undo Repair RuleMode RuleChange",
    "changes": "Apply Keep Renew Repair RuleMode RuleChange Undo ListChange PolicyChange"
    " FleetDocument FleetConfirm",
    "quick": "Keep Renew Repair Undo Status ListShow ListTest KnownClients FleetConfirm FleetStatus",
}


@pytest.mark.parametrize("attribute", GRANTED)
def test_classes_grant_what_is_meant(attribute: str) -> None:
    assert {name for name, cls in VERBS.items() if getattr(cls, attribute)} == set(GRANTED[attribute].split())


def test_a_class_that_says_nothing_is_refused_to_everybody() -> None:
    class Forgotten(Verb, frozen=True):
        force: bool = False

    assert "a screen may not ask for forgotten" in console_scope.refusal(Forgotten())
    assert "forgotten is not for programs" in refusal(Forgotten(), SCOPES).error
    assert Forgotten.changes, "nobody asks for it who only reads"
    assert not Forgotten.quick


def test_a_program_forces_nothing() -> None:
    forcing = [cls for cls in VERBS.values() if "force" in cls.__struct_fields__]
    assert {Apply, ListChange} <= set(forcing)
    for cls in forcing:
        request = cls(*[None] * len(cls.__struct_fields__))
        assert refusal(request, SCOPES) is None
        assert "may not force" in refusal(replace(request, force=True), SCOPES).error


def test_a_short_rule_is_a_rule() -> None:
    rule = Rule.from_dict(
        {
            "kind": "string",
            "match": {"payload": [{"data": "6162"}], "ttl": {"low": 1, "high": 9}},
            "summary": "x",
            "ttl_seconds": 60,
        }
    )
    assert rule == Rule.from_dict(rule.to_dict())
