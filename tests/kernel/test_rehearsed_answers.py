"""Rules that drop the answers to what this host asks, with real questions: told, or refused without force."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.console_scope import AUTOMATIC
from fwtop.model.errors import FwtopError
from fwtop.model.harm import ClientHarm
from fwtop.model.protocol import KnownClients, Plan, Undo
from fwtop.model.rule import Kind, Match, RateLimit, Rule
from tests.kernel.guardian_bench import Bench, apply
from tests.kernel.wire import arrives, datagram_socket, inside, received

pytestmark = pytest.mark.kernel
DNS = 53
TRACK = "add table inet asked { chain c { type filter hook output priority 0; ct state new counter; }; }"
PEERS = tuple(f"10.77.0.{number}" for number in range(100, 110))
ANSWERS = "answers to what this host asks would be dropped"


@pytest.fixture
def ask(bench: Bench) -> Iterator[Callable[..., bool]]:
    """Servers at many addresses, of which the victim asks one; return whether its answer arrives."""
    victim, attacker = bench.pair.victim, bench.pair.attacker
    with ExitStack() as stack:
        victim.run("nft", TRACK)
        stack.callback(victim.run, "nft", "delete table inet asked")
        client = stack.enter_context(datagram_socket(victim, PEERS[0]))
        servers = {}
        for address in PEERS:
            attacker.run("ip", "address", "add", f"{address}/24", "dev", "a0")
            stack.callback(attacker.run, "ip", "address", "del", f"{address}/24", "dev", "a0")
            with inside(attacker.netns):
                servers[address] = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            servers[address].bind((address, DNS))

        def asked(address: str, wait_s: float = 60) -> bool:
            client.sendto(b"question", (address, DNS))
            question = received(servers[address], 60)
            assert question is not None
            servers[address].sendto(address.encode(), question[1])
            return arrives(client, address.encode(), wait_s)

        yield asked


def dropping(kind: Kind, *sources: str, **fields) -> Rule:
    return Rule("", kind, Match(tuple(map(Prefix.parse, sources)), protocol=17, **fields), "x", 600)


def test_a_rule_that_cuts_one_answer_says_whose(bench: Bench, ask: Callable[..., bool]) -> None:
    with bench.connect() as guardian:
        quiet = guardian.demand(Plan(dropping(Kind.NFTABLES, sport=DNS).to_dict())).data
        assert ANSWERS not in str(quiet["warnings"])
        assert ask(PEERS[0])
        told = guardian.demand(Plan(dropping(Kind.IPSET, f"{PEERS[0]}").to_dict())).data
        assert f"{ANSWERS}: {PEERS[0]} UDP port 53" in str(told["warnings"])
        assert (told["refused"], told["needs_force"]) == (None, "")
        assert {"who": "asked", "weight": "told"}.items() <= told["losses"][0].items()
        assert told["clients"].startswith("not known: the guardian sees no traffic")
        counted = replace(dropping(Kind.IPSET, PEERS[1]), predicted_clients=ClientHarm(50, 3, 3))
        assert "3 of 50 clients" in guardian.demand(Plan(counted.to_dict())).data["clients"]
        for spared in (dropping(Kind.IPSET, PEERS[1]), dropping(Kind.NFTABLES, sport=123)):
            plan = guardian.demand(Plan(spared.to_dict())).data
            assert ANSWERS not in str(plan["warnings"])


def test_a_console_tells_whose_clients_a_rule_of_others_cuts_off_while_it_is_there(bench: Bench) -> None:
    rule = dropping(Kind.IPSET, PEERS[1]).to_dict()
    with bench.connect() as program:
        with bench.connect("console") as console:
            console.demand(KnownClients(((PEERS[0], 17, 53), (PEERS[1], 17, 53), (PEERS[1], 6, 443))))
            assert program.demand(Plan(rule)).data["clients"] == "1 of 3 clients loses it"
            with pytest.raises(FwtopError, match="not understood"):
                console.demand(KnownClients((("nobody", 17, 53),)))
            told = program.demand(Plan(rule)).data
            assert {"who": "clients", "weight": "told"}.items() <= told["losses"][-1].items()
        assert program.demand(Plan(rule)).data["clients"].startswith("not known")


def test_an_automatic_rule_may_cost_no_answer(bench: Bench, ask: Callable[..., bool]) -> None:
    """What somebody may do who is told is refused where nobody is there, whoever stands in resolv.conf."""
    rule = dropping(Kind.IPSET, PEERS[0])
    automatic = replace(rule, created_by=AUTOMATIC)
    assert ask(PEERS[0])
    with bench.connect() as guardian:
        rule_id = apply(guardian, rule)
        assert not ask(PEERS[0], 0.3)
        guardian.demand(Undo((rule_id,)))
        assert ask(PEERS[0])
        with pytest.raises(FwtopError, match=f"{ANSWERS}: {PEERS[0]} UDP port 53"):
            apply(guardian, automatic)
        apply(guardian, replace(automatic, match=replace(rule.match, sources=(Prefix.parse(PEERS[1]),))))
        assert ask(PEERS[0])


def test_a_limit_for_some_sources_leaves_all_others_alone(bench: Bench, ask: Callable[..., bool]) -> None:
    """What is proposed where nothing proves whose a flood is: passes, limited, others pass, passes again."""
    limited = replace(dropping(Kind.HASHLIMIT, PEERS[0], sport=DNS), limit=RateLimit(1, 1, 32, 64))
    with bench.connect() as guardian:
        assert all([ask(PEERS[0]) for _ in range(4)])
        rule_id = apply(guardian, limited)
        assert ask(PEERS[0])
        assert not all([ask(PEERS[0], 0.1) for _ in range(4)])
        assert all([ask(PEERS[1]) for _ in range(8)])
        guardian.demand(Undo((rule_id,)))
        assert all([ask(PEERS[0]) for _ in range(4)])


@pytest.mark.parametrize("kind", [Kind.XDP, Kind.NFTABLES])
def test_a_rule_that_cuts_all_answers_needs_force(bench: Bench, ask: Callable[..., bool], kind: Kind) -> None:
    assert all([ask(address) for address in PEERS])
    rule = dropping(kind, sport=DNS)
    with bench.connect() as guardian:
        assert f"{ANSWERS}: " in guardian.demand(Plan(rule.to_dict())).data["needs_force"]
        with pytest.raises(FwtopError, match="refused without confirmation: answers to what this host asks"):
            apply(guardian, rule)
        assert ask(PEERS[0])
        rule_id = apply(guardian, rule, force=True)
        assert not ask(PEERS[0], 0.3)
        guardian.demand(Undo((rule_id,)))
        assert ask(PEERS[0])
        apply(guardian, dropping(kind, sport=123))


def test_answers_of_who_is_allow_listed_pass(bench: Bench, ask: Callable[..., bool]) -> None:
    bench.allow = "10.77.0.96/27\n"
    assert all([ask(address) for address in PEERS])
    with bench.connect() as guardian:
        apply(guardian, dropping(Kind.XDP, sport=DNS))
        assert all([ask(address) for address in PEERS])
