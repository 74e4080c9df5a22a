"""A victim with a guardian of its own state, and packets to try it with."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
from msgspec import Struct, field

from fwtop.client import discovery as client
from fwtop.client.discovery import GuardianClient
from fwtop.guardian.failpoints import Failpoint
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import Apply, Keep, Status, Undo
from fwtop.model.rule import Kind, Match, Rule
from tests.kernel.wire import arrives, inside, let_arrive

PORT = 5353
VARIANTS = ("nft", "legacy")
SOON_SECONDS = (
    12  # a deadline that is not over before one has looked, or killed a guardian, on a busy machine
)


class Path4or6:
    """UDP from the attacker to the victim over one family."""

    def __init__(self, pair, family: int, port: int = PORT) -> None:
        self.family = family
        kind = socket.AF_INET if family == 4 else socket.AF_INET6
        address = pair.victim.ipv4 if family == 4 else pair.victim.ipv6
        with inside(pair.victim.netns):
            self.receiver = socket.socket(kind, socket.SOCK_DGRAM)
        self.receiver.bind((address, port))
        with inside(pair.attacker.netns):
            self.sender = socket.socket(kind, socket.SOCK_DGRAM)
        self.sender.connect((address, port))
        self.serial = 0

    def send(self, payload: bytes = b"") -> bytes:
        self.serial += 1
        message = payload + b"#%d" % self.serial
        self.sender.send(message)
        return message

    def passes(self, payload: bytes = b"", wait_s: float = 0.15) -> bool:
        """Say whether a packet sent now arrives within `wait_s`."""
        return arrives(self.receiver, self.send(payload), wait_s)

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()


class Bench(Struct):
    """A guardian for one victim, with its own records and sockets."""

    pair: object
    directory: Path
    pids: set[int] = field(default_factory=set)
    paths: dict[int, Path4or6] = field(default_factory=dict)
    allow: str = ""
    state_directory: Path | None = None  # None: `directory`
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def netns(self) -> str:
        return self.pair.victim.netns

    def arguments(self, crash_at: str | None = None) -> tuple[str, ...]:
        (self.directory / "allow").write_text(self.allow)
        base = (
            "--state-directory",
            str(self.state_directory or self.directory),
            "--allow-file",
            str(self.directory / "allow"),
            "--limits-file",
            str(self.directory / "guard.toml"),
        )
        return (*base, "--crash-at", crash_at) if crash_at else base

    def connect(self, role: str = "cli", *, crash_at: str | None = None, **options) -> GuardianClient:
        found = client.connect(
            role=role,
            netns=self.netns,
            run_directory=self.directory,
            guardian_arguments=self.arguments(crash_at),
            **options,
        )
        self.pids.add(int(found.about["pid"]))
        return found

    def path(self, family: int) -> Path4or6:
        if family not in self.paths:
            self.paths[family] = Path4or6(self.pair, family)
        return self.paths[family]

    def attacker(self, family: int) -> str:
        return self.pair.attacker.ipv4 if family == 4 else self.pair.attacker.ipv6

    def block_rule(self, *families: int, ttl: int = 600) -> Rule:
        sources = tuple(Prefix.parse(self.attacker(family)) for family in families)
        return Rule("", Kind.IPSET, Match(sources=sources), "block the attacker", ttl)

    def kill_guardian(self) -> None:
        with self.connect() as guardian:
            pid = int(guardian.about["pid"])
        self.kill_guardian_of(pid)

    def kill_guardian_of(self, pid: int) -> None:
        kill(pid)
        self.pids.discard(pid)

    def state(self) -> dict[str, str]:
        """Return all that undo must leave as it was."""
        commands = [f"{name}-{kind}-save" for name in ("iptables", "ip6tables") for kind in VARIANTS]
        texts = {command: self.pair.victim.run(command).stdout for command in commands}
        texts["ipset"] = self.pair.victim.run("ipset", "save").stdout
        texts["nft"] = self.pair.victim.run("nft", "list", "ruleset").stdout
        return {name: normal(text) for name, text in texts.items()}

    def settled(self, before: dict[str, str]) -> dict[str, str]:
        """Return the state once it is as before, or as it is after ten seconds.

        The kernel detaches a program some time after the last reference to its link is gone, by RCU.
        """
        end = time.monotonic() + 10
        while (now := self.state()) != before and time.monotonic() < end:
            time.sleep(0.05)
        return now

    def watchdogs(self) -> list[int]:
        """Return the shells that wait for a guardian of ours to die."""
        return [pid for pid, words in self._processes() if b"fwtop-watchdog" in words]

    def the_watchdog(self, poll_until: Callable[..., object]) -> int:
        """Wait until there is exactly one; a process that has just begun one has no command line yet."""
        poll_until(lambda: len(self.watchdogs()) == 1)
        return self.watchdogs()[0]

    def guardians(self) -> list[int]:
        """Return our guardians that run, connected to or not."""
        return [pid for pid, words in self._processes() if b"fwtop-watchdog" not in words]

    def streams(self) -> list[int]:
        """Return our servers of the stream for programs."""
        return [pid for pid, _ in self._processes(b"fwtop.api.main")]

    def serve_stream(self, poll_until: Callable[..., object]) -> subprocess.Popen[bytes]:
        """Have the stream served: a guardian does so only where others than root have access."""
        arguments = [f"--run-directory={self.directory}", *self.arguments()]
        argv = ["ip", "netns", "exec", self.netns, sys.executable, "-m", "fwtop.api.main", *arguments]
        self.servers.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        poll_until((self.directory / f"api-{self.netns}.sock").exists)
        return self.servers[-1]

    def _processes(self, module: bytes = b"fwtop.guardian") -> list[tuple[int, bytes]]:
        """Return the processes that were told to use our directory, with their command lines."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if module in words and str(self.directory).encode() in words:
                    found.append((int(entry.name), words))
        return [(pid, words) for pid, words in found if not ended(pid)]

    def close(self) -> None:
        for path in self.paths.values():
            path.close()
        for server in self.servers:  # first what would start another guardian
            server.kill()
            server.wait()
        for pid in [*self.streams(), *self.pids]:
            kill(pid)
        for pid, _ in self._processes():  # watchdogs, and the guardians that they started
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def answers(bench: Bench, family: int, echo: int, wait_s: float = 0.3) -> bool:
    """Send an echo request (its type as `echo`) and say whether the reply comes within `wait_s`."""
    kind, protocol = (socket.AF_INET, 1) if family == 4 else (socket.AF_INET6, 58)
    head = struct.pack("!BBHHH", echo, 0, 0, 1, 1)
    check = 0xFFFF & ~sum(struct.unpack("!4H", head))
    with inside(bench.pair.attacker.netns):
        sock = socket.socket(kind, socket.SOCK_RAW, protocol)
    with sock:
        sock.connect((bench.pair.victim.ipv4 if family == 4 else bench.pair.victim.ipv6, 0))
        sock.send(head[:2] + struct.pack("!H", check) + head[4:])
        for wait in (wait_s, 0.0):
            sock.settimeout(wait)
            with suppress(TimeoutError, BlockingIOError):
                while sock.recv(100)[20 if family == 4 else 0] != (0 if family == 4 else 129):
                    pass
                return True
            let_arrive()
        return False


