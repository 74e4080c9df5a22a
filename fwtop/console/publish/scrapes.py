"""Answers Prometheus's scrapes with the last text that was published: a scrape computes nothing.

A client may be anybody who reaches the socket, so there is little to get wrong: one request a connection, few
connections at a time, and a limit on the bytes and the time of each.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time

import numpy as np
from msgspec import Struct, field

from fwtop.model.traffic.counters import Counters
from fwtop.model.traffic.flow import end_of
from fwtop.model.traffic.packets import Hook, PacketBatch
from fwtop.model.traffic.snapshot import LedgerRow
from fwtop.stats.ledger import attributed, is_before_arrival

PATH = b"/metrics"
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_CLIENTS = 16
_REQUEST_BYTES = 8192
_SECONDS = 5.0  # for a request and its answer
_CHECK_SECONDS = 1.0


class _Client(Struct):
    until: float
    request: bytes = b""
    answer: memoryview = field(default_factory=lambda: memoryview(b""))


class ScrapeServer:
    """Serves a listening socket from a thread of its own."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._listener.setblocking(False)
        self._text = b""
        self._clients: dict[socket.socket, _Client] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="scrapes", daemon=True)
        self._thread.start()

    def publish(self, text: bytes) -> None:
        """Answer with this from now on; safe in any thread."""
        self._text = text

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select(_CHECK_SECONDS if self._clients else None):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)  # noqa: S101 - tells mypy
                try:
                    if sock is self._listener:
                        self._accept()
                    else:
                        self._advance(sock, self._clients[sock])
                except OSError:
                    self._drop(sock)
            now = time.monotonic()
            for sock in [sock for sock, client in self._clients.items() if client.until < now]:
                self._drop(sock)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        if len(self._clients) >= _CLIENTS:
            sock.close()
            return
        sock.setblocking(False)
        self._clients[sock] = _Client(time.monotonic() + _SECONDS)
        self._selector.register(sock, selectors.EVENT_READ)

    def _advance(self, sock: socket.socket, client: _Client) -> None:
        if not client.answer:
            data = sock.recv(_REQUEST_BYTES)
            client.request += data
            if not data or len(client.request) > _REQUEST_BYTES:
                self._drop(sock)
                return
            if b"\r\n\r\n" not in client.request:
                return
            client.answer = memoryview(answer(client.request, self._text))
            self._selector.modify(sock, selectors.EVENT_WRITE)
        client.answer = client.answer[sock.send(client.answer) :]
        if not client.answer:
            self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        if sock is self._listener:  # out of descriptors, or the client has gone already
            return
        del self._clients[sock]
        with contextlib.suppress(KeyError):
            self._selector.unregister(sock)
        sock.close()


def answer(request: bytes, text: bytes) -> bytes:
    """Answer an HTTP request."""
    words = request.split(b"\r\n", 1)[0].split(b" ")
    method, path = (words[0], words[1].partition(b"?")[0]) if len(words) == 3 else (b"", b"")
    if method not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", b"only GET and HEAD\n"
    elif path != PATH:
        status, body = "404 Not Found", b"the metrics are at /metrics\n"
    elif not text:
        status, body = "503 Service Unavailable", b"nothing has been observed yet\n"
    else:
        status, body = "200 OK", text
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else body)


class RunningTotals:
    """Adds up the polls of one observation."""

    def __init__(self) -> None:
        self.packets = 0
        self.bytes = 0
        self.samples = 0
        self.lost = 0  # samples
        self.ends = {"mine": 0, "other": 0, "kernel": 0, "reaches": 0}

    def add(self, batch: PacketBatch, counters: Counters) -> None:
        """Add one poll; its samples tell which rules dropped packets."""
        self.packets += counters.arrived_packets
        self.bytes += counters.arrived_bytes
        self.samples += len(batch)
        self.lost += counters.records_lost
        left, late = counters.arrived_packets, 0
        for drop in attributed(counters, batch.select(np.flatnonzero(batch.hook == Hook.DROP))):
            self.ends[end_of(LedgerRow(drop.layer, drop.reason, drop.packets, 0.0, drop.rule))] += (
                drop.packets
            )
            if is_before_arrival(drop):  # neither counted as arrived so far nor part of what is left
                self.packets += drop.packets
                self.bytes += drop.bytes
            else:
                left -= drop.packets
            late += 0 if drop.before_delivery else drop.packets
        accepted = counters.accepted_packets
        self.ends["reaches"] += max(left if accepted is None else accepted - late, 0)
