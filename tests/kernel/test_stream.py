"""The stream for programs: nothing is missed over restarts, and nobody harms the guardian through it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guardian_bench import Bench, lingering, peer_process
from program_bench import LISTS, NOBODY, RULES, as_user, bench, open_to_groups

from fwtop.api.serving import MAX_LINE
from fwtop.client.program import FwtopError, Program, connect
from fwtop.kernel.procfs import read_text
from fwtop.model.protocol import Seen, SeenAttack

pytestmark = pytest.mark.kernel
__all__ = ["bench", "open_to_groups"]
ROOT = Path(__file__).parents[2]
Poll = Callable[..., Any]
RULE = {"kind": "ipset", "match": {"sources": ["192.0.2.5"]}, "summary": "one", "ttl_seconds": 600}


@pytest.fixture
def fwtop(bench: Bench, open_to_groups: None) -> Iterator[Program]:
    with connect(bench.netns, run_directory=bench.directory) as connected:
        yield connected
        connected.request("undo", all=True)
        for item in connected.lists():
            connected.change_list("delete", item["name"])


def test_where_nobody_serves_the_stream_the_guardian_itself_answers(
    bench: Bench, fwtop: Program, tmp_path: Path
) -> None:
    name = f"{Path('/run/netns', bench.netns).stat().st_ino}.api"
    (tmp_path / name).symlink_to(bench.directory / name)
    addresses = {f"198.51.{number // 250}.{number % 250}" for number in range(7_500)}
    with connect(bench.netns, run_directory=tmp_path) as alone:
        alone.change_list("create", "many", addresses)
        assert {entry for entry, *_ in alone.entries("many")} == addresses
        with pytest.raises(FwtopError, match="start 'sudo fwtop api'"):
            next(alone.watch())
        with pytest.raises(FwtopError, match="start 'sudo fwtop api'"):
            alone.change_list("add", "many", [f"10.0.{n // 250}.{n % 250}" for n in range(62_500)])
        assert alone.test("many", "198.51.1.7")


def stream_path(bench: Bench) -> Path:
    return bench.directory / f"api-{bench.netns}.sock"


def opened(bench: Bench) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    sock.connect(str(stream_path(bench)))
    return sock


def asked(sock: socket.socket, line: bytes) -> dict[str, Any]:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(line)
    with sock.makefile("rb") as lines:
        return json.loads(lines.readline())


class Mirror:
    """A program that follows, and what it made of it."""

    def __init__(self, fwtop: Program, **wanted: Any) -> None:
        self.documents: list[dict[str, Any]] = []
        self._followed = fwtop.watch(**wanted)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for document in self._followed:
            self.documents.append(document)

    def has(self, **wanted: object) -> bool:
        return any(wanted.items() <= item.items() for item in [*self.documents])

    @property
    def own(self) -> dict[str, str]:
        """fwtop's rules as they are by what was told."""
        found: dict[str, str] = {}
        for item in self.documents:
            if item["event"] == "state":
                found = {status["rule"]["id"]: status["state"] for status in item["fwtop_rules"]}
            elif item.get("change") == "removed":
                del found[item["id"]]
            elif item["event"] == "fwtop_rule":
                found[item["id"]] = item["state"]
        return found

    @property
    def foreign(self) -> set[str]:
        """The rules of a table of others."""
        found: set[str] = set()
        for item in self.documents:
            if item["event"] == "state":
                found = {rule["key"] for rule in item["rules"] if " others " in rule["key"]}
            elif " others " in item.get("key", "") and item["event"].startswith("rule_"):
                (found.add if item["event"] == "rule_added" else found.discard)(item["key"])
        return found


