"""A real unbound that answers the world: attacks through it end, and its clients keep their answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from guardian_bench import Bench, apply
from msgspec.structs import replace

from benches.resolver_lab import ResolverLab, forged
from fwtop.harden import resolver
from fwtop.harden.playbook import Options, Plan
from fwtop.kernel.namespaces import inside
from fwtop.kernel.sockets import listening_sockets
from fwtop.lab.network import VICTIM_4
from fwtop.model.protocol import Undo
from fwtop.resolver.servers import find_servers
from tests.kernel.conftest import NetnsPair

pytestmark = pytest.mark.kernel
SECONDS = 1.0


@pytest.fixture(scope="module")
def lab() -> Iterator[ResolverLab]:
    with ResolverLab() as running:
        yield running


@pytest.fixture(scope="module")
def bench(lab: ResolverLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    pair = SimpleNamespace(victim=SimpleNamespace(netns=lab.victim))
    made = Bench(pair, Path(tmp_path_factory.mktemp("guardian")))
    yield made
    made.close()


def look(lab: ResolverLab) -> Plan:
    """Plan while the clients ask, in less time than an operator's look takes."""
    asking = threading.Thread(target=lab.clients, args=(SECONDS + 0.7,))
    asking.start()
    with inside(lab.victim), pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolver, "OBSERVE_SECONDS", SECONDS)
        found = resolver.plan(Options(600))
    asking.join()
    return found


def reflected(lab: ResolverLab) -> tuple[float, float]:
    """Return the bytes a second that reach the target, and the clients' success meanwhile."""
    before, started = lab.reflected()[1], time.monotonic()
    fared = lab.clients(SECONDS)
    return (lab.reflected()[1] - before) / (time.monotonic() - started), fared.success


@pytest.mark.parametrize("attack", ["reflection", "random names"])
def test_an_attack_through_it_ends_and_the_clients_are_answered(
    lab: ResolverLab, bench: Bench, attack: str
) -> None:
    is_reflection = attack == "reflection"
    with lab.reflection(1500) if is_reflection else lab.random_names(3000), bench.connect() as guardian:
        before = reflected(lab)[0] if is_reflection else 0.0
        found = look(lab)
        assert found.rule is not None
        rule_id = apply(guardian, found.rule)
        after, success = reflected(lab)
        guardian.demand(Undo((rule_id,)))
        again = reflected(lab)[0] if is_reflection else 0.0
    assert success >= 0.99
    assert any(("big.example" if is_reflection else "hunted.example") in step for step in found.steps)
    if is_reflection:
        assert before > 1_000_000
        assert after <= 0.01 * before
        assert again > 0.5 * before


def test_questions_in_the_name_of_broadcast_addresses_and_of_itself_are_not_answered(
    lab: ResolverLab, bench: Bench
) -> None:
    """The kernel drops those in its own name; those of a broadcast address only where rp_filter is on."""
    with inside(lab.victim):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with inside(lab.attacker):
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    found = look(lab)
    assert any("the kernel drops them" in line for line in found.kept)
    assert found.rule is not None
    parts = [part for part in found.rule.parts if part.match.sources]
    with receiver, raw, bench.connect() as guardian:
        receiver.bind((VICTIM_4, 5353))
        receiver.settimeout(3)
        rules = [apply(guardian, replace(part, match=replace(part.match, dport=5353))) for part in parts]
        sources = (VICTIM_4, "198.18.0.255", "255.255.255.255", "224.0.0.1", "127.0.0.1")
        for number, source in enumerate((*sources, "198.19.1.10")):
            packet = bytearray(forged(source, 9, bytes([number])))
            packet[22:24] = (5353).to_bytes(2, "big")
            raw.sendto(packet, (VICTIM_4, 0))
        assert receiver.recv(100) == bytes([len(sources)])
        guardian.demand(Undo(tuple(rules)))


def test_a_stub_on_loopback_is_named_and_needs_nothing(netns_pair: NetnsPair) -> None:
    with inside(netns_pair.victim.netns), ExitStack() as stack:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            for family, address in ((socket.AF_INET, "127.0.0.53"), (socket.AF_INET6, "::1")):
                stub = stack.enter_context(socket.socket(family, kind))
                stub.bind((address, 53))
                if kind == socket.SOCK_STREAM:
                    stub.listen()
        found = resolver.plan(Options(600))
        assert found.rule is None
        assert "UDP and TCP 53, of loopback addresses only" in found.refused
        assert not any(item.port == 53 for item in listening_sockets() if not item.local)
        world = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        world.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        world.bind((netns_pair.victim.ipv6, 53))
        (server,) = find_servers()
    assert (server.udp, server.tcp) == (True, False)
