"""What a coordinator knows of the machines: the newest summary of each that its key signed, and how old."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

from msgspec import Struct

from fwtop.fleet.register import Member, Register
from fwtop.fleet.summary import Answer, Summary, read_answer, read_summary
from fwtop.fleet.transport import Transport
from fwtop.fleet.wanted import Question, encoded
from fwtop.model.errors import FwtopError
from fwtop.model.wire import of_json

SILENT_SECONDS = 25.0  # two summaries of calm were missed
_DOUBLE_SECONDS = 60.0
_SECOND_SECONDS = 0.2
FLOODS = "it floods the servers with messages under its name: on it, systemctl stop fwtop-fleet; " + (
    "it is neither heard nor asked"
)
DOUBLE = "two machines answer with its key: have one leave and join again; neither is believed"
CLOCK_SECONDS = 60.0  # by which a clock may be off before that is told


class Heard(Struct):
    """A machine as it was heard last; `at` is in monotonic seconds."""

    summary: Summary
    at: float
    instances: dict[str, float]  # when each was heard last
    is_double: bool = False  # an instance was heard again after another: two machines have one identity

    @property
    def silent(self) -> float:
        """For how many seconds nothing was heard."""
        return time.monotonic() - self.at

    @property
    def clock_off(self) -> float:
        """By how many seconds its clock seems to be off; 0: not worth telling."""
        off = self.summary.at - (time.time() - self.silent)
        return off if abs(off) > CLOCK_SECONDS else 0.0


class View:
    """The machines of a register, fed by their summaries and answers."""

    def __init__(self, register: Register) -> None:
        """`changed` is set after each summary."""
        self.register = register
        self.changed = asyncio.Event()
        self.machines: dict[str, Heard] = {}
        self.forged = 0  # messages that no key of the register signed
        self.flooding: set[str] = set()  # machines that are not heard any more

    def take(self, name: str, message: bytes) -> None:
        """Take what was published under a name; what its machine did not sign is only counted."""
        member = self.register.machines.get(name)
        try:
            if member is None:
                raise FwtopError("no machine of this name was admitted")
            self._note(read_summary(message, name, member.key))
        except FwtopError:
            self.forged += 1
        self.changed.set()

    async def follow(self, transport: Transport) -> None:
        """Hear the machines' summaries; who floods is noted."""
        await transport.follow(self.register.machines, self.take, self._flooded)

    def _flooded(self, name: str) -> None:
        self.flooding.add(name)
        self.changed.set()

    def why_not(self, name: str) -> str:
        """Return why a machine that answered is not believed; "": it is."""
        if name in self.flooding:
            return FLOODS
        return DOUBLE if self.machines[name].is_double else ""

    async def ask(
        self, transport: Transport, question: Question, seconds: float, enough: Mapping[str, Member]
    ) -> dict[str, Answer]:
        """Ask all; return the answers by name after `seconds`, or soon after all of `enough` answered.

        Who answers twice is two machines with one identity: the second one has that long to be heard.
        """
        found: dict[str, Answer] = {}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds) as limit:
                async for message in transport.ask(encoded(question), seconds):
                    answer = self._answer(message, question)
                    if answer is None:
                        continue
                    name, other = answer.summary.name, found.get(answer.summary.name)
                    self._note(answer.summary)
                    if other is not None and other.summary.instance != answer.summary.instance:
                        self.machines[name].is_double = True
                    found[name] = answer
                    if enough and found.keys() >= enough.keys():
                        limit.reschedule(asyncio.get_running_loop().time() + _SECOND_SECONDS)
        return found

    def silent(self, on: Mapping[str, Member]) -> list[str]:
        """Return the machines that nothing was heard of lately, or never."""
        return [
            name for name in on if name not in self.machines or self.machines[name].silent > SILENT_SECONDS
        ]

    def _answer(self, message: bytes, question: Question) -> Answer | None:
        try:
            said = of_json(_Named, message.partition(b"\n")[2]).summary.name
            member = self.register.machines[said]
            answer = read_answer(message, said, member.key)
        except (FwtopError, ValueError, KeyError):
            self.forged += 1
            return None
        return answer if answer.question == question.nonce else None

    def _note(self, summary: Summary) -> None:
        now, known = time.monotonic(), self.machines.get(summary.name)
        if known is None:
            self.machines[summary.name] = Heard(summary, now, {summary.instance: now})
            return
        if summary.instance == known.summary.instance:
            if summary.number < known.summary.number:  # an older one, late or replayed
                return
        elif now - known.instances.get(summary.instance, -_DOUBLE_SECONDS) < _DOUBLE_SECONDS:
            known.is_double = True
        known.instances[summary.instance] = now
        known.summary, known.at = summary, now


class _Name(Struct, frozen=True):
    name: str


class _Named(Struct, frozen=True):
    """Of an answer only who seems to have sent it, to learn by which key it must be signed."""

    summary: _Name