def nft(bench: Bench, text: str) -> str:
    argv = ["ip", "netns", "exec", bench.netns, "nft", "-a", *text.split()]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def test_a_program_mirrors_all_changes_through_restarts_of_the_guardian(
    bench: Bench, fwtop: Program, poll_until: Poll
) -> None:
    """Whoever makes them, and however short they last: killed in between, four times."""
    draw = random.Random(33)
    nft(bench, "add table inet others")
    nft(bench, "add chain inet others c")
    mirror = Mirror(fwtop)
    poll_until(lambda: mirror.has(event="state"))
    made: list[str] = []
    for step in range(24):
        rule = {**RULE, "match": {"sources": [f"192.0.2.{step}"]}}
        made.append(fwtop.apply(rule, confirm_seconds=draw.choice((0, 60)))["rule"]["id"])
        if draw.random() < 0.5:
            fwtop.keep(made[-1], 900)
        if draw.random() < 0.5:
            fwtop.undo(made[-1])
        nft(bench, "add rule inet others c drop")
        if step % 6 == 5:
            bench.kill_guardian_of(fwtop.status()["guardian"]["pid"])
            nft(bench, "add rule inet others c accept")
            if draw.random() < 0.5:
                nft(bench, "flush chain inet others c")
        fwtop.change_list("create" if not fwtop.lists() else "delete", "bots")
    fwtop.change_list("create", "last")
    poll_until(lambda: mirror.has(event="list_added", name="last"))
    active = {item["rule"]["id"]: item["state"] for item in fwtop.status()["rules"]}
    poll_until(lambda: mirror.own == active)
    told = [item["id"] for item in mirror.documents if item.get("change") == "added"]
    assert sorted(told) == sorted(made), "each of them once"
    poll_until(lambda: mirror.has(event="guardian_started"))
    assert not mirror.has(event="gap")
    numbers = [item["seq"] for item in mirror.documents]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    there = {line.split("# handle ")[1] for line in nft(bench, "list table inet others").splitlines()
             if "drop" in line or "accept" in line}  # fmt: skip
    poll_until(lambda: {key.rpartition(" ")[2] for key in mirror.foreign} == there)
    since = mirror.documents[3]["cursor"]
    again = Mirror(fwtop, since=since)
    poll_until(lambda: len(again.documents) >= len(mirror.documents) - 4)
    assert again.documents[: len(mirror.documents) - 4] == mirror.documents[4:], "from a cursor, all again"
    nft(bench, "delete table inet others")


def test_attacks_that_a_console_sees_are_told_within_bounds(
    bench: Bench, fwtop: Program, poll_until: Poll
) -> None:
    def seen(number: int, ended: float | None = None) -> SeenAttack:
        title = f"UDP flood {number}\x1b[2J" + "x" * 500
        return SeenAttack(number, "udp_flood", title, "attack", "udp/53", "12 sources", 5.0, ended, 9e5, 8e8)

    mirror = Mirror(fwtop, events=("attack_began", "attack_ended", "state"))
    poll_until(lambda: mirror.has(event="state"))
    with bench.connect("console") as console:
        console.demand(Seen((seen(1),)))
        poll_until(lambda: mirror.has(event="attack_began"))
        state = next(item for item in fwtop.watch(events=("state",)))
        assert [(item["kind"], item["target"], item["since"]) for item in state["attacks"]] == [
            ("udp_flood", "udp/53", 5.0)
        ]
        console.demand(Seen((seen(1, 9.0), *map(seen, range(2, 500)))))
        poll_until(lambda: mirror.has(event="attack_ended", ended=9.0))
    poll_until(lambda: mirror.has(event="attack_ended", id=f"{os.getpid()}-7", ended=None))
    began, *_ = (item for item in mirror.documents if item["event"] == "attack_began")
    assert began["id"] == f"{os.getpid()}-1"
    assert began["title"].startswith("UDP flood 1·[2J")
    assert len(began["title"]) < 130
    ids = [item["id"] for item in mirror.documents if item["event"] == "attack_began"]
    assert len(ids) == len({*ids}) == 63, "and one end"
    with pytest.raises(FwtopError, match="seen is not for programs"):
        fwtop.request("seen", attacks=[])


