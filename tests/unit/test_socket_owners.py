"""Who holds a listening socket: looked up once, in bounded steps, and not for passing clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fwtop.guardian import services
from fwtop.guardian.services import SocketOwners
from fwtop.kernel import sockets
from fwtop.kernel.sockets import ListeningSocket
from fwtop.model.service import Owner

WEB = ListeningSocket("tcp", 80, 11)
KERNEL = ListeningSocket("udp", 51_820, 12)
CLIENT = ListeningSocket("udp", 40_000, 13)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes 7 and 8, of which 8 holds the web server's socket; returns those that were looked at."""
    seen: list[int] = []

    def sockets_of(pid: int) -> Iterator[int]:
        seen.append(pid)
        return iter([WEB.inode] if pid == 8 else [])

    monkeypatch.setattr(sockets, "processes", lambda: [7, 8])
    monkeypatch.setattr(sockets, "sockets_of", sockets_of)
    monkeypatch.setattr(services, "owner_of", lambda _: Owner("nginx", "www-data"))
    monkeypatch.setattr(services, "_first_chosen_port", lambda: 32_768)
    return seen


def named(owners: SocketOwners, listed: list[ListeningSocket]) -> list[list[object]]:
    return [[item.protocol, item.port, item.name] for item in owners.services(listed)]


def test_each_socket_is_looked_up_once(looked_at: list[int]) -> None:
    owners = SocketOwners()
    for _ in range(3):
        assert named(owners, [WEB]) == [["tcp", 80, "nginx"]]
    assert looked_at == [7, 8]


def test_passing_clients_are_not_listeners_and_lasting_sockets_without_a_process_are(
    looked_at: list[int],
) -> None:
    owners = SocketOwners()
    assert named(owners, [WEB, KERNEL, CLIENT]) == [["tcp", 80, "nginx"]]
    for _ in range(3):
        assert named(owners, [WEB, KERNEL]) == [["tcp", 80, "nginx"], ["udp", 51_820, ""]]
    assert looked_at == [7, 8, 7, 8], "what no process holds is not looked for again"


def test_a_search_goes_on_where_its_time_was_over(
    looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_SCAN_SECONDS", 0.0)
    owners = SocketOwners()
    assert named(owners, [WEB]) == [["tcp", 80, ""]]
    assert looked_at == [], "no time at all"
    monkeypatch.setattr(services, "_SCAN_SECONDS", 60.0)
    assert named(owners, [WEB]) == [["tcp", 80, "nginx"]]


def test_only_so_many_are_told(looked_at: list[int]) -> None:
    many = [ListeningSocket("tcp", port, port) for port in range(1, 2000)]
    assert len(SocketOwners().services(many)) == services._MOST
    assert looked_at == [7, 8]
