"""`fwtop fleet sign`, `deliver` and `log`, without a server or a node."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fleet_bench import FLEET, Member, confirm, member_of
from guardian_bench import Bench

from fwtop.cli.fleet import documents
from fwtop.fleet.document import Action, Sealed
from fwtop.fleet.signing import ConfirmKey
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import FleetStatus
from fwtop.model.wire import to_json

pytestmark = pytest.mark.kernel
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def member(bench: Bench) -> Iterator[Member]:
    with member_of(bench) as made:
        yield made


@pytest.fixture
def fleet(bench: Bench, member: Member, monkeypatch, capsys) -> Command:
    """Run `fwtop fleet` with the bench's guardian and records."""
    monkeypatch.setattr(documents, "discovery", SimpleNamespace(connect=lambda netns: bench.connect()))
    monkeypatch.setattr(documents, "fleet_records", lambda netns: member.records)

    def run(action: str, *words: object) -> tuple[int, str]:
        parser = argparse.ArgumentParser()
        documents.ACTIONS[action].arguments(parser)
        status = documents.ACTIONS[action].run(parser.parse_args([*map(str, words)]))
        return status, capsys.readouterr().out

    return run


def test_a_rule_is_signed_by_two_previewed_tried_and_told(
    bench: Bench, member: Member, fleet: Command, tmp_path: Path, poll_until
) -> None:
    draft, signed, both = (tmp_path / name for name in ("draft.json", "signed.json", "both.json"))
    rule = bench.block_rule(4).to_dict()
    del rule["id"]
    draft.write_bytes(to_json({"fleet": FLEET, "on": ["web"], "rules": [rule], "trial_seconds": 600}))
    assert fleet("sign", draft, "--key", member.keys["alice"], "-o", signed) == (0, "")
    both.write_text(fleet("sign", signed, "--key", member.keys["bob"])[1])
    status, said = fleet("deliver", both, "--preview")
    assert (status, "previewed" in said, "ipset" in said) == (0, True, True)
    status, said = fleet("deliver", both)
    assert status == 0
    assert "web-1: r" in said
    assert "of alice and bob: trial, until" in said
    assert not bench.path(4).passes()
    answer = json.loads(fleet("deliver", both, "--json")[1])
    assert answer["rollouts"][0]["acting"]
    poll_until(lambda: "trial " in fleet("log")[1])
    shown = fleet("log")[1].splitlines()
    assert [line.split()[2] for line in shown] == ["previewed", "taken", "trial"]
    assert all("of alice and bob" in line for line in shown)
    events = [json.loads(line) for line in fleet("log", "--jsonl")[1].splitlines()]
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert fleet("log", "--verify") == (0, "3 lines, each follows from the one before it\n")


def test_what_ssh_keygen_signed_by_hand_is_delivered(
    bench: Bench, member: Member, fleet: Command, tmp_path: Path
) -> None:
    with ConfirmKey() as key, bench.connect() as guardian:
        document = tmp_path / "document.json"
        document.write_bytes(to_json(member.document(bench.block_rule(4), confirm_key=key.public)))
        command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "fwtop-fleet", "-f", str(member.keys["alice"])]
        subprocess.run([*command, str(document)], check=True, stderr=subprocess.DEVNULL)
        assert "trial" in fleet("deliver", document)[1]
        sealed = Sealed(document.read_text(), ())
        confirm(guardian, key, sealed, Action.KEEP)
        assert guardian.demand(FleetStatus()).data["rollouts"][0]["stage"] == "kept"
        undo = member.sealed(member.document(action=Action.UNDO, rollout="r1"))
        (tmp_path / "undo.json").write_bytes(to_json(undo))
        assert "undone" in fleet("deliver", tmp_path / "undo.json")[1]


DRAFT = {"fleet": FLEET, "on": ["all"], "rules": [{"kind": "x"}]}
WRONG = {
    "": "not a JSON object", "[]": "not a JSON object", "{}": "fleet is missing",
    '{"signatures": 1}': "signatures must be a list", json.dumps(DRAFT): "not a rule",
    json.dumps(DRAFT | {"action": "undo", "rules": []}): "nothing was signed",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_what_can_not_be_signed_or_delivered(
    fleet: Command, member: Member, tmp_path: Path, text: str
) -> None:
    (tmp_path / "draft").write_text(text)
    with pytest.raises(FwtopError, match=WRONG[text]):
        fleet("sign", tmp_path / "draft", "--key", tmp_path / "no key")
    with pytest.raises(FwtopError, match="nothing was changed"):
        fleet("deliver", tmp_path / "draft")