def test_what_a_new_server_can_not_know_is_a_gap_and_the_state(
    bench: Bench, fwtop: Program, poll_until: Poll
) -> None:
    mirror = Mirror(fwtop, events=("fwtop_rule", "state"))
    poll_until(lambda: mirror.has(event="state"))
    [server] = bench.streams()
    os.kill(server, 9)
    fwtop.close()
    bench.serve_stream(poll_until)
    poll_until(lambda: bool(bench.streams()))
    poll_until(lambda: mirror.has(event="gap", of="stream"))
    poll_until(lambda: sum(item["event"] == "state" for item in mirror.documents) == 2)
    rule = fwtop.apply(RULE, confirm_seconds=0)["rule"]["id"]
    poll_until(lambda: mirror.has(event="fwtop_rule", change="added", id=rule))
    assert {item["event"] for item in mirror.documents} <= {"fwtop_rule", "state", "gap", "guardian_started"}


HOSTILE = {
    "a line without an end": (b"x" * (MAX_LINE + 1), "too_long"),
    "garbage": (bytes(random.Random(1).randbytes(100_000)).replace(b"\n", b"") + b"\n", "not_understood"),
    "invalid UTF-8": (b'{"verb": "\xff\xfe"}\n', "not_understood"),
    "half a character": (b'{"verb": "status", "x": "\\ud800"}\n', "not_understood"),
    "deep nesting": (b'{"verb":' + b"[" * 2_000_000 + b"\n", "not_understood"),
    "deep in a rule": (
        b'{"verb":"plan","rule":{"a":' + b'{"a":' * 900 + b"1" + b"}" * 902 + b"\n",
        "invalid",
    ),
    "no object": (b"[1, 2]\n", "not_understood"),
    "a wrong number": (b'{"verb": "status", "number": "x"}\n', "not_understood"),
    "a huge number": (b'{"verb": "status", "number": ' + b"9" * 100_000 + b"}\n", "not_understood"),
    "much in a rule": (b'{"verb":"plan","rule":{"a":[' + b"{}," * 2_000_000 + b"1]}}\n", "too_long"),
}


def memory(pid: int) -> int:
    """Return a process's resident memory, KiB."""
    fields = dict(line.split(":", 1) for line in read_text(f"/proc/{pid}/status").splitlines())
    return int(fields["VmRSS"].split()[0])


def test_hostile_programs_neither_stall_nor_grow_the_guardian(bench: Bench, fwtop: Program) -> None:
    guardian = fwtop.status()["guardian"]["pid"]
    fwtop.apply(RULE, confirm_seconds=0)
    before = memory(guardian)
    with contextlib.ExitStack() as held:
        half, mute = (held.enter_context(opened(bench)) for _ in range(2))
        half.sendall(b'{"verb": "sta')
        mute.sendall(b'{"verb": "status"}\n' * 200)  # and reads nothing
        for name, (line, reason) in HOSTILE.items():
            with opened(bench) as sock:
                answer = asked(sock, line)
            assert (answer["ok"], answer["code"], answer["reason"]) == (False, 2, reason), (name, answer)
            assert "number" in answer
            assert fwtop.status()["rules"], "everybody else is served"
        half.sendall(b'tus", "number": 7}\n')
        with half.makefile("rb") as lines:
            assert json.loads(lines.readline())["number"] == 7
    assert fwtop.status()["guardian"]["pid"] == guardian
    assert memory(guardian) < before + 8_192


def test_long_lists_have_no_size_trap(bench: Bench, fwtop: Program) -> None:
    entries = [f"10.{number >> 8}.{number & 255}.0/24" for number in range(60_000)]
    assert fwtop.change_list("create", "long", entries[:14_000])["entries"] == 14_000
    assert fwtop.change_list("add", "long", entries)["entries"] == 60_000
    assert sorted(entry for entry, _ in fwtop.entries("long")) == sorted(entries)
    assert len(fwtop.request("listread", name="long")["entries"]) == 60_000
    rule = {**RULE, "match": {"sources": entries[:20_000]}}
    rule_id = fwtop.apply(rule, confirm_seconds=0)["rule"]["id"]
    assert len(fwtop.rule(rule_id)["match"]["sources"]) == 20_000


