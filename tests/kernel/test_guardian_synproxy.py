"""SYN proxy: clients get through a forged SYN flood, conntrack stays small, and all is given back."""

from __future__ import annotations

import json
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guardian_bench import Bench, apply, kill, rules_of

from fwtop.guardian.failpoints import Failpoint
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Keep, Plan, Undo
from fwtop.model.rule import Kind, Match, Rule
from tests.kernel.wire import checksummed, inside, let_arrive

pytestmark = pytest.mark.kernel
FAMILIES = (4, 6)
TCP, PORT, FORGED = 6, 8443, 1500
LOOSE, COOKIES = "net.netfilter.nf_conntrack_tcp_loose", "net.ipv4.tcp_syncookies"


@pytest.fixture
def bench(netns_pair, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(netns_pair, tmp_path)
    for tool in ("iptables", "ip6tables"):  # a stateful rule is what switches connection tracking on
        made.pair.victim.run(tool, "-A", "INPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT")
    made.pair.victim.run("ip", "route", "add", "default", "via", made.pair.attacker.ipv4)
    made.pair.victim.run("ip", "-6", "route", "add", "default", "via", made.pair.attacker.ipv6)
    yield made
    made.close()


@pytest.fixture
def server(bench: Bench) -> Iterator[socket.socket]:
    """A listener for both families with a short queue, as a busy one has."""
    with inside(bench.netns):
        listener = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4)
    listener.settimeout(60)
    with listener:
        yield listener


def rule(seconds: int = 600, **fields) -> Rule:
    return Rule("", Kind.SYNPROXY, Match(protocol=TCP, dport=PORT, **fields), "proxy", seconds)


def connect(bench: Bench, family: int) -> socket.socket:
    with inside(bench.pair.attacker.netns):
        address = bench.pair.victim.ipv4 if family == 4 else bench.pair.victim.ipv6
        return socket.create_connection((address, PORT), timeout=60)


def talks(client: socket.socket, connection: socket.socket, wait_s: float = 60) -> bool:
    """Send more than a segment each way."""
    for sender, receiver in ((client, connection), (connection, client)):
        receiver.settimeout(wait_s)
        sender.send(b"x" * 3000)
        arrived = 0
        while arrived < 3000:
            try:
                arrived += len(receiver.recv(4096))
            except TimeoutError:
                return False
    return True


def serves(bench: Bench, server: socket.socket, family: int) -> bool:
    with connect(bench, family) as client:
        connection, _ = server.accept()
        with connection:
            return talks(client, connection)


def flood(bench: Bench, family: int) -> None:
    """Send SYNs from forged sources, each once."""
    mac = json.loads(bench.pair.victim.run("ip", "-j", "link", "show", "v0").stdout)[0]["address"]
    ether = bytes.fromhex(mac.replace(":", "")) + bytes(6)
    chance = random.Random(family)
    with inside(bench.pair.attacker.netns):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sender:
        sender.bind(("a0", 0))
        for _ in range(FORGED):
            sender.send(ether + syn(family, chance))
    let_arrive()


def syn(family: int, chance: random.Random) -> bytes:
    tcp = struct.pack(
        "!HHIIBBHHH", chance.randrange(1024, 65536), PORT, chance.getrandbits(32), 0, 0x50, 2, 65535, 0, 0
    )
    if family == 4:
        source, target = b"\xcb\x00" + chance.randbytes(2), socket.inet_aton("10.77.0.1")
        head = struct.pack("!BBHHHBBH", 0x45, 0, 40, 1, 0, 64, 6, 0) + source + target
        head = checksummed(head, 10)
        kind = b"\x08\x00"
    else:
        source = bytes.fromhex("20010db8") + chance.randbytes(12)
        target = socket.inet_pton(socket.AF_INET6, "fd77::1")
        head = struct.pack("!IHBB", 6 << 28, 20, 6, 64) + source + target
        kind = b"\x86\xdd"
    pseudo = source + target + struct.pack("!HH", 6, 20)
    return kind + head + checksummed(pseudo + tcp, len(pseudo) + 16)[-20:]


