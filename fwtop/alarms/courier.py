"""Deliver alarms, read one per line, to the journal, a command, a webhook and mail, in a process of its own.

Root starts the process before it is given away."""

from __future__ import annotations

import contextlib
import os
import pwd
import queue
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from msgspec import Struct

from fwtop.alarms import AT_ONCE
from fwtop.alarms.message import (
    MAX_BYTES,
    SENDMAIL,
    Alarm,
    AlarmConfig,
    mail_text,
    parse_line,
    send_to_journal,
)
from fwtop.kernel.programs import ENVIRONMENT, module_argv
from fwtop.model.errors import FwtopError
from fwtop.model.paths import ALARMS_DIRECTORY, CONSOLE_USER
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json
from fwtop.sandbox.confine import drop_privileges, unprivileged_user

if TYPE_CHECKING:
    from fwtop.alarms.webhook import WebhookSender


_END_SECONDS = 10.0  # less than what the unit gives them (TimeoutStopSec)
_WAITING = 100  # alarms; newer ones are left out while the command can't keep up
_LOOK_SECONDS = 1.0  # until a running command hears that the recording ends


class Courier:
    """Delivers alarms, and says on standard error what could not be delivered."""

    def __init__(
        self,
        config: AlarmConfig,
        *,
        secret: str = "",
        spool: str = "",
        send: Callable[[Alarm], None] = send_to_journal,
    ) -> None:
        self._config = config
        self._send = send
        self.failures = 0
        self._targets: list[CommandRunner | WebhookSender] = []
        if config.command:
            self._targets.append(CommandRunner(config.command, config.command_seconds, self._failed))
        if config.mail_to:
            argv, text = (*SENDMAIL, *config.mail_to), partial(mail_text, to=config.mail_to)
            self._targets.append(CommandRunner(argv, config.command_seconds, self._failed, text))
        if config.webhook:
            from fwtop.alarms.webhook import Spool, Webhook, WebhookSender  # 3 MB that few need

            webhook = Webhook(config.webhook, secret, config.webhook_seconds)
            self._targets.append(WebhookSender(webhook, Spool(Path(spool)), self._failed))

    def deliver(self, alarm: Alarm) -> None:
        """Write an alarm to the journal, else to standard error, and hand it to the other targets."""
        if alarm.event not in (*self._config.events, "test"):
            return
        if self._config.journal:
            try:
                self._send(alarm)
            except OSError:
                _say(f"alarm: {alarm.message}")
        for target in self._targets:
            target.put(alarm)

    def close(self) -> None:
        """Finish what is queued, as far as that is possible in some seconds."""
        at = time.monotonic() + _END_SECONDS
        for target in self._targets:
            target.end(at)
        for target in self._targets:
            target.join()

    def _failed(self, line: str) -> None:
        self.failures += 1
        _say(line)


def alarms(source: BinaryIO) -> Iterator[Alarm]:
    """Yield the alarms of a stream; what is none, or too long, is skipped."""
    skipping = False
    while line := source.readline(MAX_BYTES):
        whole = line.endswith(b"\n")
        if whole and not skipping and (alarm := parse_line(line)) is not None:
            yield alarm
        skipping = not whole


def _say(line: str) -> None:
    print(f"fwtop: {line}", file=sys.stderr, flush=True)


def serve(settings: bytes, source: BinaryIO) -> int:
    """Deliver alarms until `source` ends; return 1 if any could not be delivered."""
    found = of_json(Settings, settings)
    courier = Courier(found.config, secret=found.secret, spool=found.spool)
    try:
        for alarm in alarms(source):
            courier.deliver(alarm)
    finally:
        courier.close()
    return int(courier.failures > 0)


