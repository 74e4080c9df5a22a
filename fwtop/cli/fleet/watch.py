"""How a fleet fares: fwtop fleet status and doctor."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from fwtop.cli.fleet.setup import add_operators
from fwtop.cli.options import Verb, flag
from fwtop.fleet import founding, register
from fwtop.fleet.broker import Access, Broker, ailments
from fwtop.fleet.document import Document, Sealed, read_document
from fwtop.fleet.founding import OperatorFile
from fwtop.fleet.identity import NatsKey, scopes_of
from fwtop.fleet.keys import MachineKey
from fwtop.fleet.summary import NO_GUARDIAN, NOT_WATCHED
from fwtop.fleet.transport import WANTED
from fwtop.fleet.view import CLOCK_SECONDS, DOUBLE, Heard, View
from fwtop.fleet.wanted import DOCUMENT, Question
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.wire import of_json
from fwtop.render.numbers import duration, si

_SILENT_NS = 5e9  # a server tells the others each second that it is there
_RESTART = "on it, systemctl restart fwtop-broker"
OLDEST = (2, 11, 0)  # that lets entries expire one by one
_SOON_SECONDS = 30 * 86400.0
_NEVER = "9999-01-01T00:00:00Z"  # nats-server tells when a certificate ends since 2.12
_ASK_SECONDS = 1.5  # also those that answer late, and a second one with the same identity


class _Seen(Struct):
    file: OperatorFile
    view: View
    documents: dict[str, Document]
    server: str
    streams: dict[str, dict[str, Any]]
    ailing: list[str]  # servers, by their own word
    loud: dict[str, tuple[int, float]]  # by their keys: bytes, and seconds
    health: dict[str, str]  # of the servers that answer; empty: they could not be asked

    @property
    def behind(self) -> list[str]:
        """The servers that the others don't reach, have not heard of lately, or that lack documents."""
        peers = [
            peer
            for about in self.streams.values()
            for peer in about.get("cluster", {}).get("replicas") or ()
            if not peer.get("current") or peer.get("active", 0) > _SILENT_NS
        ]
        told = {safe_text(peer["name"], limit=80) for peer in peers}
        return sorted(told | _missing(self.file, self.health))

    @property
    def wrong(self) -> list[str]:
        """What is wrong, a sentence each, with what to do."""
        known = self.view.register.machines
        lines = [
            f"{name} is silent: on it, systemctl status fwtop-fleet; its rules stay as they are"
            for name in self.view.silent(known)
        ]
        lines += [
            f"{name} sent the servers {sent[0] / 1e6:.0f} MB in {duration(sent[1])}, more than machines do: "
            f"on it, systemctl stop fwtop-fleet, or 'fwtop fleet revoke {name}'"
            for name, member in known.items()
            if (sent := self.loud.get(member.user)) is not None
        ]
        lines += self.ailing
        lines += map(_gone, self.behind)
        for name, heard in self.view.machines.items():
            lines += [f"{name}: {line}" for line in _wrong(heard)]
        if self.view.forged:
            lines.append(
                f"{self.view.forged} answers that no machine of the register signed: somebody forges them"
            )
        return lines


def _wrong(heard: Heard) -> list[str]:
    summary, lines = heard.summary, list(heard.summary.trouble)
    if heard.is_double:
        lines.append(DOUBLE)
    if off := heard.clock_off:
        lines.append(f"its clock is off by {off:+.0f} s: documents may seem expired to it")
    if summary.verdict == NO_GUARDIAN:
        lines.append("its guardian does not answer: 'fwtop status' there starts it")
    if summary.verdict == NOT_WATCHED:
        lines.append("nobody watches its traffic: 'fwtop service enable' there does")
    lines += [f"roll-out {one.rollout}: {one.why}" for one in summary.rollouts if one.stage == "refused"]
    return lines


def _arguments(parser: argparse.ArgumentParser) -> None:
    flag(parser, "--json", "print one JSON document")
    add_operators(parser)


