"""Files that root opens for others: settings with their owner's rights, others by no link that is planted.

Root never parses settings: the launcher hands the text to the console. A child that has become the user opens
the user's file, so that neither a link nor a slow file system of his reaches root. The console's user owns
the session directory. A symbolic link in it, or in its place, must not make root read or write root's own
files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from fwtop.model.errors import FwtopError
from fwtop.model.files import ConfigText, read_regular
from fwtop.model.paths import exports_directory
from fwtop.model.text import safe_text
from fwtop.sandbox.child import NoAnswerError, ask

SYSTEM_FILE = Path("/etc/fwtop/screen.toml")
USER_FILE = ".config/fwtop/screen.toml"  # below the home directory
MAX_BYTES = 24 << 10
_MOST_BYTES = 8 * MAX_BYTES  # of the file's text in JSON
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
        text = _checked_text(read_regular(path, MAX_BYTES, owners=owners, follow=False))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        link = error.errno == errno.ELOOP
        return ConfigText(str(path), "", "a symbolic link is not followed" if link else str(error.strerror))
    except ValueError as error:
        return ConfigText(str(path), "", str(error))
    return ConfigText(str(path), text)


def _checked_text(data: bytes) -> str:
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

    def become() -> None:
        os.setgroups([])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)

    try:
        found = ask(
            lambda: read_config(path, owners=(user.pw_uid, 0)),
            ConfigText | None,
            who="its reader",
            enter=become,
            keep=(),
            seconds=_READ_SECONDS,
            most_bytes=_MOST_BYTES,
        )
        if found is not None:
            wrong = safe_text(found.wrong, limit=300)
            return ConfigText(str(path), "" if wrong else _checked_text(found.text.encode()), wrong)
    except FwtopError as error:
        late = isinstance(error, NoAnswerError) and error.late
        return ConfigText(str(path), "", "it could not be read in time" if late else "reading it failed")
    except ValueError as error:
        return ConfigText(str(path), "", str(error))
    return None


_MAX_LINKS = 40  # as many as the kernel follows (MAXSYMLINKS)
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading if its owner and all links to it are trusted.

    Raises FwtopError if they are not, OSError if it can't be opened.
    """
    directory, name = locate(path)
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        found, owner = os.fstat(handle), os.fstat(directory).st_uid
    finally:
        os.close(directory)
    if stat.S_ISREG(found.st_mode) and (_is_trusted(owner) or found.st_uid == owner):
        return open(handle, "rb")
    os.close(handle)
    raise FwtopError(f"{safe_text(path)} is not opened as root: it is no file of its directory's owner")


def locate(path: Path) -> tuple[int, str]:
    """Return a descriptor of a file's directory, for the caller to close, and the file's name in it.

    Follows links owned by root or the caller only: raises FwtopError at any other, OSError if a directory is
    missing.
    """
    waiting = list(reversed(path.absolute().parts[1:]))
    directory = os.open("/", _DIRECTORY)
    links = 0
    try:
        while waiting:
            name = waiting.pop()
            target = _link_target(directory, name, path)
            if target is None:
                if not waiting:
                    return directory, name
                inner = os.open(name, _DIRECTORY, dir_fd=directory)
            else:
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                absolute = target.is_absolute()
                waiting += reversed(target.parts[1:] if absolute else target.parts)
                inner = os.open("/", _DIRECTORY) if absolute else os.dup(directory)
            os.close(directory)
            directory = inner
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    except BaseException:
        os.close(directory)
        raise


def in_trusted_hands(directory: int) -> bool:
    """Return whether root or the caller owns a directory, given its descriptor."""
    return _is_trusted(os.fstat(directory).st_uid)


def _link_target(directory: int, name: str, path: Path) -> Path | None:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    if not _is_trusted(found.st_uid):
        raise FwtopError(
            f"{safe_text(path)} leads through {safe_text(name)!r}, a link that another user made: root does "
            "not follow it; nothing was opened; name the file itself"
        )
    return Path(os.readlink(name, dir_fd=directory))


def _is_trusted(owner: int) -> bool:
    mine = os.geteuid()
    return mine != 0 or owner == 0


def make_exports_directory() -> tuple[Path, ...]:
    """Return the caller's directory for exports; nothing for root, who becomes the sessions' owner."""
    if os.geteuid() == 0:
        return ()
    directory = exports_directory()
    with contextlib.suppress(OSError):  # the export key then says why it can't write
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return (directory,)
