"""The lab in real namespaces: exact counts, even rates, correct packets, nothing left, nothing outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_bench import HEAD, inline
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import wrpcap

from fwtop.lab import entering, namespaces, scenario
from fwtop.lab.run import Lab
from fwtop.model import paths
from fwtop.model.errors import FwtopError
from fwtop.model.modules import module_argv

pytestmark = pytest.mark.kernel

DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from fwtop.cli import lab
from fwtop.cli.main import main
from fwtop.lab import watch

def observe(lab, seconds, pps, store):
    lab.start_flood(1000)
    print(lab.victim, lab.attacker, flush=True)
    while True:
        lab.arrived()

watch.observe = observe
sys.exit(main(["lab", "few_sources", "--json"]))
"""


def in_netns(name: str, *argv: str) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", name, *argv], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def existing() -> set[str]:
    return {entry.name for entry in entering.NETNS.iterdir()} if entering.NETNS.is_dir() else set()


def count_at_victim(lab: Lab, match: str) -> Callable[[], int]:
    rules = "\n".join(
        [
            "table inet counted {",
            "counter hits { }",
            "chain first {",
            "type filter hook prerouting priority -400",
            f"{match} counter name hits",
            "}",
            "}",
            "",
        ]
    )
    subprocess.run(
        ["ip", "netns", "exec", lab.victim, "nft", "-f", "-"], input=rules, text=True, check=True, timeout=20
    )

    def read() -> int:
        listing = json.loads(in_netns(lab.victim, "nft", "-j", "list", "counter", "inet", "counted", "hits"))
        return int(listing["nftables"][1]["counter"]["packets"])

    return read


def test_what_was_sent_by_count_arrives() -> None:
    with Lab("udp_flood") as lab:
        hits = count_at_victim(lab, "udp dport 27015")
        lab.mark()
        lab.start_flood(40_000)
        time.sleep(0.6)
        lab.stop()
        lab.pause_clients()
        truth = lab.truth()
        sent = truth["vectors"][0]["packets"] - truth["link_full"]
        assert hits() == sent > 1000
        assert truth["packets"] == sent + truth["legitimate"]["packets"]
        assert truth["arrived_packets"] == pytest.approx(truth["packets"], rel=0.005)
        assert sum(row["packets"] for row in truth["source_prefixes"]) <= truth["vectors"][0]["packets"]
        assert truth["payloads"][0]["packets"] == truth["vectors"][0]["packets"]
        assert truth["kinds"] == ["udp_flood"]


def test_sources_are_counted_one_by_one() -> None:
    with Lab("few_sources") as lab:
        lab.mark()
        lab.start_flood(40_000)
        time.sleep(0.5)
        lab.stop()
        truth = lab.truth()
        clients = {row["key"] for row in truth["legitimate"]["sources"]}
        attackers = [row for row in truth["sources"] if row["key"] not in clients]
        assert len(attackers) == 20
        assert sum(row["packets"] for row in attackers) == truth["vectors"][0]["packets"]
        hits = count_at_victim(lab, f"ip saddr {attackers[0]['key']}")
        before = attackers[0]["packets"]
        lab.start_flood(40_000)
        time.sleep(0.3)
        lab.stop()
        after = {row["key"]: row["packets"] for row in lab.truth()["sources"]}
        assert hits() + lab.link_full() >= after[attackers[0]["key"]] - before >= hits() > 0


def test_rate_is_kept() -> None:
    with inline('[[vector]]\nkind = "udp_flood"\nprotocol = "udp"\nsource = "random"\ndport = 9\n') as lab:
        lab.start_flood(30_000)
        time.sleep(1.5)
        lab.stop()
        assert lab.truth()["pps"] == pytest.approx(30_000, rel=0.05)


def test_legitimate_clients_work_and_are_measured() -> None:
    with Lab("calm") as lab:
        lab.pause_clients()
        lab.mark()
        lab.phase("before")
        time.sleep(1.0)
        lab.pause_clients()
        works = lab.fare()["phases"]["before"]
        assert set(works) == {"http", "dns", "operator"}
        for work, row in works.items():
            assert row["tried"] > 5, work
            assert row["success"] == 1.0, work
            assert 0 < row["median_ms"] < 500, work
        truth = lab.truth()
        assert truth["attack"] == {"packets": 0, "bytes": 0}
        assert truth["packets"] == pytest.approx(truth["arrived_packets"], abs=5)
        assert lab.ssh_connection.endswith("198.18.0.2 22")


