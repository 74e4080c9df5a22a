"""The files of the screen are read with no more than the rights of the person who called."""

from __future__ import annotations

import os
import pwd
import signal
from pathlib import Path

import pytest

from fwtop.cli import files
from fwtop.cli.files import MAX_BYTES, USER_FILE, caller, read_config
from fwtop.cli.files import screen_files as read_all
from fwtop.model.files import ConfigText


def user_at(home: Path, uid: int) -> pwd.struct_passwd:
    return pwd.struct_passwd(("somebody", "x", uid, uid, "", str(home), "/bin/sh"))


@pytest.fixture
def tmp_path(open_path: Path) -> Path:
    """Another user reads here."""
    return open_path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory of user 4242, below a directory that all may pass."""
    place = tmp_path / "home"
    (place / USER_FILE).parent.mkdir(parents=True)
    for path in (place, place / ".config", (place / USER_FILE).parent):
        os.chown(path, 4242, 4242)
    return place


def own_file(home: Path, text: str, mode: int = 0o600) -> Path:
    path = home / USER_FILE
    path.write_text(text)
    os.chown(path, 4242, 4242)
    path.chmod(mode)
    return path


def test_the_caller_is_the_user_behind_sudo_and_only_for_root(root_required: None) -> None:
    nobody = pwd.getpwnam("nobody")
    found = caller({"SUDO_UID": str(nobody.pw_uid), "SUDO_USER": "nobody"})
    assert found is not None
    assert found.pw_name == "nobody"
    for wrong in ("", "-1", "x", "99999999999999999999", "4294967294"):
        found = caller({"SUDO_UID": wrong})
        assert found is None or found.pw_uid == 0


def test_a_user_s_file_is_read_after_root_s(root_required: None, home: Path, tmp_path: Path) -> None:
    system = tmp_path / "screen.toml"
    system.write_text('theme = "dark"\n')
    own_file(home, 'theme = "light"\n')
    assert read_all(system, user_at(home, 4242)) == (
        ConfigText(str(system), 'theme = "dark"\n'),
        ConfigText("~somebody/.config/fwtop/screen.toml", 'theme = "light"\n'),
    )
    assert read_all(tmp_path / "none", user_at(tmp_path, 4242)) == ()


def test_a_link_to_root_s_secrets_is_not_followed(root_required: None, home: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("password = 1\n")
    secret.chmod(0o600)
    (home / USER_FILE).symlink_to(secret)
    (found,) = read_all(tmp_path / "none", user_at(home, 4242))
    assert found.text == ""
    assert "link is not followed" in found.wrong
    (home / USER_FILE).unlink()
    (home / ".config/fwtop").rmdir()
    (tmp_path / "fwtop").mkdir(mode=0o700)
    (tmp_path / "fwtop/screen.toml").write_text("password = 1\n")
    (home / ".config/fwtop").symlink_to(tmp_path / "fwtop")
    (found,) = read_all(tmp_path / "none", user_at(home, 4242))
    assert (found.text, found.wrong) == ("", "Permission denied"), "the path is walked with the user's rights"


def test_a_hard_link_to_another_s_file_is_refused(root_required: None, home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("x = 1\n")
    os.chown(other, 4343, 4343)
    os.link(other, home / USER_FILE)
    (found,) = read_all(tmp_path / "none", user_at(home, 4242))
    assert (found.text, found.wrong) == ("", "it belongs to user 4343")


def test_a_file_that_others_may_write_is_refused(root_required: None, home: Path, tmp_path: Path) -> None:
    own_file(home, "x = 1\n", 0o666)
    system = tmp_path / "system"
    system.write_text("x = 1\n")
    system.chmod(0o664)
    assert ["others may write" in file.wrong for file in read_all(system, user_at(home, 4242))] == [
        True,
        True,
    ]
    own_file(home, "x = 1\n", 0o664)
    assert read_all(tmp_path / "none", user_at(home, 4242))[0].wrong == "", "a group of one's own is usual"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"#" * (MAX_BYTES + 1), "more than 24,576 bytes"),
        (b"x = '\xff'\n", "not UTF-8"),
        (b"x = '\x1b[2J'\n", "control characters"),
    ],
)
def test_what_can_t_be_a_settings_file_is_named(
    root_required: None, home: Path, tmp_path: Path, data: bytes, reason: str
) -> None:
    path = home / USER_FILE
    path.write_bytes(data)
    os.chown(path, 4242, 4242)
    (found,) = read_all(tmp_path / "none", user_at(home, 4242))
    assert found.text == ""
    assert reason in found.wrong
    own = read_config(path)
    assert own is not None
    assert reason in own.wrong


def test_neither_a_fifo_nor_a_directory_holds_anybody_up(
    root_required: None, home: Path, tmp_path: Path
) -> None:
    os.mkfifo(home / USER_FILE)
    os.chown(home / USER_FILE, 4242, 4242)
    assert read_all(tmp_path / "none", user_at(home, 4242))[0].wrong == "it is no regular file"
    (home / USER_FILE).unlink()
    (home / USER_FILE).mkdir()
    assert read_all(tmp_path / "none", user_at(home, 4242))[0].wrong == "it is no regular file"


def test_a_file_system_that_hangs_is_told(
    root_required: None, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: object, **__: object) -> None:
        signal.pause()

    monkeypatch.setattr(files, "read_config", lambda path, **how: hang() if home in path.parents else None)
    monkeypatch.setattr(files, "_READ_SECONDS", 0.05)
    (found,) = read_all(tmp_path / "none", user_at(home, 4242))
    assert found.wrong == "it could not be read in time"
