"""The operator's limits: guard.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from fwtop.guardian.access import GROUP_FILE, Access
from fwtop.model.config_file import read_regular_text
from fwtop.model.settings_file import IGNORED, read, told, written

_SSH_PORTS = (22,)  # of daemons behind, unless the file names others
LIMITS_FILE = "/etc/fwtop/guard.toml"
_MOST_SSH_PORTS = 8
_Port = Annotated[int, Meta(ge=1, le=65535)]


class GuardFile(Struct, frozen=True):
    """The settings of the operator's file."""

    max_blocked_share: Annotated[float, Meta(gt=0, le=1)] = 0.5  # of either family's addresses
    # A console parses what attackers send: a compromised one could claim that the operator confirmed.
    console_may_force: bool = False
    learn_behind: bool = True  # what hosts behind this machine talk with passes, in its role
    ssh_ports_behind: Annotated[tuple[_Port, ...], Meta(max_length=_MOST_SSH_PORTS)] = _SSH_PORTS
    access: Access = Access()  # of programs that are not root's


class Limits(GuardFile, frozen=True):
    """The settings, and the file that they come from."""

    file: str = LIMITS_FILE


def read_limits(
    path: Path = Path(LIMITS_FILE), group_file: Path = GROUP_FILE
) -> tuple[Limits, tuple[str, ...]]:
    """Read the limits and what is wrong with the file; without a good value the default holds."""
    found = read(GuardFile, read_regular_text(path))
    access, unknown = found.value.access.numbered(group_file)
    lines = [
        told(
            found.file,
            ("access", scope),
            f"access.{scope}: there is no group {written(group)} in {group_file}",
            IGNORED,
        )
        for scope, group in unknown
    ]
    return Limits(**{**found.given, "access": access, "file": str(path)}), (*found.lines(), *lines)
