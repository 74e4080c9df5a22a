"""Leading a roll-out: preview, waves, gates; then it is kept, or stopped and reverted.

Whoever leads only confirms, with a key made for this roll-out that nobody else has: while he lives he renews
the trials, at the end he has them kept. Whatever ends him, or the way to the machines, has every rule that is
on trial end there by the machine's own clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.fleet.document import Action, Confirmation, Document, Sealed, Sources, Stage, Wave, digest
from fwtop.fleet.lists import FETCHING
from fwtop.fleet.signing import ConfirmKey
from fwtop.fleet.summary import Answer, Rollout, Summary
from fwtop.fleet.transport import WANTED, Transport
from fwtop.fleet.view import DOUBLE, FLOODS, View
from fwtop.fleet.wanted import CONFIRMED, DOCUMENT, STARTED, Question, Started, encoded
from fwtop.model.errors import FwtopError

MEASURE_SECONDS = 5.0  # after each wave
_APPLY_SECONDS = 8.0  # in which a machine whose turn it is must have applied it
_REPORT_SECONDS = 5.0  # in which they say that they kept it, or took it back
_FETCH_SECONDS = 180.0  # in which machines must have fetched lists
_AGAIN_SECONDS = 0.5
_ROWS_A_SECOND = 100_000.0  # that a slow machine rehearses, or installs
_WORSE = 2 / 3  # of what clients got before Enter: less, over all machines, is harm
_FEW = 1.0  # clients a second: of fewer chance alone may take a third
_KEPT, _REVERTED = "kept", "reverted"


class Preview(Struct, frozen=True):
    """What the machines said to a document before anybody's turn."""

    answers: dict[str, Answer]
    silent: tuple[str, ...]  # meant, and did not answer

    @property
    def agreed(self) -> dict[str, Answer]:
        """Those that would install it."""
        return {name: one for name, one in self.answers.items() if not refusal_of(one)}

    @property
    def refused(self) -> dict[str, str]:
        """Why others wouldn't."""
        return {name: why for name, one in self.answers.items() if (why := refusal_of(one))}

    @property
    def attacked(self) -> list[str]:
        """Those that agreed and are attacked, the worst first."""
        on = {name: one.summary for name, one in self.agreed.items() if one.summary.attacked}
        return sorted(on, key=lambda name: (-on[name].arrives_pps, name))


def refusal_of(answer: Answer) -> str:
    """Return why a machine would not install a document; "": it would."""
    if answer.told is None:
        return answer.refused or "it did not say"
    plans = answer.told.get("plans", ())
    return next((said for plan in plans if (said := plan.get("refused") or plan.get("needs_force"))), "")


def foreseen(answer: Answer) -> list[dict[str, Any]] | None:
    """Return what each rule of a document would do to what a machine sees; None: it did not say."""
    told = [plan.get("foreseen") for plan in (answer.told or {}).get("plans", ())]
    rates = ("pps", "of_pps")
    known = [
        one
        for one in told
        if isinstance(one, dict) and all(isinstance(one.get(name), int | float) for name in rates)
    ]
    return known if told and len(known) == len(told) else None


class Outcome(Struct):
    """How a roll-out ended; seconds are from Enter."""

    rollout: str
    previewed: int
    refused: int
    meant: list[str] = field(default_factory=list)  # whose turn it was
    applied: list[str] = field(default_factory=list)
    seconds_to_first: float | None = None
    seconds_to_all: float | None = None
    outcome: str = _REVERTED
    reason: str = ""
    states: dict[str, str] = field(default_factory=dict)  # by machine, as it said last

    @property
    def is_kept(self) -> bool:
        """Whether it was kept."""
        return self.outcome == _KEPT


class StoppedError(FwtopError):
    """A gate that failed: the roll-out is taken back."""


async def preview(
    transport: Transport, view: View, document: Document, sealed: Sealed, seconds: float
) -> Preview:
    """Ask all what they would say to a document; those that it isn't meant for are left out."""
    meant = view.register.meant(document.on)
    seconds += _rows_seconds(document)
    answers = await view.ask(transport, Question.new(sealed), seconds, meant)
    silent = tuple(sorted(meant.keys() - answers.keys()))
    for name in answers:
        if why := view.why_not(name):
            answers[name] = replace(answers[name], told=None, refused=why)
    return Preview({name: one for name, one in answers.items() if one.reason != "not_meant"}, silent)


