"""Lists that come beside a signed document: what the guardian does with them, and with others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from fleet_bench import Member, confirm, deliver, member_of, refusal, stage
from guardian_bench import Bench
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.fleet.document import Action, Document, Sealed
from fwtop.fleet.lists import detached
from fwtop.fleet.signing import ConfirmKey
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import bundle, sealed
from fwtop.model.protocol import FleetDocument, Status
from fwtop.model.rule import Rule

pytestmark = pytest.mark.kernel
COUNT = 6_000


@pytest.fixture
def member(bench: Bench) -> Iterator[Member]:
    with member_of(bench) as made:
        yield made


def long(bench: Bench, more: int = COUNT) -> Rule:
    """Return a rule that blocks the attacker of the bench, and many that aren't there."""
    rule = bench.block_rule(4)
    others = tuple(Prefix(4, 0x2C000000 + number, 32) for number in range(more))
    return replace(rule, match=replace(rule.match, sources=(*rule.match.sources, *others)))


def with_list(member: Member, rule: Rule, **given: Any) -> tuple[Document, int]:
    """Return a document without its rule's sources, and the descriptor of these."""
    [bare], content, about = detached([rule])
    assert content is not None
    document = member.document(bare, schema=2, sources=about, **given)
    return document, bundle({"0": rule.match.sources})


def brought(guardian: GuardianClient, one: Sealed, descriptor: int, **how: bool) -> dict[str, Any]:
    asked = FleetDocument(one.text, one.signatures, attached=True, **how)
    return guardian.demand(asked, os.dup(descriptor)).data


def test_a_list_is_rehearsed_tried_kept_and_replaced(bench: Bench, member: Member) -> None:
    path = bench.path(4)
    with ConfirmKey() as key, ConfirmKey() as second, bench.connect() as guardian:
        document, descriptor = with_list(member, long(bench), confirm_key=key.public, name="list:x")
        one = member.sealed(document)
        told = brought(guardian, one, descriptor, preview=True)
        assert (told["plans"][0]["refused"], path.passes()) == (None, True)
        assert brought(guardian, one, descriptor)["rollouts"][0]["stage"] == "trial"
        assert not path.passes()
        [row] = guardian.demand(Status()).data["rules"]
        assert row["sources_total"] == COUNT + 1
        assert deliver(guardian, one)["rollouts"][0]["stage"] == "trial"  # it is there: nothing is needed
        confirm(guardian, key, one, Action.KEEP)
        short = long(bench, COUNT + 5)
        newer, other = with_list(member, short, confirm_key=second.public, name="list:x")
        two = member.sealed(newer)
        brought(guardian, two, other)
        assert [stage(guardian, name) for name in ("r1", "r2")] == ["kept", "trial"]
        confirm(guardian, second, two, Action.KEEP)
        assert [stage(guardian, name) for name in ("r1", "r2")] == ["undone", "kept"]
        [row] = guardian.demand(Status()).data["rules"]
        assert row["sources_total"] == COUNT + 6
        assert not path.passes()


def test_a_list_that_is_not_the_one_that_was_signed_is_refused(bench: Bench, member: Member) -> None:
    rule = long(bench)
    with bench.connect() as guardian:
        document, descriptor = with_list(member, rule)
        one = member.sealed(document)
        wrong = {
            "did not come": None,
            "SHA-256": bundle({"0": rule.match.sources[1:]}),
            "SHA-256 ": sealed(rule.match.sources),
        }
        for said, given in wrong.items():
            if given is None:
                reason, line = refusal(deliver, guardian, one)
            else:
                reason, line = refusal(brought, guardian, one, given)
            assert (reason, said.strip() in line) == ("sources", True), line
        plain = member.sealed(member.document(bench.block_rule(4)))
        assert refusal(brought, guardian, plain, descriptor)[0] == "sources"
        # Signed, but not of this document's rules: its signer's program is at fault.
        [bare], _, about = detached([rule])
        assert about is not None
        other = bundle({"7": rule.match.sources})
        size, found = os.fstat(other).st_size, _digest(other)
        made = member.document(bare, schema=2, sources=replace(about, size=size, sha256=found))
        assert refusal(brought, guardian, member.sealed(made), other)[0] == "sources"
        assert bench.path(4).passes()
        assert guardian.demand(Status()).data["rules"] == []


def _digest(descriptor: int) -> str:
    import hashlib

    return hashlib.sha256(os.pread(descriptor, 1 << 24, 0)).hexdigest()


def test_a_restriction_holds_for_a_list(bench: Bench, member: Member) -> None:
    member.write("restrictions.toml", f"[signer.alice]\nmax_addresses = {COUNT}\n")
    with bench.connect() as guardian:
        document, descriptor = with_list(member, long(bench))
        reason, line = refusal(brought, guardian, member.sealed(document), descriptor)
        assert (reason, "6,001" in line) == ("beyond", True), line
        document, descriptor = with_list(member, long(bench, COUNT - 1))
        member.write("restrictions.toml", f"[signer.alice]\nmax_addresses = {COUNT + 10}\nwidest_ipv4 = 32\n")
        assert brought(guardian, member.sealed(document), descriptor)["rollouts"][0]["stage"] == "trial"
