"""Warnings and refusals of the guardian about what others need, in a real namespace."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from guardian_bench import PORT, SOON_SECONDS, VARIANTS, Bench, apply, inside, kill, rules_of

from fwtop.client import discovery
from fwtop.guardian.main import LOCK_SECONDS
from fwtop.kernel import namespaces
from fwtop.kernel.descriptors import closing
from fwtop.kernel.programs import module_argv
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Apply, Plan
from fwtop.model.rule import Kind, Match, Rule
from tests.kernel.nursery import start_guardian

pytestmark = pytest.mark.kernel
NOTRACK = Rule("", Kind.NOTRACK, Match(protocol=17, dport=PORT), "notrack", SOON_SECONDS)


WITHOUT_IPTABLES = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from fwtop.client import discovery as client
from fwtop.model.protocol import *
from fwtop.model.rule import *
_, _, netns, directory, *arguments = sys.argv
guardian = client.connect(
    netns=netns, run_directory=Path(directory), guardian_arguments=tuple(arguments)
)
limit = Rule("", Kind.HASHLIMIT, Match(), "x", 600, limit=RateLimit(99, 99))
drop = Rule("", Kind.NFTABLES, Match(protocol=17, dport=9), "x", 600)
print(guardian.watch(Watch(("v0",)))[0].ok)
print(guardian.request(Apply(limit.to_dict(), 0)).error)
print(guardian.request(Apply(drop.to_dict(), 0)).error)
print([rule["acting"] for rule in guardian.demand(Status()).data["rules"]])
print(guardian.demand(Undo(all=True)).data["undone"])
"""


def test_without_iptables_it_watches_and_installs_other_rules(bench: Bench) -> None:
    hide = 'for name in /usr/sbin/*tables-*multi; do mount --bind /dev/null $name; done; exec "$@"'
    words = ("unshare", "-m", "--propagation", "private", "sh", "-c", hide, "sh", sys.executable, "-c")
    root = str(Path(__file__).resolve().parents[2])
    program = (WITHOUT_IPTABLES, root, bench.netns, str(bench.directory), *bench.arguments())
    done = subprocess.run([*words, *program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    watching, limited, dropped, acting, undone = done.stdout.splitlines()
    assert (watching, dropped, acting, undone) == ("True", "", "[True]", "['2']")
    assert "iptables" in limited


@pytest.mark.parametrize("variant", VARIANTS)
def test_notrack_names_what_needs_tracking(bench: Bench, variant: str) -> None:
    victim = bench.pair.victim
    victim.run(
        f"iptables-{variant}", "-t", "nat", "-A", "PREROUTING", "-p", "tcp", "--dport", "80", "-j", "REDIRECT"
    )
    victim.run(
        f"iptables-{variant}",
        "-t",
        "nat",
        "-A",
        "PREROUTING",
        "-p",
        "udp",
        "-j",
        "REDIRECT",
        "--to-ports",
        "9",
    )
    victim.run(
        f"ip6tables-{variant}", "-A", "INPUT", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"
    )
    for words in (
        "add table inet theirs",
        "add chain inet theirs input { type filter hook input priority 0 ; }",
        "add rule inet theirs input ct state established accept",
        "add rule inet theirs input udp dport 5353 accept",
    ):
        victim.run("nft", words)
    victim.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    with bench.connect() as guardian:
        warnings = guardian.demand(Plan(NOTRACK.to_dict())).data["warnings"]
    said = "\n".join(warnings)
    assert "NAT in nat of IPv4, '-A PREROUTING -p udp -j REDIRECT" in said
    assert "a stateful rule in filter of IPv6, '-A INPUT -m conntrack --ctstate ESTABLISHED" in said
    assert "nftables rule in inet theirs input, 'ct state established accept'" in said
    assert "this host forwards IPv4" in said
    assert "--dport 80" not in said
    assert "5353" not in said


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", [4, 6])
def test_notrack_ends_both_ways_without_any_process(bench: Bench, family: int, poll_until) -> None:
    tool = "iptables-nft" if family == 4 else "ip6tables-nft"
    bench.pair.victim.run(tool, "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT")
    path = bench.path(family)

    def tracked(what: str) -> bool:
        listed = bench.pair.victim.run("conntrack", "-L", "-f", f"ipv{family}", "-p", "udp").stdout
        return what in listed

    def answered() -> bool:
        """Send from the victim's port alone: only the way out can make this entry."""
        path.receiver.sendto(b"x", path.sender.getsockname())
        return tracked(f"sport={PORT} ")

    with bench.connect() as guardian:
        apply(guardian, NOTRACK)
        pid = int(guardian.about["pid"])
        assert path.passes(wait_s=30)
        assert not answered()
    kill(pid)
    assert not answered()
    poll_until(answered)


def test_share_limit_is_read_from_the_file(bench: Bench) -> None:
    (bench.directory / "guard.toml").write_text("max_blocked_share = 0.01\n")
    broad, narrow = (
        Rule("", Kind.IPSET, Match(sources=(Prefix.parse(text),)), "x", 600)
        for text in ("11.0.0.0/8", "12.0.0.0/7")
    )
    with bench.connect() as guardian:
        apply(guardian, broad, force=True)
        answer = guardian.request(Apply(narrow.to_dict(), 0, force=True))
        assert not answer.ok
        assert "1 % of all IPv4 addresses would be blocked" in answer.error
        assert "guard.toml" in answer.error
        assert "may be" in guardian.demand(Plan(narrow.to_dict())).data["refused"]
        assert len(rules_of(guardian)) == 1


def test_broad_rules_want_force(bench: Bench) -> None:
    rule = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("12.0.0.0/7"),)), "x", 600)
    with bench.connect() as guardian:
        assert "/8" in guardian.demand(Plan(rule.to_dict())).data["needs_force"]
        answer = guardian.request(Apply(rule.to_dict(), 0))
        assert "without confirmation" in answer.error
        assert apply(guardian, rule, force=True)


