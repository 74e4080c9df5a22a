"""What the guardian refuses of signed documents, each with its reason: nothing acts, and the log has it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fleet_bench import Member, deliver, last, made_keys, member_of, public, refusal, stage
from guardian_bench import Bench
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.fleet.document import SIGNED_FOR, Action, Sealed, encode
from fwtop.fleet.signing import sign
from fwtop.guardian.fleet.record import check_log
from fwtop.model.addresses.address import Prefix
from fwtop.model.rule import Kind, Match, Rule

pytestmark = pytest.mark.kernel
WIDE = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("198.51.0.0/16"),)), "wide", 600)


@pytest.fixture(scope="module")
def member(shared_pair, tmp_path_factory) -> Iterator[Member]:
    bench = Bench(shared_pair, tmp_path_factory.mktemp("fleet"))
    try:
        with member_of(bench) as made:
            yield made
    finally:
        bench.close()


@pytest.fixture
def guardian(member: Member) -> Iterator[GuardianClient]:
    with member.bench.connect() as found:
        yield found
        assert found.rules() == []


def changed(sealed: Sealed, **fields: object) -> Sealed:
    return replace(sealed, **fields)


def renamed(sealed: Sealed) -> Sealed:
    return replace(sealed, text=sealed.text.replace("web", "all"))


def signed_as(member: Member, text: bytes, namespace: str = SIGNED_FOR) -> Sealed:
    return Sealed(text.decode(), (sign(member.keys["alice"], text, namespace),))


def rule(member: Member) -> Rule:
    return member.bench.block_rule(4)


DOCUMENTS: dict[str, tuple[str, str, Callable[[Member], Sealed]]] = {
    "changed": ("unsigned", "incorrect signature", lambda it: renamed(signed_as(
        it, encode(it.document(rule(it)))))),
    "stranger": ("unsigned", "nobody's", lambda it: it.sealed(it.document(rule(it)), "mallory")),
    "other purpose": ("unsigned", "namespace", lambda it: signed_as(
        it, encode(it.document(rule(it))), "file")),
    "no signature": ("unsigned", "1 to 4", lambda it: changed(
        it.sealed(it.document(rule(it))), signatures=())),
    "nonsense": ("unsigned", "nobody's", lambda it: changed(
        it.sealed(it.document(rule(it))), signatures=("-----BEGIN SSH SIGNATURE-----\n!\n",))),
    "twice": ("unsigned", "signed twice", lambda it: it.sealed(it.document(rule(it)), "alice", "alice")),
    "foreign": ("foreign", "of fleet test", lambda it: it.sealed(it.document(rule(it), fleet="test"))),
    "labels": ("not_meant", "for db, web+us", lambda it: it.sealed(
        it.document(rule(it), on=("db", "web+us")))),
    "expired": ("expired", "clock says", lambda it: it.sealed(
        it.document(rule(it), not_after=time.time() - 1))),
    "future": ("clock", "clock says", lambda it: it.sealed(
        it.document(rule(it), issued=time.time() + 3600, not_after=time.time() + 7200))),
    "newer schema": ("unsupported", "upgrade fwtop", lambda it: signed_as(
        it, encode(it.document(rule(it))).replace(b'"schema":1', b'"schema":99,"new":{}'))),
    "unknown field": ("invalid", "new is unknown", lambda it: signed_as(
        it, encode(it.document(rule(it))).replace(b'"schema":1', b'"schema":1,"new":{}'))),
    "not JSON": ("invalid", "not JSON", lambda it: signed_as(it, b"\xc3\xa9")),
    "of one machine": ("invalid", "replaces", lambda it: it.sealed(
        it.document(rule(it).to_dict() | {"replaces": "1"}))),
    "no rule": ("invalid", "match is missing", lambda it: it.sealed(it.document({"kind": "ipset"}))),
    "force": ("needs_force", "broader than /16", lambda it: it.sealed(it.document(
        Rule("", Kind.IPSET, Match(sources=(Prefix.parse("12.0.0.0/12"),)), "x", 600)))),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_that_do_not_count(member: Member, guardian: GuardianClient, poll_until, name: str) -> None:
    reason, words, make = DOCUMENTS[name]
    sealed = make(member)
    found, line = refusal(deliver, guardian, sealed)
    assert (found, words in line) == (reason, True), line
    assert "nothing was" in line or line.startswith("not a rule"), line
    poll_until(lambda: last(member, "reason") == found)
    assert check_log(member.records) > 0


def test_an_older_revision_and_a_second_document_of_one(member: Member, guardian: GuardianClient) -> None:
    first, document = member.document(rule(member)), member.document(rule(member))
    sealed = member.sealed(document)
    deliver(guardian, sealed)
    assert refusal(deliver, guardian, member.sealed(first))[0] == "replayed"
    assert refusal(deliver, guardian, member.sealed(first), preview=True)[0] == "replayed"
    other = replace(document, rollout="another", note="of the same revision")
    assert refusal(deliver, guardian, member.sealed(other))[0] == "conflict"
    named = replace(document, revision=document.revision + 1)
    assert refusal(deliver, guardian, member.sealed(named))[0] == "conflict"
    member.revision += 1
    undo = member.document(action=Action.UNDO, rollout=document.rollout)
    assert refusal(deliver, guardian, member.sealed(replace(undo, revision=1)))[0] == "replayed"
    assert deliver(guardian, member.sealed(undo))["rollouts"][0]["stage"] == "undone"
    assert refusal(deliver, guardian, sealed)[0] == "over"


RESTRICTIONS: dict[str, tuple[str, Rule | None, str, str]] = {
    "labels": ("labels = ['db']", None, "beyond", "may sign for db only"),
    "kinds": ("kinds = ['hashlimit']", None, "beyond", "kinds hashlimit only, not ipset"),
    "counts": ("count_only = true", None, "beyond", "only what counts"),
    "addresses": ("max_addresses = 10", WIDE, "beyond", "10 addresses at most, these are 65,536"),
    "width": ("widest_ipv4 = 32", WIDE, "beyond", "/32"),
    "time": ("max_ttl_seconds = 60", None, "beyond", "60 s at most"),
    "alone": ("needs_second = true", None, "second", "never signs alone"),
}


@pytest.mark.parametrize("name", RESTRICTIONS)
def test_a_signer_is_held_to_his_restriction(member: Member, guardian: GuardianClient, name: str) -> None:
    text, given, reason, words = RESTRICTIONS[name]
    member.write("restrictions.toml", f"[signer.alice]\n{text}\n")
    try:
        document = member.document(given or rule(member))
        found = refusal(deliver, guardian, member.sealed(document))
        assert (found[0], words in found[1]) == (reason, True), found
        told = deliver(guardian, member.sealed(document, "alice", "bob"))["rollouts"][0]  # bob may
        assert (told["stage"], told["signers"]) == ("trial", ["alice", "bob"])
    finally:
        (member.directory / "restrictions.toml").unlink()
    deliver(guardian, member.sealed(member.document(action=Action.UNDO, rollout=document.rollout)))


def test_two_sign_what_is_wide_and_a_restricted_signer_undoes_only_his_own(
    member: Member, guardian: GuardianClient
) -> None:
    member.write("restrictions.toml", "two_signers = ['wide']\n[signer.bob]\nkinds = ['hashlimit']\n")
    try:
        document = member.document(WIDE)
        assert refusal(deliver, guardian, member.sealed(document))[0] == "second"
        narrow = member.document(rule(member))
        deliver(guardian, member.sealed(narrow))
        undo = member.document(action=Action.UNDO, rollout=narrow.rollout)
        assert refusal(deliver, guardian, member.sealed(undo, "bob"))[0] == "beyond"
        assert stage(guardian, narrow.rollout) == "trial"
        deliver(guardian, member.sealed(undo))
    finally:
        (member.directory / "restrictions.toml").unlink()


def test_what_a_frozen_machine_takes_and_how_much_it_lets_the_fleet_block(
    member: Member, guardian: GuardianClient
) -> None:
    document = member.document(rule(member))
    deliver(guardian, member.sealed(document))
    member.join("frozen = true\n")
    assert refusal(deliver, guardian, member.sealed(member.document(WIDE)))[0] == "frozen"
    deliver(guardian, member.sealed(member.document(action=Action.UNDO, rollout=document.rollout)))
    member.join("max_addresses = 65536\n")
    one = member.document(WIDE)
    deliver(guardian, member.sealed(one))
    found = refusal(deliver, guardian, member.sealed(member.document(rule(member))))
    assert (found[0], "65,537" in found[1]) == ("beyond", True)
    deliver(guardian, member.sealed(member.document(action=Action.UNDO, rollout=one.rollout)))
    member.join()


def test_keys_that_are_removed_revoked_or_over(member: Member, guardian: GuardianClient) -> None:
    key = public(member.keys["alice"])
    sealed = member.sealed(member.document(rule(member)))
    deliver(guardian, sealed, preview=True)
    lines = {
        "removed": f"bob {public(member.keys['bob'])}",
        "over": f'alice valid-before="20200101" {key}',
        "other namespace": f'alice namespaces="git" {key}',
        "pattern": f"*@example.org {key}",
    }
    for line in lines.values():
        member.signers(line)
        assert refusal(deliver, guardian, sealed, preview=True)[0] == "unsigned", line
    member.join()
    member.write("revoked", f"{key}\n")
    assert "revoked" in refusal(deliver, guardian, sealed, preview=True)[1].lower()
    (member.directory / "revoked").unlink()
    deliver(guardian, sealed, preview=True)


def test_an_authoritys_short_lived_certificates(
    member: Member, guardian: GuardianClient, tmp_path: Path
) -> None:
    made_keys(tmp_path, "ca", "carol", "dave")
    member.signers(f'carol cert-authority,namespaces="fwtop-fleet" {public(tmp_path / "ca")}')
    try:
        for name, principal, validity, good in (
            ("carol", "carol", "-5m:+5m", True),
            ("carol", "carol", "-10m:-5m", False),
            ("dave", "dave", "-5m:+5m", False),
        ):
            command = ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", name, "-n", principal]
            subprocess.run([*command, "-V", validity, str(tmp_path / f"{name}.pub")], check=True)
            text = encode(member.document(rule(member)))
            signature = sign(tmp_path / f"{name}-cert.pub", text, SIGNED_FOR)
            found = refusal(deliver, guardian, Sealed(text.decode(), (signature,)), preview=True)
            assert (found[0] == "") is good, found
    finally:
        member.join()


def test_files_that_others_may_write_or_that_are_wrong_count_for_nothing(
    member: Member, guardian: GuardianClient
) -> None:
    sealed = member.sealed(member.document(rule(member)))
    signers = member.directory / "signers"
    signers.chmod(0o666)
    assert "chmod go-w" in refusal(deliver, guardian, sealed)[1]
    signers.chmod(0o644)
    member.directory.chmod(0o777)
    assert "chmod go-w" in refusal(deliver, guardian, sealed)[1]
    member.directory.chmod(0o755)
    member.write("restrictions.toml", "[signer.alice]\ncount_onyl = true\n")
    assert "count_onyl" in refusal(deliver, guardian, sealed)[1]
    (member.directory / "restrictions.toml").unlink()
    machine = member.directory / "machine.toml"
    text = machine.read_text()
    machine.unlink()
    assert refusal(deliver, guardian, sealed)[0] == "no_fleet"
    member.write("machine.toml", text)
    deliver(guardian, sealed, preview=True)
