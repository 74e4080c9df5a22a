"""The dissector as others see it: ask for one packet, wait no longer than a person would.

One message per datagram of a SOCK_SEQPACKET socket; integers are big-endian. Request: sequence number (u32),
link type (u8), packet. Link type 1 starts with the Ethernet header, 0 with the IP header. Answer: sequence
number (u32), then a Dissection as JSON. Neither side trusts the
other: both bound and sanitise.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json

ANSWER_SECONDS = 8.0  # may include a start: importing scapy takes 0.5 s, far longer on a machine under attack
_DEAD = "the dissector is not running"

LINK_IP, LINK_ETHERNET = 0, 1
MAX_PACKET = 65_535
MAX_LAYERS = 32
MAX_FIELDS = 96  # per layer
MAX_VALUE = 200  # characters
MAX_ANSWER = 128 << 10  # bytes; must fit the default socket buffer (net.core.wmem_default)
_REQUEST = struct.Struct("!IB")
_ANSWER = struct.Struct("!I")
MAX_REQUEST = _REQUEST.size + MAX_PACKET


class Layer(Struct, frozen=True):
    """One protocol layer with its fields in wire order."""

    name: str
    fields: tuple[tuple[str, str], ...]


class Dissection(Struct, frozen=True):
    """Layers from the outermost in; `problem` explains missing layers ("" if complete)."""

    layers: tuple[Layer, ...] = ()
    problem: str = ""


Dissect = Callable[[bytes, int], Dissection]  # a packet and its link type


class Dissector:
    """One request at a time, from any thread. The dissector may die or hang: a late answer is skipped."""

    def __init__(self, connected: socket.socket) -> None:
        """Take the socket that `start_dissector` returned."""
        self._socket = connected
        self._lock = threading.Lock()
        self._number = 0

    def dissect(self, data: bytes, link: int) -> Dissection:
        """Decode a packet; never raises for a packet: failures are in the answer's `problem`."""
        if not self._lock.acquire(timeout=ANSWER_SECONDS):
            return Dissection((), "the dissector is busy")
        try:
            return self._exchange(data, link, time.monotonic() + ANSWER_SECONDS)
        except TimeoutError:
            return Dissection((), "decoding this packet took too long")
        except (BlockingIOError, ValueError) as error:
            return Dissection((), f"the dissector failed ({type(error).__name__})")
        except OSError:
            return Dissection((), _DEAD)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the dissector by closing its socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exchange(self, data: bytes, link: int, deadline: float) -> Dissection:
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._socket.send(request(self._number, data, link), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if not poller.poll(left * 1000):
                break
            message = self._socket.recv(MAX_ANSWER, socket.MSG_DONTWAIT)
            if not message:
                return Dissection((), _DEAD)
            number, dissection = parse_answer(message)
            if number == self._number:  # else the answer to a request that was given up
                return dissection
        raise TimeoutError


def request(number: int, data: bytes, link: int) -> bytes:
    """Encode a request; a packet longer than any IP packet is truncated."""
    return _REQUEST.pack(number, link) + data[:MAX_PACKET]


def parse_request(message: bytes) -> tuple[int, int, bytes]:
    """Decode a request into number, link type and packet; raises ValueError if it is too short."""
    if len(message) < _REQUEST.size:
        raise ValueError("short request")
    number, link = _REQUEST.unpack_from(message)
    return number, link, message[_REQUEST.size :]


def answer(number: int, dissection: Dissection) -> bytes:
    """Encode an answer; one that would be too long loses its innermost layers."""
    while len(message := _ANSWER.pack(number) + to_json(dissection)) > MAX_ANSWER and dissection.layers:
        dissection = Dissection(dissection.layers[:-1], "too many fields to show")
    return message


def parse_answer(message: bytes) -> tuple[int, Dissection]:
    """Decode, bound and sanitise an answer; raises ValueError on anything else."""
    if len(message) < _ANSWER.size:
        raise ValueError("not an answer")
    found = of_json(Dissection, message[_ANSWER.size :])
    layers = tuple(bounded(layer.name, layer.fields) for layer in found.layers[:MAX_LAYERS])
    return _ANSWER.unpack_from(message)[0], Dissection(layers, safe_text(found.problem))


def bounded(name: object, fields: Sequence[tuple[object, object]]) -> Layer:
    """Return a layer with sanitised, length-limited names and values."""
    kept = tuple(
        (safe_text(key, limit=60), safe_text(value, limit=MAX_VALUE)) for key, value in fields[:MAX_FIELDS]
    )
    return Layer(safe_text(name, limit=60), kept)
