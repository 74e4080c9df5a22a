"""Signed documents and the real guardian: what was signed happens, on trial, and nothing else does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_bench import Member, confirm, deliver, events, last, member_of, reboot, refusal, stage
from guardian_bench import Bench
from msgspec.structs import replace

from fwtop.fleet.document import SCHEMA, SIGNED_FOR, Action, Calm, Sealed, encode
from fwtop.fleet.signing import ConfirmKey, sign
from fwtop.guardian.fleet.record import LOG, RECORD, Known, check_log
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import FleetStatus, Keep, ListChange, Status, Undo
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.wire import of_json, to_json
from tests.kernel.fuse_server import fuse_file

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
        assert (plan["rollouts"][0]["stage"], plan["plans"][0]["refused"]) == ("previewed", None)
        assert (plan["revision"], path.passes()) == (0, True)
        told = deliver(guardian, sealed)["rollouts"][0]
        assert (told["stage"], told["acting"], len(told["rules"])) == ("trial", True, 1)
        assert not path.passes()
        [rule] = guardian.demand(Status()).data["rules"]
        made = rule["rule"]
        assert (made["created_by"], made["labels"]) == ("fleet alice", {"fleet": "prod", "rollout": "r1"})
    # nobody is connected any more: no node, broker or coordinator holds the trial
    poll_until(path.passes)
    with bench.connect() as guardian:
        poll_until(lambda: stage(guardian, "r1") == "reverted")
        assert refusal(deliver, guardian, sealed)[0] == "over"
    said = ["previewed", "taken", "trial", "reverted", "refused"]
    poll_until(lambda: [event["event"] for event in events(member)] == said)
    assert check_log(member.records) == 5


def test_the_rollouts_own_key_renews_keeps_and_undoes(bench: Bench, member: Member) -> None:
    path = bench.path(4)
    with ConfirmKey() as key, ConfirmKey() as other, bench.connect() as guardian:
        document = member.document(bench.block_rule(4), confirm_key=key.public)
        sealed = member.sealed(document)
        assert refusal(confirm, guardian, key, sealed, Action.KEEP)[0] == "unsigned"
        before = deliver(guardian, sealed)["rollouts"][0]
        assert refusal(confirm, guardian, other, sealed, Action.KEEP)[0] == "unsigned"
        renewed = confirm(guardian, key, sealed, Action.RENEW, 1)["rollouts"][0]
        assert renewed["confirm_by"] > before["confirm_by"]
        assert refusal(confirm, guardian, key, sealed, Action.RENEW, 1)[0] == "replayed"
        kept = confirm(guardian, key, sealed, Action.KEEP, 2)["rollouts"][0]
        assert (kept["stage"], kept["confirm_by"], kept["acting"]) == ("kept", None, True)
        assert confirm(guardian, key, sealed, Action.KEEP, 2)["rollouts"] == [kept]
        assert (deliver(guardian, sealed)["rollouts"], path.passes()) == ([kept], False)
        assert confirm(guardian, key, sealed, Action.UNDO, 3)["rollouts"][0]["stage"] == "undone"
        assert path.passes()
        assert refusal(confirm, guardian, key, sealed, Action.KEEP, 4)[0] == "over"


def test_a_signer_keeps_and_undoes_and_so_does_root_here(bench: Bench, member: Member, poll_until) -> None:
    with bench.connect() as guardian:
        for number, action in ((1, Action.KEEP), (2, Action.UNDO)):
            document = member.document(bench.block_rule(4))
            deliver(guardian, member.sealed(document))
            decision = member.sealed(member.document(action=action, rollout=document.rollout), "bob")
            told = deliver(guardian, decision)["rollouts"][0]
            assert told["stage"] == {1: "kept", 2: "undone"}[number]
            deliver(guardian, member.sealed(member.document(action=Action.UNDO, rollout=document.rollout)))
        assert bench.path(4).passes()
        document = member.document(bench.block_rule(4))
        [rule_id] = deliver(guardian, member.sealed(document))["rollouts"][0]["rules"]
        with bench.connect("console") as screen:
            assert "whose operators keep it or not" in refusal(screen.demand, Keep(rule_id))[1]
        guardian.demand(Keep(rule_id))
        assert stage(guardian, document.rollout) == "kept"
        guardian.demand(Undo((rule_id,)))
        assert stage(guardian, document.rollout) == "undone"
        keep = member.sealed(member.document(action=Action.KEEP, rollout="unheard-of"))
        assert refusal(deliver, guardian, keep)[0] == "over"


def test_all_rules_of_a_document_go_in_or_none(bench: Bench, member: Member) -> None:
    before = bench.state()
    wide = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("12.0.0.0/12"),)), "wide", 600)
    with bench.connect() as guardian:
        document = member.document(bench.block_rule(4), bench.block_rule(6), wide)
        reason, line = refusal(deliver, guardian, member.sealed(document))
        assert (reason, "only root on the machine" in line) == ("needs_force", True)
        assert (stage(guardian, document.rollout), guardian.rules()) == ("reverted", [])
        both = member.document(bench.block_rule(4), bench.block_rule(6))
        assert len(deliver(guardian, member.sealed(both))["rollouts"][0]["rules"]) == 2
        assert not bench.path(4).passes()
        assert not bench.path(6).passes()
        deliver(guardian, member.sealed(member.document(action=Action.UNDO, rollout=both.rollout)))
    assert bench.settled(before) == before


def test_what_only_counts_in_calm_drops_on_trial_once_there_is_an_attack(
    bench: Bench, member: Member, poll_until
) -> None:
    path = bench.path(4)
    with bench.connect() as guardian:
        sealed = member.sealed(member.document(bench.block_rule(4), calm=Calm.COUNT, trial_seconds=2))
        told = deliver(guardian, sealed, calm=True)["rollouts"][0]
        assert (told["stage"], told["counting"], path.passes()) == ("kept", True, True)
        assert deliver(guardian, sealed, calm=True)["rollouts"] == [told]
        told = deliver(guardian, sealed)["rollouts"][0]
        assert (told["stage"], told["counting"], path.passes()) == ("trial", False, False)
        poll_until(path.passes)
        poll_until(lambda: stage(guardian, "r1") == "kept")
        assert guardian.demand(FleetStatus()).data["rollouts"][0]["counting"]


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_trial_and_the_highest_revision_outlive_the_guardian(
    bench: Bench, member: Member, poll_until, is_recorded: bool
) -> None:
    with ConfirmKey() as key:
        with bench.connect() as guardian:
            older = member.sealed(member.document(bench.block_rule(6)))
            sealed = member.sealed(member.document(bench.block_rule(4), confirm_key=key.public))
            deliver(guardian, sealed)
        poll_until(lambda: last(member) == "trial")
        bench.kill_guardian()
        if not is_recorded:  # it was killed as the rule was in
            record = member.records / RECORD
            known = of_json(Known, record.read_bytes())
            one = replace(known.rollouts["r2"], rules=())
            record.write_bytes(to_json(replace(known, rollouts={"r2": one})))
        with bench.connect() as guardian:
            assert (stage(guardian, "r2"), bench.path(4).passes()) == ("trial", False)
            assert refusal(deliver, guardian, older)[0] == "replayed"
            assert confirm(guardian, key, sealed, Action.KEEP)["rollouts"][0]["stage"] == "kept"
            assert guardian.demand(FleetStatus()).data["revision"] == 2


def test_after_a_reboot_what_was_kept_comes_back_for_the_time_that_it_has_left(
    bench: Bench, member: Member
) -> None:
    with ConfirmKey() as key:
        sealed = member.sealed(member.document(bench.block_rule(4), confirm_key=key.public))
        with bench.connect() as guardian:
            deliver(guardian, sealed)
            confirm(guardian, key, sealed, Action.KEEP, 5)
            deliver(guardian, sealed)  # waits for what is written
            known = reboot(bench, member, until=time.time() + 100)
        with bench.connect() as guardian:
            assert (stage(guardian, "r1"), bench.path(4).passes()) == ("kept", True)
            assert refusal(confirm, guardian, key, sealed, Action.KEEP, 5)[0] == "over"  # the document first
            told = deliver(guardian, sealed)["rollouts"][0]
            assert (told["stage"], bench.path(4).passes()) == ("trial", False)
            assert confirm(guardian, key, sealed, Action.KEEP, 5)["rollouts"][0]["stage"] == "kept"
            [rule] = guardian.rules()
            assert rule.rule.ttl_seconds <= 100
            guardian.demand(Undo(all=True))
        bench.kill_guardian()
        one = replace(known.rollouts["r1"], until=time.time() - 1)
        (member.records / RECORD).write_bytes(to_json(replace(known, rollouts={"r1": one})))
        with bench.connect() as guardian:  # its time was over while the machine was off
            assert (stage(guardian, "r1"), refusal(deliver, guardian, sealed)[0]) == ("expired", "over")


def test_a_record_that_was_cut_exchanged_or_damaged_is_told(bench: Bench, member: Member, poll_until) -> None:
    with bench.connect() as guardian:
        deliver(guardian, member.sealed(member.document(bench.block_rule(4))))
        deliver(guardian, member.sealed(member.document(action=Action.UNDO, rollout="r1")))
    poll_until(lambda: last(member) == "undone")
    poll_until(lambda: of_json(Known, (member.records / RECORD).read_bytes()).lines == 4)
    bench.kill_guardian()
    log = member.records / LOG
    lines = log.read_bytes().splitlines(keepends=True)
    assert check_log(member.records) == len(lines) == 4
    for wrong in (lines[:-1], [lines[0], lines[1].replace(b"alice", b"carol"), *lines[2:]], []):
        log.write_bytes(b"".join(wrong))
        with pytest.raises(FwtopError, match=r"cut|does not follow"):
            check_log(member.records)
    with bench.connect() as guardian:
        [warning] = guardian.demand(FleetStatus()).data["warnings"]
        assert "it was cut" in warning
    bench.kill_guardian()
    log.write_bytes(b"".join(lines) + b'{"seq": 5, "torn')
    (member.records / RECORD).write_bytes(b"{")
    with bench.connect() as guardian:
        sealed = member.sealed(member.document(bench.block_rule(4)))
        assert "damaged" in refusal(deliver, guardian, sealed)[1]
        assert guardian.rules() == []


def test_a_disk_without_room_takes_no_document_and_holds_up_no_end(
    bench: Bench, member: Member, poll_until
) -> None:
    with bench.connect() as guardian, ConfirmKey() as key:
        sealed = member.sealed(member.document(bench.block_rule(4), confirm_key=key.public))
        deliver(guardian, sealed)
        poll_until(lambda: last(member) == "trial")
        command = ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(member.records)]
        subprocess.run(command, check=True)
        try:
            (member.records / "full").write_bytes(bytes(4096))
            refused = member.sealed(member.document(bench.block_rule(6)))
            found = refusal(deliver, guardian, refused)
            assert found[0] == "unavailable", found
            assert confirm(guardian, key, sealed, Action.KEEP)["rollouts"][0]["stage"] == "kept"
            assert confirm(guardian, key, sealed, Action.UNDO, 2)["rollouts"][0]["stage"] == "undone"
            assert bench.path(4).passes()
        finally:
            subprocess.run(["umount", str(member.records)], check=True)
        assert deliver(guardian, refused)["rollouts"][0]["stage"] == "trial"  # there is room again
        said = ["taken", "trial", "taken", "kept", "undone", "taken", "trial"]
        poll_until(lambda: [event["event"] for event in events(member)] == said)
        assert check_log(member.records) == len(said)


@pytest.mark.parametrize("entry", ["{}", "{}:5353/udp", "2001:db8::/64"])
def test_a_rule_on_this_machines_own_list(bench: Bench, member: Member, entry: str) -> None:
    member.join("max_addresses = 1\n")
    rule = replace(bench.block_rule(4), match=Match(), origin="list:bad")
    with bench.connect() as guardian:
        guardian.demand(ListChange("bad", "create", entries=(entry.format(bench.attacker(4)),)))
        told = deliver(guardian, member.sealed(member.document(rule)))["rollouts"][0]
        assert (told["stage"], bench.path(4).passes()) == ("trial", entry.startswith("2001"))


def test_an_old_snapshot_takes_what_came_since_and_nothing_older(bench: Bench, member: Member) -> None:
    with bench.connect() as guardian:
        deliver(guardian, member.sealed(member.document(bench.block_rule(4))))
    with bench.connect() as guardian:
        undo = member.sealed(member.document(action=Action.UNDO, rollout="r1"))
        before = guardian.demand(FleetStatus()).data
        bench.kill_guardian()
    snapshot = {name: (member.records / name).read_bytes() for name in (RECORD, LOG)}
    with bench.connect() as guardian:
        deliver(guardian, undo)
        later = deliver(guardian, member.sealed(member.document(bench.block_rule(6))))
        guardian.demand(Undo(all=True))
    bench.kill_guardian()
    for name, content in snapshot.items():
        (member.records / name).write_bytes(content)
    with bench.connect() as guardian:
        told = guardian.demand(FleetStatus()).data
        assert (told["revision"], told["log"]) != (later["revision"], later["log"]), "who asks sees it"
        assert told["revision"] == before["revision"] == 1
        newest = member.sealed(member.document(bench.block_rule(6)))
        assert deliver(guardian, newest)["revision"] == 4
        assert refusal(deliver, guardian, undo)[0] == "replayed"


def test_a_newer_programs_document_is_unsupported_and_its_lower_schema_is_not(
    bench: Bench, member: Member
) -> None:
    with bench.connect() as guardian:
        document = member.document(bench.block_rule(4))
        newer = encode(document).replace(b'"schema":1', f'"schema":{SCHEMA + 1},"of_tomorrow":true'.encode())
        sealed = Sealed(newer.decode(), (sign(member.keys["alice"], newer, SIGNED_FOR),))
        assert refusal(deliver, guardian, sealed, preview=True)[0] == "unsupported"
        told = guardian.demand(FleetStatus()).data
        assert (told["schema"], told["revision"], told["rollouts"]) == (SCHEMA, 0, [])
        assert deliver(guardian, member.sealed(document))["rollouts"][0]["stage"] == "trial"


def test_a_disk_that_does_not_answer_takes_no_document_and_holds_up_no_end(
    bench: Bench, member: Member, poll_until
) -> None:
    with bench.connect() as guardian, ConfirmKey() as key:
        sealed = member.sealed(member.document(bench.block_rule(4), confirm_key=key.public))
        deliver(guardian, sealed)
        with fuse_file(member.records) as file:
            file.stall("lookup", "getattr")
            reason, line = refusal(deliver, guardian, member.sealed(member.document(bench.block_rule(6))))
            assert (reason, "the disk does not answer" in line) == ("unavailable", True)
            assert confirm(guardian, key, sealed, Action.KEEP)["rollouts"][0]["stage"] == "kept"
            assert confirm(guardian, key, sealed, Action.UNDO, 2)["rollouts"][0]["stage"] == "undone"
            assert bench.path(4).passes()
            file.abort()
        assert guardian.rules() == []
        deliver(guardian, member.sealed(member.document(bench.block_rule(6))))
        poll_until(lambda: last(member) == "trial")
        assert check_log(member.records) > 0


def test_ssh_keygens_own_command_verifies_a_document(member: Member, tmp_path: Path) -> None:
    sealed = member.sealed(member.document({"kind": "ipset"}), "alice", "bob")
    for name, signature in zip(("alice", "bob"), sealed.signatures, strict=True):
        (tmp_path / "sig").write_text(signature)
        command = ["ssh-keygen", "-Y", "verify", "-f", str(member.directory / "signers"), "-I", name]
        command += ["-n", "fwtop-fleet", "-s", str(tmp_path / "sig")]
        done = subprocess.run(command, input=sealed.text.encode(), capture_output=True, check=False)
        assert done.returncode == 0, done.stdout
        assert f'Good "fwtop-fleet" signature for {name}' in done.stdout.decode()
