"""Which users' programs may ask what: the table [access] in the operator's guard.toml.

It names unix groups for each scope. Groups are looked up in /etc/group and nowhere else: a directory service
that an attack has cut off must not hold up the guardian. A group of such a service is given by its number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec import Struct, field

from fwtop.model.protocol import SCOPES

GROUP_FILE = Path("/etc/group")
_MOST_GID = (1 << 32) - 2


class Access(Struct, frozen=True):
    """The groups of each scope, by number."""

    groups: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def granted(self) -> bool:
        """Whether anybody but root has any scope."""
        return any(self.groups.values())

    def scopes(self, uid: int, groups: Collection[int]) -> tuple[str, ...]:
        """Return what a user in these groups may do; root may do everything, and who may change may read."""
        if uid == 0:
            return SCOPES
        held = {scope for scope, allowed in self.groups.items() if not allowed.isdisjoint(groups)}
        if held:
            held.add("read")
        return tuple(scope for scope in SCOPES if scope in held)


def access_of(table: object, path: Path, group_file: Path = GROUP_FILE) -> tuple[Access, list[str]]:
    """Read the table and return what it grants, and a line for each thing that is wrong with it."""
    if not isinstance(table, dict):
        return Access(), [f"{path}: access must be a table: [access]; no program has access"]
    wrong: list[str] = []
    known: dict[str, int] | None = None
    groups: dict[str, frozenset[int]] = {}
    for scope, given in table.items():
        if scope not in SCOPES:
            wrong.append(f"{path}: [access] has no scope {scope!r}; there are {', '.join(SCOPES)}")
            continue
        if not isinstance(given, list):
            wrong.append(f"{path}: {scope} in [access] must be a list of groups; it is ignored")
            continue
        found = set()
        for item in given:
            if isinstance(item, str) and known is None:
                known = _numbers(group_file)
            number = item if type(item) is int else (known or {}).get(item) if isinstance(item, str) else None
            if number is None or not 0 <= number <= _MOST_GID:
                wrong.append(f"{path}: [access] {scope}: there is no group {item!r} in {group_file}")
            else:
                found.add(number)
        groups[scope] = frozenset(found)
    return Access(groups), wrong


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
