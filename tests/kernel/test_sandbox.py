"""A program in the console's place tries what an attacker who took it over would try: each attempt fails."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import pty
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guardian_bench import Bench, apply

from fwtop.live.mapped import CounterMaps
from fwtop.model.addresses.address import Prefix
from fwtop.model.protocol import Apply, Plan, Rescan, Symbols, Watch
from fwtop.model.rule import Kind, Match, Rule
from fwtop.observe.messages import HELD, NO_INTERFACE, SCOPE_WORDS, scope_bytes
from tests.kernel.wire import mac, send_frames

pytestmark = pytest.mark.kernel
CLONE = Path(__file__).resolve().parents[2]
Poll = Callable[..., Any]
DENIED = {errno.EPERM, errno.EACCES, errno.ENOSYS}
BROAD = Rule("", Kind.IPSET, Match(sources=(Prefix.parse("12.0.0.0/7"),)), "x", 600)


def tried(profile: str) -> dict[str, Any]:
    """Run the attempts on a terminal of their own and return what came of them."""
    reading, writing = os.pipe()
    child, terminal = pty.fork()
    if child == 0:
        os.dup2(0, 3)
        os.dup2(writing, 1)
        os.chdir(CLONE)
        command = [sys.executable, "-m", "tests.kernel.sandbox_attempts", profile]
        os.execv(command[0], command)  # noqa: S606
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    found: dict[str, Any] = json.loads(text) if text else {}
    try:
        if found:
            with contextlib.suppress(ProcessLookupError):  # reaped by another init
                os.kill(found["sibling"], signal.SIGKILL)
        assert status == 0, os.read(terminal, 1 << 16).decode()
    finally:
        os.close(terminal)
    return found


@pytest.mark.parametrize("profile", ["console", "server", "reader", "verifier", "dissector"])
def test_every_attempt_to_get_out_of_the_sandbox_fails(profile: str) -> None:
    found = tried(profile)
    done = {name for name, code in found["after"].items() if code not in DENIED}
    # ssh-keygen looks its user up
    assert done == ({"read another's file"} if profile == "verifier" else set())
    needed = found["works"]
    if profile == "dissector":
        assert set(needed.values()) <= DENIED
        return
    missing = {name for name, code in needed.items() if code in DENIED}
    of_console = set() if profile in ("console", "server") else {"links", "connections", "bpf lookup"}
    assert missing == of_console | ({"session", "crash log"} if profile == "verifier" else set())


def test_without_the_sandbox_the_attempts_would_succeed() -> None:
    before = tried("reader")["before"]
    if Path("/proc/sys/dev/tty/legacy_tiocsti").read_text().strip() == "0":
        del before["TIOCSTI"]  # this kernel denies it to everybody but root
    if Path("/proc/sys/kernel/yama/ptrace_scope").exists():
        del before["pidfd_getfd"]
    assert set(before.values()) == {0}


def test_the_dissector_can_not_reach_the_console_even_before_its_sandbox() -> None:
    assert tried("dissector")["before"]["pidfd_getfd"] in DENIED


def test_a_console_can_not_force_a_broad_rule(bench: Bench) -> None:
    with bench.connect(role="console") as console:
        answer = console.request(Apply(BROAD.to_dict(), 30, force=True))
        assert not answer.ok
        assert "console_may_force" in answer.error
        assert "--force" in console.demand(Plan(BROAD.to_dict())).data["refused"]


def test_the_operators_file_lets_a_console_force(bench: Bench) -> None:
    (bench.directory / "guard.toml").write_text("console_may_force = true\n")
    with bench.connect(role="console") as console:
        plan = console.demand(Plan(BROAD.to_dict())).data
        assert plan["refused"] is None
        assert plan["needs_force"]
        assert apply(console, BROAD, 30, force=True)


def test_root_keeps_what_would_widen_a_consoles_view(bench: Bench, poll_until: Poll) -> None:
    victim = bench.pair.victim
    with bench.connect(role="console") as console:
        answer, descriptors = console.watch(Watch((victim.interface,)))
        try:
            names = answer.data["fds"]
            assert "kallsyms" not in names
            assert not [name for name in names if name.startswith(HELD) or "scope" in name]
            size = scope_bytes(answer.data["max_watched"])
            sizes = {value_size(os.getpid(), descriptor) for descriptor in descriptors}
            assert size not in sizes
            scope = guardians_map(int(console.about["pid"]), size)
            with mmap.mmap(scope, mmap.PAGESIZE) as seen:
                before = watched(seen, answer.data["max_watched"])
                assert before == [item["index"] for item in answer.data["interfaces"]]
                victim.run("ip", "link", "delete", victim.interface)
                victim.run("ip", "link", "add", victim.interface, "type", "veth", "peer", "name", "other0")
                console.demand(Rescan())
                poll_until(lambda: watched(seen, answer.data["max_watched"]) not in ([], before))
            os.close(scope)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def test_a_console_learns_which_functions_drop_packets_but_no_kernel_address(
    bench: Bench, poll_until: Poll
) -> None:
    """An IGMP report for a group without members is freed by igmp_rcv, without a reason."""
    pair = bench.pair
    report = bytes.fromhex("4500001c000100000102a5430a4d00020a4d0001160009f6e0000009")
    with bench.connect(role="console") as console:
        assert console.demand(Symbols()).data["names"] == [], "it watches nothing"
        answer, descriptors = console.watch(Watch((pair.victim.interface,)))
        assert answer.ok, answer.error
        fds = dict(zip(answer.data["fds"], descriptors, strict=True))
        maps = CounterMaps(
            fds["counters"], fds["control"], cpus=answer.data["cpus"], reasons=answer.data["reason_slots"]
        )
        maps.enable()

        def functions() -> list[str]:
            send_frames(pair.attacker, mac(pair.victim) + bytes(6) + b"\x08\x00" + report, times=3)
            return [name for name in console.demand(Symbols()).data["names"] if name]

        assert poll_until(lambda: "igmp_rcv" in functions(), every_s=0.2)
        assert maps.totals().locations
        words = maps._counters.copy().view(np.uint64)
        assert not (words >> np.uint64(48) == 0xFFFF).any(), "a kernel address"
        maps.close()
        for descriptor in descriptors:
            os.close(descriptor)


def value_size(pid: int, descriptor: int) -> int:
    """Return the size of a BPF map's value behind a process's descriptor, 0 for what is no map."""
    info = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text()
    found = re.search(r"^value_size:\t(\d+)$", info, re.M)
    return int(found[1]) if found else 0


def guardians_map(pid: int, size: int) -> int:
    """Take a map out of the guardian, as only root can."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.pidfd_open(pid)
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                if value_size(pid, int(entry.name)) == size:
                    return int(libc.syscall(438, handle, int(entry.name), 0))  # pidfd_getfd
    finally:
        os.close(handle)
    raise AssertionError("the guardian holds no such map")