def tracked(bench: Bench) -> int:
    return int(bench.pair.victim.run("conntrack", "-C").stdout)


def settings(bench: Bench) -> list[str]:
    return bench.pair.victim.run("sysctl", "-n", LOOSE, COOKIES).stdout.split()


@pytest.mark.one_each("6")
@pytest.mark.parametrize("family", FAMILIES)
def test_clients_get_through_a_flood_and_all_ends_by_itself(
    bench: Bench, server: socket.socket, family: int, poll_until
) -> None:
    before = bench.state()
    assert serves(bench, server, family)
    flood(bench, family)
    assert tracked(bench) > FORGED // 2  # unprotected: each forged SYN is an entry
    bench.pair.victim.run("conntrack", "-F")
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule())
        flood(bench, family)
        assert all([serves(bench, server, family) for _ in range(5)])
        assert tracked(bench) < 50
        assert rules_of(guardian)[rule_id]["packets"] >= FORGED
        guardian.demand(Keep(rule_id, 2))
        pid = int(guardian.about["pid"])
        with connect(bench, family) as client:
            connection, _ = server.accept()
            with connection:
                assert talks(client, connection)
                kill(pid)
                poll_until(lambda: plain_syn_is_tracked(bench, family))
                assert talks(client, connection)  # the rule has no effect now, its connections go on
    assert serves(bench, server, family)
    with bench.connect() as successor:
        assert rules_of(successor, finished=True)[rule_id]["state"] == "expired"
    assert settings(bench) == ["1", "1"]
    assert bench.settled(before) == before


def plain_syn_is_tracked(bench: Bench, family: int) -> bool:
    """Say whether a forged SYN makes an entry: the proxy is off."""
    bench.pair.victim.run("conntrack", "-D", "-p", "tcp", "--state", "SYN_RECV", check=False)
    before = tracked(bench)
    flood_one = random.Random()
    mac = json.loads(bench.pair.victim.run("ip", "-j", "link", "show", "v0").stdout)[0]["address"]
    with inside(bench.pair.attacker.netns):
        sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    with sender:
        sender.bind(("a0", 0))
        sender.send(bytes.fromhex(mac.replace(":", "")) + bytes(6) + syn(family, flood_one))
    return tracked(bench) > before


@pytest.mark.one_each("4")
@pytest.mark.parametrize("family", FAMILIES)
def test_connections_that_tracking_never_saw_go_on(bench: Bench, server: socket.socket, family: int) -> None:
    with connect(bench, family) as client:
        connection, _ = server.accept()
        bench.pair.victim.run("conntrack", "-F")
        with connection, bench.connect() as guardian:
            rule_id = apply(guardian, rule())
            assert settings(bench)[0] == "0"
            assert talks(client, connection)
            assert serves(bench, server, family)
            guardian.demand(Undo((rule_id,)))
            assert talks(client, connection)
    assert settings(bench) == ["1", "1"]


def test_two_proxies_share_the_settings_until_the_last_is_gone(bench: Bench, server: socket.socket) -> None:
    bench.pair.victim.run("sysctl", "-qw", f"{COOKIES}=0")
    with bench.connect() as guardian:
        first = apply(guardian, rule())
        second = apply(guardian, Rule("", Kind.SYNPROXY, Match(protocol=TCP, dport=PORT + 1), "p", 600))
        assert settings(bench) == ["0", "1"]
        guardian.demand(Undo((second,)))
        assert settings(bench) == ["0", "1"]
        third = apply(guardian, Rule("", Kind.SYNPROXY, Match(protocol=TCP, dport=PORT + 1), "p", 600))
        guardian.demand(Undo((first,)))
        assert settings(bench) == ["0", "1"]
        guardian.demand(Undo((third,)))
    assert settings(bench) == ["1", "0"]


