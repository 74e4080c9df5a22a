"""The node: a courier between the fleet's servers and this machine's guardian, which alone decides.

It hands signed documents over as they came, tells how the machine fares, and answers what all are asked. It
parses no packets, holds no right to change anything, and does nothing that another could not do in its place.
Without the servers it waits; the guardian goes on, and rules end by the kernel's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop import __version__
from fwtop.client.program import Program
from fwtop.fleet import wanted
from fwtop.fleet.document import digest
from fwtop.fleet.keys import MachineKey
from fwtop.fleet.lists import FETCHING, Lists
from fwtop.fleet.machine import NodeFile
from fwtop.fleet.summary import (
    NO_GUARDIAN,
    NOT_WATCHED,
    Answer,
    Attack,
    Rollout,
    Summary,
    new_instance,
    sealed_answer,
    sealed_summary,
)
from fwtop.fleet.transport import WANTED, Transport
from fwtop.fleet.wanted import Question, Wanted
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text

_TICK_SECONDS = 1.0
_CALM_SECONDS = 10.0  # between two summaries in which nothing is new
_READ_SECONDS = 60.0  # between two readings of the whole board; half as long to one and a half
_RECONNECT_SECONDS = 0.5  # after the first loss; doubled with each, and a time up to that is drawn
_RECONNECT_MOST = 30.0
_STEADY_SECONDS = 60.0  # a connection that lasted so long was none of a series of losses
_FORESEE_SECONDS, _FORESEE_AGAIN_SECONDS = 2.0, 1.1  # whoever watches the traffic tells each second
_AGAIN_SECONDS = 15.0  # a document that could not be handed over is offered again


class Guardian:
    """What the node asks of the guardian, in a thread, one request at a time."""

    def __init__(self, connect: Callable[[], Program]) -> None:
        """Take what connects as a program (fwtop.client.program)."""
        self._connect = connect
        self._program: Program | None = None
        self._lock = asyncio.Lock()

    async def ask(self, verb: str, descriptor: int | None = None, **fields: object) -> dict[str, Any]:
        """Return the answer's data; raises FwtopError."""
        async with self._lock:
            return await asyncio.to_thread(self._ask, verb, descriptor, fields)

    def _ask(self, verb: str, descriptor: int | None, fields: dict[str, object]) -> dict[str, Any]:
        if self._program is None:
            self._program = self._connect()
        try:
            if descriptor is not None:
                return self._program.request_with(descriptor, verb, **fields)
            return self._program.request(verb, **fields)
        except FwtopError as error:
            if error.reason == "unavailable":
                self.close()
            raise

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._program is not None:
            self._program.close()
            self._program = None


class _Offered(Struct):
    """What the guardian said to a document."""

    digest: bytes
    again: float  # monotonic; when to offer it once more
    refused: str = ""


