"""Which open connections end with a new rule: those that it would not let in, and nobody it must spare."""

from __future__ import annotations

import socket
from collections import Counter

import pytest
from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.allow.found import Session
from fwtop.guardian.rules import connections
from fwtop.guardian.rules.connections import OpenConnection, describe, to_close
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.named_list import entries_of
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.rule import ConnectionLimit, Kind, Match, Rule

NOBODY = AllowList(())


def connection(peer: str, *, port: int = 80, peer_port: int = 5000, idle_ms: int = 0) -> OpenConnection:
    prefix = Prefix.parse(peer)
    family = socket.AF_INET if prefix.family == 4 else socket.AF_INET6
    here = Prefix.parse("198.51.100.1" if prefix.family == 4 else "2001:db8:1::1")
    return OpenConnection(here, prefix, peer_port, port, idle_ms, family, bytes(48))


@pytest.fixture(autouse=True)
def there(monkeypatch: pytest.MonkeyPatch) -> list[OpenConnection]:
    """The connections that are open; tests fill the list."""
    found: list[OpenConnection] = []
    monkeypatch.setattr(connections, "_open_connections", lambda: iter(found))
    return found


def block(*sources: str, **match: int) -> Rule:
    prefixes = tuple(map(Prefix.parse, sources))
    return Rule("", Kind.IPSET, Match(sources=prefixes, **match), "x", 60, close_open=True)  # type: ignore[arg-type]


def limit(most: int, v4: int = 32, v6: int = 64, **match: int) -> Rule:
    found = Match(protocol=6, **match)  # type: ignore[arg-type]
    allowed = ConnectionLimit(most, v4, v6)
    return Rule("", Kind.CONNLIMIT, found, "x", 60, connections=allowed, close_open=True)


def peers(found: list[OpenConnection]) -> Counter[str]:
    return Counter(str(item.peer) for item in found)


def test_of_blocked_sources_every_connection_ends(there: list[OpenConnection]) -> None:
    there += [connection(f"192.0.2.{at}") for at in range(1, 5)] + [connection("2001:db8::1")]
    assert peers(to_close(block("192.0.2.0/31", "2001:db8::/32"), NOBODY)) == {
        "192.0.2.1": 1,
        "2001:db8::1": 1,
    }


def test_of_pairs_only_connections_to_the_second_end(there: list[OpenConnection]) -> None:
    there += [connection("192.0.2.1"), connection("192.0.2.2"), connection("2001:db8::1")]
    pairs = entries_of(("192.0.2.1,198.51.100.0/24", "192.0.2.2,198.51.100.2", "2001:db8::/32,::/0"))
    rule = replace(block(), match=Match(sources=pairs), origin="list:x")
    assert peers(to_close(rule, NOBODY)) == {"192.0.2.1": 1, "2001:db8::1": 1}


def test_a_rule_on_a_port_leaves_the_others(there: list[OpenConnection]) -> None:
    there += [connection("192.0.2.1", port=port) for port in (80, 443)]
    assert [item.port for item in to_close(block("192.0.2.1", protocol=6, dport=443), NOBODY)] == [443]
    assert to_close(block("192.0.2.1", protocol=17), NOBODY) == []


def test_above_a_limit_the_idlest_end(there: list[OpenConnection]) -> None:
    there += [connection("192.0.2.1", idle_ms=idle) for idle in (10, 90_000, 5, 70_000)]
    there += [connection("192.0.2.9")]
    assert [item.idle_ms for item in to_close(limit(2), NOBODY)] == [90_000, 70_000]


def test_a_limit_counts_by_prefix(there: list[OpenConnection]) -> None:
    there += [connection(f"192.0.2.{at}") for at in range(8)]
    there += [connection(f"2001:db8:0:{at}::{at}") for at in (1, 1, 2)]
    assert to_close(limit(3), NOBODY) == []
    assert len(to_close(limit(3, v4=24), NOBODY)) == 5
    assert len(to_close(limit(1), NOBODY)) == 1


@pytest.mark.parametrize(
    ("entry", "spared"),
    [
        (AllowedPeer(Prefix.parse("192.0.2.0/24"), reason="listed"), 2),
        (AllowedPeer(Prefix.parse("192.0.2.1"), Role.GATEWAY, reason="gateway"), 2),
        (AllowedPeer(Prefix.parse("192.0.2.1"), Role.DNS, reason="resolver"), 2),
        (AllowedPeer(Prefix.parse("192.0.2.1"), Role.OWN, reason="this host"), 2),
        (AllowedPeer(Prefix.parse("198.51.100.1"), reason="listed"), 0),
        (
            Session(Prefix.parse("192.0.2.1"), 5000, 22).allowed("session"),
            1,
        ),
    ],
)
def test_nobody_on_the_allow_list_is_cut_off(
    there: list[OpenConnection], entry: AllowedPeer, spared: int
) -> None:
    """Of the peer of an SSH session what it has on the port of the session."""
    there += [connection("192.0.2.1", port=22), connection("192.0.2.1", port=80)]
    assert len(to_close(block("192.0.2.1"), AllowList((entry,)))) == 2 - spared


def test_this_hosts_own_connections_stay(there: list[OpenConnection]) -> None:
    there += [connection("127.0.0.1"), connection("::1")]
    assert to_close(limit(1, 8, 16), NOBODY) == []


def test_a_rule_that_does_not_say_so_closes_nothing(there: list[OpenConnection]) -> None:
    there += [connection("192.0.2.1")]
    assert to_close(Rule("", Kind.IPSET, block("192.0.2.1").match, "x", 60), NOBODY) == []


def test_whose_they_are_is_told_most_first() -> None:
    found = [connection("192.0.2.1")] * 5 + [connection(f"192.0.2.{at}") for at in (2, 2, 3, 4)]
    assert describe(found) == "9 open connections of 192.0.2.1 (5), 192.0.2.2 (2), 192.0.2.3 (1) and 1 more"
    assert describe(found[:1]) == "1 open connection of 192.0.2.1 (1)"


def test_what_the_kernel_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(connections.sockets, "destroy", refuse)
    closed, trouble = connections.close([connection("192.0.2.1")])
    assert closed == 0
    assert "Operation not supported" in trouble
