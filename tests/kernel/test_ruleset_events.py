"""fwtop events tells what changes in a namespace, by fwtop and by others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fwtop.netfilter.listing.events import Notifications
from tests.kernel.conftest import Host, NetnsPair
from tests.kernel.wire import inside

pytestmark = pytest.mark.kernel
Event = dict[str, Any]
Poll = Callable[..., object]


class Stream:
    """A running `fwtop events --json`."""

    def __init__(self, netns: str) -> None:
        argv = [sys.executable, "-m", "fwtop", "events", "--json", "--every", "1", "--netns", netns]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.events: list[Event] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def has(self, **wanted: object) -> bool:
        return any(wanted.items() <= event.items() for event in list(self.events))

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(60)
        self._thread.join(60)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return status


@pytest.fixture
def stream(netns_pair: NetnsPair, poll_until: Poll) -> Iterator[Stream]:
    running = Stream(netns_pair.victim.netns)
    try:
        poll_until(lambda: running.has(event="watching"))
        yield running
    finally:
        running.end()


def nft(host: Host, text: str) -> None:
    subprocess.run(
        ["ip", "netns", "exec", host.netns, "nft", "-f", "-"], input=text, text=True, timeout=60, check=True
    )


def test_changes_of_nf_tables_are_notified_with_their_process(
    netns_pair: NetnsPair, stream: Stream, poll_until: Poll
) -> None:
    victim = netns_pair.victim
    nft(victim, "table inet web {\n set s { type ipv4_addr; flags interval; }\n chain c { }\n}\n")
    nft(victim, "add rule inet web c udp dport 9 drop\nadd element inet web s { 10.0.0.0/8, 192.0.2.1 }\n")
    victim.run("ip6tables-nft", "-A", "INPUT", "-p", "udp", "-j", "DROP")
    victim.run("nft", "delete", "chain", "inet", "web", "c")
    about = {"how": "notified", "by": "other", "source": "nft", "family": "inet", "table": "web"}
    poll_until(lambda: stream.has(event="table_added", **about))
    poll_until(lambda: stream.has(event="rule_added", chain="c", **about))
    poll_until(lambda: stream.has(event="set_changed", name="s", added=2, removed=0, **about))
    poll_until(lambda: stream.has(event="chain_removed", chain="c", **about))
    poll_until(lambda: stream.has(event="rule_added", family="ip6", table="filter", chain="INPUT"))
    (added,) = [
        event for event in stream.events if event["event"] == "rule_added" and event["family"] == "ip6"
    ]
    assert added["process"]["name"].startswith("ip6tables-nft")
    assert added["rule"].endswith("drop")


def test_what_the_kernel_does_not_tell_is_compared(
    netns_pair: NetnsPair, stream: Stream, poll_until: Poll
) -> None:
    victim = netns_pair.victim
    victim.run("iptables-legacy", "-A", "INPUT", "-p", "udp", "--dport", "9", "-j", "DROP")
    victim.run("ipset", "create", "few", "hash:net", "maxelem", "10")
    victim.run("ip", "route", "add", "blackhole", "198.51.100.0/24")
    compared = {"how": "compared", "by": "other"}
    rule = "-p udp -m udp --dport 9 -j DROP"
    poll_until(lambda: stream.has(event="rule_added", source="iptables-legacy", rule=rule, **compared))
    poll_until(lambda: stream.has(event="set_added", source="ipset", name="few", entries=0, **compared))
    poll_until(lambda: stream.has(event="rule_added", source="route", **compared))
    for number in range(9):
        victim.run("ipset", "add", "few", f"192.0.{number}.0/24")
    poll_until(lambda: stream.has(event="alarm", kind="set_nearly_full"))
    victim.run("ipset", "flush", "few")
    poll_until(lambda: stream.has(event="alarm_over", kind="set_nearly_full"))
    victim.run("iptables-legacy", "-F", "INPUT")
    poll_until(lambda: stream.has(event="rule_removed", source="iptables-legacy", rule=rule, **compared))


def test_the_command_of_the_alarm_enlarges_the_set(
    netns_pair: NetnsPair, stream: Stream, poll_until: Poll
) -> None:
    victim = netns_pair.victim
    victim.run("ipset", "create", "few", "hash:net", "maxelem", "10")
    victim.run("iptables-legacy", "-A", "INPUT", "-m", "set", "--match-set", "few", "src", "-j", "DROP")
    for number in range(10):
        victim.run("ipset", "add", "few", f"192.0.{number}.0/24")
    poll_until(lambda: stream.has(event="alarm", kind="set_nearly_full"))
    (alarm,) = [event for event in stream.events if event["event"] == "alarm"]
    victim.run("sh", "-c", alarm["mend"])
    listed = victim.run("ipset", "list", "few").stdout
    assert "maxelem 20" in listed
    assert "192.0.9.0/24" in listed
    assert "few-more" not in victim.run("ipset", "list", "-n").stdout
    poll_until(lambda: stream.has(event="alarm_over", kind="set_nearly_full"))


def test_a_rule_of_fwtop_and_its_loss_are_told_with_the_repair(
    netns_pair: NetnsPair, stream: Stream, poll_until: Poll
) -> None:
    victim = netns_pair.victim
    fwtop = [sys.executable, "-m", "fwtop"]
    block = [*fwtop, "block", "192.0.2.77", "--netns", victim.netns, "--yes", "--ttl", "5m"]
    subprocess.run(block, capture_output=True, timeout=120, check=True)
    try:
        poll_until(lambda: stream.has(event="fwtop_rule", by="fwtop", state="confirmed", acting=True))
        own = [event for event in stream.events if event["event"] == "fwtop_rule"]
        victim.run("ipset", "flush", f"fwtop-{own[0]['id']}-4")
        mend = f"fwtop repair {own[0]['id']}"
        poll_until(lambda: stream.has(event="alarm", kind="not_in_effect", mend=mend))
        subprocess.run([*fwtop, *mend.split()[1:], "--netns", victim.netns], timeout=120, check=True)
        poll_until(lambda: stream.has(event="alarm_over", kind="not_in_effect"))
    finally:
        undo = [*fwtop, "undo", "--all", "--netns", victim.netns]
        subprocess.run(undo, capture_output=True, timeout=120, check=False)
    poll_until(lambda: stream.has(event="fwtop_rule", state="reverted"))


def test_named_lists_are_told_that_no_set_of_the_kernel_holds(
    netns_pair: NetnsPair, stream: Stream, poll_until: Poll
) -> None:
    def fwtop(*words: str) -> None:
        argv = [sys.executable, "-m", "fwtop", "list", *words, "--netns", netns_pair.victim.netns]
        subprocess.run(argv, capture_output=True, timeout=120, check=True)

    about = {"source": "fwtop", "how": "notified", "by": "fwtop", "name": "bots"}
    fwtop("create", "bots", "192.0.2.1")
    poll_until(lambda: stream.has(event="list_added", entries=1, **about))
    fwtop("replace", "bots", "192.0.2.2")
    poll_until(lambda: stream.has(event="list_changed", entries_before=1, entries=1, **about))
    fwtop("delete", "bots")
    poll_until(lambda: stream.has(event="list_removed", entries_before=1, **about))


def test_a_large_transaction_is_cut_and_counted(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    with inside(victim.netns):
        notifications = Notifications()
    nft(victim, "add table ip t\nadd chain ip t c\n" + "add rule ip t c counter\n" * 6000)
    found = notifications.read()
    notifications.close()
    assert len(found) == 5001
    assert (found[-1].event, found[-1].about["count"]) == ("more_changes", 6002 - 5000)
    assert {event.about["process"]["name"] for event in found} == {"nft"}


def test_the_stream_ends_with_its_reader(netns_pair: NetnsPair, poll_until: Poll) -> None:
    running = Stream(netns_pair.victim.netns)
    poll_until(lambda: running.has(event="watching"))
    assert running.end() == 130
    argv = [sys.executable, "-m", "fwtop", "events", "--every", "1", "--netns", netns_pair.victim.netns]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "watching" in process.stdout.readline()
        process.stdout.close()
        nft(netns_pair.victim, "add table ip t\n")
        assert process.wait(60) == 0