async def _look(args: argparse.Namespace) -> _Seen:
    """Ask all machines; raises FwtopError if the servers can't be reached."""
    file = founding.read_operator(args.fleet)
    async with await Broker.connect(file.access) as broker:
        health: dict[str, str] = {}
        with contextlib.suppress(FwtopError):  # it is said further down
            health = await broker.health()
        try:
            return await _looked(file, broker, health)
        except FwtopError as error:  # by one that is parted, while the others find that out
            said = "; ".join([str(error), *map(_gone, sorted(_missing(file, health)))])
            raise FwtopError(said, reason=error.reason, retryable=error.retryable) from None


def _missing(file: OperatorFile, health: dict[str, str]) -> frozenset[str]:
    """Return the servers that don't answer while others do."""
    return file.servers - health.keys() if 0 < len(health) < len(file.servers) else frozenset()


def _gone(name: str) -> str:
    line = f"the server {name} is gone, or behind the others: on it, systemctl status fwtop-broker; "
    return f"{line}with another one lost nothing is sent any more"


async def _looked(file: OperatorFile, broker: Broker, health: dict[str, str]) -> _Seen:
    view = View(await register.read(broker, file.fleet, MachineKey(file.registrar)))
    await view.ask(broker, Question.new(), _ASK_SECONDS, {})
    documents = {}
    for name, entry in (await broker.read(WANTED)).items():
        rollout, _, kind = name.partition(".")
        if kind == DOCUMENT:
            documents[rollout] = read_document(of_json(Sealed, entry.document).text.encode())
    loud: dict[str, tuple[int, float]] = {}
    ailing = ailments(health)
    try:
        loud = await broker.loud()
        if not ailing:
            await broker.check_room(file.replicas)
    except FwtopError as error:
        ailing = [*ailing, str(error)]
    return _Seen(file, view, documents, broker.server, await broker.streams(), ailing, loud, health)


def _status(args: argparse.Namespace) -> int:
    """Print machines, roll-outs and what is wrong; status 1 if anything is."""
    seen = asyncio.run(_look(args))
    machines, wrong = seen.view.machines, seen.wrong
    stages = {
        rollout: Counter(
            one.stage
            for heard in machines.values()
            for one in heard.summary.rollouts
            if one.rollout == rollout
        )
        for rollout in seen.documents
    }
    if args.json:
        rows = [asdict(heard.summary) | {"silent": round(heard.silent, 1)} for heard in machines.values()]
        rollouts = [
            {"rollout": name, "note": document.note, "on": document.on, "stages": dict(stages[name])}
            for name, document in seen.documents.items()
        ]
        about = {
            "schema": 1,
            "fleet": seen.file.fleet,
            "machines": rows,
            "rollouts": rollouts,
            "wrong": wrong,
        }
        print(json.dumps(about, default=asdict))
        return 1 if wrong else 0
    for name, heard in sorted(machines.items()):
        print(_row(name, heard))
    for name, document in seen.documents.items():
        told = ", ".join(f"{stage} on {count}" for stage, count in stages[name].items()) or "on no machine"
        print(f"roll-out {name}: {document.note}, for {', '.join(document.on)}: {told}")
    for line in wrong:
        print(f"! {line}")
    if not seen.view.register.machines:
        print("no machine yet; 'fwtop fleet token' lets one ask to join")
    return 1 if wrong else 0


def _row(name: str, heard: Heard) -> str:
    one = heard.summary
    clients = "" if one.clients is None else f"  clients {one.clients:.0f}/s"
    was = "" if one.clients_before is None or not one.attacked else f" (was {one.clients_before:.0f})"
    attack = f"  {one.attacks[0].title}" if one.attacks else ""
    rates = f"arrives {si(one.arrives_pps, 'pps')}  reaches {si(one.reaches_pps, 'pps')}"
    return f"{name:<20} {' '.join(one.labels):<16} {one.verdict:<12} {rates}{clients}{was}{attack}"


