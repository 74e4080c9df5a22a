"""The guardian under many clients: one worker owns the rules, and nobody keeps the others waiting."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from guardian_bench import (
    PORT,
    Bench,
    apply,
    lingering,
    own_xtables_lock,
    peer_process,
    rules_of,
    use_variant,
)

from fwtop.client.discovery import GuardianClient
from fwtop.console.guardian_link import GuardianLink, GuardianLost
from fwtop.console.live import LiveSession
from fwtop.enrich.geoip import open_lookup
from fwtop.incidents.advisor import Advisor
from fwtop.kernel import namespaces
from fwtop.kernel.programs import PRIORITY
from fwtop.live.connections import TcpServiceMeter
from fwtop.live.source import LiveSource
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.messages import MAX_MESSAGE, Answer, encode_answer, encode_request, parse_answer
from fwtop.model.protocol import Apply, Hello, Keep, Request, Status, Undo, Watch, Why
from fwtop.model.rule import Kind, Match, Rule, State
from fwtop.model.traffic.snapshot import Origin
from fwtop.observe.messages import decode_reply
from fwtop.rules.xtables import set_name
from fwtop.stats.engine import Engine
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
CLIENTS = 20
ROUNDS = 2
MANY = 1_000
LONG = 30_000
MILLION = 1_000_000
ENOUGH = 2  # ticks: one may begin before the guardian has the request
PATIENCE_SECONDS = 100.0


def socket_path(bench: Bench) -> str:
    descriptor = namespaces.open_netns(bench.netns)
    try:
        return str(bench.directory / f"{namespaces.inode(descriptor)}.sock")
    finally:
        os.close(descriptor)


def raw(path: str, *messages: bytes) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.settimeout(PATIENCE_SECONDS)
    connected.connect(path)
    for message in messages:
        connected.send(message)
    return connected


def prefixes(count: int) -> tuple[Prefix, ...]:
    return tuple(Prefix(4, 11 << 24 | number << 3, 30) for number in range(count))


def long_rule(count: int) -> Rule:
    return Rule("", Kind.IPSET, Match(sources=prefixes(count)), "a long list", 600, origin="@list")


def names_of_sets(bench: Bench) -> list[str]:
    return sorted(bench.pair.victim.run("ipset", "list", "-n").stdout.split())


def hammer(bench: Bench, number: int, problems: list[str]) -> None:
    source = Prefix(4, 10 << 24 | 99 << 16 | number << 8, 24)
    rule = Rule("", Kind.IPSET, Match(sources=(source,)), f"client {number}", 600)

    def ask(request: Request) -> Answer:
        answer = client.request(request)
        if not answer.ok:
            problems.append(f"{type(request).__name__}: {answer.error}")
        return answer

    try:
        with bench.connect() as client:
            for _ in range(ROUNDS):
                made = ask(Apply(rule.to_dict(), 0)).data["status"]["rule"]["id"]
                if made not in rules_of(client):
                    problems.append(f"rule {made} is not in the status after it was applied")
                if number % 5 == 0:
                    ask(Why(made))
                ask(Keep(made, 600))
                undone = ask(Undo((made,))).data["rules"]
                if [(item["rule"]["id"], item["state"]) for item in undone] != [(made, "reverted")]:
                    problems.append(f"rule {made} was not told as undone: {undone}")
                if made in rules_of(client):
                    problems.append(f"rule {made} is in the status after it was undone")
    except (FwtopError, KeyError) as error:
        problems.append(f"client {number}: {error!r}")


def waits_for_lock(pid: int) -> bool:
    """Say whether a child of a process is iptables-legacy."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "stat").read_text().rpartition(")")
            if int(words[2].split()[1]) == pid and "legacy" in (entry / "cmdline").read_text():
                return True
    return False


