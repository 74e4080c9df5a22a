"""Policies through the guardian's protocol: tried, kept and taken back by a program of the group."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import Bench
from program_bench import LISTS, POLICIES, READ, RULES, as_user, bench, open_to_groups

from fwtop.client import program
from fwtop.client.program import Program
from fwtop.kernel.sockets import command_name
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import MAX_POLICY, Undo
from fwtop.model.rule import POLICY_TRIAL, Kind
from fwtop.policy.live import Live
from fwtop.policy.versions import Versions
from tests.kernel.forking import name_of

pytestmark = pytest.mark.kernel
__all__ = ["bench", "open_to_groups"]
BLOCK = 'schema = 1\n[list.bad]\nentries = ["{}"]\n[[block]]\nlist = "bad"\n'
ATTACHED = 'schema = 1\n[list.bad]\nfile = "bad.txt"\n[[block]]\nlist = "bad"\n'
GONE = "1 no policy is tried on this connection, or not any more; nothing was changed"


@pytest.fixture(autouse=True)
def nothing_left(bench: Bench, open_to_groups: None) -> Iterator[None]:
    yield
    with bench.connect() as guardian:
        guardian.demand(Undo(all=True))
        live = Live(guardian)
        live.clear_trials()
        for name in live.list_names():
            live._delete(name)
    shutil.rmtree(bench.directory / "policy", ignore_errors=True)


def asking(bench: Bench, work: Callable[[Program], object], group: int = POLICIES) -> object:
    """Return what a program of a group made of it, or the words of what it was refused."""

    def ask() -> str:
        with program.connect(run_directory=bench.directory) as fwtop:
            try:
                return json.dumps(work(fwtop))
            except FwtopError as error:
                return json.dumps(f"{error.code} {error}")

    said = as_user(bench, [group], ask)
    assert "Traceback" not in said, said
    return json.loads(said)


def passes(bench: Bench) -> bool:
    return bench.path(4).passes()


def test_a_program_applies_a_policy_and_rolls_back(bench: Bench) -> None:
    text = BLOCK.format(bench.attacker(4))

    def work(fwtop: Program) -> object:
        planned = fwtop.read_policy("plan", text)
        tried = fwtop.change_policy("apply", text)
        during = [item["rule"]["created_by"] for item in fwtop.status()["rules"]]
        kept = fwtop.change_policy("keep")
        return [planned, tried, during, kept, fwtop.read_policy("diff", text), fwtop.read_policy("history")]

    planned, tried, during, kept, same, history = asking(bench, work)
    (plan,) = planned["plans"]
    assert (plan["refused"], plan["needs_force"], planned["new_lists"]) == (None, "", ["bad"])
    assert tried["trial"]
    assert tried["new_lists"] == ["bad"]
    assert during == [POLICY_TRIAL]
    assert kept["kept"] == 1
    assert not any(same.values())
    assert [item["note"] for item in history["versions"]] == ["program of user 65534"]
    assert not passes(bench)
    with bench.connect() as guardian:
        assert [rule.kind for rule in Live(guardian).rules()] == [Kind.IPSET]
    other = BLOCK.format("192.0.2.0/24")
    applied = asking(bench, lambda fwtop: fwtop.change_policy("apply", other, confirm_seconds=0))
    assert applied["kept"] == 2
    assert applied["changed_lists"] == [{"name": "bad", "added": 1, "removed": 1}]
    assert passes(bench)
    back = asking(bench, lambda fwtop: fwtop.change_policy("rollback", confirm_seconds=0))
    assert back["kept"] == 3
    assert not passes(bench)
    versions = Versions(bench.netns, bench.directory / "policy")
    assert versions.all()[-1].note == "program of user 65534, rollback to 1", "the command line's history"


@pytest.mark.parametrize("how", ["undo", "gone", "time"])
def test_what_is_not_kept_goes(bench: Bench, poll_until, how: str) -> None:
    text = BLOCK.format(bench.attacker(4))
    blocked, go = os.pipe()

    def work(fwtop: Program) -> object:
        fwtop.change_policy("apply", text, confirm_seconds=2 if how == "time" else 600)
        os.write(go, b"x")
        if how == "undo":
            return fwtop.change_policy("undo")
        if how == "time":
            poll_until(lambda: not fwtop.status()["rules"])
            return fwtop.change_policy("keep")
        return None

    said = asking(bench, work)
    assert os.read(blocked, 1) == b"x", "it was in"
    for descriptor in (blocked, go):
        os.close(descriptor)
    if how == "undo":
        assert said["kept"] is None
    if how == "time":
        assert isinstance(said, dict) or said == GONE, said
        assert said == GONE or said["kept"] is None
    poll_until(lambda: passes(bench))
    with bench.connect() as guardian:
        poll_until(lambda: not Live(guardian).list_names())
        assert not Live(guardian).rules(POLICY_TRIAL)
    assert asking(bench, lambda fwtop: fwtop.read_policy("history")) == {"versions": []}


def test_a_trial_is_renewed_for_an_hour_in_all(bench: Bench) -> None:
    text = BLOCK.format(bench.attacker(4))

    def ends(fwtop: Program) -> list[float]:
        return [item["confirm_by"] - time.time() for item in fwtop.status()["rules"]]

    def work(fwtop: Program) -> object:
        fwtop.change_policy("apply", text, confirm_seconds=60)
        before = ends(fwtop)
        renewed = fwtop.change_policy("renew", confirm_seconds=600)
        try:
            fwtop.change_policy("renew", confirm_seconds=3601)
        except FwtopError as error:
            refused = str(error)
        return [before, renewed, ends(fwtop), refused, fwtop.change_policy("keep")["kept"]]

    before, renewed, after, refused, kept = asking(bench, work)
    assert len(before) == 1
    assert before[0] <= 61
    assert after[0] > 500
    assert renewed == {"trial": True, "seconds": 600}
    assert refused.startswith("a trial takes an hour at most, and this one 3,")
    assert kept == 1, "what was refused ended nothing"
    assert not passes(bench)
    assert asking(bench, lambda fwtop: fwtop.change_policy("renew")) == (
        "1 no policy is tried on this connection, or not any more; nothing was changed"
    )


def agents(bench: Bench) -> list[int]:
    """Return the children that work on policies for this guardian."""
    with bench.connect() as guardian:
        pid = int(guardian.about["pid"])
    paths = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for path in paths for child in path.read_text().split()]
    return [child for child in children if command_name(child) == name_of("fwtop.policy.agent")]


def test_a_process_that_is_killed_leaves_the_old_policy(bench: Bench, poll_until: Callable[..., Any]) -> None:
    text = BLOCK.format(bench.attacker(4))
    with program.connect(bench.netns, run_directory=bench.directory) as fwtop:
        fwtop.change_policy("apply", text, confirm_seconds=12)
        [agent] = agents(bench)
        os.kill(agent, signal.SIGKILL)
        poll_until(lambda: not agents(bench))
        with pytest.raises(FwtopError, match=r"no policy is tried on this connection|process ended"):
            fwtop.change_policy("keep")
        poll_until(lambda: passes(bench))
        assert fwtop.read_policy("history") == {"versions": []}
        assert fwtop.change_policy("apply", text, confirm_seconds=0)["kept"] == 1
        fwtop.change_policy("apply", BLOCK.format("192.0.2.0/24"))
        with pytest.raises(FwtopError, match="keep or undo it first"):
            fwtop.change_policy("rollback")
        fwtop.change_policy("undo")
    assert not passes(bench)


MANY = [f"10.{number >> 8}.{number & 255}.0/24" for number in range(20_000)]


def test_lists_come_beside_the_text_and_no_file_is_opened(bench: Bench, tmp_path: Path) -> None:
    lists = {"bad": [*MANY, bench.attacker(4)]}
    applied = asking(
        bench, lambda fwtop: fwtop.change_policy("apply", ATTACHED, lists=lists, confirm_seconds=0)
    )
    assert applied["kept"] == 1
    assert not passes(bench)
    told = asking(bench, lambda fwtop: fwtop.read_policy("check", ATTACHED, lists=lists))
    assert told == {"rules": 1, "lists": 1, "entries": 20_001}
    (tmp_path / "bad.txt").write_text("192.0.2.1\n")
    text = ATTACHED.replace("bad.txt", str(tmp_path / "bad.txt"))
    assert asking(bench, lambda fwtop: fwtop.read_policy("check", text)) == (
        "2 policy:2: list.bad: the guardian opens no file for a program: its entries go into lists; "
        "nothing was changed"
    )


def test_what_was_kept_is_shown_as_apply_takes_it(bench: Bench) -> None:
    inline = BLOCK.format("192.0.2.0/24")
    lists = {"bad": ["198.51.100.7", "198.51.100.8"]}
    assert asking(bench, lambda fwtop: fwtop.read_policy("show"), READ) == "1 no policy was kept yet"

    def work(fwtop: Program) -> object:
        for text, beside in ((inline, None), (ATTACHED, {"bad": MANY}), (ATTACHED, lists)):
            fwtop.change_policy("apply", text, lists=beside, confirm_seconds=0)
        first, long, last = (fwtop.read_policy("show", version=number) for number in (1, 2, None))
        again = fwtop.change_policy("apply", last["text"], lists=last["lists"], confirm_seconds=0)
        return [first, long, last, again]

    first, long, last, again = asking(bench, work)
    assert (first["number"], first["text"], first["lists"], first["lists_left"]) == (1, inline, {}, {})
    assert (long["lists"], long["lists_left"]) == ({}, {"bad": len(MANY)})
    assert (last["number"], last["text"], last["lists"]) == (3, ATTACHED, lists)
    assert again["unchanged"]
    told = asking(bench, lambda fwtop: fwtop.read_policy("show", version=9), READ)
    assert told == "1 there is no policy 9; there are: 1, 2, 3; nothing was changed"


def test_an_export_comes_as_files(bench: Bench) -> None:
    text = BLOCK.format("192.0.2.0/24")

    def work(fwtop: Program) -> object:
        names = {}
        for format in ("nft", "iptables", "sh"):
            names |= fwtop.read_policy("export", text, format=format)["texts"]
        return names

    texts = asking(bench, work, READ)
    assert set(texts) == {"policy.nft", "policy.ipset", "policy.iptables", "policy.ip6tables", "policy.sh"}
    assert "192.0.2.0/24" in texts["policy.nft"]
    assert "add policy-bad-4 192.0.2.0/24" in texts["policy.ipset"]


def test_scopes_mistakes_and_bounds(bench: Bench) -> None:
    text = BLOCK.format("192.0.2.0/24")
    lacks = "3 policychange needs the scope 'policies', which you lack; nothing was changed"
    for group in (READ, LISTS, RULES):
        for action in ("apply", "rollback", "keep", "renew", "undo"):
            assert asking(bench, lambda fwtop, a=action: fwtop.change_policy(a, text), group) == lacks
        assert asking(bench, lambda fwtop: fwtop.read_policy("check", text), group)["rules"] == 1
    wrong = {
        text + "[[limit]]\n# here\nper = 24\nrate = 'fast'\n": (
            "2 policy:9: limit[0].rate: 'fast' is not a rate like"
        ),
        text + "[[limit]]\nper = 24\nspeed = 3\n": "2 policy:8: limit[0].speed is unknown; the nearest is ",
        text + "[[limit\n": "2 policy:6: ",
        "#" * (MAX_POLICY + 1): "1 a policy's text has up to 262,144 bytes",
        BLOCK.format("16.0.0.0/7"): "1 block list bad: refused without",
    }
    for given, words in wrong.items():
        said = asking(bench, lambda fwtop, t=given: fwtop.change_policy("apply", t, confirm_seconds=0))
        assert str(said).startswith(words), said
    with bench.connect() as guardian:
        assert not Live(guardian).list_names()
    assert asking(bench, lambda fwtop: fwtop.change_policy("keep")) == (
        "1 no policy is tried on this connection, or not any more; nothing was changed"
    )


def test_a_policy_is_parsed_without_rights(bench: Bench, tmp_path: Path) -> None:
    """A text that keeps its parser busy costs the processor time that one is given, and nothing else."""
    deep = "schema = 1\na = " + "[" * 60_000
    said = asking(bench, lambda fwtop: fwtop.read_policy("check", deep))
    assert str(said).startswith(("2 policy: ", "1 policy: its reader ended"))
