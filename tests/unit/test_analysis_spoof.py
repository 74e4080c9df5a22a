"""Forged or real: random sources of several generators, and real machines behind their networks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from analysis_factory import FLAGS, address, ethernet, ip, make_batch, make_tables, make_window, tcp, udp

from fwtop.analysis.memory import class_rates
from fwtop.incidents.advisor import Advisor

COUNT = 6000
TARGET = {4: address("192.0.2.1"), 6: address("2001:db8::1")}
FLOODS = {"syn_flood": "S", "ack_flood": "A", "udp_flood": ""}
Pick = Callable[[Random], tuple[bytes, int]]


def _forged_everywhere(_: Random) -> Pick:
    return lambda rng: (rng.randbytes(4), 55)


def _forged_unicast(_: Random) -> Pick:
    """Return a generator that knows which /8s are in use."""
    used = (23, 45, 77, 91, 185, 203)
    return lambda rng: (bytes([rng.choice(used)]) + rng.randbytes(3), rng.randint(48, 60))


def _forged_six(_: Random) -> Pick:
    return lambda rng: (bytes([0x20 | rng.randrange(16)]) + rng.randbytes(15), 55)


def _forged_in_networks(rng: Random) -> Pick:
    """Return a generator that takes real /32s, with the distance that each has."""
    networks = [(b"\x2a" + rng.randbytes(3), rng.randint(48, 60)) for _ in range(400)]

    def pick(rng: Random) -> tuple[bytes, int]:
        network, ttl = rng.choice(networks)
        return network + rng.randbytes(12), ttl

    return pick


def _few_sites(rng: Random) -> Pick:
    """Return senders that use the addresses of their own four networks in turn."""
    sites = [(b"\x2a" + rng.randbytes(5), rng.randint(48, 60)) for _ in range(4)]

    def pick(rng: Random) -> tuple[bytes, int]:
        site, ttl = rng.choice(sites)
        return site + rng.randbytes(10), ttl

    return pick


def _machines(family: int, count: int) -> Callable[[Random], Pick]:
    """Return machines in the networks of some hundred providers, customers' subnets numbered from 0."""

    def make(rng: Random) -> Pick:
        if family == 4:
            networks = [bytes([rng.choice((23, 45, 77, 91, 185))]) + rng.randbytes(1) for _ in range(200)]
            hosts = [rng.choice(networks) + rng.randbytes(2) for _ in range(count)]
        else:
            networks = [b"\x2a" + rng.randbytes(3) for _ in range(200)]
            hosts = [
                rng.choice(networks) + bytes([rng.randrange(4)]) + rng.randbytes(2) + b"\0" + rng.randbytes(8)
                for _ in range(count)
            ]
        machines = [(host, rng.randint(44, 60)) for host in hosts]
        return lambda rng: rng.choice(machines)

    return make


POOLS = {
    "everywhere": (_forged_everywhere, True),
    "unicast": (_forged_unicast, True),
    "six": (_forged_six, True),
    "six_in_networks": (_forged_in_networks, True),
    "machines": (_machines(4, 300), False),
    "many_machines": (_machines(4, 20_000), False),
    "few_sites_six": (_few_sites, False),
    "machines_six": (_machines(6, 300), False),
    "many_machines_six": (_machines(6, 20_000), False),
}


@pytest.mark.one_each
@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.parametrize("pool", POOLS)
def test_forged_sources_are_told_from_real_ones(pool: str, kind: str) -> None:
    make, forged = POOLS[pool]
    rng = Random(7)
    pick = make(rng)
    frames = []
    for at in range(COUNT):
        source, ttl = pick(rng)
        sport = rng.randint(1024, 65_535)
        body, protocol = udp(sport, 8000, rng.randbytes(40)), 17
        if flags := FLOODS[kind]:
            body, protocol = tcp(sport, 80, FLAGS[flags], seq=rng.getrandbits(32), ack=rng.getrandbits(32)), 6
        family = 4 if len(source) == 4 else 6
        frames.append((at * 2 / COUNT, ethernet(ip(source, TARGET[family], protocol, body, ttl=ttl))))
    window = make_window(make_batch(frames, weight=20.0), 2.0, live=True)
    judged = Advisor().judge(window, make_tables(window))
    attacks = judged.attacks
    assert [attack.kind for attack in attacks][:1] == [kind]
    assert attacks[0].spoofed is forged, attacks[0].evidence
    if pool == "few_sites_six":
        blocks = [p for p in judged.proposals if p.rule is not None and p.rule.match.sources]
        assert max(p.attack_share for p in blocks) > 0.9


@pytest.mark.parametrize("same", [True, False])
def test_distances_from_before_the_attack_tell_who_borrows_addresses(same: bool) -> None:
    rng = Random(8)
    hosts = [(bytes([rng.choice((23, 45, 77))]) + rng.randbytes(3), rng.randint(40, 60)) for _ in range(150)]
    quiet, attack = [], []
    for number in range(4500):
        host, ttl = hosts[number % len(hosts)]
        body = udp(rng.randrange(1024, 65_000), 5000, b"hello" + rng.randbytes(9))
        quiet.append((number / 100, ethernet(ip(host, TARGET[4], 17, body, ttl=ttl))))
        far = ttl if same else 128 - rng.randint(5, 40)
        flood = udp(rng.randrange(1024, 65_000), 9, b"flood of one kind")
        neighbour = host[:3] + rng.randbytes(1)
        attack.append((number / 1500, ethernet(ip(neighbour, TARGET[4], 17, flood, ttl=far))))
    advisor = Advisor()
    advisor.baseline.keep_rows(make_batch(quiet))
    advisor.baseline.keep_rates(class_rates(make_batch(quiet), 45.0), 45.0)
    window = make_window(make_batch(attack), 3.0, live=True)
    (found,) = advisor.judge(window, make_tables(window)).attacks
    evidence = " ".join(found.evidence)
    wanted = "keep their distance (by TTL)" if same else "appear at a different distance (by TTL)"
    assert wanted in evidence
    assert ("sources look spoofed" in evidence) is not same
