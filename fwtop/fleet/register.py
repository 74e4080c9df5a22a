"""Which machines there are: their keys, and the labels that they were admitted with; on the board WANTED.

Signed with a key that the operators share, so that no server can add one. Who signs it has no say over a
machine: a forged register could only have coordinators believe summaries.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from fwtop.fleet.document import EVERYWHERE, is_meant
from fwtop.fleet.keys import REGISTER, MachineKey, unsealed
from fwtop.fleet.transport import WANTED, Transport
from fwtop.model.errors import FwtopError
from fwtop.model.wire import of_json, to_json

NAME = "machines"


class Member(Struct, frozen=True):
    """A machine that a person admitted."""

    key: str  # with which it signs
    user: str  # with which it connects
    labels: tuple[str, ...]
    token: str  # by which it came
    since: float  # Unix seconds


class Register(Struct, frozen=True):
    """All of them, by name; `version` is that of the board's entry."""

    fleet: str
    machines: dict[str, Member] = {}
    removed: dict[str, int] = {}  # with what they connected, and when they were removed (Unix seconds)
    version: int = 0

    def meant(self, on: tuple[str, ...]) -> dict[str, Member]:
        """Return those that a document with these labels is for."""
        return {
            name: member
            for name, member in self.machines.items()
            if is_meant(on, frozenset((*member.labels, name, EVERYWHERE)))
        }

    def without(self, names: Iterable[str]) -> Register:
        """Return the register without some machines."""
        gone = {self.machines[name].user: int(time.time()) for name in names}
        machines = {name: one for name, one in self.machines.items() if one.user not in gone}
        return replace(self, machines=machines, removed=self.removed | gone)


async def read(transport: Transport, fleet: str, registrar: MachineKey) -> Register:
    """Return the register; raises FwtopError if it isn't the operators' own."""
    entry = (await transport.read(WANTED, NAME)).get(NAME)
    if entry is None:
        return Register(fleet)
    try:
        register: Register = of_json(Register, unsealed(registrar.public, REGISTER, entry.document))
    except (FwtopError, ValueError):
        line = "the register of machines is not one that this fleet's operators signed; nothing was done"
        raise FwtopError(line) from None
    if register.fleet != fleet:
        raise FwtopError(f"the register of machines is one of another fleet than {fleet}; nothing was done")
    return replace(register, version=entry.version)


async def write(transport: Transport, register: Register, registrar: MachineKey) -> None:
    """Replace the register; raises FwtopError ("changed") if another did so since it was read."""
    await transport.put(WANTED, NAME, registrar.seal(REGISTER, to_json(register)), after=register.version)
