"""Client of the dissector: ask for one packet, wait no longer than a person would."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

from fwtop.dissect import wire
from fwtop.dissect.wire import Dissection

ANSWER_SECONDS = 8.0  # may include a start: importing scapy takes 0.5 s, far longer on a machine under attack
_DEAD = "the dissector is not running"


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
        self._socket.send(wire.request(self._number, data, link), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if not poller.poll(left * 1000):
                break
            message = self._socket.recv(wire.MAX_ANSWER, socket.MSG_DONTWAIT)
            if not message:
                return Dissection((), _DEAD)
            number, dissection = wire.parse_answer(message)
            if number == self._number:  # else the answer to a request that was given up
                return dissection
        raise TimeoutError
