"""The operator's file guard.toml: limits, and which users' programs may ask what ([access]).

That table names unix groups for each scope. Groups are looked up in /etc/group and nowhere else: a directory
service that an attack has cut off must not hold up the guardian. A group of such a service is given by its
number.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from fwtop.model.files import read_regular_text
from fwtop.model.paths import FLEET_USER
from fwtop.model.protocol import SCOPES
from fwtop.model.settings_file import IGNORED, must, read, told, written

_SSH_PORTS = (22,)  # of daemons behind, unless the file names others
LIMITS_FILE = "/etc/fwtop/guard.toml"
_MOST_SSH_PORTS = 8
_Port = Annotated[int, Meta(ge=1, le=65535)]
GROUP_FILE = Path("/etc/group")
_MOST_GID = (1 << 32) - 2
_Groups = Annotated[tuple[Any, ...], must("a list of groups")]


class Access(Struct, frozen=True):
    """The groups of each scope (SCOPES), by name or number; once numbered, by number."""

    read: _Groups = ()
    lists: _Groups = ()
    rules: _Groups = ()
    policies: _Groups = ()
    fleet: _Groups = ()

    @property
    def granted(self) -> bool:
        """Whether anybody but root has any scope."""
        return any(getattr(self, scope) for scope in SCOPES)

    @property
    def streamed(self) -> bool:
        """Whether anybody has one who may want the stream: the fleet's node does without."""
        return any(getattr(self, scope) for scope in SCOPES if scope != "fleet")

    def scopes(self, uid: int, groups: Collection[int]) -> tuple[str, ...]:
        """Return what a user in these groups may do; root may do everything, and who may change may read."""
        if uid == 0:
            return SCOPES
        held = {scope for scope in SCOPES if not set(groups).isdisjoint(getattr(self, scope))}
        if held:
            held.add("read")
        return tuple(scope for scope in SCOPES if scope in held)

    def numbered(self, group_file: Path = GROUP_FILE) -> tuple[Access, list[tuple[str, object]]]:
        """Return the groups by number, and by scope those that there are not."""
        given = {scope: getattr(self, scope) for scope in SCOPES}
        is_named = any(isinstance(item, str) for items in given.values() for item in items)
        known = _numbers(group_file) if is_named else {}
        unknown: list[tuple[str, object]] = []
        for scope, items in given.items():
            numbers = []
            for item in items:
                number = known.get(item, -1) if isinstance(item, str) else item
                if type(number) is int and 0 <= number <= _MOST_GID:
                    numbers.append(number)
                else:
                    unknown.append((scope, item))
            given[scope] = tuple(numbers)
        return Access(**given), unknown


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
    path: Path = Path(LIMITS_FILE), group_file: Path = GROUP_FILE, *, member: Path | None = None
) -> tuple[Limits, tuple[str, ...]]:
    """Read the limits and what is wrong with the file; without a good value the default holds.

    If `member` exists, this machine belongs to a fleet: its node may deliver documents without being named.
    """
    found = read(GuardFile, read_regular_text(path))
    access, unknown = found.value.access.numbered(group_file)
    if member is not None and member.exists() and (node := _numbers(group_file).get(FLEET_USER)) is not None:
        access = replace(access, fleet=(*access.fleet, node))
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


def _numbers(path: Path) -> dict[str, int]:
    """Return the groups of group(5) by name."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    parts = [line.split(":") for line in lines]
    return {
        item[0]: int(item[2]) for item in parts if len(item) >= 3 and item[2].isascii() and item[2].isdigit()
    }
