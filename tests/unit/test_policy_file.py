"""The policy file: what is refused and how, its schema, the sample, versions, and what differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from fwtop.guardian.rules.validate import MAX_TTL_SECONDS
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.paths import ROOT
from fwtop.model.rule import Kind, Level
from fwtop.policy.document import SECONDS, Policy, parse, read, shape
from fwtop.policy.exports import write
from fwtop.policy.schema import BlockTable, LimitTable, SignatureTable, schema
from fwtop.policy.versions import KEPT, Versions, lists_of
from fwtop.rules.kinds import filters

OFFICE = (Prefix.parse("198.51.100.0/24"),)
GOOD = 'schema = 1\n[list.office]\nentries = ["198.51.100.0/24"]\n'
# What is appended to GOOD, and what is said of it: both the parser and the schema refuse these
WRONG_FORMS = {
    "[[port]]\nservice = 443\n": ":5: port[0].service must be text, or a list of text",
    "[[port]]\nlevel = 'open'\n": ":4: port[0].service is missing",
    "[[port]]\nservice = []\n": "service must be text, or a list of text (at least 1)",
    "[[port]]\nservice = '443/tcp'\nlevel = 'ajar'\n": 'level must be one of "closed", "open", "protected"',
    "[[port]]\nservice = '443/tcp'\npriority = 1001\n": "priority must be a whole number from 0 to 1000",
    "[[port]]\nservice = '443/tcp'\nstrict = 1\n": "strict must be true or false",
    "[port]\nservice = '443/tcp'\n": ":4: port must be one of several tables: [[port]]",
    "[[block]]\nlist = 'office'\nvia = 'hashlimit'\n": 'via must be one of "ipset", "nftables", "tc"',
    "[[limit]]\nper = 24\nspeed = 3\n": ":6: limit[0].speed is unknown; the nearest is per;",
    "[thresholds]\nmax_change = 1.5\n": "thresholds.max_change must be a number from 0 to 1",
    "[list.sixteen-letters]\nentries = []\n": "list.sixteen-letters must have as its name up to 14 letters",
    "[monitor]\nrepair = 'yes'\n": "monitor.repair must be true or false",
    "[firewall]\n": ":4: firewall is unknown; there are schema,",
}
WRONG_MEANINGS = {
    "[[port]]\nservice = '443/tcp'\n": ":4: port[0]: level protected needs acl, the lists to let in",
    "[[port]]\nservice = '443/tcp'\nacl = 'vpn'\n": "there is no [list.vpn]",
    "[[port]]\nservice = '443/sctp'\nacl = 'office'\n": ":5: port[0].service: '443/sctp' is not a service",
    "[[block]]\nlist = 'office'\n[[block]]\nlist = 'office'\n": (
        ":6: block[1]: said twice: block list office"
    ),
    "[[limit]]\nper = 24\n": "a limit needs either a rate or connections",
    "[[limit]]\nper = 24\nrate = 'fast'\n": ":6: limit[0].rate: 'fast' is not a rate",
    "[[signature]]\nstring = 'x'\nhex = 'aa'\n": "a match needs one of string, hex and dns",
    "[list.more]\nentries = ['nobody']\n": ":4: list.more: 'nobody'",
    "[list.more]\nleast = 1\n": ":5: list.more.least: the list holds 0, but least = 1",
    "[list.more]\nentries = ['::/1', '192.0.2.1']\nmost = 1\n": "the list holds 2, but most = 1",
    "[list.more]\nentries = '::/0'\n": "list.more: an entry of /0 is everybody",
    "[list.more]\nentries = '0.0.0.0/0'\n": "list.more: an entry of /0 is everybody",
    "[list.more]\nfile = 'absent'\n": "cannot read",
    "[list.more]\nfile = 'ports.txt'\nentries = '192.0.2.1'\n": "or pairs of networks: one kind",
    "= 1": ":4: invalid statement",
}


def policy(text: str, tmp_path: Path) -> Policy:
    (tmp_path / "ports.txt").write_text("192.0.2.7:443/tcp\n")
    (tmp_path / "policy.toml").write_text(text)
    return read(tmp_path / "policy.toml")


def fits(value: Any, rule: dict[str, Any]) -> bool:  # noqa: PLR0911 - a line for each word
    """Validate by the part of JSON Schema that ours is written in."""
    if "$ref" in rule:
        return fits(value, schema()["$defs"][rule["$ref"].rpartition("/")[2]])
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "boolean": bool,
        "number": (int, float),
    }
    if "anyOf" in rule and not any(fits(value, one) for one in rule["anyOf"]):
        return False
    if "const" in rule and value != rule["const"]:
        return False
    if "type" in rule:
        is_flag = isinstance(value, bool) and rule["type"] != "boolean"
        if is_flag or not isinstance(value, kinds[rule["type"]]):
            return False
    if "enum" in rule and value not in rule["enum"]:
        return False
    if isinstance(value, dict):
        import re

        names = rule.get("propertyNames", {}).get("pattern", "")
        known, more = rule.get("properties", {}), rule.get("additionalProperties", True)
        return (
            all(name in value for name in rule.get("required", ()))
            and all(re.search(names, name) for name in value)
            and all(
                fits(item, known[name]) if name in known else more is True or (more and fits(item, more))
                for name, item in value.items()
            )
        )
    if isinstance(value, list):
        return len(value) >= rule.get("minItems", 0) and all(
            fits(item, rule.get("items", {})) for item in value
        )
    if isinstance(value, int | float):
        return rule.get("minimum", value) <= value <= rule.get("maximum", value)
    return True


def table_of(text: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(text)


@pytest.mark.parametrize(("more", "said"), [*WRONG_FORMS.items(), *WRONG_MEANINGS.items()])
def test_a_mistake_is_told_with_its_place(more: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(FwtopError) as caught:
        policy(GOOD + more, tmp_path)
    assert said in str(caught.value)
    assert str(caught.value).endswith("; nothing was changed")
    assert "\n" not in str(caught.value)


def test_the_schema_refuses_what_the_parser_refuses_and_takes_what_it_takes(tmp_path: Path) -> None:
    rules = schema()
    for more in WRONG_FORMS:
        assert not fits(table_of(GOOD + more), rules), more
    assert not fits({}, rules)
    sample = (ROOT / "docs/policy.toml").read_text()
    assert fits(table_of(sample), rules)
    assert len(policy(sample, tmp_path).rules) == 7


def test_the_schema_in_the_documents_is_this_one() -> None:
    """`make documents` writes it."""
    assert json.loads((ROOT / "docs/policy.schema.json").read_text()) == json.loads(json.dumps(schema()))


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs/POLICY.md").read_text()
    tables = schema()["$defs"]
    del tables["PolicyFile"]
    keys = [(key, value) for table in tables.values() for key, value in table["properties"].items()]
    assert all(f"`{key}" in text and value["description"] for key, value in keys)


def test_a_policy_of_another_version_is_told_as_such(tmp_path: Path) -> None:
    for text in ("[firewall]\n", "[firewall]\nschema = 2\n", "# 1\nnew = 3\nschema = 2\n"):
        with pytest.raises(FwtopError, match=r"schema (must be 1|is missing); nothing was changed"):
            policy(text, tmp_path)


def test_a_table_makes_the_rules_of_its_verb(tmp_path: Path) -> None:
    text = GOOD + (
        "[[port]]\nservice = ['443/tcp', '53/udp']\nacl = 'office'\nstrict = true\nfamily = 6\n"
        "[[block]]\nlist = 'office'\nvia = 'xdp'\n[[signature]]\nstring = '-x'\nproto = 'udp'\ndport = 53\n"
    )
    made = policy(text, tmp_path)
    assert [rule.kind for rule in made.rules] == [Kind.PROTECT, Kind.PROTECT, Kind.XDP, Kind.STRING]
    first, _, block, signature = made.rules
    assert first.protection is not None
    assert (first.protection.level, first.protection.priority) == (Level.PROTECTED, 0)
    assert (first.match.family, first.match.dport, first.protection.strict) == (6, 443, True)
    assert block.list_name == "office"
    assert signature.match.payload[0].data == b"-x"
    assert {rule.created_by for rule in made.rules} == {"policy"}
    assert SECONDS <= MAX_TTL_SECONDS
    assert len({shape(rule) for rule in made.rules}) == 4


def test_lists_come_from_files_beside_the_policy(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("203.0.113.9 # somebody\n198.51.100.0/24\n")
    made = policy(GOOD + 'file = "more.txt"\n', tmp_path)
    assert {str(prefix) for prefix in made.lists["office"]} == {"198.51.100.0/24", "203.0.113.9"}


def test_versions_keep_text_and_lists_and_forget_the_oldest(tmp_path: Path) -> None:
    versions = Versions("x", tmp_path)
    for number in range(KEPT + 2):
        entries = (*OFFICE, Prefix.parse(f"203.0.113.{number}"))
        made = parse(f"{GOOD}# {number}\n", "x", lambda *_, entries=entries: entries)
        version = versions.prepare(made, f"note {number}")
        assert versions.pending() == version
        versions.keep(version)
        assert versions.pending() is None
    known = versions.all()
    assert [version.number for version in known] == list(range(3, KEPT + 3))
    assert lists_of(known) == {"office"}
    again = versions.policy_of(versions.find(KEPT + 2))
    assert tuple(map(str, again.lists["office"])) == ("198.51.100.0/24", f"203.0.113.{KEPT + 1}")
    files = sorted((tmp_path / "netns-x").glob("*.list"))
    assert len(files) == KEPT, "lists that no version has are gone"
    files[0].write_bytes(b"damaged")
    broken = next(version for version in known if files[0].stem in version.lists.values())
    with pytest.raises(FwtopError, match=r"list.office: what the list held is lost or damaged"):
        versions.policy_of(broken)
    (tmp_path / "netns-x/3.json").write_text("{")
    assert versions.unreadable() == ["3.json"]
    with pytest.raises(FwtopError, match="there is no policy 3; there are: 4, 5"):
        versions.find(3)


def test_one_command_at_a_time_changes_the_policy(tmp_path: Path) -> None:
    versions, other = Versions("x", tmp_path), Versions("x", tmp_path)
    with versions.locked(), pytest.raises(FwtopError, match="is changing the policy"), other.locked():
        pass
    with other.locked():
        assert other.all() == []


def test_what_was_abandoned_leaves_nothing(tmp_path: Path) -> None:
    versions = Versions(None, tmp_path)
    versions.prepare(parse(GOOD, "x", lambda *_: OFFICE), "x")
    versions.abandon()
    assert versions.pending() is None
    assert list((tmp_path / "machine").iterdir()) == []


@pytest.mark.parametrize(
    ("format", "output", "said"),
    [
        ("iptables", "policy.toml", "cannot make directory .*policy.toml: File exists; nothing was written"),
        ("iptables", "absent/below", "cannot make directory .*below: No such file or directory"),
        ("nft", "absent/file", "cannot write .*file: No such file or directory; the file is as it was"),
        ("nft", "policy.toml/file", "cannot write .*file: Not a directory; the file is as it was"),
        ("sh", ".", "cannot write .*; the file is as it was"),
    ],
)
def test_an_export_that_cannot_be_written_is_one_line(
    format: str, output: str, said: str, tmp_path: Path
) -> None:
    written = policy("schema = 1\n", tmp_path)
    with pytest.raises(FwtopError, match=said):
        write(written, "p.toml", format, tmp_path / output, tmp_path / "allow")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize(
    ("table", "verb"), [(BlockTable, "block"), (LimitTable, "limit"), (SignatureTable, "match")]
)
def test_a_table_offers_the_kinds_that_its_verb_has(table: type, verb: str) -> None:
    via = get_type_hints(table)["via"]
    words = next(get_args(one) for one in (via, *get_args(via)) if get_origin(one) is Literal)
    assert words == tuple(kind.value for kind in filters(verb))
