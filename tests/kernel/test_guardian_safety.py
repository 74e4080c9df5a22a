"""Never lock out, never touch what is somebody else's: tried with many rules and many neighbours."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from guardian_bench import PORT, VARIANTS, Bench, apply, inside, rules_of

from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Undo
from fwtop.model.rule import Kind, Match, PayloadMatch, Range, RateLimit, Rule, Setting

pytestmark = pytest.mark.kernel
RULES = int(os.environ.get("FWTOP_RANDOM_RULES", "64"))
SEED = int(os.environ.get("FWTOP_RANDOM_SEED", str(int(time.time()) // 86_400)))  # others every day
RULES_A_ROUND, LOGIN = 8, 2222
_KINDS = {
    Kind.IPSET: 6, Kind.HASHLIMIT: 6, Kind.STRING: 6, Kind.NOTRACK: 6, Kind.NFTABLES: 6, Kind.SYNPROXY: 3,
    Kind.SYSCTL: 2, Kind.XDP: 1, Kind.TC: 1,
}  # fmt: skip


def random_rule(rng: random.Random) -> Rule:
    """A rule as broad as it may get, of any kind, near the operator's addresses."""
    kind = rng.choices([*_KINDS], [*_KINDS.values()])[0]
    if kind is Kind.SYSCTL:
        setting = Setting("net.netfilter.nf_conntrack_udp_timeout", rng.randint(1, 29))
        return Rule("", kind, Match(), "random", 600, settings=(setting,))
    if kind is Kind.SYNPROXY:
        match = Match(family=rng.choice([4, 6, None]), protocol=6, dport=rng.choice([LOGIN, 80]))
        return Rule("", kind, match, "random", 600)
    family = rng.choice([4, 6])
    base = Prefix.parse("10.77.0.2" if family == 4 else "fd77::2")
    sources = tuple(
        Prefix.of_columns(
            family, base.hi, base.lo ^ rng.getrandbits(rng.choice([1, 4, 20])), rng.randint(8, base.bits)
        )
        for _ in range(rng.randint(1, 4))
    )
    protocol = rng.choice([6, 17, 17, 17, None])
    offset = 0 if kind is Kind.NFTABLES or rng.random() < 0.3 else None
    match = Match(
        sources=sources if kind is Kind.IPSET or rng.random() < 0.3 else (),
        family=family,
        protocol=protocol,
        dport=LOGIN if protocol == 6 and rng.random() < 0.5 else None,
        ip_length=Range(0, 65535) if rng.random() < 0.2 else None,
        payload=(PayloadMatch(b"operator"[: rng.randint(1, 8)], offset),) if kind is Kind.STRING else (),
    )
    limit = RateLimit(1, 1, prefix_v4=rng.randint(1, 32)) if kind is Kind.HASHLIMIT else None
    origin = "@list" if kind in (Kind.IPSET, Kind.NFTABLES) and rng.random() < 0.5 else None
    return Rule("", kind, match, "random", 600, limit=limit, origin=origin)


