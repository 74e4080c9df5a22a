"""Where everything lies: the installed copy, and the directories of the two processes.

The console runs as user `fwtop` and owns its sessions; the guardian runs as root and keeps its journal
in a directory of its own, because whoever owns a directory can swap what is in it.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # holds fwtop/, bpf/ and geoip/: a clone or the installed copy
BPF_DIRECTORY = ROOT / "bpf"
GEOIP_DIRECTORY = ROOT / "geoip"
BUILD_FILE = ROOT / "BUILD"  # hash of the installed program; a clone has none

INSTALL_DIRECTORY = Path("/usr/local/lib/fwtop")  # app/ and venv/, root's, readable by all
INSTALLED_APP = INSTALL_DIRECTORY / "app"
INSTALLED_PYTHON = INSTALL_DIRECTORY / "venv/bin/python"
COMMAND = Path("/usr/local/bin/fwtop")

CONSOLE_USER = "fwtop"  # system user without a shell and without a home
STATE_DIRECTORY = Path("/var/lib/fwtop")  # 0700, CONSOLE_USER's: session databases
GUARDIAN_DIRECTORY = Path("/var/lib/fwtop-guardian")  # 0700, root's
JOURNAL = GUARDIAN_DIRECTORY / "journal.db"
COSTS_FILE = Path("/var/lib/fwtop-costs.json")  # 0644, root's: what a packet costs here, see model/costs.py
RUN_DIRECTORY = Path("/run/fwtop")  # 0755, root's; sockets in it 0600: protocol.SOCKET_DIRECTORY
PIN_DIRECTORY = Path("/sys/fs/bpf/fwtop")


def build_id() -> str:
    """Return the hash of the installed program, or "clone" when run from a clone: `Hello.build`."""
    try:
        return BUILD_FILE.read_text(encoding="ascii").strip()[:64] or "clone"
    except (OSError, UnicodeDecodeError):
        return "clone"
