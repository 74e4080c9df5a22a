"""The stateless playbook: what passed passes, what was blocked stays blocked, undo leaves nothing."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from guardian_bench import PORT, VARIANTS, Bench, apply, crash_within_life, rules_of

from fwtop.guardian.failpoints import Failpoint
from fwtop.harden import stateless
from fwtop.harden import table as connections
from fwtop.harden.playbook import Options
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Plan, Undo
from fwtop.model.rule import Kind, Match, Rule
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.netfilter import ctnetlink
from fwtop.store.writer import SessionWriter
from tests.kernel.conftest import ip
from tests.kernel.wire import connects, inside

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from stored_samples import START, poisoned, session_ticks

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def nobody_elses_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among many entries of other tests' namespaces, ours would not be looked for."""
    monkeypatch.setattr(connections, "_everywhere", lambda: 0)


RULES = """*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p ipv6-icmp -j ACCEPT
-A INPUT -p tcp -m multiport --dports 22,80 -m conntrack --ctstate NEW -j ACCEPT
-A INPUT -p udp -m udp --dport 5353 -m state --state NEW -j ACCEPT
COMMIT
"""
NATIVE = """table inet site {
 set open { type inet_service; elements = { 22, 80 } }
 chain states {
  ct state vmap { invalid : drop, established : accept, related : accept }
 }
 chain in {
  type filter hook input priority 0; policy drop;
  iif lo accept
  jump states
  meta l4proto ipv6-icmp accept
  tcp dport @open ct state new counter accept comment "services"
  udp dport 5353 ct state { new } accept
 }
 chain out {
  type filter hook output priority 0; policy drop;
  meta l4proto ipv6-icmp accept
  ct state established,related accept
  ct state new oif lo accept
 }
}
"""
RULE_SETS = Path(__file__).with_name("rulesets")
SIZE = 300_000
ENDS = (("10.77.0.2", 0), ("10.77.0.3", 999))  # a client whom all rules let in, and one whom some don't


def load(bench: Bench, variant: str) -> None:
    if variant == "native":
        bench.pair.victim.run("sh", "-c", f"nft -f - <<'E'\n{NATIVE}E\n")
        return
    for program in (f"iptables-{variant}", f"ip6tables-{variant}"):
        text = RULES if program.startswith("ip6") else RULES.replace("-A INPUT -p ipv6-icmp -j ACCEPT\n", "")
        bench.pair.victim.run("sh", "-c", f"{program}-restore <<'E'\n{text}E\n")
        if variant == "legacy":  # a legacy table stays once it was read
            bench.pair.victim.run(program, "-t", "raw", "-S")


@contextlib.contextmanager
def served(netns: str, port: int) -> Iterator[None]:
    """Send SIZE bytes to whoever connects, and end."""
    with inside(netns):
        listener = socket.socket(socket.AF_INET6)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("::", port))
    listener.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer = listener.accept()[0]
                with contextlib.suppress(OSError), peer:
                    peer.settimeout(60)
                    peer.sendall(bytes(SIZE))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


def fetched(
    netns: str,
    address: str,
    port: int,
    seconds: float = 60,
    end: tuple[str, int] | None = None,
    *,
    more_seconds: float = 60,
) -> int:
    """Return how many bytes came to our end (None: any); -1 without a connection within `seconds`."""
    with inside(netns):
        client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with client:
        count = -1
        if end is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT
            client.bind(end)
        with contextlib.suppress(OSError):
            if not connects(client, (address, port), seconds):
                return count
            count = 0
            client.settimeout(more_seconds)
            while data := client.recv(1 << 16):
                count += len(data)
        return count


def listed(bench: Bench, chain: str) -> str:
    """Return a chain of nft's own table with its handles."""
    return bench.pair.victim.run("nft", "-a", "list", "chain", "inet", "site", chain).stdout


def planned(bench: Bench) -> Rule:
    with inside(bench.netns):
        found = stateless.plan(Options(600))
    assert found.rule is not None
    assert found.data["services"] == ["tcp/80", "udp/5353"]
    return found.rule


