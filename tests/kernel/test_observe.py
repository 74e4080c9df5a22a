"""Observation of real packets in real namespaces, by a process without privileges."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.conftest import Host, NetnsPair, ip

CLONE = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.kernel

SENDER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
sender = socket.socket(family, socket.SOCK_DGRAM)
for number in range(int(sys.argv[3])):
    try:
        sender.sendto(sys.argv[4].encode(), (sys.argv[1], int(sys.argv[2])))
    except OSError:
        pass  # an earlier one was answered with ICMP
"""


class Observer:
    """The observing process of one host."""

    def __init__(self, host: Host, interfaces: list[str], without: str = "", windows: str = "") -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(CLONE),
            "FWTOP_WITHOUT": without,
            "FWTOP_TEST_WINDOWS": windows,
        }
        self.process = subprocess.Popen(
            [
                "ip",
                "netns",
                "exec",
                host.netns,
                sys.executable,
                "-m",
                "tests.kernel.observer_process",
                *interfaces,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=CLONE,
        )
        self.ready = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the observer ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=10)


@contextlib.contextmanager
def observing(host: Host, interfaces: list[str] | None = None, without: str = "") -> Iterator[Observer]:
    observer = Observer(host, [host.interface] if interfaces is None else interfaces, without)
    try:
        observer.ask("poll")
        yield observer
    finally:
        observer.close()


def send(pair: NetnsPair, port: int, count: int, payload: str = "attack", to: str = "") -> None:
    pair.attacker.run(sys.executable, "-c", SENDER, to or pair.victim.ipv4, str(port), str(count), payload)


def mac(host: Host) -> str:
    return json.loads(host.run("ip", "-j", "link", "show", host.interface).stdout)[0]["address"].replace(
        ":", ""
    )


