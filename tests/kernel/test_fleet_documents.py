"""Signed documents and the real guardian: what was signed happens, on trial, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fleet_bench import Member, confirm, deliver, events, member_of, refusal, stage
from guardian_bench import Bench

from fwtop.fleet.document import Action, Calm
from fwtop.fleet.signing import ConfirmKey
from fwtop.guardian.fleet.record import check_log
from fwtop.model.protocol import Status

pytestmark = pytest.mark.kernel


@pytest.fixture
def member(bench: Bench) -> Iterator[Member]:
    with member_of(bench) as made:
        yield made


def test_a_signed_rule_blocks_and_reverts_by_itself(bench: Bench, member: Member, poll_until) -> None:
    path = bench.path(4)
    document = member.document(bench.block_rule(4), trial_seconds=2)
    sealed = member.sealed(document)
    with bench.connect() as guardian:
        plan = deliver(guardian, sealed, preview=True)
        assert plan["rollouts"][0]["stage"] == "previewed" and plan["plans"][0]["refused"] is None
        assert plan["revision"] == 0 and path.passes()
        told = deliver(guardian, sealed)["rollouts"][0]
        assert (told["stage"], told["acting"], len(told["rules"])) == ("trial", True, 1)
        assert not path.passes()
        [rule] = guardian.demand(Status()).data["rules"]
        assert rule["rule"]["created_by"] == "fleet alice" and rule["rule"]["labels"]["rollout"] == "r1"
    # nobody is connected any more: no node, broker or coordinator holds the trial
    poll_until(path.passes)
    with bench.connect() as guardian:
        poll_until(lambda: stage(guardian, "r1") == "reverted")
        assert refusal(deliver, guardian, sealed)[0] == "over"
    said = [event["event"] for event in events(member)]
    assert said == ["previewed", "taken", "trial", "reverted", "refused"]
    assert check_log(member.records) == 5


def test_the_rollouts_own_key_renews_keeps_and_undoes(bench: Bench, member: Member) -> None:
    path = bench.path(4)
    with ConfirmKey() as key, ConfirmKey() as other, bench.connect() as guardian:
        document = member.document(bench.block_rule(4), confirm_key=key.public)
        sealed = member.sealed(document)
        assert refusal(confirm, guardian, key, document, sealed, Action.KEEP)[0] == "unsigned"
        before = deliver(guardian, sealed)["rollouts"][0]
        assert refusal(confirm, guardian, other, document, sealed, Action.KEEP)[0] == "unsigned"
        renewed = confirm(guardian, key, document, sealed, Action.RENEW, 1)["rollouts"][0]
        assert renewed["confirm_by"] > before["confirm_by"]
        assert refusal(confirm, guardian, key, document, sealed, Action.RENEW, 1)[0] == "replayed"
        kept = confirm(guardian, key, document, sealed, Action.KEEP, 2)["rollouts"][0]
        assert (kept["stage"], kept["confirm_by"], kept["acting"]) == ("kept", None, True)
        assert confirm(guardian, key, document, sealed, Action.KEEP, 2)["rollouts"] == [kept]
        assert deliver(guardian, sealed)["rollouts"] == [kept] and not path.passes()
        assert confirm(guardian, key, document, sealed, Action.UNDO, 3)["rollouts"][0]["stage"] == "undone"
        assert path.passes()
        assert refusal(confirm, guardian, key, document, sealed, Action.KEEP, 4)[0] == "over"
