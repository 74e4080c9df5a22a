"""Start the alarms' process, from root, before root is given away."""

from __future__ import annotations

import os
import pwd
import signal
import stat

from msgspec import Struct

from fwtop.alarms import AT_ONCE
from fwtop.alarms.config import AlarmConfig
from fwtop.kernel.programs import ENVIRONMENT, module_argv
from fwtop.model.errors import FwtopError
from fwtop.model.paths import ALARMS_DIRECTORY, CONSOLE_USER
from fwtop.model.text import safe_text
from fwtop.model.wire import to_json
from fwtop.sandbox.confine import drop_privileges, unprivileged_user


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
