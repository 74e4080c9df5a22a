"""Every rule and set on the machine, read by a child; the event loop passes its last answer on.

The child is started by the first request and ends when nobody asks. A reading that takes long is followed by
a pause, so that it costs at most a few percent of a processor.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import time

from fwtop.kernel import children
from fwtop.model.protocol import MAX_MESSAGE

_MODULE = "fwtop.netfilter.listing.reader"
FRESH_SECONDS = 2.0
_PAUSE = 10.0  # times what a reading took
_STUCK_SECONDS = 60.0  # a child without an answer is ended
_RESTART_SECONDS = 5.0


class Rulesets:
    """The child and its last answer; of the event loop's thread. Nothing here waits."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        """Take the loop's selector; what is registered there is this object."""
        self._selector = selector
        self._last = b"null"
        self._sock: socket.socket | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._ended: list[subprocess.Popen[bytes]] = []
        self._asked: float | None = None  # when; None: it has answered
        self._due = 0.0

    def request(self) -> bytes:
        """Return the last reading as JSON (null: none yet), and have the next one begun if it is due."""
        now = time.monotonic()
        self._reap()
        if self._asked is not None and now - self._asked > _STUCK_SECONDS:
            self.close()
        if self._asked is None and now >= self._due:
            self._ask(now)
        return self._last

    def ready(self) -> None:
        """Take the child's answer, or its end."""
        if self._sock is None:
            return
        try:
            message = self._sock.recv(MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.close()
            return
        now = time.monotonic()
        took = now - self._asked if self._asked is not None else 0.0
        self._last, self._asked = message, None
        self._due = now + max(FRESH_SECONDS - took, _PAUSE * took)

    def close(self) -> None:
        """End the child."""
        if self._sock is not None:
            self._selector.unregister(self._sock)
            self._sock.close()
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            self._ended.append(self._child)
        self._sock = self._child = self._asked = None
        self._due = time.monotonic() + _RESTART_SECONDS
        self._reap()

    def _ask(self, now: float) -> None:
        self._due = now + _RESTART_SECONDS
        try:
            if self._sock is None:
                self._child, self._sock = children.start_with_socket(_MODULE)
                self._sock.setblocking(False)
                self._selector.register(self._sock, selectors.EVENT_READ, self.ready)
            self._sock.send(b"r")
            self._asked = now
        except OSError:  # no memory or no process left: tried again later
            self.close()

    def _reap(self) -> None:
        self._ended = [child for child in self._ended if child.poll() is None]
