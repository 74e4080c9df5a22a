"""The connections that a host serves, read through sock_diag as the console does it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from fwtop.live import connections
from fwtop.live.connections import ConnectionMeter
from fwtop.model.traffic.packets import Connections, ListenQueue, SocketTable


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> ConnectionMeter:
    """A meter that takes clients on this host for real ones, and reads whenever it is asked."""
    monkeypatch.setattr(connections, "_is_remote", lambda found: np.ones(len(found), np.bool_))
    monkeypatch.setattr(connections, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(connections, "_TIMES", 0.0)
    return ConnectionMeter()


@pytest.fixture
def served() -> Iterator[tuple[int, list[socket.socket], list[socket.socket]]]:
    """A port, three clients of it over either family, and the server's ends."""
    with ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=9)
        )
        port = server.getsockname()[1]
        addresses = ("127.0.0.1", "127.0.0.1", "::1")
        clients = [stack.enter_context(socket.create_connection((host, port))) for host in addresses]
        yield port, clients, [stack.enter_context(server.accept()[0]) for _ in clients]


def read(meter: ConnectionMeter, port: int) -> Connections:
    table = meter.poll()
    assert table is not None
    assert table.share == 1.0
    return table.connections.select(table.connections.port == port)


def test_what_each_connection_sent_and_received_is_told(
    meter: ConnectionMeter, served, poll_until: Callable[..., object]
) -> None:
    port, clients, ends = served
    clients[0].sendall(b"GET / HTTP/1.1\r\n")
    ends[1].sendall(b"x" * 300)
    assert ends[0].recv(100)
    poll_until(lambda: sorted(read(meter, port).segments_in.tolist()) == [0, 0, 1])
    found = read(meter, port)
    numbers = {client.getsockname()[1]: row for row in range(3) for client in clients
               if client.getsockname()[1] == found.peer_port[row]}  # fmt: skip
    asked, answered, silent = (numbers[client.getsockname()[1]] for client in clients)
    assert found.received[asked] == 16
    assert found.segments_out[asked] == 0
    assert found.unread[asked] == 0
    assert found.segments_out[answered] == 1
    assert found.family.tolist().count(6) == 1
    assert found.family[silent] == 6
    assert (found.hi[silent], found.lo[silent], found.lo[asked]) == (0, 1, 0x7F000001)
    assert found.window.min() > 1_000
    assert found.mss.min() > 500


def test_a_peer_that_reads_nothing_closes_its_window(
    meter: ConnectionMeter, served, poll_until: Callable[..., object]
) -> None:
    port, clients, ends = served
    ends[0].setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ends[0].send(bytes(1 << 16))
    mine = clients[0].getsockname()[1]

    def stalled() -> bool:
        found = read(meter, port)
        row = found.peer_port.tolist().index(mine)
        return bool(found.unsent[row] > 0 and found.window[row] < found.mss[row] and found.held[row] > 0)

    poll_until(stalled)


def test_age_is_known_from_the_first_reading_on(meter: ConnectionMeter, served) -> None:
    port, clients, _ = served
    assert read(meter, port).seen.tolist() == [0, 0, 0]
    clients[2].close()
    later = read(meter, port)
    assert (later.seen > 0).all()


def test_a_reading_is_bounded_and_says_of_which_share_it_is(
    meter: ConnectionMeter, served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MOST", 2)
    table = meter.poll()
    assert table is not None
    assert len(table.connections) <= 2
    assert 0 < table.share < 1


def test_the_table_is_read_once_a_second_and_after_costly_readings_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = ConnectionMeter()
    assert meter.poll() is meter.poll()
    monkeypatch.setattr(connections, "_TIMES", 1e6)
    meter._due = 0.0
    first = meter.poll()
    assert meter.poll() is first
    assert meter._due > 60


def test_a_kernel_without_sock_diag_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Iterator[bytes]:
        raise OSError(93, "Protocol not supported")
        yield b""

    monkeypatch.setattr(connections.sockets, "tcp_dump", refuse)
    assert ConnectionMeter().poll() is None


def test_the_fullest_queue_of_a_port_counts() -> None:
    queues = (ListenQueue(80, 1, 100), ListenQueue(80, 50, 100), ListenQueue(81, 100, 100))
    table = SocketTable(Connections.empty(), queues=queues)
    assert table.queue(80) == queues[1]
    assert table.queue(22) is None


def test_garbage_is_not_parsed() -> None:
    assert connections._starts(b"\xff" * 200) == []
    assert connections._starts(bytes(200)) == []
    assert connections._info_at(b"\xff" * 200, 16) is None