def test_keep_and_undo_wait_for_one_program_at_most(bench: Bench, poll_until) -> None:
    """iptables-legacy waits for its lock as long as it may: what is urgent then comes before the next one."""
    use_variant(bench, "legacy")
    with own_xtables_lock(bench) as lock, bench.connect() as guardian, bench.connect() as other:
        kept, undone = apply(guardian, bench.block_rule(4)), apply(guardian, bench.block_rule(6))
        fcntl.flock(lock, fcntl.LOCK_EX)
        errors: list[FwtopError] = []
        applying = threading.Thread(target=refused, args=(other, bench.block_rule(4, 6), errors))
        applying.start()
        poll_until(lambda: waits_for_lock(int(guardian.about["pid"])))
        guardian.demand(
            Keep(kept), timeout=Status.seconds / 2
        )  # in half its time at most: then the program has given up
        fcntl.flock(lock, fcntl.LOCK_UN)
        applying.join()
        guardian.demand(Undo((undone,)))


def refused(guardian: GuardianClient, rule: Rule, errors: list[FwtopError]) -> None:
    try:
        apply(guardian, rule)
    except FwtopError as error:
        errors.append(error)


def test_twenty_clients_at_once_see_what_they_did(bench: Bench) -> None:
    with bench.connect() as first:
        apply(first, bench.block_rule(4, 6, ttl=600))
        before = names_of_sets(bench)
        problems: list[str] = []
        threads = [threading.Thread(target=hammer, args=(bench, n, problems)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert list(rules_of(first)) == ["1"]
        assert names_of_sets(bench) == before


@pytest.mark.parametrize("unread", [None, b" ", b""], ids=("read", "behind others", "behind empty ones"))
def test_lingering_sockets_stop_nobody(bench: Bench, unread: bytes | None) -> None:
    hello = encode_request(Hello("cli", "clone"))
    with bench.connect() as good, ExitStack() as held:
        sender, receiver = lingering()
        held.callback(receiver.close)
        client = held.enter_context(raw(socket_path(bench), hello))
        assert parse_answer(client.recv(1 << 20)).ok
        guardian = peer_process(client)
        os.kill(guardian, signal.SIGSTOP)  # so that nothing is read before all is sent
        try:
            if unread is not None:  # what the guardian never reads, it closes with the connection
                client.send(b'{"verb": "why", "id": "x"}')
                for _ in range(3):
                    client.send(unread)
            socket.send_fds(client, [encode_request(Status())], [sender.fileno()])
            sender.close()  # not the last: the guardian's is
            if unread is not None:
                client.close()
        finally:
            os.kill(guardian, signal.SIGCONT)
        for _ in range(5):
            assert good.demand(Status()).ok


def test_a_thousand_connections_keep_nobody_away(bench: Bench) -> None:
    hello = encode_request(Hello("cli", "clone"))
    with bench.connect() as good, bench.connect("console") as console, ExitStack() as held:
        rule_id = apply(console, bench.block_rule(4), 300)
        for number in range(MANY):
            if number % 50 == 0:  # of a process with so many connections, the least recently used give way
                assert good.demand(Status()).ok
            connected = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            connected.settimeout(PATIENCE_SECONDS)
            connected.connect(socket_path(bench))
            if number % 2:
                with suppress(BrokenPipeError, ConnectionResetError):  # it gave way to another meanwhile
                    connected.send(hello)
        with bench.connect() as new:
            assert list(rules_of(new)) == [rule_id]
        assert list(rules_of(console)) == [rule_id]
        assert good.demand(Undo((rule_id,))).ok


def test_status_of_any_length_is_told(bench: Bench) -> None:
    bench.allow = "".join(f"{prefix}\n" for prefix in prefixes(LONG))
    with bench.connect() as guardian:
        found = guardian.demand(Status(finished=True), timeout=PATIENCE_SECONDS).data["allow"]
        assert {str(prefix) for prefix in prefixes(LONG)} <= {entry["prefix"] for entry in found}
        short = guardian.demand(Status(allow=False)).data
        assert "allow" not in short
    with bench.connect("console") as console:
        watching, descriptors = console.watch(Watch(("v0",)))
        for descriptor in descriptors:
            os.close(descriptor)
        assert watching.ok
        assert len(encode_answer(watching)) < MAX_MESSAGE  # it goes on to the console in one message


def test_quick_requests_are_served_while_a_million_prefixes_go_in(
    bench: Bench, request: pytest.FixtureRequest
) -> None:
    with bench.connect() as slow, bench.connect() as quick:
        kept = apply(quick, bench.block_rule(4), 300)
        undone = apply(quick, bench.block_rule(6))
        expiring = apply(quick, Rule("", Kind.IPSET, Match(sources=prefixes(1)), "soon over", 1))
        made: list[Answer] = []
        rule = long_rule(MILLION)
        request.addfinalizer(lambda: os.setpriority(os.PRIO_PROCESS, 0, 0))
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)  # the guardian's: else the million is in before it looks
        thread = threading.Thread(target=lambda: made.append(slow.apply(rule, 0)))
        thread.start()
        coming = set_name(str(int(expiring) + 1), 4)
        while coming not in names_of_sets(bench):
            assert thread.is_alive()
        quick.demand(Keep(kept, 600))
        served = thread.is_alive()
        quick.demand(Undo((undone,)))
        rules_of(quick)
        thread.join()
        assert served
        rules, end = rules_of(quick, finished=True), time.monotonic() + 60
        while rules[expiring]["state"] != State.EXPIRED.value:  # a quick machine needs less than its second
            assert time.monotonic() < end, rules[expiring]
            rules = rules_of(quick, finished=True)
        assert rules[kept]["state"] == State.CONFIRMED.value
        assert rules[undone]["state"] == State.REVERTED.value
        new = made[0].data["status"]["rule"]["id"]
        assert rules[new]["state"] == State.CONFIRMED.value
        held = bench.pair.victim.run("ipset", "list", "-t", set_name(new, 4)).stdout
        assert f"Number of entries: {MILLION}" in held


FLOOD = """
import socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.connect((sys.argv[1], int(sys.argv[2])))
end = time.monotonic() + 30
while time.monotonic() < end:
    for _ in range(5):  # seldom enough for the ring buffer to hold a minute of it
        try:
            sock.send(b"flood")
        except OSError:
            pass
    time.sleep(0.01)
"""


def test_ticks_go_on_while_a_million_prefixes_go_in(bench: Bench) -> None:
    with bench.connect("console") as console:
        answer, descriptors = console.watch(Watch(("v0",)))
        assert answer.ok, answer.error
        link = GuardianLink(socket.socket(fileno=os.dup(console._connection.fileno())))
        watching = link.another()
        held = ExitStack()
        for each in (link, watching):
            held.enter_context(each._connection._sock)
        with inside(bench.netns):
            source = LiveSource(*decode_reply(answer, descriptors))
        engine = Engine(open_lookup(None), window_seconds=3.0, top=10, live=True, own=())
        session = LiveSession(
            watching, source, engine, Advisor(), TcpServiceMeter(), host="h", origin=Origin("live", ("v0",))
        )
        words = ["ip", "netns", "exec", bench.pair.attacker.netns, sys.executable, "-c", FLOOD]
        flood = subprocess.Popen([*words, bench.pair.victim.ipv4, str(PORT)])
        made: list[Answer] = []
        rule = long_rule(MILLION)

        def install() -> None:
            made.append(link.demand_for_rule(Apply({}, confirm_seconds=60), rule))

        thread = threading.Thread(target=install)
        try:
            session.start()
            session.tick()
            thread.start()
            lost, ticks = 0, 0  # ticks that ended before the rule was installed
            while thread.is_alive():
                snapshot = session.tick()
                ticks += thread.is_alive()
                lost += engine.window().counters.records_lost
                time.sleep(0.1)
            thread.join()
        finally:
            flood.kill()
            flood.wait()
            source.close()
            held.close()
        assert made[0].ok
        assert lost == 0
        assert snapshot.tables.totals.packets > 0
        assert ticks >= ENOUGH, "one that waited for the guardian would last until it is done"


def test_a_console_hears_that_another_build_took_over(bench: Bench) -> None:
    with bench.connect("console") as console:
        link = GuardianLink(socket.socket(fileno=os.dup(console._connection.fileno())))
        aside = link.another()
        with bench.connect(build="newer"):
            for one in (aside, link, aside):
                with pytest.raises(GuardianLost, match=r"^another build of fwtop took over$"):
                    one.demand(Status())
            assert link.lost == "another build of fwtop took over"
        aside.close()
        link.close()