def _doctor(args: argparse.Namespace) -> int:
    """Print a line a check."""
    seen = asyncio.run(_look(args))
    lines = [(True, f"server {seen.server}: TLS 1.3, key accepted"), *asyncio.run(_of_servers(seen.file))]
    wanted = seen.file.replicas
    for board, about in seen.streams.items():
        replicas = about.get("config", {}).get("num_replicas", 0)
        good = replicas == wanted
        mend = "" if good else "; 'fwtop fleet token' makes what is missing"
        lines.append((good, f"stream of {board}: {replicas} of {wanted} replicas{mend}"))
    heard = seen.view.machines
    oldest = max((one.silent for one in heard.values()), default=0.0)
    count = len(seen.view.register.machines)
    lines.append(
        (len(heard) == count, f"{len(heard)} of {count} machines answer, the last {duration(oldest)} ago")
    )
    lines += [(False, line) for line in seen.wrong]
    bad = [line for good, line in lines if not good]
    if args.json:
        checks = [{"ok": good, "text": line} for good, line in lines]
        print(json.dumps({"schema": 1, "fleet": seen.file.fleet, "checks": checks}))
    else:
        print("\n".join(f"{'ok ' if good else 'BAD'}  {line}" for good, line in lines))
    return 1 if bad else 0


async def _of_servers(file: OperatorFile) -> list[tuple[bool, str]]:
    """Return the checks of what servers are and how they are configured."""
    if not file.is_own:
        return [line for url in file.urls for line in await _of_foreign(file, url)]
    async with await Broker.connect(file.access) as broker:
        servers = await broker.configured()
    async with await Broker.connect(file.system_access()) as system:
        rights = scopes_of(await system.account_jwt(file.account))
    lines = [line for name, told in sorted(servers.items()) for line in _of_server(name, told)]
    good = rights == scopes_of(founding.account_jwt(file.seeds))
    mend = "" if good else " not those that this fwtop gives; 'fwtop fleet token' renews them"
    return [*lines, (good, f"rights of machines and tokens:{mend or ' as this fwtop gives them'}")]


async def _of_foreign(file: OperatorFile, url: str) -> list[tuple[bool, str]]:
    """Return the checks of a server that others run: what it tells, and what it keeps a machine from."""
    key, name = NatsKey("U"), "doctor"
    jwt = file.paper("node", key.public, name, int(time.time()) + 60)
    try:
        async with await Broker.connect(replace(file.access, urls=(url,))) as broker:
            lines = [*_of_any(url, broker.told)]
        async with await Broker.connect(Access((url,), file.authority, jwt, key.seed, name)) as machine:
            good = not await machine.may_publish("another")
    except FwtopError as error:
        return [(False, str(error))]
    said = "no machine speaks in another's name" if good else "machines may speak in others' names: mend that"
    unseen = "only who runs it sees whether sync_interval is always: else loss of power may lose documents"
    return [*lines, (good, f"server {url}: {said}"), (True, f"server {url}: {unseen}")]


def _of_any(name: str, told: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    version, here = told["version"], f"server {name}:"
    good = tuple(map(int, version.split("-")[0].split("."))) >= OLDEST
    oldest = ".".join(map(str, OLDEST))
    yield good, f"{here} nats-server {version}" + (f"; fwtop needs {oldest}: upgrade it" * (not good))
    ends = datetime.fromisoformat(told.get("tls_cert_not_after") or _NEVER).timestamp() - time.time()
    mend = "" if ends > _SOON_SECONDS else ": 'fwtop fleet init' in another --directory, then join again"
    yield not mend, f"{here} its certificate ends in {duration(ends)}{mend}"


def _of_server(name: str, told: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    yield from _of_any(name, told)
    here = f"server {name}:"
    good = told.get("jetstream", {}).get("config", {}).get("sync_always", False)
    mend = "what it acknowledged may be lost with power: sync_interval: always in nats.conf; " + _RESTART
    yield good, f"{here} " + ("all is on its disk before it is acknowledged" if good else mend)
    off = datetime.fromisoformat(told["now"]).timestamp() - time.time()
    good = abs(off) < CLOCK_SECONDS
    mend = f"is off by {off:+.0f} s: what is sent expires by it; set it"
    yield good, f"{here} its clock " + ("is right" if good else mend)


ACTIONS = {
    "status": Verb(
        "Tell how each machine and each roll-out fares, and what is wrong. Exit status 1 if anything is.",
        "fwtop fleet status",
        _arguments,
        _status,
    ),
    "doctor": Verb(
        "Check the servers, their streams, the machines, their clocks and guardians, and say what to mend.",
        "fwtop fleet doctor",
        _arguments,
        _doctor,
    ),
}
