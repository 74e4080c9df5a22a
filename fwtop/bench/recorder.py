"""A few thousand packets of a lab's victim, taken beside fwtop: what its signatures are tried on."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from fwtop.bench.slow_parser import Packet, parse
from fwtop.lab import network as net
from fwtop.lab.entering import inside

_ALL = 3  # ETH_P_ALL
_BUFFER_BYTES = 1 << 20
_WANTED = 3000  # packets of either side
_SOURCE_OUTGOING = 4  # PACKET_OUTGOING, packet(7)


class Recorder:
    """While the `with` block lasts: keeps the first packets of the given clients, and of all others.

    The packet socket is closed as soon as both are full, so that it costs the victim nothing for long.
    """

    def __init__(self, netns: str, clients: set[str]) -> None:
        self._netns, self._clients = netns, clients
        self.legitimate: list[Packet] = []
        self.other: list[Packet] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._record, daemon=True)

    def __enter__(self) -> Recorder:
        """Start."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; the lists are complete afterwards."""
        self._ending.set()
        self._thread.join(timeout=5)

    def _record(self) -> None:
        with inside(self._netns), contextlib.closing(_packet_socket()) as end:
            while not self._ending.is_set() and (len(self.other) < _WANTED or len(self.legitimate) < _WANTED):
                self._take(end)
                if len(self.other) >= _WANTED:
                    return  # the flood is on: clients have been recorded before it

    def _take(self, end: socket.socket) -> None:
        try:
            data, address = end.recvfrom(65_535)
        except TimeoutError:
            return
        if address[2] == _SOURCE_OUTGOING or (packet := parse(data)) is None:
            return
        kept = self.legitimate if packet.source in self._clients else self.other
        if len(kept) < _WANTED:
            kept.append(packet)


def _packet_socket() -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    end.bind((net.VICTIM_INTERFACE, _ALL))
    end.settimeout(0.1)
    return end