def test_a_repeated_request_with_a_key_is_done_once(bench: Bench, fwtop: Program) -> None:
    given = {**RULE, "labels": {"ticket": "42", "team": "soc"}}
    first = fwtop.apply(given, confirm_seconds=0, key="a")
    bench.kill_guardian_of(fwtop.status()["guardian"]["pid"])
    again = fwtop.apply(given, confirm_seconds=0, key="a")
    assert again["rule"]["id"] == first["rule"]["id"]
    assert again["rule"]["labels"] == given["labels"]
    other = {**RULE, "match": {"sources": ["192.0.2.6"]}}
    with pytest.raises(FwtopError, match="has the key 'a' and does something else") as found:
        fwtop.apply(other, key="a")
    assert (found.value.reason, found.value.field) == ("exists", "rule.key")
    successor = fwtop.apply({**other, "replaces": first["rule"]["id"]}, confirm_seconds=0, key="a")
    assert [item["rule"]["id"] for item in fwtop.status()["rules"]] == [successor["rule"]["id"]]


def test_a_list_changed_by_others_is_not_overwritten(fwtop: Program) -> None:
    fwtop.change_list("create", "bots", ["192.0.2.1"])
    [seen] = fwtop.lists()
    fwtop.change_list("add", "bots", ["192.0.2.2"], if_stamp=seen["stamp"])
    with pytest.raises(FwtopError, match="was changed since stamp") as found:
        fwtop.change_list("replace", "bots", [], if_stamp=seen["stamp"])
    assert (found.value.reason, found.value.field) == ("changed", "if_stamp")
    assert [entry for entry, _ in fwtop.entries("bots")] == ["192.0.2.1", "192.0.2.2"]


def test_entries_are_counted_page_by_page(bench: Bench, fwtop: Program) -> None:
    fwtop.change_list("create", "bots", [bench.attacker(4), "192.0.2.2"])
    rule = {"kind": "ipset", "origin": "list:bots", "match": {}, "summary": "bots", "ttl_seconds": 600}
    fwtop.apply(rule, confirm_seconds=0)
    for _ in range(3):
        bench.path(4).send()
    assert not bench.path(4).passes()
    assert dict(fwtop.counters("bots")) == {bench.attacker(4): 4, "192.0.2.2": 0}


REFUSED = [  # verb, fields; reason, field, code
    ("quark", {}, "unknown_verb", "verb", 2),
    ("status", {"quark": 1}, "invalid", "quark", 2),
    ("listchange", {"action": "create"}, "invalid", "name", 2),
    ("listchange", {"action": "fold", "name": "a"}, "invalid", "action", 2),
    ("listchange", {"action": "delete", "name": "a"}, "not_found", "name", 1),
    ("listchange", {"action": "create", "name": "a", "entries": ["quark"]}, "invalid", "entries", 2),
    ("plan", {"rule": {**RULE, "ttl_seconds": "9"}}, "invalid", "rule.ttl_seconds", 2),
    ("plan", {"rule": {**RULE, "ttl_seconds": 0}}, "invalid", "rule.ttl_seconds", 2),
    ("plan", {"rule": {**RULE, "match": {}}}, "invalid", "rule.match.sources", 2),
    ("plan", {"rule": {**RULE, "match": {"dport": 70_000}}}, "invalid", "rule.match.dport", 2),
    ("plan", {"rule": {**RULE, "match": {"protocol": "tpc"}}}, "invalid", "rule.match.protocol", 2),
    (
        "plan",
        {"rule": {**RULE, "limit": {"per_second": 0, "burst": 1}}},
        "invalid",
        "rule.limit.per_second",
        2,
    ),
    ("listchange", {"action": "create", "name": "../x"}, "invalid", "name", 2),
    ("apply", {"rule": {**RULE, "labels": {"a": "b" * 99}}}, "invalid", "rule.labels", 2),
    ("apply", {"rule": RULE, "force": True}, "no_access", "force", 1),
    ("apply", {"rule": RULE, "confirm_seconds": -1}, "invalid", "confirm_seconds", 2),
    ("keep", {"id": "0"}, "not_found", "id", 1),
    ("why", {"id": "0"}, "not_found", "id", 1),
    ("policyread", {"action": "check"}, "invalid", "text", 2),
    ("watch", {"events": ["quark"]}, "invalid", "events", 2),
    ("watch", {"by": "me"}, "invalid", "by", 2),
    ("connect", {}, "unknown_verb", "verb", 2),
    ("hello", {"role": "program", "versions": [2, 9]}, "version", "versions", 2),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}-{case[2]}-{case[3]}")
