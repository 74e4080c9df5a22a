"""Who holds a listening socket: looked up once, in bounded steps, and not for passing clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fwtop.guardian import survey
from fwtop.guardian.survey import SocketOwners
from fwtop.kernel.sockets import ListeningSocket

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

    monkeypatch.setattr(survey, "processes", lambda: [7, 8])
    monkeypatch.setattr(survey, "sockets_of", sockets_of)
    monkeypatch.setattr(survey, "command_name", lambda _: "nginx\x1b[2J")
    monkeypatch.setattr(survey, "_first_chosen_port", lambda: 32_768)
    return seen


def test_each_socket_is_looked_up_once(looked_at: list[int]) -> None:
    owners = SocketOwners()
    for _ in range(3):
        assert owners.listeners([WEB]) == [["tcp", 80, "nginx·[2J"]]
    assert looked_at == [7, 8]


def test_passing_clients_are_not_listeners_and_lasting_sockets_without_a_process_are(
    looked_at: list[int],
) -> None:
    owners = SocketOwners()
    assert owners.listeners([WEB, KERNEL, CLIENT]) == [["tcp", 80, "nginx·[2J"]]
    for _ in range(3):
        assert owners.listeners([WEB, KERNEL]) == [["tcp", 80, "nginx·[2J"], ["udp", 51_820, ""]]
    assert looked_at == [7, 8, 7, 8], "what no process holds is not looked for again"


def test_a_search_goes_on_where_its_time_was_over(
    looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "_SCAN_SECONDS", 0.0)
    owners = SocketOwners()
    assert owners.listeners([WEB]) == [["tcp", 80, ""]]
    assert looked_at == [], "no time at all"
    monkeypatch.setattr(survey, "_SCAN_SECONDS", 60.0)
    assert owners.listeners([WEB]) == [["tcp", 80, "nginx·[2J"]]


def test_only_so_many_are_told(looked_at: list[int]) -> None:
    many = [ListeningSocket("tcp", port, port) for port in range(1, 2000)]
    assert len(SocketOwners().listeners(many)) == survey._MOST
    assert looked_at == [7, 8]
