"""Who may do what by a document, and what root's files say of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from fwtop.fleet.document import Action, Refusal
from fwtop.guardian.fleet import authority, permission
from fwtop.guardian.fleet.authority import Patience
from fwtop.guardian.fleet.membership import Machine, Restriction, Restrictions, read_membership
from fwtop.guardian.fleet.permission import Newest, addresses
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.paths import ROOT
from fwtop.model.rule import Kind, Level, Match, Mode, Protection, RateLimit, Rule
from tests.unit.test_fleet_document import DOCUMENT


def rule(*sources: str, **given: object) -> Rule:
    match = Match(sources=tuple(map(Prefix.parse, sources)))
    return replace(Rule("", Kind.IPSET, match, "x", 600), **given)


ONE = rule("192.0.2.1")
CLOSED = Rule("", Kind.PROTECT, Match(dport=22), "x", 600, protection=Protection(Level.CLOSED))


def reason(check, *arguments: object) -> str:
    try:
        check(*arguments)
    except FwtopError as error:
        return error.reason if "; nothing was changed; " in str(error) else "doesn't say what to do"
    return ""


@pytest.mark.parametrize(
    ("held", "rules", "wanted"),
    [
        (Restriction(), [ONE], ""), (Restriction(labels=("web",)), [ONE], ""),
        (Restriction(labels=("us",)), [ONE], "beyond"), (Restriction(kinds=("ipset",)), [ONE], ""),
        (Restriction(kinds=("xdp",)), [ONE], "beyond"), (Restriction(count_only=True), [ONE], "beyond"),
        (Restriction(count_only=True), [replace(ONE, mode=Mode.COUNT)], ""),
        (Restriction(max_addresses=1), [ONE], ""), (Restriction(max_addresses=1), [ONE, ONE], "beyond"),
        (Restriction(max_addresses=256), [rule("2001:db8::/56")], ""),
        (Restriction(max_addresses=255), [rule("2001:db8::/56")], "beyond"),
        (Restriction(max_addresses=10), [rule()], "beyond"),
        (Restriction(max_addresses=10), [rule("192.0.2.1", origin="list:x")], "beyond"),
        (Restriction(widest_ipv4=32), [ONE], ""),
        (Restriction(widest_ipv4=32), [rule("192.0.2.0/31")], "beyond"),
        (Restriction(widest_ipv6=128), [rule("2001:db8::/127")], "beyond"),
        (Restriction(max_ttl_seconds=599), [ONE], "beyond"),
        (Restriction(needs_second=True), [ONE], "second"),
    ],
)  # fmt: skip
def test_restrictions(held: Restriction, rules: list[Rule], wanted: str) -> None:
    restrictions = Restrictions(signer={"alice": held})
    document = replace(DOCUMENT, on=("web+eu",))
    assert reason(permission.check_signers, document, rules, ("alice",), restrictions) == wanted
    assert not reason(permission.check_signers, document, rules, ("bob",), restrictions), "who is free"
    assert not reason(permission.check_signers, document, rules, ("alice", "bob"), restrictions)


@pytest.mark.parametrize(
    ("asked", "given", "wanted"),
    [
        ("wide", rule("192.0.2.0/24"), ""), ("wide", rule("192.0.2.0/23"), "second"),
        ("wide", rule("2001:db8::/48"), ""), ("wide", rule("2001:db8::/47"), "second"),
        ("closed", CLOSED, "second"), ("closed", rule("12.0.0.0/8"), ""), ("wide", CLOSED, ""),
    ],
)  # fmt: skip
def test_what_two_must_sign(asked: str, given: Rule, wanted: str) -> None:
    restrictions = Restrictions(two_signers=(asked,))
    assert reason(permission.check_signers, DOCUMENT, [given], ("alice",), restrictions) == wanted
    assert not reason(permission.check_signers, DOCUMENT, [given], ("alice", "bob"), restrictions)


def test_time_place_order_and_target() -> None:
    document = replace(DOCUMENT, issued=1000.0, not_after=2000.0)
    found = [reason(permission.check_time, document, now) for now in (699.0, 700.0, 1999.0, 2000.0)]
    assert found == ["clock", "", "", "expired"]
    machine = Machine("prod", "web-1", ("web", "eu"))
    assert not reason(permission.check_place, document, machine)
    assert reason(permission.check_place, document, replace(machine, fleet="test")) == "foreign"
    assert reason(permission.check_place, document, replace(machine, labels=("web",))) == "not_meant"
    orders = [Newest(), Newest(6, "b"), Newest(7, "a"), Newest(7, "b"), Newest(8, "a")]
    found = [reason(permission.check_order, document, "a", newest) for newest in orders]
    assert found == ["", "", "", "conflict", "replayed"]
    held = Restrictions(signer={"alice": Restriction(count_only=True)})
    for by, former, wanted in ((("alice",), ("alice",), ""), (("alice",), ("bob",), "beyond"),
                               (("bob",), ("alice",), ""), (("alice", "bob"), ("carol",), "")):  # fmt: skip
        assert reason(permission.check_target, by, held, former) == wanted
    frozen = replace(machine, frozen=True)
    assert reason(permission.check_frozen, document, frozen) == Refusal.FROZEN
    assert not reason(permission.check_frozen, replace(document, action=Action.UNDO), frozen)


def test_addresses_that_rules_block() -> None:
    limit = RateLimit(10, 10)
    counts = [
        (rule("192.0.2.0/24", "192.0.3.1"), 257), (rule("2001:db8::/32"), 2**32), (rule("2001:db8::1"), 1),
        (rule(), 0), (rule("192.0.2.0/24", mode=Mode.COUNT), 0), (CLOSED, 0),
        (rule("192.0.2.0/24", kind=Kind.HASHLIMIT, limit=limit), 0),
    ]  # fmt: skip
    for given, wanted in counts:
        assert addresses(given) == wanted
    machine = Machine("prod", "web-1", max_addresses=257)
    assert not reason(permission.check_ceiling, machine, [counts[0][0]], [])
    assert reason(permission.check_ceiling, machine, [ONE], [counts[0][0]]) == "beyond"


FILES = {"machine.toml": 'fleet = "prod"\nname = "web-1"\n', "signers": "alice ssh-ed25519 AAAA\n"}


def written(directory: Path, **files: str) -> Path:
    for name, text in (FILES | {name.replace("_", "."): text for name, text in files.items()}).items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o644)
    directory.chmod(0o755)
    return directory


def test_roots_files_are_read(tmp_path: Path) -> None:
    found = read_membership(written(tmp_path, restrictions_toml='[signer."a@b.c"]\nmax_addresses = 5\n'))
    assert (found.machine.all_labels, found.revoked) == (frozenset(("all", "web-1")), None)
    assert found.restrictions.signer["a@b.c"].max_addresses == 5


def test_the_examples_of_the_document_are_read(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(# (\S+)\n.*?)```", (ROOT / "docs/SIGNERS.md").read_text(), re.S)
    given = {name.replace(".", "_"): text for text, name in blocks}
    assert set(given) == {"machine_toml", "restrictions_toml"}
    found = read_membership(written(tmp_path, **given))
    machine, default = found.machine, Machine("", "")
    assert (machine.frozen, machine.max_addresses) == (default.frozen, default.max_addresses)
    used = {name for held in found.restrictions.signer.values() for name in changed(held)}
    assert used == set(Restriction.__struct_fields__), "each setting has an example"


def changed(held: Restriction) -> set[str]:
    return {name for name in held.__struct_fields__ if getattr(held, name) != getattr(Restriction(), name)}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("machine_toml", 'fleet = "prod"\n', "name is missing"),
        ("machine_toml", 'fleet = "a b"\nname = "x"\n', "fleet must be a name"),
        ("machine_toml", "fleet = ", "Invalid value".lower()),
        ("restrictions_toml", "[signer.alice]\nkinds = ['ipsets']\n", "kinds must be a list of"),
        ("restrictions_toml", "[signer.alice]\nmax_addresses = -1\n", "max_addresses"),
        ("restrictions_toml", "two_signer = ['wide']\n", "two_signer is unknown"),
    ],
)
def test_a_mistake_in_a_file_refuses_all(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(FwtopError, match=words):
        read_membership(written(tmp_path, **{name: text}))


def test_no_file_is_no_fleet(tmp_path: Path) -> None:
    with pytest.raises(FwtopError) as caught:
        read_membership(tmp_path)
    assert caught.value.reason == Refusal.NO_FLEET


def test_a_courier_is_borne_with_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(authority.time, "monotonic", lambda: now[0])
    patience = Patience(2, 10.0)
    assert [patience.is_over() for _ in range(4)] == [False, False, True, True]
    now[0] += 9.9
    assert patience.is_over()
    now[0] += 0.1
    assert [patience.is_over() for _ in range(2)] == [False, True]
    now[0] += 1000
    assert [patience.is_over() for _ in range(3)] == [False, False, True]
