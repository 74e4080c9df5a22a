"""Whom the allow-list protects: read from real processes and sockets of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fwtop.guardian.allow import allowlist
from fwtop.guardian.allow import found as logins
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.roles import AllowedPeer, Role
from fwtop.model.rule import Kind, Match, Rule
from fwtop.rehearsal.host import Host
from fwtop.rehearsal.rehearse import rehearse

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
    session = logins.Session(Prefix.parse("2001:db8::77"), 50000, 22)
    assert logins.operator_of(inner) == session


@pytest.mark.parametrize(
    ("value", "peer"),
    [
        ("::ffff:192.0.2.9 1 ::ffff:192.0.2.1 3", "192.0.2.9"),
        ("fe80::1%eth0 1 fe80::2%eth0 3", "fe80::1"),
    ],
)
def test_operator_is_normalised(child, value: str, peer: str) -> None:
    process = child(sys.executable, "-c", SLEEP, env={"SSH_CONNECTION": value})
    assert logins.operator_of(process.pid) == logins.Session(Prefix.parse(peer), 1, 3)


@pytest.mark.parametrize(
    "value",
    ["", "nonsense", "0.0.0.0/0 1 2 3", "192.0.2.1 0 192.0.2.2 22", "192.0.2.1 x 192.0.2.2 22", "\x1b[2J"],
)
def test_forged_environment_adds_nobody(child, value: str) -> None:
    process = child(sys.executable, "-c", SLEEP, env={"SSH_CONNECTION": value})
    assert logins.operator_of(process.pid) is None


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
        peers = [item for _, item in logins.ssh_sessions(logins.ssh_daemons()) if item.peer_port == port]
    assert bool(peers) == logged_in


DROPBEAR = (
    "import ctypes, subprocess, socket, sys\n"
    "ctypes.CDLL(None).prctl(15, b'dropbear')\n"
    "peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
    "shell = subprocess.Popen(['sleep', '60']) if sys.argv[2] == 'shell' else None\n"
    "while shell and open(f'/proc/{shell.pid}/comm').read() != 'sleep\\n': pass\n"
    "print('ready', flush=True); sys.stdin.read(); shell and shell.kill()\n"
)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read other processes' sockets")
@pytest.mark.parametrize(("stage", "logged_in"), [("shell", True), ("before", False)])
def test_dropbear_trusts_nobody_before_a_login(child, stage: str, logged_in: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        child("dropbear", "-c", DROPBEAR, str(port), stage, executable=sys.executable)
        found = [item for _, item in logins.ssh_sessions(logins.ssh_daemons()) if item.peer_port == port]
    assert bool(found) == logged_in


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read other processes' sockets")
def test_no_session_is_one_too_many(child) -> None:
    text = SESSION.replace("peer =", "peers = [").replace("[1])))", "[1]))) for _ in range(70)]")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        port = server.getsockname()[1]
        child("sshd: root@pts/0", "-c", text, str(port), executable=sys.executable)
        assert sum(item.peer_port == port for _, item in logins.ssh_sessions(logins.ssh_daemons())) == 70


def test_later_operators_are_noted_too() -> None:
    operators: dict[logins.Session, float] = {}
    many = [logins.Session(Prefix(4, 10 << 24 | number, 32), 40000, 22) for number in range(2000)]
    for session in many:
        logins.note_operator(operators, session)
    assert many[-1] in operators
    assert many[0] not in operators
    assert len(operators) == 1024


def test_what_passes_says_ports_and_no_more() -> None:
    session = logins.Session(Prefix.parse("192.0.2.9"), 40000, 22)
    found = allowlist.AllowList(
        (
            AllowedPeer(Prefix.parse("192.0.2.0/28"), reason="file"),
            session.allowed("ssh"),
            AllowedPeer(Prefix.parse("192.0.2.53"), Role.DNS, reason="resolver"),
            AllowedPeer(Prefix.parse("2001:db8::123"), Role.NTP, reason="time"),
            AllowedPeer(Prefix.parse("192.0.2.99"), Role.OWN, reason="own"),
            AllowedPeer(Prefix.parse("192.0.2.1"), Role.GATEWAY, reason="gateway"),
        )
    )
    four, six = found.passes(4), found.passes(6)
    assert [str(prefix) for prefix in four.networks] == ["192.0.2.0/28"]
    assert [(str(who), *port) for who, *port in four.peers] == [
        ("192.0.2.1", 6, 179),
        ("192.0.2.1", 17, 67),
        ("192.0.2.9", 6, 40000),
        ("192.0.2.53", 6, 53),
        ("192.0.2.53", 17, 53),
    ]
    assert [str(prefix) for prefix in four.gateways] == ["192.0.2.1"]
    assert [(str(who), *port) for who, *port in six.peers] == [("2001:db8::123", 17, 123)]
    assert [entry.tier for entry in found.entries] == ["operator", *["found"] * 5]


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


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_told_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "allow")
    found, (warning,) = allowlist.read_allow_file(tmp_path / "allow")
    assert not found
    assert "allow is ignored (" in warning


MOSH = (
    "import ctypes, socket, sys; ctypes.CDLL(None).prctl(15, b'mosh-server')\n"
    "held = socket.socket(fileno=int(sys.argv[1])); print('ready', flush=True); sys.stdin.read()"
)


def test_a_rule_that_cuts_a_mosh_session_says_so(child) -> None:
    peer = Prefix.parse("203.0.113.9")
    session = logins.Session(peer, 40000, 22)
    allow = allowlist.AllowList((session.allowed("ssh"),))

    host = Host(allow, mosh_ports=logins.mosh_ports)

    def said(*sources: str, **fields: int) -> tuple[str, ...]:
        match = Match(sources=tuple(map(Prefix.parse, sources)), **fields)
        return rehearse(Rule("", Kind.XDP, match, "x", 60), host).warnings

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        child(sys.executable, "-c", MOSH, str(held.fileno()), pass_fds=[held.fileno()])
        cuts = (said(), said(protocol=17), said(dport=port), said("203.0.113.0/24"))
        assert all(str(port) in lines[0] for lines in cuts)
        spares = (said(protocol=6), said(protocol=17, dport=53), said(protocol=17, sport=53))
        assert set((*spares, said("192.0.2.0/24"))) == {()}


def test_the_file_that_is_installed_lists_nobody_and_its_examples_are_right(tmp_path: Path) -> None:
    shipped = Path("scripts/files/allow").read_text()
    (tmp_path / "shipped").write_text(shipped)
    assert allowlist.read_allow_file(tmp_path / "shipped") == ([], [])
    examples = [line.removeprefix("# ") for line in shipped.splitlines() if line.count("#") == 2]
    (tmp_path / "examples").write_text("\n".join(examples))
    found, warnings = allowlist.read_allow_file(tmp_path / "examples")
    assert (len(found), warnings) == (2, [])