@pytest.mark.parametrize("variant", [*VARIANTS, "native"])
def test_same_packets_pass_untracked_and_undo_leaves_the_rules_as_they_were(
    bench: Bench, variant: str, poll_until
) -> None:
    load(bench, variant)
    victim = bench.pair.victim
    fetch = partial(fetched, bench.pair.attacker.netns)
    with served(victim.netns, 80), served(victim.netns, 22), served(victim.netns, 81):
        bench.path(4), bench.path(6)
        before, rule = bench.state(), planned(bench)

        def verdicts() -> list[object]:
            reached = [fetch(address, 80) == SIZE for address in (victim.ipv4, victim.ipv6)]
            closed = fetch(victim.ipv4, 81, 0.3)
            return [
                *reached,
                fetch(victim.ipv4, 22) == SIZE,
                closed,
                bench.path(4).passes(),
                bench.path(6).passes(),
            ]

        assert verdicts() == [True, True, True, -1, True, True]
        with bench.connect() as guardian:
            assert guardian.demand(Plan(rule.to_dict())).data["refused"] is None
            rule_id = apply(guardian, rule, 300)
            with inside(bench.netns):
                assert verdicts() == [True, True, True, -1, True, True]
                assert {entry.dport for entry in ctnetlink.sample(100)} == {22}
                again = stateless.plan(Options(600))
            assert again.rule is None
            assert again.here.startswith("tcp/80, udp/5353 are not tracked already; nothing more")
            assert f"tcp/80: not tracked now, by fwtop's rule {rule_id}" in again.kept
            assert rules_of(guardian)[rule_id]["acting"]
            if variant == "native":
                handle = re.search(r"comment \"fwtop-\d+\" # handle (\d+)", listed(bench, "in"))
                assert handle
                victim.run("nft", "delete", "rule", "inet", "site", "in", "handle", handle[1])
            else:
                victim.run(f"iptables-{variant}", "-D", "INPUT", "2")
            poll_until(lambda: "on states were changed" in rules_of(guardian)[rule_id]["not_acting"])
            guardian.demand(Undo((rule_id,)))
        assert bench.settled(before) == before
        assert verdicts() == [True, True, True, -1, True, True]


def test_service_that_asks_others_from_its_own_port_stays_tracked(bench: Bench) -> None:
    load(bench, "nft")
    victim, other = bench.pair.victim, bench.pair.attacker
    with (
        served(victim.netns, 80),
        inside(victim.netns),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own,
    ):
        own.bind((victim.ipv4, PORT))
        own.sendto(b"what time is it?", (other.ipv4, 123))
        found = stateless.plan(Options(600))
    assert found.data["services"] == ["tcp/80"]
    assert any(f"asks {other.ipv4} port 123 from it" in line for line in found.kept)
    assert any(line.endswith(f"; now: udp/123 of {other.ipv4}") for line in found.kept)
    assert found.data["asks"] == [["udp/123", other.ipv4]]


def service(protocol: int, port: int) -> Rule:
    return Rule("", Kind.NOTRACK, Match(protocol=protocol, dport=port), "", 600, stateless=True)


@pytest.mark.one_each("nft-chains-removed", "native-beside", "native-inactive")
@pytest.mark.parametrize(
    ("variant", "point"),
    [
        ("nft", Failpoint.CHAINS_REMOVED),
        ("native", Failpoint.BESIDE),
        ("native", Failpoint.RENEWED),
        ("native", Failpoint.INACTIVE),
        ("native", Failpoint.SETS_DESTROYED),
    ],
)
def test_crash_at_any_step_leaves_the_rules_as_they_were(
    bench: Bench, variant: str, point: Failpoint
) -> None:
    load(bench, variant)
    bench.path(4)
    before = bench.state()
    rule = Rule("", Kind.HARDEN, Match(), "x", 600, playbook="stateless", parts=(service(17, PORT),))
    crash_within_life(bench, rule, point)
    assert bench.settled(before) == before
    assert bench.path(4).passes(wait_s=30)


REDIRECT = "-t nat -A PREROUTING -p udp --dport 5353 -j REDIRECT --to-ports 53"