@contextmanager
def tcp_connection(bench: Bench, family: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Connect the attacker to the victim: its end, and the victim's."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    address = bench.pair.victim.ipv4 if family == 4 else bench.pair.victim.ipv6
    with inside(bench.netns):
        server = socket.create_server((address, 8080), family=kind)
    with server:
        with inside(bench.pair.attacker.netns):
            client = socket.create_connection((address, 8080), timeout=60)
        connection, _ = server.accept()
        connection.settimeout(60)
        with client, connection:
            yield client, connection


def normal(saved: str) -> str:
    """Take times of day, packet counts and the seconds that entries have left out of a saved rule set."""
    lines = [line for line in saved.splitlines() if not line.startswith("#")]
    counted = re.sub(r"\[\d+:\d+\]|packets \d+ bytes \d+", "[]", "\n".join(lines))
    return re.sub(r"^(add .* timeout) [1-9]\d*", r"\1 []", counted, flags=re.MULTILINE)


def kill(pid: int) -> None:
    """End a guardian or a server of ours with SIGKILL and wait until it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"fwtop.guardian" not in words and b"fwtop.api.main" not in words:
            return
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return
    end = time.monotonic() + 60
    while not ended(pid):
        assert time.monotonic() < end, f"guardian {pid} survived SIGKILL"
        time.sleep(0.005)


def ended(pid: int) -> bool:
    """Say whether a process is over, collected by its parent or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def apply(guardian: GuardianClient, rule: Rule, confirm_seconds: int = 0, *, force: bool = False) -> str:
    """Install a rule and return its id."""
    answer = guardian.demand(Apply(rule.to_dict(), confirm_seconds, force=force))
    return answer.data["status"]["rule"]["id"]


LIVES = (1, 8, 40)  # seconds, tried one after the other


def seen_in_time(install: Callable[[int], object], look: Callable[[], bool]) -> bool:
    """Say what `look` sees while what `install` made for that many seconds lasts.

    A look that came later proves nothing: on a busy machine a longer life is tried.
    """
    for seconds in LIVES:
        began = time.monotonic()
        install(seconds)
        seen = look()
        if time.monotonic() - began < seconds:
            return seen
    raise AssertionError(f"it took more than {LIVES[-1]} s to install and to look")


def crash_within_life(bench: Bench, rule: Rule, point: Failpoint) -> None:
    """Install, confirm and undo a rule with a guardian that dies at a step; the next one undoes the rest."""

    def live(guardian: GuardianClient) -> None:
        rule_id = apply(guardian, rule, 300)
        guardian.demand(Keep(rule_id, 600))
        guardian.demand(Undo((rule_id,)))

    doomed = bench.connect(crash_at=point.value)
    with doomed, pytest.raises(FwtopError, match="ended before it answered"):
        live(doomed)
    with bench.connect() as guardian:
        for rule_id in rules_of(guardian):
            guardian.demand(Undo((rule_id,)))
        assert not rules_of(guardian)


def use_variant(bench: Bench, variant: str) -> None:
    """Lay down foreign rules of one variant, so that it is the one in use; its raw table exists."""
    for program in (f"iptables-{variant}", f"ip6tables-{variant}"):
        bench.pair.victim.run(
            program, "-t", "raw", "-A", "PREROUTING", "-p", "tcp", "--dport", "9", "-j", "DROP"
        )
        bench.pair.victim.run(program, "-A", "INPUT", "-p", "tcp", "--dport", "7", "-j", "ACCEPT")


def rules_of(guardian: GuardianClient, *, finished: bool = False) -> dict[str, dict]:
    """Return status entries by rule id."""
    rules = guardian.demand(Status(finished=finished)).data["rules"]
    return {item["rule"]["id"]: item for item in rules}


@contextmanager
def own_xtables_lock(bench: Bench) -> Iterator[IO[str]]:
    """Start a guardian whose iptables-legacy has a lock of its own: the machine's holds up other tests."""
    lock = bench.directory / "xtables.lock"
    lock.touch()
    Path("/run/xtables.lock").touch()
    script = f'mount --bind {lock} /run/xtables.lock && exec "$0" "$@"'
    with run_console(bench, "", ("unshare", "--mount", "sh", "-c", script)) as console, lock.open() as held:
        yield held
        console.communicate("")


def run_console(bench: Bench, program: str, before: tuple[str, ...] = ()) -> subprocess.Popen:
    """Start a process that connects as a console, does `program` with `guardian`, says ready and waits.

    `before` comes before its argv: a program that starts another one.
    """
    text = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from fwtop.client import discovery as client\n"
        "from fwtop.model.protocol import Apply\n"
        "from fwtop.model.rule import *\nfrom fwtop.model.addresses.address import Prefix\n"
        "guardian = client.connect(role='console', netns=sys.argv[2], run_directory=Path(sys.argv[3]),\n"
        "                          guardian_arguments=tuple(sys.argv[4:]))\n"
        f"{program}\nprint('ready', flush=True)\nsys.stdin.read()\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    import sys

    console = subprocess.Popen(
        [*before, sys.executable, "-c", text, root, bench.netns, str(bench.directory), *bench.arguments()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert console.stdout is not None
    assert console.stdout.readline() == "ready\n"
    return console


def lingering() -> tuple[socket.socket, socket.socket]:
    """Return a connection with unsent data whose last close waits an hour, and its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    sender.setblocking(False)
    while select.select([], [sender], [], 0.5)[1]:
        with suppress(BlockingIOError):
            sender.send(bytes(1 << 16))
    sender.setblocking(True)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return sender, receiver


def peer_process(sock: socket.socket) -> int:
    """Return who listens at the other end."""
    pid: int = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid
