"""A group of the fleet's rules, switched by a signed document: on trial, undone, and nobody else's rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet_bench import Member, confirm, deliver, last, member_of, reboot, refusal, stage
from guardian_bench import Bench
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.fleet.document import Action, Document, Sealed
from fwtop.fleet.signing import ConfirmKey
from fwtop.model.protocol import FleetStatus, Keep, RuleMode
from fwtop.model.rule import Mode

pytestmark = pytest.mark.kernel


@pytest.fixture
def member(bench: Bench) -> Iterator[Member]:
    with member_of(bench) as made:
        yield made


def switch(member: Member, mode: str, **given: object) -> Document:
    made = {"schema": 3, "group": "web", "mode": Mode(mode), "name": "group:web", "trial_seconds": 2}
    return member.document(action=Action.SWITCH, **made | given)


def kept(guardian: GuardianClient, member: Member, document: Document, *by: str) -> str:
    """Deliver a document and have a signer keep it; return the number of its rule."""
    [rule] = deliver(guardian, member.sealed(document, *by))["rollouts"][0]["rules"]
    decision = member.document(action=Action.KEEP, rollout=document.rollout)
    assert deliver(guardian, member.sealed(decision))["rollouts"][0]["stage"] == "kept"
    return rule


def grouped(bench: Bench, member: Member, **given: object) -> Document:
    rule = replace(bench.block_rule(4), group="web")
    return member.document(rule, name="policy", schema=2, **given)


@pytest.mark.parametrize("mode", ["count", "off"])
def test_a_group_that_is_switched_is_on_trial_whatever_it_does_then(
    bench: Bench, member: Member, poll_until, mode: str
) -> None:
    path = bench.path(4)
    with bench.connect() as guardian:
        rule = kept(guardian, member, grouped(bench, member))
        document = switch(member, mode)
        plan = deliver(guardian, member.sealed(document), preview=True)
        assert (plan["rollouts"][0]["stage"], plan["plans"][0]["refused"]) == ("previewed", None)
        assert not path.passes()
        told = deliver(guardian, member.sealed(document))["rollouts"][0]
        assert (told["stage"], told["acting"], told["rules"]) == ("trial", True, [rule])
        assert path.passes()
        bench.kill_guardian()  # what was there before comes back all the same
    with bench.connect() as guardian:
        poll_until(lambda: not path.passes())
        poll_until(lambda: stage(guardian, document.rollout) == "reverted")
        assert guardian.rules()[0].rule.mode is Mode.DROP
        assert refusal(deliver, guardian, member.sealed(document))[0] == "over"


def test_a_switch_is_kept_until_another_and_undone_as_the_rules_were_made(
    bench: Bench, member: Member, poll_until
) -> None:
    path = bench.path(4)
    with ConfirmKey() as key, bench.connect() as guardian:
        rule = kept(guardian, member, grouped(bench, member))
        expires = guardian.rules()[0].expires
        off, count = switch(member, "off", confirm_key=key.public), switch(member, "count")
        sealed = member.sealed(off)
        deliver(guardian, sealed)
        assert confirm(guardian, key, sealed, Action.RENEW, 1)["rollouts"][0]["stage"] == "trial"
        assert confirm(guardian, key, sealed, Action.KEEP, 2)["rollouts"][0]["stage"] == "kept"
        assert abs(guardian.rules()[0].expires - expires) < 3  # they live no longer for that
        assert path.passes()
        count = replace(count, revision=off.revision + 10, rollout="later")
        member.revision = count.revision
        assert kept(guardian, member, count) == rule
        assert stage(guardian, off.rollout) == "undone"
        deliver(guardian, member.sealed(member.document(action=Action.UNDO, rollout="later")))
        assert (stage(guardian, "later"), path.passes()) == ("undone", False)
        again = switch(member, "drop")  # they drop already: there is nothing to try
        assert deliver(guardian, member.sealed(again))["rollouts"][0]["stage"] == "kept"
        by_hand = switch(member, "off")
        kept(guardian, member, by_hand)
        guardian.demand(RuleMode((rule,), Mode.DROP, 0))
        poll_until(lambda: stage(guardian, by_hand.rollout) == "undone")
        assert not path.passes()


def test_only_rules_of_the_fleet_are_switched_and_only_by_who_may(bench: Bench, member: Member) -> None:
    with bench.connect() as guardian:
        own = replace(bench.block_rule(6), group="web")
        guardian.apply(own, confirm_seconds=0)
        reason, line = refusal(deliver, guardian, member.sealed(switch(member, "off")))
        assert (reason, "there are: none" in line) == ("unknown", True), line
        document = grouped(bench, member)
        deliver(guardian, member.sealed(document))
        reason, line = refusal(deliver, guardian, member.sealed(switch(member, "off")))
        assert (reason, "on trial" in line) == ("busy", True), line
        keep = member.document(action=Action.KEEP, rollout=document.rollout)
        deliver(guardian, member.sealed(keep))
        member.write("restrictions.toml", "[signer.bob]\ncount_only = true\n")
        reason, _ = refusal(deliver, guardian, member.sealed(switch(member, "count"), "bob"))
        assert reason == "beyond"
        assert not bench.path(4).passes()
        kept(guardian, member, switch(member, "off"))
        assert (bench.path(4).passes(), bench.path(6).passes()) == (True, False)


def test_a_switch_comes_back_after_a_reboot(bench: Bench, member: Member, poll_until) -> None:
    path = bench.path(4)
    with ConfirmKey() as first, ConfirmKey() as second:
        block = member.sealed(grouped(bench, member, confirm_key=first.public))
        off = member.sealed(switch(member, "off", confirm_key=second.public))
        both: list[tuple[ConfirmKey, Sealed]] = [(first, block), (second, off)]
        with bench.connect() as guardian:
            for key, one in both:
                deliver(guardian, one)
                confirm(guardian, key, one, Action.KEEP, 5)
            poll_until(lambda: last(member) == "kept")
            deliver(guardian, block)
            reboot(bench, member)
        with bench.connect() as guardian:
            for key, one in both:
                assert deliver(guardian, one)["rollouts"][0]["stage"] == "trial"
                assert confirm(guardian, key, one, Action.KEEP, 5)["rollouts"][0]["stage"] == "kept"
            assert path.passes()
            assert [one["stage"] for one in guardian.demand(FleetStatus()).data["rollouts"]] == [
                "kept",
                "kept",
            ]
            [rule] = guardian.rules()
            guardian.demand(Keep(rule.rule.id))
