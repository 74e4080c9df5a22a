"""fwtop service: the recorder as a systemd unit, which watches from boot on."""

from __future__ import annotations

import argparse

from msgspec import Struct

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
    state = ServiceView.parse(_systemctl("show", f"--property={','.join(_FIELDS)}", _UNIT))
    print(state.line())
    return int(state.is_wrong() or (args.what == "enable" and not state.is_active))


class ServiceView(Struct, frozen=True):
    """The unit's state according to systemd."""

    is_enabled: bool
    active: str
    status: str
    result: str
    memory_bytes: int | None
    restarts: int

    @classmethod
    def parse(cls, text: str) -> ServiceView:
        """Parse the output of `systemctl show`."""
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        memory, restarts = found.get("MemoryCurrent", ""), found.get("NRestarts", "")
        return cls(
            found.get("UnitFileState") == "enabled",
            found.get("ActiveState", "unknown"),
            safe_text(found.get("StatusText", ""), limit=200),
            found.get("Result", ""),
            int(memory) if memory.isdigit() and len(memory) < 16 else None,
            int(restarts) if restarts.isdigit() else 0,
        )

    @property
    def is_active(self) -> bool:
        """Whether it runs."""
        return self.active == "active"

    def is_wrong(self) -> bool:
        """Whether it has failed, or should run and doesn't."""
        return (self.is_enabled and not self.is_active) or self.active == "failed"

    def line(self) -> str:
        """Return the state in a line, with what to do if it is wrong."""
        boot = "starts at boot" if self.is_enabled else "doesn't start at boot"
        if self.is_active:
            parts = [f"recording, {boot}", *([self.status] if self.status else [])]
            if self.memory_bytes is not None:
                parts.append(f"{self.memory_bytes / (1 << 20):.0f} MiB")
            if self.restarts:
                parts.append(f"restarts after failures: {self.restarts} (journalctl -u fwtop)")
            return "; ".join(parts)
        if self.is_wrong():
            why = f" ({safe_text(self.result, limit=40)})" if self.result not in ("", "success") else ""
            return f"{safe_text(self.active, limit=20)}{why}, {boot}; see: journalctl -u fwtop"
        return f"off, {boot}; to record from now on: sudo fwtop service enable"


def _systemctl(*words: str) -> str:
    """Run systemctl; raises FwtopError with its first line."""
    try:
        return run_program(["systemctl", "--quiet", *words], timeout=_SECONDS)
    except CommandError as error:
        raise FwtopError(f"{str(error).rstrip('.')}; see: journalctl -u {_UNIT}") from None