def test_connected_time_server_is_allow_listed(bench: Bench) -> None:
    with inside(bench.netns):
        clock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with clock:
        clock.connect((bench.attacker(4), 123))
        with bench.connect() as guardian:
            plan = guardian.demand(Plan(bench.block_rule(4).to_dict())).data
    assert plan["refused"] is None
    assert any("port 123" in line and bench.attacker(4) in line for line in plan["warnings"])


def test_a_guardian_waits_for_the_client_that_started_it(bench: Bench) -> None:
    """On a busy machine that client comes late; looking for rules to adopt is no reason to leave before."""
    descriptor = namespaces.open_netns(bench.netns)
    try:
        argv = module_argv("fwtop.guardian", "--run-directory", str(bench.directory), *bench.arguments())
        assert start_guardian(argv, descriptor).returncode == 0
    finally:
        os.close(descriptor)
    (started,) = bench.guardians()
    bench.pids.add(started)
    watched = os.pidfd_open(started)
    try:
        assert select.select([watched], [], [], 1.0)[0] == []
    finally:
        os.close(watched)
    with bench.connect() as guardian:
        assert int(guardian.about["pid"]) == started


def test_one_that_was_started_beside_another_ends_once_that_one_serves(bench: Bench) -> None:
    with bench.connect(), closing(namespaces.open_netns(bench.netns)) as netns:
        argv = module_argv("fwtop.guardian", "--run-directory", str(bench.directory), *bench.arguments())
        began = time.monotonic()
        done = start_guardian(argv, netns)
        took = time.monotonic() - began
    assert (done.returncode, b"another guardian" in done.stderr) == (1, True)
    assert took < LOCK_SECONDS, "its client waits for as long"


def test_of_clients_that_come_at_once_one_starts_the_guardian(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    def counted(argv: list[str], netns: int) -> subprocess.CompletedProcess[bytes]:
        started.append(argv)
        return start_guardian(argv, netns)

    bench.kill_guardian()
    monkeypatch.setattr(discovery, "run_starter", counted)
    with ThreadPoolExecutor(8) as clients:
        found = list(clients.map(lambda _: bench.connect(), range(8)))
    assert len({client.about["pid"] for client in found}) == 1
    assert len(started) == 1
    for client in found:
        client.close()
    assert not [*bench.directory.glob("start-*")]


def test_stale_locks_go_and_held_ones_stay(bench: Bench) -> None:
    served = {
        f"{path}.{end}" for path in ("api", f"api-{bench.netns}", "api-gone") for end in ("lock", "sock")
    }
    names = {"1.lock", "1.sock", "2.lock", "notes.lock", "start-1.lock", *served}
    for name in names:
        (bench.directory / name).touch()
    held = os.open(bench.directory / "2.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    with bench.connect() as guardian:
        apply(guardian, bench.block_rule(4))
    os.close(held)
    left = {path.name for path in bench.directory.iterdir()} & names
    assert left == {"2.lock", "notes.lock", "api.sock", f"api-{bench.netns}.sock"}, "systemd's stay, perhaps"
