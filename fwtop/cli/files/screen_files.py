"""The files that configure the screen: root's, and the caller's own, read with the caller's rights.

Root never parses them: the launcher hands the text to the console. A child that has become the user opens the
user's file, so that neither a link nor a slow file system of his reaches root.
"""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from fwtop.model.config_file import ConfigText, read_regular
from fwtop.model.errors import FwtopError
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
        text = checked_text(read_regular(path, MAX_BYTES, owners=owners, follow=False))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        link = error.errno == errno.ELOOP
        return ConfigText(str(path), "", "a symbolic link is not followed" if link else str(error.strerror))
    except ValueError as error:
        return ConfigText(str(path), "", str(error))
    return ConfigText(str(path), text)


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
            return ConfigText(str(path), "" if wrong else checked_text(found.text.encode()), wrong)
    except FwtopError as error:
        late = isinstance(error, NoAnswerError) and error.late
        return ConfigText(str(path), "", "it could not be read in time" if late else "reading it failed")
    except ValueError as error:
        return ConfigText(str(path), "", str(error))
    return None