class Node:
    """One machine's node, for as long as `run` is awaited."""

    def __init__(
        self,
        file: NodeFile,
        guardian: Callable[[], Program],
        connect: Callable[[], Awaitable[Transport]],
        say: Callable[[str], None],
    ) -> None:
        """`guardian` and `connect` make connections and raise FwtopError; `say` tells root what happens."""
        self._file = file
        self._key = MachineKey(file.key)
        self._reading, self._acting = Guardian(guardian), Guardian(guardian)
        self._connect = connect
        self._say = say
        self._instance = new_instance()
        self._number = 0
        self._wanted = Wanted()
        self._changed, self._news = asyncio.Event(), asyncio.Event()
        self._offered: dict[tuple[str, str], _Offered] = {}  # (roll-out, what) →
        self._serving = ""  # which guardian was offered them
        self._since = 0  # the last of its events
        self._last: Summary | None = None
        self._published_at = 0.0
        self._lists = Lists()
        self._transport: Transport | None = None
        self._installed: frozenset[str] = frozenset()  # digests of the documents whose rules are there

    async def run(self) -> None:
        """Serve for good, over one connection after another."""
        losses = 0
        while True:
            began = time.monotonic()
            try:
                transport = await self._connect()
            except FwtopError as error:
                self._say(str(error))
            else:
                self._say("connected")
                try:
                    await self._serve(transport)
                except* FwtopError as errors:
                    self._say(str(errors.exceptions[0]))
                finally:
                    await transport.close()
            losses = 0 if time.monotonic() - began > _STEADY_SECONDS else min(losses + 1, 8)
            await asyncio.sleep(random.uniform(0, min(_RECONNECT_SECONDS * 2**losses, _RECONNECT_MOST)))  # noqa: S311

    async def _serve(self, transport: Transport) -> None:
        """Serve until the connection is lost or anything of it fails; raises FwtopError."""
        self._transport = transport
        await transport.watch(WANTED, self._heard)
        await transport.answer(self._answered)
        async with asyncio.TaskGroup() as group:
            work = [
                group.create_task(one)
                for one in (self._read(transport), self._tell(transport), self._hand_over())
            ]
            group.create_task(_until_first(transport.lost, work))

    def _heard(self, name: str, document: bytes) -> None:
        self._wanted.take(name, document)
        self._changed.set()

    async def _read(self, transport: Transport) -> None:
        """Read the whole board now and then: that something changed may not have been heard."""
        while True:
            board = await transport.read(WANTED)
            self._wanted.replace({name: entry.document for name, entry in board.items()})
            self._changed.set()
            await asyncio.sleep(_READ_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311

    async def _hand_over(self) -> None:
        """Offer the guardian what is wanted of this machine, whenever that changes."""
        while True:
            self._changed.clear()
            for step in self._wanted.steps(self._file.name, frozenset(self._file.labels)):
                await self._offer(step)
            await _within(self._changed, self._until_again())

    def _until_again(self) -> float | None:
        due = min((one.again for one in self._offered.values()), default=float("inf"))
        return max(due - time.monotonic(), 0.05) if due < float("inf") else None

    async def _offer(self, step: wanted.Step) -> None:
        """Hand one document or confirmation over, once to each guardian, and note what it says."""
        mark, key = hashlib.sha256(step.sealed.text.encode()).digest(), (step.rollout, step.kind)
        known, now = self._offered.get(key), time.monotonic()
        if known is not None and known.digest == mark and now < known.again:
            return
        offered = _Offered(mark, float("inf"))
        try:
            if step.confirms:
                signature = step.sealed.signatures[0]
                await self._acting.ask("fleetconfirm", text=step.sealed.text, signature=signature)
            else:
                await self._deliver(step, calm=self._is_calm())
        except FwtopError as error:
            offered.refused = safe_text(error, limit=160)
            if error.retryable:
                offered.again = now + (_TICK_SECONDS if error.reason == FETCHING else _AGAIN_SECONDS)
            if known is None or known.refused != offered.refused:
                self._say(f"roll-out {step.rollout}: {offered.refused}")
        self._offered[key] = offered
        self._news.set()  # who leads waits to hear of it

    async def _deliver(self, step: wanted.Step, *, calm: bool, preview: bool = False) -> dict[str, Any]:
        """Hand a document over, with the lists beside it once they are here; raises FwtopError."""
        assert self._transport is not None  # noqa: S101 - it came over that
        asked = {"text": step.sealed.text, "signatures": [*step.sealed.signatures], "calm": calm}
        is_there = not preview and digest(step.sealed.text.encode()) in self._installed
        lists = None if is_there else self._lists.of(step.sealed, self._transport)
        return await self._acting.ask("fleetdocument", lists, preview=preview, **asked)

    def _is_calm(self) -> bool:
        return self._last is None or not self._last.attacked

    async def _tell(self, transport: Transport) -> None:
        """Publish how the machine fares: each second under attack, in calm when something is new."""
        while True:
            began = time.monotonic()
            self._news.clear()
            before, self._last = self._last, await self._look()
            news = before is None or _matter(before) != _matter(self._last)
            if news or self._last.attacked or began - self._published_at >= _CALM_SECONDS:
                await transport.publish(self._file.name, sealed_summary(self._last, self._key))
                self._published_at = began
            await _within(self._news, max(_TICK_SECONDS - (time.monotonic() - began), 0.05))

    async def _look(self) -> Summary:
        """Return how the machine fares; never raises."""
        self._number += 1
        bare = Summary(
            fleet=self._file.fleet, name=self._file.name, instance=self._instance, number=self._number,
            at=time.time(), version=__version__, labels=self._file.labels, verdict=NO_GUARDIAN,
        )  # fmt: skip
        try:
            told = await self._reading.ask("fleetstatus")
            seen = await self._reading.ask("changes", since=self._since)
            rules = await self._rules(told)
        except FwtopError as error:
            return replace(bare, trouble=(str(error),))
        self._since = seen["last"]
        self._installed = frozenset(row["document"] for row in told["rollouts"] if row["rules"])
        if seen["log"] != self._serving:  # another guardian: it is told everything anew
            self._serving = seen["log"]
            self._offered.clear()
            self._changed.set()
        return self._summed(bare, told, seen, rules)

    async def _rules(self, told: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the status of each rule, by its number, if any roll-out has rules here."""
        if not any(rollout["rules"] for rollout in told["rollouts"]):
            return {}
        found = await self._reading.ask("status", allow=False)
        return {row["rule"]["id"]: row for row in found["rules"]}

    def _summed(
        self, bare: Summary, told: dict[str, Any], seen: dict[str, Any], rules: dict[str, dict[str, Any]]
    ) -> Summary:
        fares = seen.get("summary") or {}
        names = (
            "verdict",
            "arrives_pps",
            "arrives_bps",
            "reaches_pps",
            "rules_pps",
            "clients",
            "clients_before",
        )
        known = {row["rollout"] for row in told["rollouts"]}
        refused = [
            Rollout(rollout, "refused", why=one.refused)
            for (rollout, kind), one in self._offered.items()
            if one.refused and kind == wanted.DOCUMENT and rollout not in known
        ]
        return replace(
            bare,
            **{name: fares[name] for name in (*names, "harm") if name in fares},
            **({} if fares else {"verdict": NOT_WATCHED}),
            attacks=tuple(
                Attack(row["kind"], row["title"], row["target"], row["severity"], row["pps"])
                for row in seen["attacks"]
            ),
            rollouts=(*refused, *(_rollout(row, rules) for row in told["rollouts"])),
            revision=told["revision"],
            trouble=tuple(told.get("warnings", ())),
        )

    async def _answered(self, message: bytes) -> bytes:
        """Answer a question that is asked of all; never raises."""
        summary = self._last or await self._look()
        question = Question.of(message)
        told, refused, reason = None, "", ""
        if question.sealed is not None:
            try:
                step = wanted.Step("", wanted.DOCUMENT, question.sealed)
                if question.fetch and self._transport is not None:
                    self._lists.of(question.sealed, self._transport)
                    return self._sealed(Answer(summary=summary, question=question.nonce))
                told = _shortened(await self._preview(step, summary))
            except FwtopError as error:
                refused, reason = str(error), error.reason
        return self._sealed(
            Answer(summary=summary, question=question.nonce, told=told, refused=refused, reason=reason)
        )

    async def _preview(self, step: wanted.Step, summary: Summary) -> dict[str, Any]:
        """Return what the guardian says to a document; under attack also what it would stop."""
        end = time.monotonic() + _FORESEE_SECONDS * summary.attacked
        while True:
            told = await self._deliver(step, calm=not summary.attacked, preview=True)
            refused = any(plan["refused"] for plan in told["plans"])
            if refused or all(plan["foreseen"] for plan in told["plans"]) or time.monotonic() > end:
                return told
            await asyncio.sleep(_FORESEE_AGAIN_SECONDS)

    def _sealed(self, answer: Answer) -> bytes:
        return sealed_answer(answer, self._key)


async def _within(happened: asyncio.Event, seconds: float | None) -> None:
    """Wait for something, but no longer than so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await happened.wait()


async def _until_first(lost: asyncio.Event, work: list[asyncio.Task[None]]) -> None:
    """End the work once the connection is lost."""
    await lost.wait()
    for task in work:
        task.cancel()


def _shortened(told: dict[str, Any]) -> dict[str, Any]:
    """Return what a preview told, without the commands: what is asked of all is who loses what."""
    names = ("refused", "needs_force", "losses", "clients", "warnings", "foreseen")
    return told | {"plans": [{name: plan[name] for name in names if name in plan} for plan in told["plans"]]}


def _rollout(row: dict[str, Any], rules: dict[str, dict[str, Any]]) -> Rollout:
    mine = [rules[number] for number in row["rules"] if number in rules]
    return Rollout(
        row["rollout"],
        row["stage"],
        row.get("counting", False),
        row.get("acting", False),
        round(sum(one.get("pps") or 0.0 for one in mine), 1),
        sum(one.get("packets") or 0 for one in mine),
        row.get("why", ""),
    )


def _matter(summary: Summary) -> tuple[object, ...]:
    """Return what is worth telling at once."""
    stages = tuple((one.rollout, one.stage, one.acting, one.why) for one in summary.rollouts)
    return summary.verdict, summary.harm, len(summary.attacks), stages, summary.trouble, summary.revision