async def distribute(
    transport: Transport, view: View, document: Document, sealed: Sealed, say: Callable[[str], None]
) -> None:
    """Have all machines fetch a document's lists, and say how far they are, until they answer with them."""
    meant, end, said = view.register.meant(document.on), time.monotonic() + _FETCH_SECONDS, ""
    while True:
        answers = await view.ask(transport, Question.new(sealed, fetch=True), _REPORT_SECONDS / 2, meant)
        coming = {name: one.refused for name, one in answers.items() if one.reason == FETCHING}
        line = f"  the list is on {len(answers) - len(coming)} of {len(meant)} machines"
        line += "".join(f"; {name}: {told}" for name, told in sorted(coming.items())[:1])
        if line != said:
            say(line)
        if not coming or time.monotonic() > end:
            return
        said = line
        await asyncio.sleep(_AGAIN_SECONDS)


def _rows_seconds(document: Document) -> float:
    """Return the seconds more that a machine may take for a document's lists."""
    about = document.sources
    return about.entries / _ROWS_A_SECOND if isinstance(about, Sources) else 0.0


class Leader:
    """Leads one roll-out; `say` is given a line for each machine and each wave."""

    def __init__(
        self,
        transport: Transport,
        view: View,
        document: Document,
        sealed: Sealed,
        *,
        key: ConfirmKey,
        say: Callable[[str], None],
        connect: Callable[[], Awaitable[Transport]] | None = None,
    ) -> None:
        """The document is signed, and names this key; `connect` makes another connection to the servers."""
        self._transport, self._view, self._say = transport, view, say
        self._document, self._sealed, self._key = document, sealed, key
        self._number = 0  # of confirmations
        self._started = Started()
        self._told: dict[str, str] = {}
        self._clients: dict[str, float] = {}  # at Enter
        self._enter = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._connect = connect
        self._connecting = asyncio.Lock()

    async def close(self) -> None:
        """End the connection that it had last."""
        await self._transport.close()

    async def lead(self, asked: Preview) -> Outcome:
        """Carry the roll-out out, wave by wave; never raises FwtopError: the outcome has the reason."""
        outcome = Outcome(self._document.rollout, len(asked.answers), len(asked.refused))
        self._enter = time.monotonic()
        for name, one in asked.agreed.items():
            if one.summary.clients is not None:
                self._clients[name] = one.summary.clients
        is_there = False
        try:
            await self._put(DOCUMENT, self._sealed, self._life)
            is_there = True
            self._renewing = asyncio.create_task(self._renew())
            for number, wave in enumerate(self._document.waves, 1):
                machines = self._turn(wave, asked, outcome.meant)
                if machines:
                    self._say(f"wave {number}: {_names(machines)}")
                    await self._wave(machines, wave, outcome)
            if not outcome.meant:
                raise StoppedError("it was no machine's turn")
            await self._keep(outcome)
        except FwtopError as error:
            outcome.reason = str(error)
            self._stop_renewing()
            if is_there:  # else nobody began
                await self._revert(outcome)
        except asyncio.CancelledError:  # whoever leads interrupts it
            self._stop_renewing()
            await self._revert(outcome)
            raise
        finally:
            self._stop_renewing()
            outcome.states = {name: self._stage(name) for name in outcome.meant}
        return outcome

    @property
    def _life(self) -> float:
        return max(self._document.not_after - time.time(), 1.0)

    def _turn(self, wave: Wave, asked: Preview, before: list[str]) -> list[str]:
        """Return whose turn it is in a wave, those under the worst attack first."""
        meant = self._view.register.meant(wave.on) if wave.on else asked.answers
        calm = [] if wave.attacked else sorted(asked.agreed.keys() - set(asked.attacked))
        chosen = [name for name in (*asked.attacked, *calm) if name in meant and name not in before]
        return chosen[: wave.most]

    async def _wave(self, machines: list[str], wave: Wave, outcome: Outcome) -> None:
        """Start some machines, wait until they applied it, measure, and look at the gates."""
        outcome.meant += machines
        await self._start(outcome.meant)
        end = time.monotonic() + _APPLY_SECONDS + _rows_seconds(self._document)
        while any(name not in self._count(outcome) and not self._is_over(name) for name in outcome.meant):
            if time.monotonic() > end:
                break
            await self._hear_until(end)
        believed = [one for one in outcome.meant if one in outcome.applied or one not in self._view.flooding]
        share = len(outcome.applied) / len(believed) if believed else 0.0
        if share < self._document.gates.applied_share:
            missing = {
                name: self._told.get(name, "silent") for name in outcome.meant if name not in outcome.applied
            }
            said = "; ".join(f"{name}: {what}" for name, what in missing.items())
            raise StoppedError(f"applied on {len(outcome.applied)} of {len(outcome.meant)}: {said}")
        end = time.monotonic() + wave.seconds
        while time.monotonic() < end:
            self._look_at_gates(outcome)
            await self._hear_until(end)
        self._look_at_gates(outcome)

    def _count(self, outcome: Outcome) -> list[str]:
        """Note and say which machines have it in force by now."""
        for name in outcome.meant:
            rollout = self._on(name)
            told = _in_words(rollout) if rollout is not None else ""
            told = FLOODS if name in self._view.flooding else told
            if told and self._told.get(name) != told:
                self._told[name] = told
                self._say(f"  {name}: {told}")
            if rollout is not None and rollout.acting and name not in outcome.applied:
                outcome.applied.append(name)
                now = round(time.monotonic() - self._enter, 2)
                outcome.seconds_to_first = outcome.seconds_to_first or now
                outcome.seconds_to_all = now
        return outcome.applied

    def _is_over(self, name: str) -> bool:
        """Return whether a machine refused it, took it back, or is not heard any more."""
        return name in self._view.flooding or self._stage(name) in ("refused", Stage.REVERTED, Stage.UNDONE)

    def _look_at_gates(self, outcome: Outcome) -> None:
        """Raise StoppedError if clients fare worse than before, or rules are not in force any more."""
        self._count(outcome)
        if twice := [name for name in outcome.meant if self._view.machines[name].is_double]:
            raise StoppedError(f"{_names(twice)}: {DOUBLE}")
        harmed = {name: why for name in outcome.meant if (why := self._harm(name))}
        if len(harmed) > self._document.gates.most_harmed:
            raise StoppedError("; ".join(f"{name}: {why}" for name, why in harmed.items()))
        if gone := [
            name for name in outcome.meant if self._stage(name) == Stage.REVERTED and name not in harmed
        ]:
            raise StoppedError(f"{_names(gone)}: {self._told.get(gone[0], 'reverted')}")
        if fell := self._fallen(outcome):
            raise StoppedError(fell)

    def _fallen(self, outcome: Outcome) -> str:
        """Say how the clients of all machines fell, "" if they did not, so that no machine's word hides it.

        Both count: the clients together, of which one machine may claim many, and the machines one by one.
        """
        now = {
            name: clients
            for name in outcome.meant
            if name in self._clients and (clients := self._summary(name).clients) is not None
        }
        if len(now) < 2:
            return ""
        before, after = sum(self._clients[name] for name in now), sum(now.values())
        if after < _WORSE * before:
            return f"clients of {len(now)} machines fell from {before:.0f} to {after:.0f} a second"
        shares = [now[name] / was for name in now if (was := self._clients[name]) >= _FEW]
        if len(shares) > 2 and median(shares) < _WORSE:
            return f"clients fell by a third or more on most of {len(shares)} machines"
        return ""

    def _harm(self, name: str) -> str:
        """Return what a machine says the rule costs its clients, or why it took it back for that."""
        rollout = self._on(name)
        if rollout is not None and rollout.stage == Stage.REVERTED and "harm" in rollout.why:
            return rollout.why
        return self._summary(name).harm

    def _on(self, name: str) -> Rollout | None:
        rollouts = self._summary(name).rollouts
        return next((one for one in rollouts if one.rollout == self._document.rollout), None)

    def _stage(self, name: str) -> str:
        found = self._on(name)
        return found.stage if found is not None else "untouched"

    def _summary(self, name: str) -> Summary:
        return self._view.machines[name].summary  # it answered the preview

    async def _hear_until(self, end: float) -> None:
        """Wait for the next summary, until `end`; raises FwtopError once all servers are lost."""
        transport = self._transport
        self._view.changed.clear()
        waiting = {
            asyncio.create_task(self._view.changed.wait()),
            asyncio.create_task(transport.lost.wait()),
        }
        renewing = {self._renewing} if self._renewing is not None else set()
        left = max(end - time.monotonic(), 0.01)
        await asyncio.wait({*waiting, *renewing}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        if self._renewing is not None and self._renewing.done():
            self._renewing.result()
        await self._back(transport)

    async def _back(self, transport: Transport) -> None:
        """If a connection is lost, make another, while trials last; raises FwtopError."""
        end = time.monotonic() + self._document.trial_seconds / 2
        async with self._connecting:
            while self._transport is transport and transport.lost.is_set():
                if self._connect is None or time.monotonic() > end:
                    raise FwtopError("the fleet's servers were lost")
                try:
                    other = await self._connect()
                    await self._view.follow(other)
                except FwtopError:
                    await asyncio.sleep(_AGAIN_SECONDS)
                else:
                    self._transport = other
                    self._say("the server was lost; led through another connection from here")

    def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    async def _renew(self) -> None:
        """Renew the trials for as long as this process leads; raises FwtopError."""
        while True:
            await asyncio.sleep(self._document.trial_seconds / 3)
            await self._start(list(self._started.machines))
            await self._confirm(Action.RENEW, self._document.trial_seconds * 2)

    async def _start(self, machines: list[str], *, seconds: float = 0.0, everyone: bool = False) -> None:
        self._started = Started(self._started.number + 1, tuple(machines), everyone)
        await self._put(STARTED, self._started, seconds or self._document.trial_seconds * 2)

    async def _confirm(self, action: Action, seconds: float) -> None:
        self._number += 1
        said = Confirmation(
            fleet=self._document.fleet, rollout=self._document.rollout, action=action, number=self._number,
            document=digest(self._sealed.text.encode()),
        )  # fmt: skip
        await self._put(CONFIRMED, await asyncio.to_thread(self._key.seal, said), seconds)

    async def _put(self, kind: str, value: Sealed | Started, seconds: float) -> None:
        name, transport = f"{self._document.rollout}.{kind}", self._transport
        try:
            await transport.put(WANTED, name, encoded(value), seconds=seconds)
        except FwtopError:
            if not transport.lost.is_set():
                raise
            await self._back(transport)
            await self._transport.put(WANTED, name, encoded(value), seconds=seconds)

    async def _keep(self, outcome: Outcome) -> None:
        """Have all keep it: the store brings it to those who were off, perhaps to all who come later."""
        everyone = not all(wave.attacked for wave in self._document.waves)
        self._stop_renewing()
        await self._confirm(Action.KEEP, self._life)
        await self._start(outcome.meant, seconds=self._life, everyone=everyone)
        outcome.outcome = _KEPT
        await self._report(outcome, Stage.KEPT)
        late = [name for name in outcome.meant if self._stage(name) != Stage.KEPT]
        outcome.reason = f"{_names(late)} did not say so yet" if late else ""

    async def _revert(self, outcome: Outcome) -> None:
        """Have all take it back at once; where that reaches nobody, the trials end by themselves."""
        try:
            await self._confirm(Action.UNDO, self._life)
            await self._report(outcome, Stage.UNDONE)
        except FwtopError:
            seconds = self._document.trial_seconds
            outcome.reason += f"; what is on trial ends on each machine within {seconds} s"

    async def _report(self, outcome: Outcome, stage: Stage) -> None:
        """Wait a while for all machines to say that they got there, saying who does."""
        end = time.monotonic() + _REPORT_SECONDS
        over = {stage, "untouched"}
        while (
            not all(self._stage(name) in over or self._is_over(name) for name in outcome.meant)
            and time.monotonic() < end
        ):
            await self._hear_until(end)
            self._count(outcome)


def _in_words(rollout: Rollout) -> str:
    said = f"{rollout.stage}{', counts only' * rollout.counting}"
    if rollout.why:
        return f"{said}: {rollout.why}"
    return said + (", in force" if rollout.acting else "")


def _names(machines: list[str]) -> str:
    shown = ", ".join(machines[:6])
    return shown + (f" and {len(machines) - 6} more" if len(machines) > 6 else "")


def waves_of(
    first: Sequence[int | str], *, everywhere: bool, seconds: float = MEASURE_SECONDS
) -> tuple[Wave, ...]:
    """Return waves of so many machines, or of those with a label, before all that are attacked.

    If wanted, those in calm come last.
    """
    attacked = not everywhere
    given = (
        Wave(on=(one,), attacked=attacked, seconds=seconds)
        if isinstance(one, str)
        else Wave(most=one, attacked=attacked, seconds=seconds)
        for one in first
    )
    last = (Wave(seconds=seconds),) if everywhere else ()
    return (*given, Wave(attacked=True, seconds=seconds), *last)