@contextmanager
def sessions(bench: Bench) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Logins of the operator over either family, open before the first rule."""
    with ExitStack() as stack:
        found = []
        for kind, address in (
            (socket.AF_INET, bench.pair.victim.ipv4),
            (socket.AF_INET6, bench.pair.victim.ipv6),
        ):
            with inside(bench.netns):
                server = stack.enter_context(socket.create_server((address, LOGIN), family=kind))
            with inside(bench.pair.attacker.netns):
                client = stack.enter_context(socket.create_connection((address, LOGIN), timeout=60))
            found.append((client, stack.enter_context(server.accept()[0])))
        yield found


def is_alive(client: socket.socket, server: socket.socket) -> bool:
    for sender, receiver in ((client, server), (server, client)):
        receiver.settimeout(60)
        sender.send(b"operator")
        if receiver.recv(100) != b"operator":
            return False
    return True


def test_random_rules_never_cut_the_operator_off(bench: Bench) -> None:
    """Seeded rules, forced: each is refused or installed, and the operator passes in any case.

    FWTOP_RANDOM_RULES says how many, FWTOP_RANDOM_SEED which.
    """
    rng = random.Random(SEED)
    bench.allow = f"{bench.attacker(4)}\n{bench.attacker(6)}\n"
    before = bench.state()
    installed = 0
    print(f"seed {SEED}, {RULES} rules")
    with sessions(bench) as logins, bench.connect() as guardian:
        for _ in range(max(1, RULES // RULES_A_ROUND)):
            for _ in range(RULES_A_ROUND):
                installed += guardian.request(Apply(random_rule(rng).to_dict(), 0, force=True)).ok
            for family in (4, 6):
                assert all(bench.path(family).passes(b"operator", wait_s=30) for _ in range(4))
            assert all(is_alive(client, server) for client, server in logins)
            guardian.demand(Undo(all=True))
            assert bench.settled(before) == before
    assert installed > RULES // 2


def test_neighbour_discovery_survives_a_limit_on_everything(bench: Bench) -> None:
    """A limit on all IPv6 must not cut the link itself: NS and NA pass before it."""
    rule = Rule("", Kind.HASHLIMIT, Match(family=6), "x", 600, limit=RateLimit(1, 1, prefix_v6=1))
    path = bench.path(6)
    assert path.passes(wait_s=30)
    with bench.connect() as guardian:
        apply(guardian, rule, force=True)
        for _ in range(5):
            path.send()
        bench.pair.attacker.run("ip", "-6", "neigh", "flush", "dev", "a0")
        bench.pair.victim.run("ip", "-6", "neigh", "flush", "dev", "v0")
        path.send()  # asks for the neighbour again; itself it may be above the limit
        found = bench.pair.attacker.run("ip", "-6", "neigh", "show", bench.pair.victim.ipv6).stdout
        assert "FAILED" not in found
        guardian.demand(Undo(all=True))
        assert path.passes(wait_s=30)


NEIGHBOURS = """*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
COMMIT
*raw
:DOCKER-RAW - [0:0]
-A PREROUTING -d 172.17.0.2/32 ! -i docker0 -j DROP
-A PREROUTING -j DOCKER-RAW
-A OUTPUT -p udp -m udp --dport 53 -j CT --notrack
COMMIT
*filter
:f2b-sshd - [0:0]
:ufw-before-input - [0:0]
:DOCKER-USER - [0:0]
-A INPUT -p tcp -m multiport --dports 22 -j f2b-sshd
-A INPUT -j ufw-before-input
-A FORWARD -j DOCKER-USER
-A f2b-sshd -m set --match-set f2b-sshd src -j REJECT --reject-with icmp-port-unreachable
-A f2b-sshd -j RETURN
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-USER -j RETURN
COMMIT
"""


@pytest.mark.parametrize("variant", VARIANTS)
def test_docker_fail2ban_ufw_and_firewalld_are_left_alone(bench: Bench, variant: str) -> None:
    victim = bench.pair.victim
    victim.run("ipset", "create", "f2b-sshd", "hash:ip", "timeout", "0")
    victim.run("ipset", "add", "f2b-sshd", "192.0.2.66", "timeout", "0")
    (bench.directory / "rules").write_text(NEIGHBOURS)
    victim.run("sh", "-c", f"iptables-{variant}-restore < {bench.directory}/rules")
    victim.run("nft", "add", "table", "inet", "firewalld")
    victim.run(
        "nft", "add chain inet firewalld raw_PREROUTING { type filter hook prerouting priority -290 ; }"
    )
    victim.run(
        "nft", "add", "rule", "inet", "firewalld", "raw_PREROUTING", "meta", "nfproto", "ipv6", "accept"
    )
    # A legacy table shows in -save from its first use on and can't be unloaded: it is there before us.
    victim.run(f"ip6tables-{variant}", "-t", "raw", "-S")
    before = bench.state()
    path = bench.path(4)
    with bench.connect() as guardian:
        assert guardian.about["variant"] == variant
        apply(guardian, bench.block_rule(4, 6))
        apply(guardian, Rule("", Kind.NOTRACK, Match(protocol=17, dport=PORT), "x", 600))
        assert not path.passes()
        saved = victim.run(f"iptables-{variant}-save", "-t", "raw").stdout
        jumps = [line for line in saved.splitlines() if line.startswith("-A PREROUTING")]
        assert jumps[0] == "-A PREROUTING -j FWTOP"
        guardian.demand(Undo(all=True))
        assert path.passes(wait_s=30)
    assert bench.settled(before) == before


def test_a_full_disk_keeps_no_rule_from_ending(bench: Bench, poll_until) -> None:
    """An attack's logs fill a disk easily; the journal is then not written, but rules go all the same."""
    path, other = bench.path(4), bench.path(6)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "fwtop-test", str(bench.directory)], check=True)
    try:
        with bench.connect() as guardian:
            rule_id = apply(guardian, bench.block_rule(4))
            apply(guardian, bench.block_rule(6, ttl=3))
            with suppress(OSError), (bench.directory / "full").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            assert not path.passes()
            with pytest.raises(FwtopError, match="the journal can't be kept"):
                apply(guardian, bench.block_rule(4, 6))
            guardian.demand(Undo((rule_id,)))
            assert path.passes(wait_s=30)
            poll_until(lambda: rules_of(guardian) == {})
            assert other.passes(wait_s=30)
        bench.close()
    finally:
        subprocess.run(["umount", "-l", str(bench.directory)], check=True)