class CommandRunner:
    """Queues alarms for a program; `report` gets a line about each one that failed.

    `text` makes of an alarm what the program reads on its standard input.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        seconds: float,
        report: Callable[[str], None],
        text: Callable[[Alarm], bytes] = Alarm.line,
    ) -> None:
        self._argv = argv
        self._text = text
        self._seconds = seconds
        self._report = report
        self._waiting: queue.SimpleQueue[Alarm | None] = queue.SimpleQueue()
        self._ends_at = float("inf")  # time.monotonic()
        self._thread = threading.Thread(target=self._run_all, name="command")
        self._thread.start()

    def put(self, alarm: Alarm) -> None:
        """Queue an alarm; returns at once."""
        if self._waiting.qsize() < _WAITING:
            self._waiting.put(alarm)
        else:
            self._report(f"the alarm command is too slow: {alarm.event} is left out")

    def end(self, at: float) -> None:
        """Let it end once its queue is empty, but not after `at` (time.monotonic())."""
        self._ends_at = at
        self._waiting.put(None)

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run_all(self) -> None:
        left_out = 0
        while (alarm := self._waiting.get()) is not None:
            if time.monotonic() >= self._ends_at:
                left_out += 1
            elif problem := run_command(self._argv, self._text(alarm), self._seconds, lambda: self._ends_at):
                self._report(problem)
        if left_out:
            self._report(f"the alarm command is too slow: {left_out} alarms are left out as recording ends")


def run_command(
    argv: tuple[str, ...], text: bytes, seconds: float, ends_at: Callable[[], float] = lambda: float("inf")
) -> str:
    """Run a command with a text on its standard input; return what went wrong, "" for nothing.

    When its time is up, or by time.monotonic() what `ends_at` returns, its process group is killed.
    """
    name = safe_text(argv[0], limit=100)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        return f"the alarm command {name} can't be run: {error.strerror}"
    began = time.monotonic()
    unsent: bytes | None = text
    while (left := min(began + seconds, ends_at()) - time.monotonic()) > 0:
        try:
            process.communicate(unsent, timeout=min(left, _LOOK_SECONDS))
        except subprocess.TimeoutExpired:
            unsent = None  # it is being sent
        else:
            failed = f"the alarm command {name} failed with status {process.returncode}"
            return failed if process.returncode else ""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return f"the alarm command {name} was killed after {round(time.monotonic() - began, 1):g} s"


class Started(Struct, frozen=True):
    """The process, and the pipe that it reads alarms from."""

    pid: int
    descriptor: int


class Settings(Struct, frozen=True):
    """What the process reads first. Not arguments: those can be read by every user of the machine."""

    config: AlarmConfig
    secret: str
    spool: str


def start_alarms(config: AlarmConfig, *, secret: str = "") -> Started:
    """Start the process as the configured user; it ends when the pipe is closed. Raises FwtopError.

    `secret` signs what goes to the webhook.
    """
    account = _account(config.user)
    spool = _spool_directory(account) if config.webhook else ""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.write(writing, to_json(Settings(config, secret, spool)) + b"\n")  # at most some KiB: it fits the pipe
    child = os.fork()
    if child == 0:
        try:
            _become(reading, account, config)
        finally:
            os._exit(1)
    os.close(reading)
    os.set_blocking(writing, False)  # a courier that stalls holds nothing up
    return Started(child, writing)


def _account(name: str) -> pwd.struct_passwd:
    try:
        account = unprivileged_user() if name == CONSOLE_USER else pwd.getpwnam(name)
    except KeyError:
        raise FwtopError(f"there is no user {safe_text(name)} for alarms; nothing was started", 2) from None
    if account.pw_uid == 0:
        raise FwtopError("alarms never run as root; nothing was started: choose another user", 2)
    return account


def _spool_directory(account: pwd.struct_passwd) -> str:
    """Make the user's directory for alarms that the webhook has not taken yet; raises FwtopError."""
    directory = ALARMS_DIRECTORY / str(account.pw_uid)
    try:
        for path in (ALARMS_DIRECTORY, directory):
            path.mkdir(mode=0o711 if path == ALARMS_DIRECTORY else 0o700, exist_ok=True)
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise NotADirectoryError(0, "it is no directory")
        if directory.stat().st_uid != account.pw_uid:  # the recorder's unit may not: it needs a capability
            os.chown(directory, account.pw_uid, account.pw_gid, follow_symlinks=False)
    except OSError as error:
        reason = f"{directory} can't be used for alarms: {error.strerror}"
        raise FwtopError(f"{reason}; nothing was started; try: sudo fwtop alarms test", 2) from None
    return str(directory)


def _become(reading: int, account: pwd.struct_passwd, config: AlarmConfig) -> None:
    os.setsid()  # Ctrl-C is for the console: what it says when it ends is still delivered
    os.dup2(reading, 0)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.closerange(3, 4096)
    os.chdir("/")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    # Postfix's sendmail reaches its queue by set-group-ID.
    drop_privileges(account, no_new_privileges=not config.mail_to)
    argv = module_argv("fwtop.alarms", *([AT_ONCE] if config.webhook else []))
    os.execve(argv[0], argv, ENVIRONMENT | {"PYTHONUTF8": "1"})  # noqa: S606 - no shell, fixed environment
