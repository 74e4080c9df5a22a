"""Whom the allow-list protects: read from real processes and sockets of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fwtop.mitigate import allowlist
from fwtop.model.address import Prefix

SLEEP = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def child():
    """Start programs that say ready and wait; they end with the test."""
    running = []

    def start(*argv: str, **options) -> subprocess.Popen:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        running.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in running:
        process.communicate("")


def test_operator_is_found_behind_a_cleaned_environment(child) -> None:
    """As with sudo: the shell has SSH_CONNECTION, its child has not."""
    wrapper = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}], env={{}}, check=True)"
    )
    environment = {"SSH_CONNECTION": "2001:db8::77 50000 192.0.2.1 22"}
    outer = child(sys.executable, "-c", wrapper, env=environment)
    inner = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
    assert b"SSH_CONNECTION" not in Path(f"/proc/{inner}/environ").read_bytes()
    assert allowlist.operator_of(inner) == Prefix.parse("2001:db8::77")


@pytest.mark.parametrize(
    ("value", "peer"),
    [
        ("::ffff:192.0.2.9 1 2 3", "192.0.2.9"),
        ("fe80::1%eth0 1 2 3", "fe80::1"),
    ],
)
def test_operator_is_normalised(child, value: str, peer: str) -> None:
    process = child(sys.executable, "-c", SLEEP, env={"SSH_CONNECTION": value})
    assert allowlist.operator_of(process.pid) == Prefix.parse(peer)


@pytest.mark.parametrize("value", ["", "nonsense", "0.0.0.0/0 1 2 3", "\x1b[2J"])
def test_forged_environment_adds_nobody(child, value: str) -> None:
    process = child(sys.executable, "-c", SLEEP, env={"SSH_CONNECTION": value})
    assert allowlist.operator_of(process.pid) is None


SESSION = (
    "import ctypes, socket, sys\n"
    "ctypes.CDLL(None).prctl(15, b'sshd')\n"
    "peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    "print('ready', flush=True); sys.stdin.read()\n"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read other processes' sockets")
@pytest.mark.parametrize(
    ("title", "logged_in"),
    [("sshd: root@pts/0", True), ("sshd: root [priv]", False), ("sshd: unknown [net]", False)],
)
def test_only_those_who_logged_in_are_trusted(child, title: str, logged_in: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = child(title, "-c", SESSION, str(port), executable=sys.executable)
        assert Path(f"/proc/{process.pid}/comm").read_text() == "sshd\n"
        peers = [item for item in allowlist.ssh_sessions() if item.peer == Prefix.parse("127.0.0.1")]
    assert bool(peers) == logged_in


def test_allow_file_names_its_bad_lines(tmp_path: Path) -> None:
    file = tmp_path / "allow"
    file.write_text("# office\n192.0.2.0/24  # here\n\nnonsense\x1b[2J\n2001:db8::1\n")
    found, warnings = allowlist.read_allow_file(file)
    assert [str(entry.prefix) for entry in found] == ["192.0.2.0/24", "2001:db8::1"]
    assert len(warnings) == 1
    assert "line 4" in warnings[0]
    assert "\x1b" not in warnings[0]


def test_missing_allow_file_is_an_empty_one(tmp_path: Path) -> None:
    assert allowlist.read_allow_file(tmp_path / "none") == ([], [])
