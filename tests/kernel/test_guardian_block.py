"""A block's whole life in a real namespace: pass, blocked, passes again, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from guardian_bench import (
    SOON_SECONDS,
    VARIANTS,
    Bench,
    apply,
    ended,
    kill,
    rules_of,
    run_console,
    use_variant,
)
from msgspec.structs import replace

from fwtop.kernel import namespaces
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Apply, Keep, Plan, Repair, Undo
from fwtop.model.rule import Kind, Match, Rule
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
FAMILIES = (4, 6)


@pytest.mark.one_each
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_block_stops_and_undo_lets_pass(bench: Bench, family: int, variant: str) -> None:
    use_variant(bench, variant)
    path = bench.path(family)
    assert path.passes(wait_s=30)
    with bench.connect() as guardian:
        assert guardian.about["variant"] == variant
        rule_id = apply(guardian, bench.block_rule(family))
        assert not path.passes()
        assert not path.passes()
        assert rules_of(guardian)[rule_id]["packets"] == 2
        assert rules_of(guardian)[rule_id]["entries"] == {bench.attacker(family): 2}
        guardian.demand(Undo((rule_id,)))
        assert path.passes(wait_s=30)


@pytest.mark.parametrize("foreign", ["none", *VARIANTS])
def test_undo_all_leaves_the_machine_as_it_was(bench: Bench, foreign: str) -> None:
    if foreign != "none":
        use_variant(bench, foreign)
        bench.pair.victim.run("ipset", "create", "foreign", "hash:ip")
        bench.pair.victim.run("ipset", "add", "foreign", "192.0.2.1")
        bench.pair.victim.run("nft", "add", "table", "inet", "theirs")
    before = bench.state()
    with bench.connect() as guardian:
        for rule in (bench.block_rule(4, 6), bench.block_rule(4), bench.block_rule(6)):
            apply(guardian, rule)
        during = bench.state()
        assert during != before
        assert "FWTOP" in during["nft"] + during["iptables-legacy-save"]
        assert len(guardian.demand(Undo(all=True)).data["undone"]) == 3
    assert bench.settled(before) == before


def test_a_table_that_somebody_began_to_use_meanwhile_stays(bench: Bench) -> None:
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4))
        theirs = ("iptables-nft", "-t", "raw", "-A", "PREROUTING", "-p", "tcp", "--dport", "9", "-j", "DROP")
        bench.pair.victim.run(*theirs)
        guardian.demand(Undo(all=True))
    assert "--dport 9 -j DROP" in bench.state()["iptables-nft-save"]
    assert "FWTOP" not in bench.state()["nft"]


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", FAMILIES)
def test_rule_expires_in_the_kernel_without_any_process(bench: Bench, family: int, poll_until) -> None:
    path = bench.path(family)
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(family, ttl=SOON_SECONDS))
        pid = int(guardian.about["pid"])
    kill(pid)
    assert not path.passes()
    poll_until(path.passes)
    with bench.connect() as guardian:
        assert rules_of(guardian, finished=True)["1"]["state"] == "expired"
    assert "fwtop" not in bench.state()["ipset"]


def test_expired_rule_is_taken_out_by_the_guardian(bench: Bench, poll_until) -> None:
    before = bench.state()
    with bench.connect() as guardian:
        rule_id = apply(guardian, bench.block_rule(4, ttl=1))
        poll_until(lambda: rule_id not in rules_of(guardian))
        assert rules_of(guardian, finished=True)[rule_id]["state"] == "expired"
    assert bench.settled(before) == before


APPLY = (
    "rule = Rule('', Kind.IPSET, Match(sources=(Prefix.parse('{source}'),)), 'x', 600)\n"
    "guardian.demand(Apply(rule.to_dict(), {confirm}))"
)


def test_killed_console_brings_traffic_back_at_once(bench: Bench, poll_until) -> None:
    path = bench.path(4)
    console = run_console(bench, APPLY.format(source=bench.attacker(4), confirm=30))
    try:
        assert not path.passes()
    finally:
        console.kill()
        console.communicate()
    poll_until(path.passes)
    with bench.connect() as guardian:
        ended = rules_of(guardian, finished=True)["1"]
        assert (ended["state"], ended["packets"] > 0) == ("reverted", True)


def test_killed_console_and_guardian_leave_a_rule_that_the_kernel_ends(bench: Bench, poll_until) -> None:
    path = bench.path(4)
    console = run_console(bench, APPLY.format(source=bench.attacker(4), confirm=1))
    bench.kill_guardian()
    console.kill()
    console.communicate()
    assert not path.passes()
    poll_until(path.passes)


def test_unconfirmed_rule_is_taken_back_and_kept_one_stays(bench: Bench, poll_until) -> None:
    with bench.connect("console") as guardian:
        lost = apply(guardian, bench.block_rule(6), 1)
        kept = apply(guardian, bench.block_rule(4), SOON_SECONDS)
        assert guardian.demand(Keep(kept)).data["status"]["state"] == "confirmed"
        poll_until(lambda: lost not in rules_of(guardian))
        assert rules_of(guardian, finished=True)[lost]["note"] == "not confirmed in time"
    assert bench.path(6).passes(wait_s=30)
    # An element of a provisional rule has less time left: it was renewed.
    poll_until(lambda: "timeout 5" in bench.pair.victim.run("ipset", "save").stdout)
    assert not bench.path(4).passes()
    with bench.connect() as guardian:
        assert rules_of(guardian)[kept]["state"] == "confirmed"


def test_new_guardian_adopts_what_a_killed_one_left(bench: Bench) -> None:
    before = bench.state()
    path = bench.path(4)
    with bench.connect() as guardian:
        rule_id = apply(guardian, bench.block_rule(4, 6))
        assert not path.passes()
    bench.kill_guardian()
    assert not path.passes()
    with bench.connect() as guardian:
        adopted = rules_of(guardian)[rule_id]
        assert (adopted["state"], adopted["packets"]) == ("confirmed", 2)
        guardian.demand(Undo(all=True))
    assert path.passes(wait_s=30)
    assert bench.settled(before) == before


def test_guardian_of_another_build_hands_its_rules_over(bench: Bench) -> None:
    with bench.connect(build="clone") as old:
        rule_id = apply(old, bench.block_rule(4))
        old_pid = old.about["pid"]
    with bench.connect(build="other") as new:
        assert (new.about["pid"] != old_pid, new.about["build"]) == (True, "other")
        assert not bench.path(4).passes()
        assert rules_of(new)[rule_id]["state"] == "confirmed"


@pytest.mark.parametrize(
    ("source", "why"), [("10.77.0.0/24", "allow"), ("10.77.0.2", "allow"), ("fd77::/64", "allow")]
)
def test_allow_listed_sources_are_refused(bench: Bench, source: str, why: str) -> None:
    bench.allow = "10.77.0.2  # the operator\nfd77::2\n"
    rule = Rule("", Kind.IPSET, Match(sources=(Prefix.parse(source),)), "x", 600)
    before = bench.state()
    with bench.connect() as guardian:
        assert why in guardian.demand(Plan(rule.to_dict())).data["refused"]
        answer = guardian.request(Apply(rule.to_dict(), 0, force=True))
        assert (answer.ok, why in answer.error) == (False, True)
    assert bench.settled(before) == before


def test_allow_listed_address_passes_a_list_that_holds_it(bench: Bench) -> None:
    bench.allow = f"{bench.attacker(4)}\n"
    rule = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("10.77.0.0/28"),)), "x", 600, origin="@file")
    with bench.connect() as guardian:
        apply(guardian, rule)
        assert f"add fwtop-1-4 {bench.attacker(4)} timeout" in bench.pair.victim.run("ipset", "save").stdout
        assert bench.path(4).passes(wait_s=30)


def test_allow_file_is_followed_while_rules_are_active(bench: Bench, poll_until) -> None:
    rule = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("10.77.0.2"),)), "x", 600)
    with bench.connect() as guardian:
        apply(guardian, rule)
        assert not bench.path(4).passes()
        (bench.directory / "allow").write_text("10.77.0.2\n")
        poll_until(lambda: bench.path(4).passes())


def test_readonly_client_changes_nothing(bench: Bench) -> None:
    with bench.connect(readonly=True) as guardian:
        answer = guardian.request(Apply(bench.block_rule(4).to_dict(), 0))
        assert (answer.ok, "read-only" in answer.error) == (False, True)
        assert rules_of(guardian) == {}


def test_guardian_ends_when_nothing_is_left_to_guard(bench: Bench, poll_until) -> None:
    with bench.connect() as guardian:
        pid = guardian.about["pid"]
    poll_until(lambda: ended(pid))
    assert [path.suffix for path in bench.directory.iterdir() if path.suffix in (".sock", ".lock")] == []


def test_broken_family_leaves_neither(bench: Bench) -> None:
    """A chain PREROUTING that nft made without a hook sees no packet: IPv4 must be rolled back."""
    bench.pair.victim.run("nft", "add", "table", "ip6", "raw")
    bench.pair.victim.run("nft", "add chain ip6 raw PREROUTING")
    bench.pair.victim.run("nft", "add rule ip6 raw PREROUTING ip6 saddr { fd01::1, fd02::2 } drop")
    before = bench.state()
    with bench.connect() as guardian:
        answer = guardian.request(Apply(bench.block_rule(4, 6).to_dict(), 0))
        assert (answer.ok, answer.code) == (False, 3)
        assert "chain PREROUTING of table raw (IPv6) is no base chain" in answer.error
    assert bench.settled(before) == before


def test_rule_goes_in_beside_native_rules_and_out_again(bench: Bench) -> None:
    """For which iptables-nft-save refuses the whole table."""
    bench.pair.victim.run(
        "nft",
        "add table ip raw; add chain ip raw PREROUTING { type filter hook prerouting priority raw; };"
        "add rule ip raw PREROUTING udp dport { 7, 9 } notrack",
    )
    before = bench.state()
    with bench.connect() as guardian:
        rule = bench.block_rule(4)
        first = apply(guardian, rule)
        second = apply(guardian, replace(rule, match=replace(rule.match, family=4)))
        assert not bench.path(4).passes()
        assert {name: item["acting"] for name, item in rules_of(guardian).items()} == {
            first: True,
            second: True,
        }
        guardian.demand(Undo(ids=(first,)))
        assert not bench.path(4).passes()
        bench.pair.victim.run("nft", "flush chain ip raw FWTOP-SOURCES")
        guardian.demand(Repair(second))
        assert not bench.path(4).passes()
        guardian.demand(Undo(all=True))
    assert bench.path(4).passes(wait_s=30)
    assert bench.settled(before) == before


def fwtop(bench: Bench, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "fwtop", *words, "--netns", bench.netns]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )


def test_command_line_blocks_reports_and_undoes(bench: Bench) -> None:
    assert fwtop(bench, "block", bench.attacker(4)).returncode == 2
    preview = fwtop(bench, "block", bench.attacker(4), "--preview", "--json")
    assert (preview.returncode, json.loads(preview.stdout)["plan"]["refused"]) == (0, None)
    done = fwtop(bench, "block", bench.attacker(4), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    rule_id = json.loads(done.stdout)["status"]["id"]
    try:
        assert not bench.path(4).passes()
        status = json.loads(fwtop(bench, "status", "--json").stdout)
        mine = next(item for item in status["mitigations"] if item["id"] == rule_id)
        assert (mine["state"], mine["packets"] >= 1) == ("confirmed", True)
        assert fwtop(bench, "keep", rule_id).returncode == 0
        assert fwtop(bench, "undo", "999999").returncode == 1
    finally:
        assert fwtop(bench, "undo", "--all").returncode == 0
    assert bench.path(4).passes(wait_s=30)


def test_long_list_is_carried_renewed_and_ends_by_itself(bench: Bench, poll_until) -> None:
    """More than fits a message; the attacker is in it, and the list hangs on a switch."""
    before = bench.state()
    sources = tuple(Prefix(4, 0x0B000000 + 16 * number, 32) for number in range(60_000))
    sources += (Prefix.parse(bench.attacker(4)),)
    rule = Rule("", Kind.IPSET, Match(sources=sources), "a list", 600, origin="@list")
    with bench.connect() as guardian:
        status = guardian.apply(rule, 0).data["status"]
        assert (status["sources_total"], len(status["rule"]["match"]["sources"])) == (60_001, 200)
        assert not bench.path(4).passes()
        guardian.demand(Keep("1", 600))
        listed = bench.pair.victim.run("ipset", "list", "fwtop-1-4").stdout
        assert "Number of entries: 60001" in listed
        clock = bench.pair.victim.run("ipset", "list", "fwtop-1-on4").stdout
        assert re.search(r"^128.0.0.0/1 timeout 59\d$", clock, re.MULTILINE)
        bench.pair.victim.run("ipset", "flush", "fwtop-1-4")
        assert bench.path(4).passes(wait_s=30)
        guardian.demand(Keep("1", SOON_SECONDS))  # puts back what somebody took out
        assert not bench.path(4).passes()
        assert rules_of(guardian)["1"]["packets"] == 2
    bench.kill_guardian()
    assert not bench.path(4).passes()
    poll_until(bench.path(4).passes)
    with bench.connect() as successor:
        assert rules_of(successor, finished=True)["1"]["sources_total"] == 60_001
    assert bench.settled(before) == before


def test_without_a_journal_nothing_is_installed_but_status_answers(bench: Bench) -> None:
    with inside(bench.netns):
        name = f"state-{namespaces.cookie()}-{os.stat('/proc/thread-self/ns/net').st_ino}"
    (bench.directory / name).write_text("")  # as good as a read-only /run: root may write anywhere else
    before = bench.state()
    with bench.connect() as guardian:
        answer = guardian.request(Apply(bench.block_rule(4).to_dict(), 0))
        assert not answer.ok
        assert "the journal can't be kept" in answer.error
        assert "nothing was installed" in answer.error
        assert "journal" in guardian.demand(Plan(bench.block_rule(4).to_dict())).data["refused"]
        assert rules_of(guardian) == {}
    assert bench.settled(before) == before


def test_terminated_guardian_reverts_the_unconfirmed_and_leaves_the_confirmed(
    bench: Bench, poll_until
) -> None:
    with bench.connect("console") as guardian:
        unconfirmed = apply(guardian, bench.block_rule(6), 300)
        confirmed = apply(guardian, bench.block_rule(4), 300)
        guardian.demand(Keep(confirmed))
        pid = int(guardian.about["pid"])
        os.kill(pid, signal.SIGTERM)
        poll_until(lambda: ended(pid))
    assert bench.path(6).passes(wait_s=30)
    assert not bench.path(4).passes()
    assert list(bench.directory.glob("*.sock")) == []
    with bench.connect() as successor:
        assert list(rules_of(successor)) == [confirmed]
        assert rules_of(successor, finished=True)[unconfirmed]["state"] == "reverted"