def test_what_is_refused_has_a_reason_and_its_field(bench: Bench, fwtop: Program, case: Any) -> None:
    verb, fields, reason, field, code = case
    with opened(bench) as sock:
        answer = asked(sock, json.dumps({"number": 5, "verb": verb, **fields}).encode() + b"\n")
    assert answer["error"]
    wanted = {"ok": False, "number": 5, "reason": reason, "field": field, "code": code, "retryable": False}
    assert wanted.items() <= answer.items(), answer


def test_scopes_are_held_to_and_a_user_has_so_many_connections(bench: Bench, open_to_groups: None) -> None:
    create = {"name": "a", "action": "create"}

    def work() -> str:
        with connect(run_directory=bench.directory) as fwtop:
            said: list[object] = [fwtop.scopes]
            for verb, fields in (("listchange", create), ("apply", {"rule": RULE})):
                try:
                    fwtop.request(verb, **fields)
                    said.append("done")
                except FwtopError as error:
                    said.append([error.reason, error.code])
            followed = fwtop.watch()
            said.append(next(followed)["event"])
            held = [fwtop, followed]
            with contextlib.suppress(FwtopError):
                while True:
                    held.append(connect(run_directory=bench.directory))
            return json.dumps([*said, len(held)])

    denied = ["no_access", 3]
    assert json.loads(as_user(bench, [LISTS], work)) == [["read", "lists"], "done", denied, "state", 8]
    with connect(bench.netns, run_directory=bench.directory) as fwtop:
        fwtop.change_list("delete", "a")
    said = json.loads(as_user(bench, [RULES], work))
    assert said == [["read", "rules"], denied, "done", "state", 8]
    with connect(bench.netns, run_directory=bench.directory) as fwtop:
        [status] = fwtop.status()["rules"]
        assert status["rule"]["created_by"] == f"program of user {NOBODY}"
        fwtop.undo(status["rule"]["id"])
    assert "no access" in as_user(bench, [61_099], work)


def test_what_a_refused_connection_carries_keeps_nobody_else_waiting(bench: Bench, fwtop: Program) -> None:
    with contextlib.ExitStack() as held:
        server = peer_process(held.enter_context(opened(bench)))
        while asked(held.enter_context(opened(bench)), b"{}\n")["reason"] != "too_many":
            pass
        sender, receiver = lingering()
        held.callback(receiver.close)
        os.kill(server, signal.SIGSTOP)  # so that what is sent waits in the connection when that is refused
        try:
            socket.send_fds(held.enter_context(opened(bench)), [b"{}\n"], [sender.fileno()])
            sender.close()  # not the last: the server's is
        finally:
            os.kill(server, signal.SIGCONT)
        for _ in range(3):
            assert asked(held.enter_context(opened(bench)), b"{}\n")["reason"] == "too_many"


EXAMPLES = {
    "mirror.py": ["/usr/bin/python3"],
    "mirror.js": ["node"],
    "mirror.go": ["go", "run"],
    "mirror.sh": ["sh"],
}


def sizes(documents: list[dict[str, Any]]) -> list[list[str]]:
    """Return what an example prints of these documents."""
    rules: set[str] = set()
    told = []
    for item in documents:
        key, what = item.get("key", item.get("id", "-")), item["event"] + item.get("change", "")
        if what == "state":
            rules = {one["key"] for one in item["rules"]} | {one["rule"]["id"] for one in item["fwtop_rules"]}
        elif what in ("rule_removed", "fwtop_ruleremoved"):
            rules.discard(key)
        elif what in ("rule_added", "rule_changed", "fwtop_ruleadded", "fwtop_rulechanged"):
            rules.add(key)
        told.append([str(item["seq"]), item["event"], key.replace(" ", "_"), str(len(rules))])
    return told


