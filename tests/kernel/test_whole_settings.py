"""The installed screen starts with the settings of the user behind sudo, whatever his file is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.conftest import NetnsPair
from tests.kernel.whole import Tmux

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("installed")]
UID = 64242


@pytest.fixture
def settings_file(open_path: Path) -> Path:
    """The file of a user who exists only in `passwd`, below a home directory that is his."""
    folder = open_path / ".config/fwtop"
    folder.mkdir(parents=True)
    for path in (open_path, open_path / ".config", folder):
        os.chown(path, UID, UID)
    (open_path / "passwd").write_text(
        Path("/etc/passwd").read_text() + f"operator:x:{UID}:{UID}::{open_path}:/bin/sh\n"
    )
    return folder / "screen.toml"


@pytest.fixture
def start(netns_pair: NetnsPair, settings_file: Path) -> Iterator[object]:
    """Start the screen as `sudo` of that user would."""
    started: list[Tmux] = []

    def run() -> Tmux:
        home = settings_file.parents[2]
        watch = f"fwtop --netns {netns_pair.victim.netns} -i {netns_pair.victim.interface}"
        inner = f"mount --bind {home}/passwd /etc/passwd && SUDO_UID={UID} {watch}"
        command = f"unshare -m sh -c '{inner}'; echo ended with $?; sleep 600"
        started.append(Tmux(command, netns_pair.victim.netns, width=120, height=30))
        return started[-1]

    yield run
    for terminal in started:
        terminal.kill()


def test_keys_and_first_tab_are_the_users(start, settings_file: Path) -> None:
    settings_file.write_text('first_tab = "traffic"\nslow = "perhaps"\n[keys]\nquit = ["F10"]\n')
    os.chown(settings_file, UID, UID)
    terminal = start()
    terminal.wait_for("~operator/.config/fwtop/screen.toml:2: slow must be")
    terminal.wait_for("Payloads")
    terminal.keys("F10")
    terminal.wait_for("ended with 0")


def test_a_link_to_a_file_of_roots_is_told_and_nothing_of_it_is_shown(start, settings_file: Path) -> None:
    secret = settings_file.parents[2] / "secret"
    secret.write_text("hunter2 = = 1\n")
    secret.chmod(0o600)
    settings_file.symlink_to(secret)
    terminal = start()
    shown = terminal.wait_for("screen.toml: a symbolic link is not")
    assert "hunter2" not in shown
    terminal.keys("q")
    terminal.wait_for("ended with 0")
