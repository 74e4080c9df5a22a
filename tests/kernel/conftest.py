"""Real network namespaces for the kernel tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

import pytest
from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

    from guardian_bench import Bench

    from fwtop.lab.run import Lab
    from tests.kernel.whole import Tmux

_serial = count()
_LOCKING = {
    f"{family}tables{variant}{verb}"
    for family in ("ip", "ip6")
    for variant in ("", "-legacy", "-nft")
    for verb in ("", "-restore")
}


def ip(*words: str, batch: Iterable[str] = ()) -> str:
    """Run one `ip` command that must succeed, or with `-batch -` several."""
    done = subprocess.run(
        ["ip", *words], input="\n".join(batch), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


class Host(Struct, frozen=True):
    """One end of the pair: a namespace with one interface and an address of either family."""

    netns: str
    interface: str
    ipv4: str
    ipv6: str

    def run(self, *argv: str, timeout: float = 60, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program inside the namespace; iptables waits for the lock that the whole machine shares."""
        if argv[0] in _LOCKING:
            argv = (argv[0], "-w", "60", *argv[1:])  # without seconds, a file name would be taken for them
        done = subprocess.run(
            ["ip", "netns", "exec", self.netns, *argv],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.stderr.strip()}"
        return done


class NetnsPair(Struct, frozen=True):
    """Two hosts on one wire; neither has a way to anywhere else."""

    victim: Host
    attacker: Host


@contextmanager
def made_pair() -> Iterator[NetnsPair]:
    """Two namespaces joined by a veth pair, until the block ends."""
    stem = f"fwt{os.getpid()}-{next(_serial)}"
    victim = Host(f"{stem}v", "v0", "10.77.0.1", "fd77::1")
    attacker = Host(f"{stem}a", "a0", "10.77.0.2", "fd77::2")
    try:
        ip("-batch", "-", batch=[f"netns add {host.netns}" for host in (victim, attacker)])
        # Numbers of namespaces come again, and pins of a killed guardian may stand under one.
        for host in (victim, attacker):
            number = os.stat(f"/run/netns/{host.netns}").st_ino
            shutil.rmtree(f"/sys/fs/bpf/fwtop/{number}", ignore_errors=True)
        made = [f"link add v0 type veth peer name a0 netns {attacker.netns}"]
        for host in (victim, attacker):
            addresses = [
                f"address add {host.ipv4}/24 dev {host.interface}",
                f"address add {host.ipv6}/64 dev {host.interface} nodad",
            ]
            up = [f"link set {name} up" for name in ("lo", host.interface)]
            ip("-n", host.netns, "-batch", "-", batch=[*made, *addresses, *up])
            made = []
        yield NetnsPair(victim, attacker)
    finally:
        for host in (victim, attacker):
            subprocess.run(
                ["ip", "netns", "delete", host.netns], capture_output=True, timeout=60, check=False
            )


@pytest.fixture(scope="session", autouse=True)
def _forked_processes() -> Iterator[None]:
    from tests.kernel.nursery import forked_processes

    with forked_processes():
        yield


@pytest.fixture
def netns_pair() -> Iterator[NetnsPair]:
    """Victim 10.77.0.1 and attacker 10.77.0.2 (fd77::1, fd77::2), joined by a veth pair."""
    with made_pair() as pair:
        yield pair


@pytest.fixture(scope="module")
def shared_pair() -> Iterator[NetnsPair]:
    """The same for all tests of a file: for those that leave nothing behind and find nothing but that."""
    with made_pair() as pair:
        yield pair


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A guardian for a victim, with records and sockets of its own: a `BENCH` of the file's choice.

    The victim is the test's own, or with `PAIR = "shared_pair"` the file's: then all rules are undone after
    each test, also one that failed.
    """
    from guardian_bench import Bench

    from fwtop.model.protocol import Undo

    pair = getattr(request.module, "PAIR", "netns_pair")
    made = getattr(request.module, "BENCH", Bench)(request.getfixturevalue(pair), tmp_path)
    try:
        yield made
        if pair == "shared_pair":
            with made.connect() as guardian:
                guardian.demand(Undo(all=True))
    finally:
        made.close()


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A victim with clients and 20 attackers that wait for their start; its rules are taken back."""
    from fwtop.lab.run import Lab
    from tests.kernel.whole import fwtop

    with Lab("few_sources") as running:
        yield running
        fwtop("undo", "--all", "--netns", running.victim)


@pytest.fixture
def screen(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Tmux]:
    """fwtop's screen on a victim that is being flooded, with `PPS` of the file's choice."""
    from tests.kernel.whole import PPS, Tmux

    lab.start_flood(getattr(request.module, "PPS", PPS))
    command = f"SSH_CONNECTION='{lab.ssh_connection}' fwtop --netns {lab.victim}"
    terminal = Tmux(f"{command}; echo ended with $?; stty -a; echo that was all; sleep 600", lab.victim)
    yield terminal
    terminal.kill()