@pytest.mark.one_each(
    "nft--t nat -A PREROUTING -p udp --dport 5353 -j REDIRECT --to-ports 53-NAT",
    "nft--A INPUT -m connmark --mark 1 -j ACCEPT-marks connections",
    "nft--A OUTPUT -m conntrack --ctstate UNTRACKED -j DROP-a rule on UNTRACKED",
    "nft--t mangle -A PREROUTING -m state --state INVALID -j DROP-a rule on states in table mangle",
    'native-ct helper "sip" accept-a helper',
)
@pytest.mark.parametrize(
    ("variant", "rule", "said"),
    [
        ("nft", REDIRECT, "NAT"),
        ("nft", "-A INPUT -m helper --helper sip -j ACCEPT", "a helper"),
        ("nft", "-A INPUT -m connmark --mark 1 -j ACCEPT", "marks connections"),
        ("nft", "-A INPUT -m state --state NEW -m conntrack --ctdir ORIGINAL -j ACCEPT", "marks connections"),
        ("nft", "-A INPUT -m conntrack --ctstate ESTABLISHED,UNTRACKED -j ACCEPT", "a rule on UNTRACKED"),
        ("nft", "-A OUTPUT -m conntrack --ctstate UNTRACKED -j DROP", "a rule on UNTRACKED"),
        (
            "nft",
            "-t mangle -A PREROUTING -m state --state INVALID -j DROP",
            "a rule on states in table mangle",
        ),
        ("native", "udp dport 5353 ct count over 9 drop", "counts or marks connections"),
        ("native", 'ct helper "sip" accept', "a helper"),
        ("native", "ct state != new udp dport 5353 drop", "a rule on states"),
    ],
)
def test_refuses_what_has_no_stateless_equivalent(bench: Bench, variant: str, rule: str, said: str) -> None:
    load(bench, variant)
    argv = ("nft", "add", "rule", "inet", "site", "in") if variant == "native" else ("iptables-nft",)
    bench.pair.victim.run(*argv, *rule.split())
    bench.path(4)
    before = bench.state()
    with inside(bench.netns):
        found = stateless.plan(Options(600))
    assert found.rule is None
    assert said in found.refused
    with bench.connect() as guardian, pytest.raises(FwtopError, match=f"must be tracked: .*{said}"):
        guardian.demand(Apply(service(17, PORT).to_dict(), 0))
    assert bench.settled(before) == before


def test_refuses_beside_stateful_rules_of_the_other_variant(bench: Bench) -> None:
    """Packets pass the rules of both variants, and only one's get lines beside them."""
    victim = bench.pair.victim
    load(bench, "nft")
    victim.run("iptables-legacy", "-A", "INPUT", "-p", "tcp", "--dport", "81", "-j", "ACCEPT")
    with served(victim.netns, 80), inside(bench.netns):
        assert stateless.plan(Options(600)).data["services"] == ["tcp/80"]
        victim.run(
            "iptables-legacy", "-A", "INPUT", *["-m", "state", "--state", "ESTABLISHED", "-j", "ACCEPT"]
        )
        refused = stateless.plan(Options(600)).refused
    assert refused.startswith("tcp/80: a rule on states, '-A INPUT -m state --state ESTABLISHED -j ACCEPT'")
    assert refused.endswith("of legacy iptables, beside nft")


@pytest.mark.parametrize(
    "rule",
    [
        "-s {bad} -p tcp -m tcp ! --dport 443 -m state --state NEW -j DROP",
        "-s {bad} -p tcp -m multiport ! --dports 22,443 -m state --state NEW -j DROP",
        "-s {bad} ! -p udp -m state --state NEW -j DROP",
        "-p tcp -m tcp --sport 1:1023 --dport 80 -m state --state NEW -j DROP",
        '-s {bad} -m comment --comment "-p udp -m connlimit -j ACCEPT" -m state --state NEW -j DROP',
    ],
)
def test_what_was_blocked_stays_blocked_untracked(bench: Bench, rule: str) -> None:
    victim, client = bench.pair.victim, bench.pair.attacker
    load(bench, "nft")
    ip("-n", client.netns, "address", "add", "10.77.0.3/24", "dev", client.interface)
    victim.run("iptables-nft", "-I", "INPUT", "1", *shlex.split(rule.format(bad="10.77.0.3")))

    def reached() -> list[bool]:
        return [fetched(client.netns, victim.ipv4, 80, 0.5, end) == SIZE for end in ENDS]

    with served(victim.netns, 80), bench.connect() as guardian:
        before = reached()
        assert before == [True, False]
        with inside(bench.netns):
            found = stateless.plan(Options(600))
        assert found.rule is not None
        apply(guardian, found.rule)
        assert reached() == before
        with inside(bench.netns):
            assert not ctnetlink.sample(100)


ORDERED = """table inet site {
 chain in {
  type filter hook input priority 0; policy accept;
  iif lo accept
  ct state invalid drop
  ct state established,related accept
  ip saddr 10.77.0.3 tcp dport != 443 ct state new drop
  tcp dport 80 ct state new accept
  meta l4proto ipv6-icmp accept
  reject
 }
}
"""


def test_each_line_comes_beside_its_own_whatever_follows(bench: Bench) -> None:
    """What rejects the rest stays last, and what drops some clients stays ahead of what lets in all."""
    victim, client = bench.pair.victim, bench.pair.attacker
    victim.run("nft", ORDERED)
    ip("-n", client.netns, "address", "add", "10.77.0.3/24", "dev", client.interface)

    def reached() -> list[bool]:
        return [fetched(client.netns, victim.ipv4, 80, 0.5, end) == SIZE for end in ENDS]

    def texts() -> list[str]:
        lines = [line.strip() for line in listed(bench, "in").splitlines()]
        return [line.split(" # ")[0].removesuffix(' comment "fwtop-1"') for line in lines if "handle" in line]

    with served(victim.netns, 80), bench.connect() as guardian:
        assert reached() == [True, False]
        before = texts()
        with inside(bench.netns):
            found = stateless.plan(Options(600))
        assert found.rule is not None
        apply(guardian, found.rule)
        assert reached() == [True, False]
        after = texts()
        assert [line for line in after if "fwtop-1-st" not in line] == before
        own = [number for number, line in enumerate(after) if "fwtop-1-st" in line]
        assert after.index("ct state invalid drop") == own[2] + 1  # behind three on ICMP
        assert [after[number - 1] for number in own[3:]] == [
            line for line in before if "established" in line or "new" in line
        ]


def test_a_service_without_tracking_already_is_left_as_it_is(bench: Bench) -> None:
    load(bench, "nft")
    line = "-t raw -A PREROUTING -p tcp --dport 80 -j CT --notrack"
    for program in ("iptables-nft", "ip6tables-nft"):
        bench.pair.victim.run(program, *line.split())
    bench.path(4)
    with served(bench.netns, 80), inside(bench.netns):
        found = stateless.plan(Options(600))
    assert found.data["services"] == ["udp/5353"]
    assert any(line.startswith("tcp/80: not tracked now, by '-A PREROUTING -p tcp") for line in found.kept)