def checksummed(header: bytes, at: int) -> bytes:
    """Fill the internet checksum in (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return header[:at] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + header[at + 2 :]


def meet(pair: NetnsPair) -> None:
    """Let the neighbours find each other, so that ARP and discovery are over before counting."""
    for address in (pair.victim.ipv4, pair.victim.ipv6):
        send(pair, 7, 1, to=address)


def samples(answer: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in answer["samples"] if all(row[key] == value for key, value in wanted.items())]


def named(answer: dict[str, Any]) -> dict[str, int]:
    """Drops with a reason: IPv6 talks to itself, and the kernel drops of that without one."""
    return {key: packets for key, packets in answer["drops"].items() if "NOT_SPECIFIED" not in key}


def attached(host: Host) -> str:
    """Everything that observation could leave behind."""
    tc = (
        host.run("tc", "qdisc").stdout
        + host.run("tc", "filter", "show", "dev", host.interface, "ingress").stdout
    )
    return tc + host.run("nft", "list", "ruleset").stdout


def loaded_programs() -> set[int]:
    """Numbers of all BPF programs in the kernel."""
    listed = subprocess.run(["bpftool", "-j", "prog"], capture_output=True, text=True, timeout=20, check=True)
    return {int(program["id"]) for program in json.loads(listed.stdout)}


def programs_of(process: int) -> set[int]:
    """Numbers of the BPF programs that a process holds."""
    found: set[int] = set()
    for entry in Path(f"/proc/{process}/fdinfo").iterdir():
        lines = entry.read_text().splitlines()
        found |= {int(line.split()[1]) for line in lines if line.startswith("prog_id:")}
    return found


@pytest.mark.parametrize("without", ["", "tcx"])
def test_drops_by_iptables_are_counted_exactly_with_contents(netns_pair: NetnsPair, without: str) -> None:
    meet(netns_pair)
    netns_pair.victim.run(
        "iptables", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "--dport", "9", "-j", "DROP"
    )
    with observing(netns_pair.victim, without=without) as observer:
        send(netns_pair, 9, 200)
        answer = observer.ask("wait 200")
    assert answer["uid"] == 65534
    assert answer["protocols"]["udp"] == [200, 200 * (14 + 28 + len("attack"))]
    assert not samples(answer, hook="ACCEPTED", protocol=17)
    assert named(answer) == {"netfilter/NETFILTER_DROP/before": 200}
    (drop,) = samples(answer, hook="DROP", reason="NETFILTER_DROP")
    assert drop["payload"] == b"attack".hex()
    assert (drop["reason"], drop["dport"], drop["weight"]) == ("NETFILTER_DROP", 9, 200.0)
    (arrived,) = samples(answer, hook="INGRESS", protocol=17)
    assert (arrived["records"], arrived["dport"]) == (200, 9)
    assert answer["lost"] == 0


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_packets_without_a_socket_are_accepted_then_dropped(netns_pair: NetnsPair, family: str) -> None:
    meet(netns_pair)
    with observing(netns_pair.victim) as observer:
        send(netns_pair, 4242, 50, to=getattr(netns_pair.victim, family))
        answer = observer.ask("wait 50")
    assert answer["drops"]["socket/NO_SOCKET/after"] == 50
    (accepted,) = samples(answer, hook="ACCEPTED", dport=4242)
    assert accepted["weight"] == 50
    assert 50 <= answer["accepted"] <= answer["arrived"]  # besides, there is IPv6 talking to itself


def test_nft_drop_in_input_is_not_accepted(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    rules = "table inet t { chain c { type filter hook input priority 200; udp dport 5000 drop; }; }"
    netns_pair.victim.run("nft", rules)
    with observing(netns_pair.victim) as observer:
        send(netns_pair, 5000, 30)
        send(netns_pair, 5001, 20, "other")
        answer = observer.ask("wait 50")
    assert samples(answer, hook="ACCEPTED", protocol=17)[0]["weight"] == 20
    assert named(answer) == {"netfilter/NETFILTER_DROP/before": 30, "socket/NO_SOCKET/after": 20}
    assert not samples(answer, hook="ACCEPTED", dport=5000)


def test_drops_of_another_namespace_are_not_ours(netns_pair: NetnsPair) -> None:
    """The other side's interface may even have the same number."""
    meet(netns_pair)
    netns_pair.attacker.run("iptables", "-t", "raw", "-A", "PREROUTING", "-p", "udp", "-j", "DROP")
    with observing(netns_pair.victim) as observer:
        back = ["-c", SENDER, netns_pair.attacker.ipv4, "9", "100", "away"]
        netns_pair.victim.run(sys.executable, *back)
        send(netns_pair, 4242, 10)
        answer = observer.ask("wait 10")
    assert answer["protocols"]["udp"][0] == 10
    assert named(answer) == {"socket/NO_SOCKET/after": 10}


def test_own_packets_dropped_on_the_way_out_are_not_arrivals(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    netns_pair.victim.run("iptables", "-A", "OUTPUT", "-p", "udp", "--dport", "77", "-j", "DROP")
    with observing(netns_pair.victim) as observer:
        netns_pair.victim.run(sys.executable, "-c", SENDER, netns_pair.attacker.ipv4, "77", "40", "out")
        answer = observer.ask("poll")
    assert "netfilter/NETFILTER_DROP/before" not in answer["drops"]
    assert not samples(answer, dport=77)
    assert "udp" not in answer["protocols"]


RAW_SENDER = """
import socket, sys
sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
sender.bind((sys.argv[1], 0))
for _ in range(int(sys.argv[3])):
    for frame in sys.argv[2].split(","):
        sender.send(bytes.fromhex(frame))
"""


@pytest.mark.parametrize("tags", ["8100002a", "88a8002a81000007"])
def test_vlan_tags_are_seen_and_what_is_behind_them_counted(netns_pair: NetnsPair, tags: str) -> None:
    """The kernel takes the outer tag off before tc; there is no interface for it, so it ends there."""
    meet(netns_pair)
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 32, 1, 0, 64, 17, 0, bytes((10, 77, 0, 2)), bytes((10, 77, 0, 1))
    )
    datagram = struct.pack("!HHHH", 1234, 4242, 12, 0) + b"deep"
    frame = bytes(12) + bytes.fromhex(tags) + b"\x08\x00" + header + datagram
    with observing(netns_pair.victim) as observer:
        netns_pair.attacker.run(
            sys.executable, "-c", RAW_SENDER, netns_pair.attacker.interface, frame.hex(), "25"
        )
        answer = observer.ask("wait 25")
    (arrived,) = samples(answer, hook="INGRESS", dport=4242)
    assert (arrived["vlan"], arrived["records"], arrived["payload"]) == (42, 25, b"deep".hex())
    assert answer["protocols"]["udp"][0] == 25
    assert sum(named(answer).values()) == 25