# Go compiles its library first; set-up installs neither it nor Node, which are large
@pytest.mark.one_each("mirror.py", "mirror.sh")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_in_each_language_mirrors_all_changes_through_restarts_of_the_guardian(
    bench: Bench, fwtop: Program, poll_until: Poll, name: str, tmp_path: Path
) -> None:
    if shutil.which(EXAMPLES[name][0]) is None:
        pytest.skip(f"{EXAMPLES[name][0]} is not installed here")
    text = (ROOT / "contrib/mirror" / name).read_text().replace("/usr/local/lib/fwtop/app", str(ROOT))
    (tmp_path / name).write_text(text)
    argv = [
        "ip",
        "netns",
        "exec",
        bench.netns,
        *EXAMPLES[name],
        str(tmp_path / name),
        str(stream_path(bench)),
    ]
    environment = {
        **os.environ,
        "FWTOP_RUN": str(bench.directory),
        "GOCACHE": str(tmp_path),
        "GO111MODULE": "off",
    }
    nft(bench, "add table inet others")
    nft(bench, "add chain inet others c")
    nft(bench, "add rule inet others c accept")  # and a rule of each kind is there before it
    first = fwtop.apply(RULE, confirm_seconds=0)["rule"]["id"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as errors:
        process = subprocess.Popen(argv, stdout=out, stderr=errors, stdin=subprocess.DEVNULL, env=environment,
                                   start_new_session=True)  # fmt: skip

    def told() -> list[list[str]]:
        """Return what was printed: number, event, key (others' have spaces), and how many there are."""
        found = []
        for line in (tmp_path / "out").read_text().splitlines():
            seq, event, *key, size = line.split()
            found.append([seq, event, "_".join(key), size])
        return found

    try:
        compiled = 300.0  # seconds, for Go's on a busy machine
        poll_until(lambda: any("state" in words for words in told()) or process.poll() is not None, compiled)
        reference = Mirror(fwtop)
        poll_until(lambda: reference.has(event="state"))
        for step in range(8):
            rule = {**RULE, "match": {"sources": [f"192.0.2.{10 + step}"]}}
            made = fwtop.apply(rule, confirm_seconds=0, key=str(step))["rule"]["id"]
            nft(bench, "add rule inet others c drop")
            if step % 2:
                fwtop.undo(made)
                nft(bench, "flush chain inet others c")
            if step % 4 == 1:
                bench.kill_guardian_of(fwtop.status()["guardian"]["pid"])
                nft(bench, "add rule inet others c accept")
        fwtop.undo(first)
        fwtop.change_list("create", "last")
        poll_until(lambda: reference.has(event="list_added", name="last"))
        poll_until(lambda: any(words[1] == "list_added" for words in told()) or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "err").read_text()
        wanted = sizes(reference.documents)
        assert [words for words in told() if int(words[0]) > int(wanted[0][0])][: len(wanted) - 1] == wanted[
            1:
        ]
        assert sum(words[1] == "guardian_started" for words in told()) == 2
        state = next(fwtop.watch(events=("state",)))
        assert int(told()[-1][3]) == len(state["rules"]) + len(state["fwtop_rules"])
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        nft(bench, "delete table inet others")


def test_the_command_line_serves_a_named_namespace_and_refuses_twice(bench: Bench, fwtop: Program) -> None:
    argv = [sys.executable, "-m", "fwtop.api.main", f"--run-directory={bench.directory}"]
    inside = ["ip", "netns", "exec", bench.netns]
    assert subprocess.run([*inside, *argv], timeout=60, check=False).returncode == 1, "it is served already"
    assert fwtop.status()["guardian"]["netns"]
