"""A list that holds the operator's address neither locks out new logins nor stays silent about it."""

from __future__ import annotations

import socket

import pytest

from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Apply, Plan, Undo
from fwtop.model.rule import Kind, Match, Rule
from tests.kernel.guardian_bench import Bench, run_console
from tests.kernel.wire import connects, inside

pytestmark = pytest.mark.kernel
PORT = 2222
WORD = "cut out of the list"


def logs_in(bench: Bench) -> bool:
    with inside(bench.pair.attacker.netns):
        client = socket.socket()
    with client:
        return connects(client, (bench.pair.victim.ipv4, PORT), 60)


@pytest.mark.one_each("ipset", "nftables", "xdp")
@pytest.mark.parametrize("kind", [Kind.IPSET, Kind.NFTABLES, Kind.XDP, Kind.TC])
def test_new_logins_from_the_operators_address_pass_a_list(
    bench: Bench, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Prefix.parse("10.77.0.0/24")  # of both hosts
    with inside(bench.netns):
        server = socket.create_server((bench.pair.victim.ipv4, PORT))
    with inside(bench.pair.attacker.netns):
        session = socket.create_connection((bench.pair.victim.ipv4, PORT), timeout=60)
    with server, session:
        peer = f"{bench.attacker(4)} {session.getsockname()[1]} {bench.pair.victim.ipv4} {PORT}"
        monkeypatch.setenv("SSH_CONNECTION", peer)
        console = run_console(bench, "pass")
        try:
            rule = Rule("", kind, Match(sources=(network,)), "x", 600, origin="country:DE").to_dict()
            with bench.connect(role="console") as guardian:
                assert WORD in str(guardian.demand(Plan(rule)).data["warnings"])
                answer = guardian.demand(Apply(rule, 30))
                assert WORD in str(answer.data["warnings"])
                assert logs_in(bench)
                guardian.demand(Undo((answer.data["status"]["rule"]["id"],)))
        finally:
            console.communicate("")