ATTACH_XDP = """
import socket, struct, sys; sys.path.insert(0, sys.argv[1])
from fwtop.collect import bpf, netlink
code = struct.pack("<BBhi", 0xB7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0)  # return XDP_DROP
program = bpf.load_program(bpf.XDP, "somebody_else", code)
inner = netlink.attribute(1, struct.pack("<i", program)) + netlink.attribute(3, struct.pack("<I", 4))
index = socket.if_nametoindex(sys.argv[2])
body = struct.pack("<BBHiII", 0, 0, 0, index, 0, 0) + netlink.nested(43, inner)
netlink.request(socket.NETLINK_ROUTE, 19, body)
"""


def test_what_another_xdp_program_drops_in_the_driver_is_told(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    victim, attacker = netns_pair.victim, netns_pair.attacker
    frame = bytes.fromhex(mac(victim)) + bytes(6) + b"\x08\x00" + bytes(60)
    with observing(victim) as observer:
        victim.run("python3", "-I", "-c", ATTACH_XDP, str(CLONE), victim.interface)
        observer.ask("poll")
        before = received(victim)
        attacker.run(sys.executable, "-c", RAW_SENDER, attacker.interface, frame.hex(), "500")
        dropped = received(victim) - before
        answers = [observer.ask("poll") for _ in range(2)]
    assert dropped >= 500
    assert sum(answer["arrived"] for answer in answers) == 0
    told = [answer["drops"].get("xdp/XDP_DROP (foreign)/before", 0) for answer in answers]
    assert 480 <= sum(told) <= dropped  # twenty may be on their way


def test_fragments_are_all_accounted_for(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    with observing(netns_pair.victim) as observer:
        send(netns_pair, 4242, 10, "x" * 4000)
        answer = observer.ask("wait 30")
    assert answer["protocols"]["udp"][0] == 30
    assert 30 <= answer["accepted"] <= answer["arrived"]  # besides, there is IPv6 talking to itself
    assert named(answer) == {"socket/NO_SOCKET/after": 10}


def test_fragments_that_wait_for_the_rest_are_told(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    frames = []
    for number in range(40):
        header = struct.pack(
            "!BBHHHBBH4s4s",
            *(0x45, 0, 36, 1000 + number, 0x2000, 64, 17, 0),  # more fragments follow, but never do
            *(bytes((10, 77, 0, 2)), bytes((10, 77, 0, 1))),
        )
        frames.append(
            bytes.fromhex(mac(netns_pair.victim)) + bytes(6) + b"\x08\x00" + checksummed(header, 10)
        )
    payload = struct.pack("!HHHH", 1234, 4242, 100, 0) + b"waiting!"
    with observing(netns_pair.victim) as observer:
        raw = [netns_pair.attacker.interface, ",".join((frame + payload).hex() for frame in frames), "1"]
        netns_pair.attacker.run(sys.executable, "-c", RAW_SENDER, *raw)
        first, second = observer.ask("wait 40"), observer.ask("poll")
    waiting = [answer["drops"].get("ip/FRAGMENTS_WAITING/before", 0) for answer in (first, second)]
    assert sum(waiting) == 40


def test_fragments_that_a_rule_drops_as_one_packet_are_all_accounted_for(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    victim = netns_pair.victim
    for tool in ("iptables", "ip6tables"):  # the state match has connection tracking put them together
        victim.run(tool, "-A", "INPUT", "-p", "udp", "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP")
    with observing(victim) as observer:
        for address in (victim.ipv4, victim.ipv6):
            send(netns_pair, 4242, 10, "x" * 4000, address)
        answer = observer.ask("wait 60")
    assert answer["protocols"]["udp"][0] == 60
    assert answer["drops"]["netfilter/NETFILTER_DROP/before"] == 60


def test_fragments_that_connection_tracking_holds_are_told(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    victim = netns_pair.victim
    victim.run("ip6tables", "-A", "INPUT", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
    frames = []
    for number in range(40):
        fragment = struct.pack("!BBHI", 17, 0, 1, 1000 + number)  # the first, more to follow
        datagram = struct.pack("!HHHH", 1234, 4242, 100, 0) + b"waiting!"
        header = struct.pack("!IHBB", 6 << 28, len(fragment + datagram), 44, 64)
        ends = [socket.inet_pton(socket.AF_INET6, host.ipv6) for host in (netns_pair.attacker, victim)]
        frames.append(bytes.fromhex(mac(victim)) + bytes(6) + b"\x86\xdd" + header + b"".join(ends))
        frames[-1] += fragment + datagram
    with observing(victim) as observer:
        raw = [netns_pair.attacker.interface, ",".join(frame.hex() for frame in frames), "1"]
        netns_pair.attacker.run(sys.executable, "-c", RAW_SENDER, *raw)
        answers = [observer.ask("wait 40"), observer.ask("poll")]
    waiting = [answer["drops"].get("conntrack/FRAGMENTS_WAITING/before", 0) for answer in answers]
    assert sum(waiting) == 40


def test_merged_tcp_is_counted_in_packets_of_the_wire(netns_pair: NetnsPair) -> None:
    """GRO hands the stack fewer, larger packets than the wire carried."""
    victim, attacker = netns_pair.victim, netns_pair.attacker
    victim.run("ethtool", "-K", victim.interface, "gro", "on")
    attacker.run("ethtool", "-K", attacker.interface, "tso", "off", "gso", "off")
    server = (
        "import socket; s = socket.create_server(('0.0.0.0', 8000)); print('up', flush=True)\n"
        "c, _ = s.accept()\nwhile c.recv(65536): pass"
    )
    client = (
        f"import socket; s = socket.create_connection(('{victim.ipv4}', 8000)); s.sendall(b'x' * 3_000_000)"
    )
    process = subprocess.Popen(
        ["ip", "netns", "exec", victim.netns, sys.executable, "-c", server], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with observing(victim) as observer:
            before = received(victim)
            attacker.run(sys.executable, "-c", client)
            process.wait(10)
            packets = received(victim) - before
            answer = observer.ask(f"wait {packets}")
    finally:
        process.kill()
        process.communicate()
    assert packets > 2000
    size = 3_000_000 + packets * (14 + 20 + 32)  # Ethernet, IP, TCP with timestamps
    assert abs(answer["arrived"] - packets) <= 4  # ARP and the like
    assert abs(answer["bytes"] - size) < 0.001 * size
    assert abs(answer["accepted"] - packets) <= 4
    assert abs(answer["accepted_bytes"] - size) < 0.001 * size


def received(host: Host) -> int:
    """Packets that the interface counted before they were merged."""
    link = json.loads(host.run("ip", "-s", "-j", "link", "show", host.interface).stdout)[0]
    return int(link["stats64"]["rx"]["packets"])


def test_new_connections_are_counted_once_each(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    netns_pair.victim.run("iptables", "-A", "INPUT", "-m", "conntrack", "--ctstate", "INVALID", "-j", "DROP")
    many = (
        "import socket\n"
        f"for port in range(20000, 20100):\n s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        f" s.bind(('', port))\n s.connect(('{netns_pair.victim.ipv4}', 4242))\n"
        " for _ in range(3):\n  try: s.send(b'x')\n  except OSError: pass\n"
    )
    with observing(netns_pair.victim) as observer:
        netns_pair.attacker.run(sys.executable, "-c", many)
        answer = observer.ask("poll")
    assert answer["new_connections"] == 100


def test_nothing_stays_attached_when_the_holders_are_killed(netns_pair: NetnsPair, poll_until: Any) -> None:
    before = attached(netns_pair.victim)
    observer = Observer(netns_pair.victim, [netns_pair.victim.interface])
    ours = programs_of(observer.process.pid)
    assert len(ours) == 3
    observer.process.send_signal(signal.SIGKILL)
    observer.process.communicate(timeout=10)
    poll_until(lambda: not ours & loaded_programs())
    assert attached(netns_pair.victim) == before


def test_the_filter_of_older_kernels_is_taken_away_by_detach(netns_pair: NetnsPair) -> None:
    before = attached(netns_pair.victim)
    with observing(netns_pair.victim, without="tcx") as observer:
        assert observer.ready["ingress"] == "clsact"
        assert "fwtop_ingress" in attached(netns_pair.victim)
    netns_pair.victim.run(sys.executable, "-m", "fwtop.collect.loader", "--detach", "0")
    assert attached(netns_pair.victim) == before


def test_a_foreign_clsact_and_its_filters_stay(netns_pair: NetnsPair) -> None:
    victim = netns_pair.victim
    victim.run("tc", "qdisc", "add", "dev", victim.interface, "clsact")
    match = ["u32", "match", "u32", "0", "0", "flowid", "1:1"]
    victim.run(
        "tc", "filter", "add", "dev", victim.interface, "ingress", "protocol", "all", "pref", "5", *match
    )
    before = attached(victim)
    with observing(victim, without="tcx"):
        assert "fwtop_ingress" in attached(victim)
    victim.run(sys.executable, "-m", "fwtop.collect.loader", "--detach", "all")
    assert attached(victim) == before


def test_drops_without_a_reason_are_told_by_the_function(netns_pair: NetnsPair) -> None:
    """An IGMP report for a group that nobody asked for is freed by igmp_rcv, without a reason."""
    meet(netns_pair)
    igmp = checksummed(bytes((0x16, 0, 0, 0, 224, 0, 0, 9)), 2)
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 28, 1, 0, 1, 2, 0, bytes((10, 77, 0, 2)), bytes((10, 77, 0, 1))
    )
    frame = bytes.fromhex(mac(netns_pair.victim)) + bytes(6) + b"\x08\x00" + checksummed(header, 10) + igmp
    raw = [netns_pair.attacker.interface, frame.hex(), "12"]
    with observing(netns_pair.victim) as observer:
        netns_pair.attacker.run(sys.executable, "-c", RAW_SENDER, *raw)
        answer = observer.ask("wait 12")
    assert answer["drops"]["ip/NOT_SPECIFIED (igmp_rcv)/after"] == 12


def test_windows_of_time_give_the_whole(netns_pair: NetnsPair) -> None:
    """Where watching everything would cost too much, an unprivileged process detaches and attaches again."""
    meet(netns_pair)
    every_second = "-p udp --dport 9 -m statistic --mode nth --every 2 --packet 0 -j DROP"
    netns_pair.victim.run("iptables", "-t", "raw", "-A", "PREROUTING", *every_second.split())
    observer = Observer(netns_pair.victim, [netns_pair.victim.interface], windows="1")
    flood = [sys.executable, "-c", SENDER, netns_pair.victim.ipv4, "9", "10000000", "attack"]
    try:
        before = observer.ask("poll")["link_packets"]
        with subprocess.Popen(["ip", "netns", "exec", netns_pair.attacker.netns, *flood]) as sender:
            during = observer.ask("watch 3")
            sender.kill()
        after = observer.ask("watch 0.5")
    finally:
        observer.close()
    arrived = after["link_packets"] - before
    counted = {name: during[name] + after[name] for name in ("arrived", "accepted", "ingress_weight")}
    dropped = sum(answer["drops"].get("netfilter/NETFILTER_DROP/before", 0) for answer in (during, after))
    assert during["watched"] < 0.9
    assert arrived > 10_000
    assert counted["arrived"] == pytest.approx(arrived, rel=0.01)
    assert dropped == pytest.approx(arrived / 2, rel=0.03)
    assert counted["accepted"] == pytest.approx(arrived / 2, rel=0.03)
    assert counted["ingress_weight"] == pytest.approx(arrived, rel=0.15)


def test_accepted_packets_by_nflog_on_older_kernels(netns_pair: NetnsPair) -> None:
    meet(netns_pair)
    before = attached(netns_pair.victim)
    with observing(netns_pair.victim, without="netfilter") as observer:
        assert "table inet fwtop" in attached(netns_pair.victim)
        send(netns_pair, 4242, 2000, "logged")
        answer = observer.ask("wait 2000")
        late = observer.ask("watch 0.5")
    logged = samples(answer, hook="ACCEPTED", dport=4242) + samples(late, hook="ACCEPTED", dport=4242)
    assert sum(row["weight"] for row in logged) == pytest.approx(2000, abs=128)
    assert {row["payload"] for row in logged} == {b"logged".hex()}
    assert answer["accepted"] + late["accepted"] == pytest.approx(2000, abs=150)
    assert answer["drops"]["socket/NO_SOCKET/after"] == 2000
    assert attached(netns_pair.victim) == before  # the table went with the socket that owned it


def test_a_stale_table_is_taken_away_by_detach(netns_pair: NetnsPair) -> None:
    before = attached(netns_pair.victim)
    netns_pair.victim.run("nft", "table inet fwtop { chain input { type filter hook input priority 5; }; }")
    netns_pair.victim.run("nft", "table inet fwtop_3 { }")
    netns_pair.victim.run("nft", "table inet mine { }")
    netns_pair.victim.run(sys.executable, "-m", "fwtop.collect.loader", "--detach", "all")
    netns_pair.victim.run("nft", "delete table inet mine")
    assert attached(netns_pair.victim) == before


def test_default_interfaces_are_those_with_a_default_route(netns_pair: NetnsPair) -> None:
    ip("-n", netns_pair.victim.netns, "route", "add", "default", "via", netns_pair.attacker.ipv4)
    with observing(netns_pair.victim, []) as observer:
        assert observer.ready["interfaces"] == ["v0"]
        assert set(observer.ready["own"]) == {netns_pair.victim.ipv4, netns_pair.victim.ipv6}


def test_an_unknown_interface_is_refused_with_those_there_are(netns_pair: NetnsPair) -> None:
    observer = Observer(netns_pair.victim, ["eth9"])
    observer.close()
    assert observer.ready["code"] == 2
    assert "'eth9'" in observer.ready["error"]
    assert "lo, v0" in observer.ready["error"]


def test_the_loader_without_privilege_says_what_it_needs(netns_pair: NetnsPair) -> None:
    environment = {**os.environ, "PYTHONPATH": str(CLONE)}
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--clear-groups",
            sys.executable,
            "-m",
            "tests.kernel.observer_process",
            "lo",
        ],
        capture_output=True,
        text=True,
        env=environment,
        cwd=CLONE,
        timeout=20,
        check=False,
    )
    assert done.returncode == 3
    assert "root" in json.loads(done.stdout)["error"]
    assert not done.stderr
