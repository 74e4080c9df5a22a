"""How a machine joins: it makes its keys, asks with a token, and a person admits it.

The token pins the servers' authority, expires, and is used up once as many machines came by it as it was made
for. The machine's keys never leave it. Admitting means two things: the register names its key, and it gets
the paper (JWT) with which the servers let it connect.
"""

from __future__ import annotations

import asyncio
import time

from msgspec import Struct
from msgspec.structs import replace

from fwtop.fleet import register
from fwtop.fleet.broker import Access
from fwtop.fleet.founding import OperatorFile, Token
from fwtop.fleet.identity import NatsKey
from fwtop.fleet.keys import JOINING as SIGNED
from fwtop.fleet.keys import MachineKey, body_of, check_public, unsealed
from fwtop.fleet.machine import NodeFile, check_machine
from fwtop.fleet.register import Member, Register
from fwtop.fleet.transport import ADMITTED, JOINING, Transport
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json, to_json

_ASK_SECONDS = 1.0  # between two looks whether it was admitted


class Request(Struct, frozen=True):
    """What a machine asks with; signed with the key that it names."""

    fleet: str
    name: str
    labels: tuple[str, ...]
    user: str
    key: str
    at: float  # Unix seconds


class Pending(Struct, frozen=True):
    """A request that waits for a person."""

    request: Request
    token: str
    why_not: str = ""  # it can't be admitted


def new_node(token: Token, urls: tuple[str, ...], name: str, labels: tuple[str, ...]) -> NodeFile:
    """Return the file of a machine that has yet to ask, with new keys."""
    for text in (name, *labels):
        check_machine(text)
    return NodeFile(token.fleet, name, urls, token.authority, labels, NatsKey("U").seed, MachineKey().secret)


def access(token: Token, file: NodeFile) -> Access:
    """Return how a machine connects that has but a token."""
    return Access(file.urls, token.authority, token.jwt, token.seed, token.id)


async def ask(transport: Transport, token: Token, file: NodeFile, seconds: float) -> NodeFile | None:
    """Ask to join, and wait so long for a person; None: nobody has admitted it yet."""
    key, name = MachineKey(file.key), NatsKey.of_seed(file.seed).public
    request = Request(file.fleet, file.name, file.labels, name, key.public, time.time())
    place = f"{token.id}.{name}"
    await transport.put(JOINING, place, key.seal(SIGNED, to_json(request)))
    end = time.monotonic() + seconds
    while True:
        admitted = (await transport.read(ADMITTED, place)).get(place)
        if admitted is not None:
            return replace(file, jwt=admitted.document.decode("ascii", "replace"))
        if time.monotonic() >= end:
            return None
        await asyncio.sleep(_ASK_SECONDS)


async def pending(transport: Transport, file: OperatorFile, known: Register) -> list[Pending]:
    """Return who asked to join and was not admitted, the first first."""
    found = []
    for place, entry in (await transport.read(JOINING)).items():
        token, _, name = place.partition(".")
        try:
            request = _read(entry.document, name)
        except FwtopError:  # whoever has a token can write anything here
            continue
        member = known.machines.get(request.name)
        if request.user in known.removed or (member is not None and member.user == request.user):
            continue
        found.append(Pending(request, token, _why_not(request, file, member)))
    return sorted(found, key=lambda one: one.request.at)


def _why_not(request: Request, file: OperatorFile, member: Member | None) -> str:
    if request.fleet != file.fleet:
        return f"it asks to join the fleet {safe_text(request.fleet, limit=64)!r}"
    if member is not None:
        return "there is a machine of this name with another key: --replace admits it in that one's place"
    return ""


async def admit(
    transport: Transport, file: OperatorFile, names: list[str], *, instead: bool = False
) -> list[str]:
    """Admit machines by name, all that wait if none is named; return whom. Raises FwtopError.

    With `instead` one takes the place of another of its name, which nobody believes any more then.
    """
    registrar = MachineKey(file.registrar)
    known = await register.read(transport, file.fleet, registrar)
    waiting = await pending(transport, file, known)
    chosen = {one.request.name: one for one in waiting if not names or one.request.name in names}
    if missing := sorted(set(names) - set(chosen)):
        raise FwtopError(
            f"{', '.join(map(safe_text, missing))}: nobody of this name waits; nobody was admitted"
        )
    machines = dict(known.machines)
    for name, one in chosen.items():
        if one.why_not and not (instead and name in machines):
            if not names:
                continue
            raise FwtopError(f"{name}: {one.why_not}; nobody was admitted")
        _check_room(one.token, machines)
        request = one.request
        machines[name] = Member(request.key, request.user, request.labels, one.token, time.time())
    admitted = [
        name for name, one in chosen.items() if machines.get(name) not in (None, known.machines.get(name))
    ]
    await register.write(transport, replace(known, machines=machines), registrar)
    for name in admitted:
        jwt = file.paper("node", machines[name].user, name)
        await transport.put(ADMITTED, f"{chosen[name].token}.{machines[name].user}", jwt.encode())
    return admitted


def _check_room(token: str, machines: dict[str, Member]) -> None:
    most = int(token.rpartition("-")[2])
    if sum(member.token == token for member in machines.values()) >= most:
        line = f"the token was for {most} machines, and is used up: 'fwtop fleet token' makes another"
        raise FwtopError(f"{line}; nobody was admitted")


def _read(message: bytes, name: str) -> Request:
    """Read a request; raises FwtopError unless its own key signed it, and it is where it belongs."""
    try:
        bare: Request = of_json(Request, body_of(message))
        request: Request = of_json(Request, unsealed(check_public(bare.key), SIGNED, message))
    except ValueError:
        raise FwtopError("it makes no sense") from None
    if request.user != name or len(request.labels) > 16:
        raise FwtopError("it makes no sense")
    for text in (request.name, *request.labels):
        check_machine(text)
    return request