@pytest.mark.one_each("setting", "nft")
@pytest.mark.parametrize(
    "failpoint", [Failpoint.INTENT, Failpoint.SETTING, Failpoint.NFT, Failpoint.INSTALLED]
)
def test_crash_while_installing(bench: Bench, failpoint: Failpoint) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian, pytest.raises(FwtopError, match="ended before it answered"):
        apply(guardian, rule())
    with bench.connect() as successor:
        assert (list(rules_of(successor)) == ["1"]) == (failpoint is Failpoint.INSTALLED)
        successor.demand(Undo(all=True))
    assert (bench.state(), settings(bench)) == (before, ["1", "1"])


@pytest.mark.one_each("nft-removed", "restored")
@pytest.mark.parametrize(
    "failpoint",
    [Failpoint.UNDO, Failpoint.NFT_REMOVED, Failpoint.RESTORED, Failpoint.CHAINS_REMOVED, Failpoint.UNDONE],
)
def test_crash_while_undoing(bench: Bench, failpoint: Failpoint) -> None:
    before = bench.state()
    guardian = bench.connect(crash_at=failpoint.value)
    with guardian:
        apply(guardian, rule())
        with pytest.raises(FwtopError, match="ended before it answered"):
            guardian.demand(Undo(all=True))
    with bench.connect() as successor:
        assert rules_of(successor) == {}
    assert (bench.state(), settings(bench)) == (before, ["1", "1"])


@pytest.mark.parametrize("gro", ["on", "off"])
def test_plan_warns_where_nothing_verifies_checksums_of_ipv6(
    bench: Bench, server: socket.socket, gro: str
) -> None:
    """The kernel's SYN proxy checks IPv6 segments as if they were IPv4, unless the NIC or GRO has done it."""
    victim, attacker = bench.pair.victim, bench.pair.attacker
    attacker.run("ethtool", "-K", attacker.interface, "tx", "off")  # a checksum that has to be verified
    victim.run("ethtool", "-K", victim.interface, "gro", gro)
    with bench.connect() as guardian:
        warned = any(
            "GRO is off on v0" in line for line in guardian.demand(Plan(rule().to_dict())).data["warnings"]
        )
        apply(guardian, rule(), force=True)
        assert serves(bench, server, 4)
        if gro == "on":
            assert not warned
            assert serves(bench, server, 6)
        else:
            assert warned
        guardian.demand(Undo(all=True))
        assert serves(bench, server, 6)


def test_plan_says_what_is_done_and_other_conditions_are_refused(bench: Bench) -> None:
    with bench.connect() as guardian:
        plan = guardian.demand(Plan(rule().to_dict())).data
        assert plan["refused"] is None
        assert f"sysctl -w {LOOSE}=0  # now 1" in plan["commands"]
        assert any("synproxy mss 1460" in line for line in plan["commands"])
        assert any("synproxy mss 1440" in line for line in plan["commands"])
        assert any("stall when the rule is taken out" in line for line in plan["warnings"])
        for bad in (Match(protocol=TCP), Match(protocol=17, dport=1), Match(protocol=TCP, dport=1, sport=2)):
            refused = guardian.demand(Plan(Rule("", Kind.SYNPROXY, bad, "p", 600).to_dict())).data["refused"]
            assert "TCP port and destinations only" in refused
    assert settings(bench) == ["1", "1"]


def test_command_line_proxies_servers_behind_this_machine(bench: Bench) -> None:
    argv = [sys.executable, "-m", "fwtop", "synproxy", "--dport", "443", "--to", "192.0.2.0/24"]
    tail = ("--netns", bench.netns)

    def fwtop(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
        )

    done = fwtop(*argv, "--yes", "--json", *tail)
    assert done.returncode == 0, done.stderr
    try:
        listed = bench.pair.victim.run("nft", "list", "table", "inet", "fwtop-synproxy").stdout
        assert str(Prefix.parse("192.0.2.0/24")) in listed
    finally:
        assert fwtop(sys.executable, "-m", "fwtop", "undo", "--all", *tail).returncode == 0
    assert settings(bench) == ["1", "1"]
