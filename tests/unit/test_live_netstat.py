"""What real clients still get, from this namespace's own counters."""

from __future__ import annotations

import socket
from collections.abc import Callable

from fwtop.live.connections import TcpServiceMeter, parse_service

SNMP = "Tcp: PassiveOpens CurrEstab\nTcp: 70 12\n"
NETSTAT = "TcpExt: SyncookiesSent TCPDelivered\nTcpExt: 9 4000\nIpExt: InOctets\nIpExt: 5\n"


def test_the_sums_are_picked_out() -> None:
    reading = parse_service(SNMP, NETSTAT, 1.5)
    assert reading is not None
    assert (reading.at, reading.established, reading.handshakes, reading.acknowledged) == (1.5, 12, 70, 4000)


def test_a_kernel_without_the_counters_gives_nothing() -> None:
    assert parse_service("", "", 0.0) is None
    assert parse_service(SNMP, "TcpExt: SyncookiesSent\nTcpExt: 9\n", 0.0) is None


def test_a_client_that_is_served_is_counted(poll_until: Callable[..., object]) -> None:
    meter = TcpServiceMeter()
    meter.sample()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as served,
    ):
        served.sendall(b"x")
        assert client.recv(1) == b"x"
        found = meter.sample()
        assert found is not None
        assert found.established >= 2
        assert found.handshakes_per_s > 0
        assert poll_until(lambda: (now := meter.sample()) is not None and now.acknowledged_per_s > 0)
