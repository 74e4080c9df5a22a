"""Alarms as signed HTTP requests, retried until the receiver has taken them."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import unquote, urlsplit, urlunsplit

from msgspec import Struct

from fwtop import __version__
from fwtop.alarms.message import Alarm
from fwtop.alarms.spool import Spool
from fwtop.model.text import safe_text

_FIRST_DELAY_SECONDS = 1.0
_LAST_DELAY_SECONDS = 300.0
_BUSY = (408, 425, 429)  # of 4xx, these ask for another try


class RefusedError(Exception):
    """The receiver will never take this request."""


class Webhook(Struct, frozen=True):
    """Where alarms are posted to, and the secret that signs them ("" for no signature)."""

    url: str
    secret: str = ""
    seconds: float = 10.0

    def post(self, body: bytes, most_seconds: float = float("inf")) -> None:
        """Post one alarm. Raises RefusedError, or OSError or HTTPException where another try may help.

        Redirections are refused: an alarm goes where the operator said, or nowhere.
        """
        seconds = min(self.seconds, most_seconds)
        now = str(int(time.time()))
        parts = urlsplit(self.url)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"fwtop/{__version__}",
            "X-Fwtop-Timestamp": now,
        }
        if self.secret:
            headers["X-Fwtop-Signature"] = f"sha256={signature(self.secret, now, body)}"
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=seconds)
        with closing(connection):
            connection.connect()
            with _time_limit(connection.sock, seconds):
                connection.request("POST", path, body, headers)
                status = connection.getresponse().status
        if 200 <= status < 300:
            return
        if status < 500 and status not in _BUSY:
            raise RefusedError(f"status {status}")
        raise OSError(f"status {status}")


@contextmanager
def _time_limit(connected: socket.socket, seconds: float) -> Iterator[None]:
    """End a block after a time, by its connection's end; raises TimeoutError then.

    A socket's own timeout begins anew with each byte, and so never ends with a receiver that drips.
    """
    ended = threading.Event()

    def end() -> None:
        ended.set()
        with suppress(OSError):
            socket.socket.shutdown(connected, socket.SHUT_RDWR)  # SSLSocket's own breaks what reads beside it

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if not ended.is_set():
            raise
    finally:
        timer.cancel()
    if ended.is_set():
        raise TimeoutError("timed out")


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return HMAC-SHA256 over timestamp, a full stop and the body, in hexadecimal digits."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class WebhookSender:
    """Posts alarms in order from a thread; `report` gets a line when that fails and when it works again."""

    def __init__(self, webhook: Webhook, spool: Spool, report: Callable[[str], None]) -> None:
        self._webhook = webhook
        self._spool = spool
        self._report = report
        self._wake = threading.Event()
        self._ends_at = float("inf")  # time.monotonic()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="webhook")
        self._thread.start()

    def put(self, alarm: Alarm) -> None:
        """Queue an alarm on disk; returns at once."""
        try:
            lost = self._spool.put(alarm.line())
        except OSError as error:
            self._report(
                f"an alarm for the webhook can't be queued ({error.strerror}): {alarm.event} is left out"
            )
            return
        if lost:
            self._report(f"the webhook's queue is full: its {lost} oldest were left out")
        self._wake.set()

    def end(self, at: float) -> None:
        """Let it end once its queue is empty, but not after `at` (time.monotonic())."""
        self._ends_at = at
        self._wake.set()

    def join(self) -> None:
        """Wait until it has ended; what waits then stays on disk."""
        self._thread.join()
        if left := len(self._spool):
            self._report(f"alarms that wait on disk for the webhook: {left}; the next recording sends them")

    def _run(self) -> None:
        delay = _FIRST_DELAY_SECONDS
        while time.monotonic() < self._ends_at:
            self._wake.clear()
            ending = self._ends_at != float("inf")  # before looking: what is put later would be missed
            with self._spool.locked():
                progress = self._send_oldest()
            if progress is None:  # nothing waits
                if ending:
                    return
                self._wake.wait()
            elif progress:
                delay = _FIRST_DELAY_SECONDS
            else:
                # Ending must not sleep through its last tries; a new alarm shortens no pause.
                self._pause(delay)
                delay = min(2 * delay, _LAST_DELAY_SECONDS)

    def _send_oldest(self) -> bool | None:
        """Send one alarm; None: there is none, True: it is done with, False: try again later."""
        found = self._spool.oldest()
        if found is None:
            return None
        name, body = found
        try:
            self._webhook.post(body, self._ends_at - time.monotonic())
        except RefusedError as error:
            self._report(f"the webhook refuses an alarm ({error}): it is left out")
        except (OSError, http.client.HTTPException) as error:
            if not self._failing:
                reason = safe_text(
                    error.strerror if isinstance(error, OSError) and error.strerror else error, limit=120
                )
                self._report(f"the webhook does not work ({reason}): alarms wait on disk")
            self._failing = True
            return False
        else:
            if self._failing:
                self._report("the webhook works again")
            self._failing = False
        self._spool.remove(name)
        return True

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := min(until, self._ends_at) - time.monotonic()) > 0:
            self._wake.wait(min(left, 1.0))
            self._wake.clear()
            if self._ends_at != float("inf"):
                until = min(until, time.monotonic() + _FIRST_DELAY_SECONDS)
