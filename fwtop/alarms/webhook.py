"""Alarms as signed HTTP requests, kept in files until the receiver has taken them, also across restarts."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import http.client
import os
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from msgspec import Struct

from fwtop import __version__
from fwtop.alarms.message import Alarm
from fwtop.kernel.descriptors import closing
from fwtop.model.text import safe_text

_FIRST_DELAY_SECONDS = 1.0
_LAST_DELAY_SECONDS = 300.0
_BUSY = (408, 425, 429)  # of 4xx, these ask for another try
_WAITING = ".json"  # alarms on disk end so


class RefusedError(Exception):
    """The receiver will never take this request."""


class Webhook(Struct, frozen=True):
    """Where alarms are posted to, and the secret that signs them ("" for no signature)."""

    url: str
    secret: str = ""
    seconds: float = 10.0

    def post(self, body: bytes, most_seconds: float = float("inf")) -> None:
        """Post one alarm. Raises RefusedError, or OSError or HTTPException where another try may help.

        Redirections are refused: an alarm goes where the operator said, or nowhere. Without any time left it
        raises TimeoutError.
        """
        seconds = min(self.seconds, most_seconds)
        if seconds <= 0.0:
            raise TimeoutError("timed out")
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
        with contextlib.closing(connection):
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
        if (found := self._spool.oldest()) is None:
            return None
        name, body = found
        try:
            self._webhook.post(body, self._ends_at - time.monotonic())
        except RefusedError as error:
            self._report(f"the webhook refuses an alarm ({error}): it is left out")
        except (OSError, http.client.HTTPException) as error:
            if not self._failing:
                reason = safe_text(getattr(error, "strerror", None) or error, limit=120)
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


class Spool:
    """One file per alarm in a directory, oldest first. Several processes may share it."""

    def __init__(self, directory: Path, most: int = 1000) -> None:
        self._directory = directory
        self._most = most
        self._count = 0

    def put(self, line: bytes) -> int:
        """Add an alarm; return how many old ones had to go for it. Raises OSError."""
        self._count += 1
        name = f"{time.time_ns():020}-{os.getpid()}-{self._count:06}"
        made = self._directory / f"{name}.new"
        try:
            made.write_bytes(line)
            made.rename(self._directory / f"{name}{_WAITING}")
        except OSError:
            with suppress(OSError):
                made.unlink()
            raise
        surplus = self._names()[: -self._most]
        for old in surplus:
            self.remove(old)
        return len(surplus)

    def oldest(self) -> tuple[str, bytes] | None:
        """Return name and content of the oldest alarm, None if there is none."""
        for name in self._names():
            with suppress(FileNotFoundError):  # another process has delivered it
                return name, (self._directory / name).read_bytes()
        return None

    def remove(self, name: str) -> None:
        """Remove an alarm that was delivered or refused."""
        (self._directory / name).unlink(missing_ok=True)

    def __len__(self) -> int:
        """Return how many alarms wait."""
        return len(self._names())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from delivering the same alarm."""
        with closing(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    def _names(self) -> list[str]:
        return sorted(name for name in os.listdir(self._directory) if name.endswith(_WAITING))