def test_jumbo_frames_reach_a_path_of_1500_bytes_only_with_the_errors_let_in(bench: Bench) -> None:
    """Untracked and with a hand-made rule the download stalls; with the playbook's lines it doesn't."""
    victim, client = bench.pair.victim, bench.pair.attacker
    load(bench, "nft")
    near, far = f"{client.netns}r", client.netns
    ip("netns", "add", near)
    try:
        for netns, device, peer in ((victim.netns, "j0", "r0"), (far, "j1", "r1")):
            ip(
                "-n",
                netns,
                "link",
                "add",
                device,
                "mtu",
                "9000",
                "type",
                "veth",
                "peer",
                "name",
                peer,
                "netns",
                near,
            )
            host = "10.78.0.1" if device == "j0" else "10.79.0.1"
            gateway, other = f"{host[:-1]}254", "10.79.0.0/24" if device == "j0" else "10.78.0.0/24"
            ip("-n", netns, "address", "add", f"{host}/24", "dev", device)
            ip("-n", near, "address", "add", f"{gateway}/24", "dev", peer)
            ip("-n", near, "link", "set", peer, "mtu", "9000" if device == "j0" else "1500", "up")
            ip("-n", netns, "link", "set", device, "up")
            ip("-n", netns, "route", "add", other, "via", gateway)
        ip("netns", "exec", near, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        with served(victim.netns, 80), bench.connect() as guardian:
            bench.path(4)
            assert fetched(far, "10.78.0.1", 80) == SIZE
            ip("-n", victim.netns, "route", "flush", "cache")
            victim.run("iptables-nft", "-I", "INPUT", "-p", "tcp", "--dport", "80", "-j", "ACCEPT")
            bare = apply(guardian, Rule("", Kind.NOTRACK, Match(protocol=6, dport=80), "by hand", 600))
            assert 0 <= fetched(far, "10.78.0.1", 80, more_seconds=1) < SIZE
            guardian.demand(Undo((bare,)))
            victim.run("iptables-nft", "-D", "INPUT", "1")
            ip("-n", victim.netns, "route", "flush", "cache")
            apply(guardian, planned(bench))
            assert fetched(far, "10.78.0.1", 80) == SIZE
    finally:
        ip("netns", "del", near)


@pytest.mark.parametrize("variant", VARIANTS)
def test_dockers_rules_are_refused_with_their_nat(bench: Bench, variant: str) -> None:
    victim = bench.pair.victim
    load(bench, variant)
    victim.run(f"iptables-{variant}-restore", "--noflush", str(RULE_SETS / "docker-20.10.24.rules"))
    with served(victim.netns, 80), inside(bench.netns):
        before, found = bench.state(), stateless.plan(Options(600))
        assert found.rule is None
        assert "tcp/80: NAT, '-A POSTROUTING -s 172.17.0.0/16" in found.refused
        with bench.connect() as guardian, pytest.raises(FwtopError, match="must be tracked: NAT"):
            guardian.demand(Apply(service(6, 80).to_dict(), 0))
        assert bench.settled(before) == before
        victim.run(f"iptables-{variant}", "-t", "nat", "-F")
        victim.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        assert "forwards IPv4" in stateless.plan(Options(600)).refused
        victim.run("sysctl", "-qw", "net.ipv4.ip_forward=0")


def test_firewalld_is_converted_beside_its_rules_and_gets_them_back(bench: Bench) -> None:
    victim, fetch = bench.pair.victim, partial(fetched, bench.pair.attacker.netns)
    victim.run("nft", "-f", str(RULE_SETS / "firewalld-1.3.3.nft"))
    with served(victim.netns, 80), served(victim.netns, 81):
        bench.path(4), bench.path(6)
        before = bench.state()

        def verdicts() -> list[object]:
            web = [fetch(address, 80) == SIZE for address in (victim.ipv4, victim.ipv6)]
            return [*web, fetch(victim.ipv4, 81, 0.3), bench.path(4).passes(), bench.path(6).passes()]

        assert verdicts() == [True, True, -1, True, True]
        with bench.connect() as guardian:
            rule_id = apply(guardian, planned(bench))
            assert verdicts() == [True, True, -1, True, True]
            with inside(bench.netns):
                assert not {80, 5353} & {entry.dport for entry in ctnetlink.sample(100)}
            guardian.demand(Undo((rule_id,)))
        assert bench.settled(before) == before


@pytest.mark.parametrize("variant", VARIANTS)
def test_ufw_is_converted_beside_its_rules_and_gets_them_back(bench: Bench, variant: str) -> None:
    """Its rules as it wrote them: two ports allowed, one address denied, SSH limited, all else dropped."""
    victim, client = bench.pair.victim, bench.pair.attacker
    ip("-n", client.netns, "address", "add", "10.77.0.3/24", "dev", client.interface)
    for number, program in ((4, "iptables"), (6, "ip6tables")):
        victim.run(f"{program}-{variant}-restore", str(RULE_SETS / f"ufw-0.36.2.ipv{number}.rules"))
        for table in ("raw", "filter") if variant == "legacy" else ():
            victim.run(f"{program}-{variant}", "-t", table, "-S")
    with served(victim.netns, 80), served(victim.netns, 81), bench.connect() as guardian:
        bench.path(4), bench.path(6)
        before = bench.state()

        def verdicts() -> list[object]:
            web = [fetched(client.netns, victim.ipv4, 80, 0.5, end) == SIZE for end in ENDS]
            web.append(fetched(client.netns, victim.ipv6, 80) == SIZE)
            closed = fetched(client.netns, victim.ipv4, 81, 0.3)
            return [*web, closed, bench.path(4).passes(), bench.path(6).passes()]

        assert verdicts() == [True, False, True, -1, True, True]
        rule_id = apply(guardian, planned(bench))
        assert verdicts() == [True, False, True, -1, True, True]
        with inside(bench.netns):
            assert not {80, 5353} & {entry.dport for entry in ctnetlink.sample(100)}
        guardian.demand(Undo((rule_id,)))
        assert bench.settled(before) == before


def test_real_flows_are_replayed_and_those_that_would_break_are_named(bench: Bench) -> None:
    """A limit on new flows lets all of one pass; of datagrams without state, which all are new, some."""
    victim, client = bench.pair.victim, bench.pair.attacker
    load(bench, "nft")
    few = "-p udp --dport 53 -m state --state NEW -m limit --limit 1/minute --limit-burst 2 -j ACCEPT"
    victim.run("iptables-nft", "-I", "INPUT", *few.split())
    with served(victim.netns, 80), inside(victim.netns), socket.socket(type=socket.SOCK_DGRAM) as names:
        names.bind((victim.ipv4, 53))
        with inside(client.netns), socket.socket(type=socket.SOCK_DGRAM) as asker:
            asker.bind((client.ipv4, 4242))
            asker.sendto(b"?", (victim.ipv4, 53))
        fetched(client.netns, victim.ipv4, 80), fetched(client.netns, victim.ipv6, 80)
        before, found = bench.state(), stateless.plan(Options(60, clients=("192.0.2.1", "2001:db8::1")))
    assert bench.settled(before) == before
    assert found.data["services"] == ["tcp/80"]
    assert f"udp/53: udp/53 from {client.ipv4} port 4242: 1 of 6 packets" in " ".join(found.kept)
    (told,) = (line for line in found.findings if "flows replayed" in line)
    assert told.startswith("7 flows")  # three seen, and two services with two clients of the session
    assert "2 of them would break" in told  # all share the limit


def test_the_busiest_clients_of_a_stored_session_are_replayed(bench: Bench, open_path: Path) -> None:
    """The reader of what attackers sent has no privileges; what it says must be addresses."""
    load(bench, "nft")
    ticks = session_ticks(2)
    seen = {row.key for row in ticks[0].tables.sources.address}
    good, bad = (
        recorded(open_path / name, some) for name, some in (("good", ticks), ("bad", [poisoned(START)]))
    )
    with served(bench.netns, 80):
        planned = harden(bench, good)
        refused = harden(bench, bad)
    assert planned.returncode == 0, planned.stderr
    (told,) = (line for line in json.loads(planned.stdout)["findings"] if "flows replayed" in line)
    assert told.startswith(f"{len(seen)} flows"), (told, seen)
    assert told.endswith("all get through as before")
    assert refused.returncode == 1
    assert refused.stderr == "fwtop: the stored session is invalid; nothing was changed\n"


def recorded(place: Path, ticks: Sequence[Snapshot]) -> Path:
    session = SessionWriter(place, host="web-1", interfaces=("eth0",), version="0.1.0")
    for tick in ticks:
        session.write(tick)
    session.close()
    assert session.path is not None
    return session.path


def harden(bench: Bench, session: Path) -> subprocess.CompletedProcess[str]:
    words = ["harden", "stateless", "--json", "--netns", bench.netns, "--session", str(session)]
    argv = [sys.executable, "-m", "fwtop", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
