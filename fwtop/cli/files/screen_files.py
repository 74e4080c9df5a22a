"""The files that configure the screen: root's, and the caller's own, read with the caller's rights.

Root never parses them: the launcher hands the text to the console. A child that has become the user opens the
user's file, so that neither a link nor a slow file system of his reaches root.
"""

from __future__ import annotations

import errno
import os
import pwd
import select
import signal
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from fwtop.model.config_file import ConfigText

SYSTEM_FILE = Path("/etc/fwtop/screen.toml")
USER_FILE = ".config/fwtop/screen.toml"  # below the home directory
MAX_BYTES = 24 << 10
_READ_SECONDS = 0.5


def caller(environment: Mapping[str, str] = os.environ) -> pwd.struct_passwd | None:
    """Return who called: the user behind sudo, else this process's own."""
    uid = os.getuid()
    given = environment.get("SUDO_UID", "")
    if uid == 0 and given.isascii() and given.isdigit():
        uid = int(given[:10])
    try:
        return pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return None


def screen_files(system: Path = SYSTEM_FILE, user: pwd.struct_passwd | None = None) -> tuple[ConfigText, ...]:
    """Read both files, the user's last; those that don't exist are left out."""
    who = user or caller()
    found = [read_config(system, owners=(0,))]
    if who is not None:
        path = Path(who.pw_dir) / USER_FILE
        if os.geteuid() == 0 and who.pw_uid != 0:
            own = _read_as(who, path)
        else:
            own = read_config(path, owners=(who.pw_uid, 0))
        if own is not None:  # behind sudo, a bare ~ could be root's
            found.append(replace(own, path=f"~{who.pw_name}/{USER_FILE}"))
    return tuple(file for file in found if file is not None)


def read_config(path: Path, *, owners: tuple[int, ...] | None = None) -> ConfigText | None:
    """Read one file; None if there is none. With `owners`, it must be theirs and nobody else's to write."""
    try:
        found = _read_checked(path, owners)
    except OSError as error:
        link = error.errno == errno.ELOOP
        return ConfigText(str(path), "", "a symbolic link is not followed" if link else str(error.strerror))
    except ValueError as error:
        return ConfigText(str(path), "", str(error))
    return None if found is None else ConfigText(str(path), found)


def _read_checked(path: Path, owners: tuple[int, ...] | None) -> str | None:
    """Return the file's text, None if there is none; raises OSError, or ValueError with a reason."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is no regular file")
        if owners is not None and about.st_uid not in owners:
            raise ValueError(f"it belongs to user {about.st_uid}")
        others = stat.S_IWOTH | (0 if about.st_uid else stat.S_IWGRP)
        if owners is not None and about.st_mode & others:
            raise ValueError("others may write it: chmod go-w")
        return checked_text(_read_whole(descriptor))
    finally:
        os.close(descriptor)


def _read_whole(descriptor: int) -> bytes:
    """Read a file, or a little more than it may hold."""
    data = bytearray()
    while len(data) <= MAX_BYTES and (part := os.read(descriptor, MAX_BYTES)):
        data += part
    return bytes(data)


def checked_text(data: bytes) -> str:
    """Decode a file; raises ValueError with a reason."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 10} KiB")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if any(ord(char) < 0x20 and char not in "\t\r\n" for char in text):  # TOML forbids them
        raise ValueError("it contains control characters")
    return text


def _read_as(user: pwd.struct_passwd, path: Path) -> ConfigText | None:
    """Read a file in a child that has become the user and may take _READ_SECONDS."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _send_as(user, path, theirs)
    os.close(theirs)
    try:
        data = _receive(ours)
    finally:
        os.close(ours)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        # A child that hangs in a dead file system can't be waited for.
        os.waitpid(child, os.WNOHANG if data is None else 0)
    if not data:
        return ConfigText(
            str(path), "", "it could not be read in time" if data is None else "reading it failed"
        )
    if data[:1] == b"-":
        return None
    if data[:1] == b"!":
        return ConfigText(str(path), "", data[1:300].decode("utf-8", "replace"))
    try:
        return ConfigText(str(path), checked_text(data[1:]))
    except ValueError as error:
        return ConfigText(str(path), "", str(error))


def _send_as(user: pwd.struct_passwd, path: Path, to: int) -> None:
    """Become the user, read the file and write it to the pipe, behind a letter for the outcome; then end."""
    try:
        os.setgroups([])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
        file = read_config(path, owners=(user.pw_uid, 0))
        if file is None:
            answer = b"-"
        else:
            answer = b"!" + file.wrong.encode() if file.wrong else b"=" + file.text.encode()
        while answer:
            answer = answer[os.write(to, answer) :]
    finally:
        os._exit(0)


def _receive(source: int) -> bytes | None:
    """Read to the end of the pipe; None if that takes too long. More than a file may hold is cut."""
    data = bytearray()
    end = time.monotonic() + _READ_SECONDS
    while len(data) <= MAX_BYTES + 1:
        ready, _, _ = select.select([source], [], [], max(end - time.monotonic(), 0))
        if not ready:
            return None
        part = os.read(source, 65536)
        if not part:
            break
        data += part
    return bytes(data)
