"""Helpers for end-to-end tests: the installed program on a lab, driven through tmux."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fwtop.lab.run import Lab

FWTOP = "/usr/local/bin/fwtop"
PPS = 30_000


def fwtop(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the installed program without a terminal."""
    return subprocess.run(
        [FWTOP, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def fwtop_json(*arguments: str, timeout: float = 120) -> Any:
    """Run a verb that must succeed and return the JSON document it prints."""
    done = fwtop(*arguments, timeout=timeout)
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stderr}\n{done.stdout[-2000:]}"
    return json.loads(done.stdout)


def in_netns(netns: str, *argv: str) -> str:
    """Run a program in a namespace and return its output."""
    return subprocess.run(
        ["ip", "netns", "exec", netns, *argv], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def kernel_state(netns: str) -> dict[str, str]:
    """Return all state that fwtop could change in a namespace, without counters and comments."""
    own_pins = Path(f"/sys/fs/bpf/fwtop/{os.stat(f'/run/netns/{netns}').st_ino}")
    shown = {
        "iptables": in_netns(netns, "iptables-save"),
        "ip6tables": in_netns(netns, "ip6tables-save"),
        "legacy": in_netns(netns, "iptables-legacy-save"),
        "legacy6": in_netns(netns, "ip6tables-legacy-save"),
        "ipset": in_netns(netns, "ipset", "save"),
        "nft": in_netns(netns, "nft", "-s", "list", "ruleset"),
        "qdisc": in_netns(netns, "tc", "qdisc", "show"),
        "links": in_netns(netns, "ip", "-d", "link", "show"),
        "bpffs": "\n".join(sorted(map(str, own_pins.glob("*")))),
    }
    return {name: _without_comments(text) for name, text in shown.items()}


def _without_comments(text: str) -> str:
    lines = [line.partition(" [")[0] for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(lines)


class Tmux:
    """A program in a tmux terminal of a given size."""

    def __init__(self, command: str, name: str, *, width: int = 200, height: int = 50) -> None:
        self.socket = f"fwtop-test-{os.getpid()}-{name}"
        self._tmux("new-session", "-d", "-s", "t", "-x", str(width), "-y", str(height), command)
        self._tmux("set-option", "-g", "remain-on-exit", "on")

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(
            ["tmux", "-L", self.socket, "-f", "/dev/null", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        ).stdout

    def keys(self, *keys: str) -> None:
        """Send keys by tmux's names."""
        self._tmux("send-keys", "-t", "t", *keys)

    def screen(self) -> str:
        """Return the visible text."""
        return self._tmux("capture-pane", "-p", "-t", "t")

    def wait_for(self, shown: str | Callable[[str], object], seconds: float = 120) -> str:
        """Wait until a text is on the screen (or a predicate of it holds) and return the screen."""
        end = time.monotonic() + seconds
        while True:
            screen = self.screen()
            if shown in screen if isinstance(shown, str) else shown(screen):
                return screen
            assert time.monotonic() < end, f"never on the screen: {shown}\n{screen}"
            time.sleep(0.2)

    def resize(self, width: int, height: int) -> None:
        """Resize the terminal."""
        self._tmux("resize-window", "-t", "t", "-x", str(width), "-y", str(height))

    def kill(self) -> None:
        """Kill the terminal and its program."""
        self._tmux("kill-server")


def console_pid(netns: str) -> int | None:
    """Return the pid of a namespace's console."""
    return _process_of(b"fwtop.console", netns)


def guardian_pid(netns: str) -> int | None:
    """Return the pid of a namespace's guardian."""
    return _process_of(b"fwtop.guardian", netns)


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


def rules(lab: Lab) -> list[dict[str, Any]]:
    return fwtop_json("status", "--json", "--all", "--netns", lab.victim)["mitigations"]


def rate_of(lab: Lab, source: str) -> float:
    """Packets of the watched source that have reached the victim's own firewall so far."""
    shown = subprocess.run(
        ["ip", "netns", "exec", lab.victim, "nft", "-j", "list", "chain", "inet", "probe", "input"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    rows = [item["rule"]["expr"] for item in json.loads(shown)["nftables"] if "rule" in item]
    assert len(rows) == 1, source
    return next(part["counter"]["packets"] for part in rows[0] if "counter" in part)


def watch_source(lab: Lab, source: str) -> Callable[[], bool]:
    """Install a foreign counter behind fwtop's chain; return a function that tells if packets pass."""
    text = (
        "table inet probe {\n chain input {\n type filter hook prerouting priority -150\n"
        f"ip saddr {source} counter\n }}\n}}\n"
    )
    subprocess.run(
        ["ip", "netns", "exec", lab.victim, "nft", "-f", "-"], input=text, text=True, check=True, timeout=60
    )
    last = [rate_of(lab, source)]

    def passes() -> bool:
        now = rate_of(lab, source)
        moved = now > last[0]
        last[0] = now
        return moved

    return passes


def block_selected(screen: Tmux) -> str:
    """Block the busiest source with the keys b and Enter; return its address."""
    screen.wait_for("protect against")
    screen.keys("]")  # to Traffic
    # The selection follows the busiest source until a key moves it: pin it first.
    screen.wait_for(lambda text: re.search(r"▸ \d+\.\d+\.\d+\.\d+", text))
    screen.keys("Home")
    screen.keys("b")
    shown = screen.wait_for("matches now")
    source = re.search(r"block (\d+\.\d+\.\d+\.\d+)", shown)
    assert source is not None, shown
    assert re.search(r"stops +\d", shown), shown
    assert re.search(r"clients hit +(\d|none)", shown), shown
    screen.wait_for("▸ Install")
    screen.keys("Enter")
    screen.wait_for("y keep")
    return source[1]
