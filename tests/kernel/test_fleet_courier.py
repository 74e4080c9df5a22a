"""A program in the place of the fleet's node sends whatever it likes, and changes nothing on the machine."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from fleet_bench import Member, deliver, last, member_of
from guardian_bench import Bench
from msgspec.structs import replace
from program_bench import as_user

from fwtop.client import program
from fwtop.fleet.document import Action, Confirmation, digest
from fwtop.fleet.signing import ConfirmKey
from fwtop.model import protocol
from fwtop.model.errors import FwtopError
from fwtop.model.messages import encode_request
from fwtop.model.protocol import Request, Status

pytestmark = pytest.mark.kernel
NODE = 61_006  # its group
READS = {  # what it may know: that of the scope `read`
    *("Status", "Plan", "Why", "RuleRead", "Survey", "Rules", "Changes", "ListShow", "ListTest", "ListRead"),
    *("PolicyRead", "FleetStatus", "Hello"),
}


@pytest.fixture
def member(netns_pair) -> Iterator[Member]:
    directory = Path(tempfile.mkdtemp(prefix="fwtop-node"))
    directory.chmod(0o755)
    (directory / "guard.toml").write_text(f"[access]\nfleet = [{NODE}]\n")
    bench = Bench(netns_pair, directory)
    try:
        with member_of(bench) as made:
            yield made
    finally:
        bench.close()
        shutil.rmtree(directory)


def tried(member: Member, messages: list[dict[str, Any]]) -> list[list[Any]]:
    """Return for each message of a program with the scope `fleet` alone its verb and why it was refused."""

    def work() -> str:
        said = []
        with program.connect(run_directory=member.bench.directory) as node:
            assert node.scopes == ("read", "fleet")
            for message in messages:
                fields = dict(message)
                verb = fields.pop("verb")
                try:
                    node.request(verb, **fields)
                    said.append([verb, "done"])
                except FwtopError as error:
                    said.append([verb, error.reason])
        return json.dumps(said)

    said = as_user(member.bench, [NODE], work)
    assert said.startswith("["), said
    return list(json.loads(said))


def message(request: Request) -> dict[str, Any]:
    return dict(json.loads(encode_request(request)))


def test_a_program_with_the_nodes_scope_changes_nothing(member: Member, poll_until) -> None:
    bench = member.bench
    with bench.connect() as guardian, ConfirmKey() as key, ConfirmKey() as own:
        [socket] = bench.directory.glob("*.api")
        poll_until(lambda: socket.stat().st_mode & 0o777 == 0o666)
        document = member.document(bench.block_rule(4), confirm_key=key.public)
        sealed = member.sealed(document)
        [rule_id] = deliver(guardian, sealed)["rollouts"][0]["rules"]
        before, rules = bench.state(), guardian.rules()
        rule = bench.block_rule(6).to_dict()
        said = Confirmation(
            fleet="prod", rollout="r1", document=digest(sealed.text.encode()), action=Action.KEEP, number=1
        )
        mine = own.seal(said)
        forged = member.sealed(member.document(bench.block_rule(6), confirm_key=own.public), "mallory")
        requests = [
            protocol.Apply(rule), protocol.Keep(rule_id), protocol.Renew(rule_id), protocol.Repair(rule_id),
            protocol.Undo((rule_id,)), protocol.Undo(all=True), protocol.RuleMode((rule_id,), "off"),
            protocol.RuleChange(rule_id, rule), protocol.ListChange("x", "create"), protocol.Watch(),
            protocol.PolicyChange("apply", "schema = 1\n"), protocol.PolicyChange("rollback"),
            protocol.Connect(), protocol.Symbols(), protocol.Rescan(), protocol.Seen(()),
            protocol.KnownClients(()), protocol.Summary(0.0, "CALM", 0.0, 0.0, 0.0, 0.0),
            protocol.Tracked(()), protocol.FleetConfirm(mine.text, mine.signatures[0]),
            protocol.FleetConfirm(sealed.text, sealed.signatures[0]),
            protocol.FleetDocument(forged.text, forged.signatures),
            protocol.FleetDocument(sealed.text.replace("web", "all"), sealed.signatures),
            protocol.FleetDocument(forged.text, sealed.signatures),
            protocol.FleetDocument(mine.text, mine.signatures),
        ]  # fmt: skip
        covered = {type(one).__name__ for one in requests} | READS
        assert covered >= {one.__name__ for one in get_args(Request)}, "a new request: may the node ask it?"
        found = tried(member, [message(one) for one in requests])
        assert "done" not in {reason for _, reason in found}, found
        again = replace(protocol.FleetDocument(sealed.text, sealed.signatures), calm=True)
        assert tried(member, [message(again)]) == [["fleetdocument", "done"]]  # once more, which does nothing
        assert (bench.state(), [one.rule for one in guardian.rules()]) == (
            before,
            [one.rule for one in rules],
        )
        assert guardian.demand(Status()).data["rules"][0]["state"] == "provisional"
        confirmation = key.seal(said)  # what was signed for it, it may bring
        given = message(protocol.FleetConfirm(confirmation.text, confirmation.signatures[0]))
        assert tried(member, [given]) == [["fleetconfirm", "done"]]
        assert guardian.demand(Status()).data["rules"][0]["state"] == "confirmed"
        poll_until(lambda: last(member) == "kept")


def test_a_flood_of_documents_keeps_no_operator_out_and_fills_no_disk(member: Member, poll_until) -> None:
    with member.bench.connect() as guardian:
        [socket] = member.bench.directory.glob("*.api")
        poll_until(lambda: socket.stat().st_mode & 0o777 == 0o666)
        forged = member.sealed(member.document(member.bench.block_rule(4)), "mallory")
        known = member.sealed(member.document(member.bench.block_rule(4)))
        for sealed, reason in ((forged, "unsigned"), (known, "done")):
            asked = message(protocol.FleetDocument(sealed.text, sealed.signatures, preview=True))
            found: set[str] = set()
            while "busy" not in found:
                found |= {why for _, why in tried(member, [asked] * 60)}
            assert found <= {reason, "busy"}
        assert deliver(guardian, known)["rollouts"][0]["stage"] == "trial"
    poll_until(lambda: last(member) == "trial")
