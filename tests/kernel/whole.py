"""The whole program on a lab of its own: helpers of the tests that issue 2 calls "must show"."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FWTOP = "/usr/local/bin/fwtop"


def fwtop(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the installed program without a terminal."""
    return subprocess.run(
        [FWTOP, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def fwtop_json(*arguments: str, timeout: float = 60) -> Any:
    """Run a verb that succeeds and return the JSON document that it printed."""
    done = fwtop(*arguments, timeout=timeout)
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stderr}\n{done.stdout[-2000:]}"
    return json.loads(done.stdout)


def in_netns(netns: str, *argv: str) -> str:
    """Run a program inside a namespace and return what it printed."""
    return subprocess.run(
        ["ip", "netns", "exec", netns, *argv], capture_output=True, text=True, timeout=20, check=True
    ).stdout


def kernel_state(netns: str) -> dict[str, str]:
    """Return everything that fwtop could have changed in a namespace, counters and comments left out."""
    shown = {
        "iptables": in_netns(netns, "iptables-save"),
        "ip6tables": in_netns(netns, "ip6tables-save"),
        "legacy": in_netns(netns, "iptables-legacy-save"),
        "legacy6": in_netns(netns, "ip6tables-legacy-save"),
        "ipset": in_netns(netns, "ipset", "save"),
        "nft": in_netns(netns, "nft", "-s", "list", "ruleset"),
        "qdisc": in_netns(netns, "tc", "qdisc", "show"),
        "links": in_netns(netns, "ip", "-d", "link", "show"),
        "bpffs": "\n".join(sorted(str(path) for path in Path("/sys/fs/bpf").glob("*"))),
    }
    return {name: _without_comments(text) for name, text in shown.items()}


def _without_comments(text: str) -> str:
    lines = [line.partition(" [")[0] for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(lines)


class Tmux:
    """A program in a terminal of given size, driven by keys."""

    def __init__(self, command: str, name: str, *, width: int = 200, height: int = 50) -> None:
        self.socket = f"fwtop-test-{os.getpid()}-{name}"
        self._tmux("new-session", "-d", "-s", "t", "-x", str(width), "-y", str(height), command)
        self._tmux("set-option", "-g", "remain-on-exit", "on")

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self.socket, "-f", "/dev/null", *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        ).stdout

    def keys(self, *keys: str) -> None:
        """Send keys by tmux's names."""
        self._tmux("send-keys", "-t", "t", *keys)

    def screen(self) -> str:
        """Return the visible text."""
        return self._tmux("capture-pane", "-p", "-t", "t")

    def wait_for(self, shown: str | Callable[[str], object], seconds: float = 30) -> str:
        """Wait until a text is on the screen (or a predicate holds) and return the screen."""
        end = time.monotonic() + seconds
        while True:
            screen = self.screen()
            if shown in screen if isinstance(shown, str) else shown(screen):
                return screen
            assert time.monotonic() < end, f"never on the screen: {shown}\n{screen}"
            time.sleep(0.05)

    def resize(self, width: int, height: int) -> None:
        """Give the terminal another size."""
        self._tmux("resize-window", "-t", "t", "-x", str(width), "-y", str(height))

    def kill(self) -> None:
        """End the terminal with everything in it."""
        self._tmux("kill-server")


def console_pid(netns: str) -> int | None:
    """Find the console process that works in a namespace."""
    return _process_of(b"fwtop.console", netns)


def guardian_pid(netns: str) -> int | None:
    """Find the guardian of a namespace."""
    return _process_of(b"fwtop.mitigate.guardian", netns)


def _process_of(module: bytes, netns: str) -> int | None:
    wanted = os.stat(f"/run/netns/{netns}").st_ino
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if module in command and os.stat(entry / "ns/net").st_ino == wanted:
                return int(entry.name)
        except OSError:
            continue
    return None