@pytest.fixture
def driver() -> Iterator[tuple[subprocess.Popen[str], set[str]]]:
    """A lab in a process of its own, up and flooding, and the names of its namespaces."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(paths.ROOT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    names = set(process.stdout.readline().split())
    assert len(names) == 2
    yield process, names
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=10)
    namespaces.remove_stale()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_takes_everything_down(
    driver: tuple[subprocess.Popen[str], set[str]], number: signal.Signals
) -> None:
    process, names = driver
    assert names <= existing()
    inside = set(namespaces.processes_in(sorted(names))) - {process.pid}
    assert len(inside) == 3  # servers, sender, clients
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert said == f"fwtop: ended by {number.name}; the lab was taken down\n"
    assert process.returncode == 1
    assert not names & existing()
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
    assert not (namespaces.LOCKS / str(process.pid)).exists()


def test_after_kill_9_the_next_start_removes_it_but_not_a_living_one(
    driver: tuple[subprocess.Popen[str], set[str]], poll_until: Callable[..., object]
) -> None:
    process, names = driver
    with Lab("calm"):
        assert names <= existing(), "a living lab was taken for a stale one"
    inside = set(namespaces.processes_in(sorted(names))) - {process.pid}
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=5)
    poll_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside))
    assert names <= existing()
    with Lab("calm"):
        assert not names & existing()


def test_an_exception_takes_everything_down() -> None:
    names = {namespaces.name(role, os.getpid()) for role in namespaces.ROLES}

    def fail() -> None:
        with Lab("calm"):
            assert names <= existing()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not names & existing()


def test_a_lab_that_can_not_be_set_up_leaves_nothing() -> None:
    broken = scenario.parse(HEAD, "broken")
    with pytest.raises(FwtopError), Lab(broken, source=HEAD + "speed = 1\n") as lab:
        pytest.fail(f"{lab.victim} was set up")
    assert not {namespaces.name(role, os.getpid()) for role in namespaces.ROLES} & existing()


def run_sender(netns: str | None) -> dict[str, object]:
    inside = ["ip", "netns", "exec", netns] if netns else []
    setup = {"victim": "02" * 6, "attacker": "04" * 6, "name": "t", "text": HEAD}
    done = subprocess.run(
        [*inside, *module_argv("fwtop.lab.sender")],
        input=json.dumps(setup) + "\n" + json.dumps({"do": "start", "pps": 10}) + "\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_sender_refuses_the_machine_itself() -> None:
    assert "runs only inside a lab's own namespace" in str(run_sender(None)["error"])


@pytest.mark.parametrize(
    ("name", "link", "reason"),
    [
        ("fwtop-test-{pid}-attacker", "alias", "runs only inside a lab's own namespace"),
        ("fwtop-lab-{pid}1-attacker", "no alias", "lab0 is not this lab's veth"),
        ("fwtop-lab-{pid}2-attacker", "not a veth", "lab0 is not this lab's veth"),
        ("fwtop-lab-{pid}3-victim", "alias", "runs only inside a lab's own namespace"),
    ],
)
def test_the_sender_refuses_foreign_namespaces(name: str, link: str, reason: str) -> None:
    netns = name.format(pid=os.getpid())
    kind = "type bridge" if link == "not a veth" else "type veth peer name lab1"
    alias = [] if link == "no alias" else [f"link set lab0 alias {netns}"]
    subprocess.run(["ip", "netns", "add", netns], check=True, timeout=10)
    try:
        batch = "\n".join([f"link add lab0 {kind}", "link set lab0 up", *alias, ""])
        subprocess.run(["ip", "-n", netns, "-batch", "-"], input=batch, text=True, check=True, timeout=10)
        assert reason in str(run_sender(netns)["error"])
    finally:
        subprocess.run(["ip", "netns", "delete", netns], check=True, timeout=10)


def test_a_capture_is_replayed_packet_by_packet(tmp_path: Path) -> None:
    file = tmp_path / "few.pcap"
    wrpcap(
        str(file), [Ether() / IP(src=f"20.0.0.{n}", dst="203.0.113.9") / UDP(dport=99) for n in range(1, 11)]
    )
    with Lab("calm", capture=file) as lab:
        hits = count_at_victim(lab, "udp dport 99")
        lab.mark()
        lab.start_flood(5000)
        time.sleep(0.3)
        lab.stop()
        truth = lab.truth()
        sent = {row["key"]: row["packets"] for row in truth["sources"] if row["key"].startswith("20.0.0.")}
        assert len(sent) == 10
        assert sum(sent.values()) == hits() + truth["link_full"]
        assert max(sent.values()) - min(sent.values()) <= 1
        assert truth["ports"][0]["port"] in (53, 99)
