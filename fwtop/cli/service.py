"""fwtop service: the recorder as a systemd unit, which watches from boot on."""

from __future__ import annotations

import argparse

from fwtop.cli.launcher import require_root
from fwtop.kernel.programs import CommandError
from fwtop.kernel.programs import run as run_program
from fwtop.model.errors import FwtopError
from fwtop.model.paths import SERVICE_UNIT, SYSTEMD_BOOTED
from fwtop.model.text import safe_text

HELP = "Have systemd run 'fwtop record' from now on and after each boot."
EXAMPLE = "sudo fwtop service enable"
_UNIT = SERVICE_UNIT.name
_SECONDS = 120.0  # starting includes compiling the observers
_FIELDS = ("UnitFileState", "ActiveState", "StatusText", "Result", "MemoryCurrent", "NRestarts")
_CALLS = {"enable": ("enable", "--now"), "disable": ("disable", "--now"), "restart": ("restart",)}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=("status", "enable", "disable", "restart"),
        default="status",
        help="status (default), enable (now and at boot), disable, or restart (with new settings)",
    )


def run(args: argparse.Namespace) -> int:
    """Run systemctl and print the state of the service; return 1 if it is not as it should be."""
    if not SYSTEMD_BOOTED.is_dir():
        raise FwtopError(
            "systemd doesn't run on this machine, so there is no service; nothing was changed: "
            "have your own supervisor run 'fwtop record' as root",
            3,
        )
    if not SERVICE_UNIT.exists():
        raise FwtopError(f"{SERVICE_UNIT} is not installed; nothing was changed: run 'make setup'", 3)
    if args.what != "status":
        require_root("changing the service")
        _systemctl(*_CALLS[args.what], _UNIT)
    line, is_active, is_wrong = told(_systemctl("show", f"--property={','.join(_FIELDS)}", _UNIT))
    print(line)
    return int(is_wrong or (args.what == "enable" and not is_active))


def told(shown: str) -> tuple[str, bool, bool]:
    """Put what `systemctl show` prints in a line; return also whether it is active, and whether that is wrong.

    It is wrong if the service has failed, or should run and doesn't. The line says what to do then.
    """
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    enabled, active = found.get("UnitFileState") == "enabled", found.get("ActiveState", "unknown")
    boot = "starts at boot" if enabled else "doesn't start at boot"
    if active == "active":
        parts = [f"recording, {boot}", *filter(None, [safe_text(found.get("StatusText", ""), limit=200)])]
        memory, restarts = found.get("MemoryCurrent", ""), found.get("NRestarts", "")
        if memory.isdigit() and len(memory) < 16:
            parts.append(f"{int(memory) / (1 << 20):.0f} MiB")
        if restarts.isdigit() and int(restarts):
            parts.append(f"restarts after failures: {int(restarts)} (journalctl -u fwtop)")
        return "; ".join(parts), True, False
    if enabled or active == "failed":
        result = found.get("Result", "")
        why = f" ({safe_text(result, limit=40)})" if result not in ("", "success") else ""
        return f"{safe_text(active, limit=20)}{why}, {boot}; see: journalctl -u fwtop", False, True
    return f"off, {boot}; to record from now on: sudo fwtop service enable", False, False


def _systemctl(*words: str) -> str:
    """Run systemctl; raises FwtopError with its first line."""
    try:
        return run_program(["systemctl", "--quiet", *words], timeout=_SECONDS)
    except CommandError as error:
        raise FwtopError(f"{str(error).rstrip('.')}; see: journalctl -u {_UNIT}") from None
