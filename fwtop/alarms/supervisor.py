"""Start the alarms' process, from root, before root is given away."""

from __future__ import annotations

import json
import os
import pwd
import signal
from dataclasses import asdict, dataclass

from fwtop.alarms.config import AlarmConfig
from fwtop.kernel.programs import ENVIRONMENT, module_argv
from fwtop.model.errors import FwtopError
from fwtop.model.paths import CONSOLE_USER
from fwtop.model.text import safe_text
from fwtop.sandbox.privileges import drop_privileges, unprivileged_user


@dataclass(frozen=True, slots=True)
class Started:
    """The process, and the pipe that it reads alarms from."""

    pid: int
    descriptor: int


def start_alarms(config: AlarmConfig) -> Started:
    """Start the process as the configured user; it ends when the pipe is closed. Raises FwtopError."""
    account = _account(config.user)
    reading, writing = os.pipe2(os.O_CLOEXEC)
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


def _become(reading: int, account: pwd.struct_passwd, config: AlarmConfig) -> None:
    os.setsid()  # Ctrl-C is for the console: what it says when it ends is still delivered
    os.dup2(reading, 0)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.closerange(3, 4096)
    os.chdir("/")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    drop_privileges(account)
    argv = module_argv("fwtop.alarms", json.dumps(asdict(config)))
    os.execve(argv[0], argv, ENVIRONMENT | {"PYTHONUTF8": "1"})  # noqa: S606 - no shell, fixed environment