def watched(scope: mmap.mmap, places: int) -> list[int]:
    """Read the watched interfaces out of struct fwtop_scope."""
    return [
        index for index in struct.unpack_from(f"<{places}I", scope, 4 * SCOPE_WORDS) if index != NO_INTERFACE
    ]


def held_by_children(pid: int) -> set[str]:
    """Name the open files of a process's children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = set()
    for link in (link for child in children for link in Path(f"/proc/{child}/fd").iterdir()):
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(link))
    return found


def test_recording_holds_nothing_of_its_shell_and_ends_on_signals_that_come_together(bench: Bench) -> None:
    program = "import sys; from fwtop.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ("record", "--netns", bench.netns, "--interface", bench.pair.victim.interface)
    with open("/etc/shadow") as roots:
        recording = subprocess.Popen(
            [sys.executable, "-c", program, *words],
            cwd=CLONE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[roots.fileno()],
        )
    assert recording.stderr is not None
    with recording.stderr:
        assert b"recording session" in recording.stderr.readline()
        held = held_by_children(recording.pid)
        assert "anon_inode:bpf-map" in held
        assert "/etc/shadow" not in held
        for _ in range(3):  # as `systemctl stop` does: the launcher passes on what the console gets, too
            os.killpg(recording.pid, signal.SIGTERM)
        assert recording.wait(20) == 0
