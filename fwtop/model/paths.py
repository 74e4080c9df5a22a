"""Paths of the installed copy and of the state of both processes.

The console runs as user `fwtop` and owns its sessions. The guardian, running as root, keeps policies in a
directory of its own, because the owner of a directory can replace the files in it.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # holds fwtop/, bpf/ and geoip/: a clone or the installed copy
BPF_DIRECTORY = ROOT / "bpf"
GEOIP_DIRECTORY = ROOT / "geoip"
BUILD_FILE = ROOT / "BUILD"  # hash of the installed program; absent in a clone

INSTALL_DIRECTORY = Path("/usr/local/lib/fwtop")  # app/ and venv/; owned by root, readable by all
INSTALLED_APP = INSTALL_DIRECTORY / "app"
INSTALLED_PYTHON = INSTALL_DIRECTORY / "venv/bin/python"
COMMAND = Path("/usr/local/bin/fwtop")

CONSOLE_USER = "fwtop"  # system user without a shell or home directory
DISSECTOR_USER = "fwtop-dissect"  # likewise; the process that runs scapy
FLEET_USER = "fwtop-fleet"  # likewise; the fleet's node on this machine
BROKER_USER = "fwtop-broker"  # likewise; a server of the fleet (nats-server)
VERIFIER_USER = "fwtop-verify"  # likewise; the one that verifies operators' signatures
STATE_DIRECTORY = Path("/var/lib/fwtop")  # 0700, owned by CONSOLE_USER: session databases
GUARDIAN_DIRECTORY = Path("/var/lib/fwtop-guardian")  # 0700, owned by root
ALARMS_DIRECTORY = Path("/var/lib/fwtop-alarms")  # 0711, owned by root; a user's undelivered alarms in each
COSTS_FILE = Path("/var/lib/fwtop-costs.json")  # 0644, owned by root: see rules/costs.py
RUN_DIRECTORY = Path("/run/fwtop")  # 0755, owned by root; sockets in it are 0600
SERVICE_UNIT = Path("/usr/local/lib/systemd/system/fwtop.service")  # the recorder
GUARDIAN_UNIT = "fwtop-guardian-"  # begins the names of guardians' cgroups, scopes and units
MACHINE_FILE = "machine.toml"  # in `fleet_directory`: this machine belongs to a fleet
SSH_KEYGEN = Path("/usr/bin/ssh-keygen")
CONFIGURATION = Path("/etc/fwtop")  # the operator's, like all in it
SYSTEMD_BOOTED = Path("/run/systemd/system")  # sd_booted(3)
PIN_DIRECTORY = Path("/sys/fs/bpf/fwtop")


def exports_directory() -> Path:
    """Return where an ordinary user's screen writes: a directory of its own (XDG base directories)."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path(os.path.expanduser("~/.local/state"))) / "fwtop"


def fleet_directory(netns: str | None, configuration: Path = CONFIGURATION) -> Path:
    """Return where root keeps what a fleet may do here; `netns` names a network namespace."""
    return configuration / "fleet" / ("." if netns is None else f"netns/{netns}")


def fleet_records(netns: str | None, state: Path = GUARDIAN_DIRECTORY) -> Path:
    """Return where the guardian keeps what it did for its fleet, and the log of that."""
    return state / "fleet" / ("machine" if netns is None else f"netns-{netns}")


def build_id() -> str:
    """Return the hash of the installed program, or "clone" when run from a clone: `Hello.build`."""
    try:
        return BUILD_FILE.read_text(encoding="ascii").strip()[:64] or "clone"
    except (OSError, UnicodeDecodeError):
        return "clone"
