"""What the mitigation keys do: draft, preview, install, confirm, change, undo; each has its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from rich.style import Style

from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES, Rule, RuleStatus
from fwtop.model.snapshot import Snapshot
from fwtop.model.text import safe_text
from fwtop.ui.cells import Line
from fwtop.ui.drafts import NoRule, draft
from fwtop.ui.feed import Controls
from fwtop.ui.format import duration, span
from fwtop.ui.header import pending
from fwtop.ui.items import Item
from fwtop.ui.palette import BAD, GOOD, TEXT, WARN
from fwtop.ui.rule_sheet import Decision
from fwtop.ui.why_facts import why_facts

_EXTEND_SECONDS = (600, 1800, 3600, 21600, 86400)
_OWN_NEWS_SECONDS = 5.0  # how long an answer of the guardian stands against older snapshots


@dataclass(slots=True)
class News:
    """Rules as the guardian answered last, until the snapshots have caught up."""

    answers: dict[str, tuple[RuleStatus, float]] = field(default_factory=dict)

    def note(self, status: RuleStatus, now: float) -> None:
        """Keep an answer."""
        self.answers[status.rule.id] = (status, now)

    def over(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Return the snapshot with newer answers laid over its rules."""
        if not self.answers:
            return snapshot
        known = {status.rule.id: status for status in snapshot.mitigations}
        for rule_id, (answer, since) in list(self.answers.items()):
            seen = known.get(rule_id)
            agrees = seen is not None and seen.state is answer.state
            if agrees or now - since > _OWN_NEWS_SECONDS:
                del self.answers[rule_id]
            elif seen is not None or answer.state in ACTIVE_STATES:
                known[rule_id] = answer
        return replace(snapshot, mitigations=tuple(known.values()))


class Dialogs(Protocol):
    """What a Desk asks the operator."""

    async def ask(self, rule: Rule) -> Decision | None:
        """Preview a rule and let the operator edit it and decide."""
        ...

    async def choose(self, title: str, question: str, answers: Sequence[str]) -> str | None:
        """Ask a question with a few answers; None: neither."""
        ...

    def show(self, title: str, lines: Sequence[Line]) -> None:
        """Show facts."""
        ...


class Desk:
    """Carries a key to the guardian and says how it went; knows no widgets."""

    def __init__(
        self,
        controls: Controls,
        dialogs: Dialogs,
        *,
        say: Callable[[str, Style], None],
        clock: Callable[[], float],
        installed: Callable[[], None],
    ) -> None:
        self.news = News()
        self._replaces: dict[str, str] = {}  # unconfirmed rule → the one that goes once it is kept
        self._controls = controls
        self._dialogs = dialogs
        self._say = say
        self._clock = clock
        self._installed = installed

    def obstacle(self, snapshot: Snapshot | None, *, previews: bool = False) -> str:
        """Say why a mitigation key can't work now; empty when it can."""
        if snapshot is None:
            return "nothing has been observed yet"
        if self._controls.readonly and not previews:
            return f"nothing can be changed here: {self._controls.readonly}"
        if snapshot.guardian.startswith("lost"):
            return "no rule can be changed: the guardian is lost; q, then start fwtop again"
        return ""

    async def propose(self, action: str, item: Item | None) -> None:
        """Preview the rule that a key means on a row; install it if the operator says so."""
        try:
            rule = draft(action, item, self._clock())
        except NoRule as error:
            self._say(str(error), WARN)
            return
        await self._decide(rule)

    async def confirm(self, snapshot: Snapshot) -> None:
        """Keep all unconfirmed rules."""
        waiting = pending(snapshot.mitigations)
        if not waiting:
            self._say("there is no unconfirmed rule", TEXT)
        for status in waiting:
            await self._told(self._keep(status.rule.id))

    async def undo(self, snapshot: Snapshot, selected: RuleStatus | None) -> None:
        """Take the selected rule back, or else the newest active one."""
        chosen = self._chosen(snapshot, selected, "take back")
        if chosen is not None:
            await self._told(self._undo(chosen.rule.id))

    async def extend(self, snapshot: Snapshot, selected: RuleStatus | None) -> None:
        """Let a rule stay for a time from now on; an unconfirmed one is confirmed by that."""
        chosen = self._chosen(snapshot, selected, "extend")
        if chosen is None:
            return
        rule = chosen.rule
        times = {span(seconds): seconds for seconds in _EXTEND_SECONDS}
        left = f" It has {duration(chosen.expires - self._clock())} left." if chosen.expires else ""
        question = f"{rule.summary}: keep it for how long from now on?{left}"
        answer = await self._dialogs.choose(f"extend rule {rule.id}", question, tuple(times))
        if answer is not None:
            await self._told(self._keep(rule.id, times[answer]))

    async def change(self, snapshot: Snapshot, selected: RuleStatus | None) -> None:
        """Edit a rule: the new one goes in beside the old one, which goes when the new one is kept."""
        chosen = self._chosen(snapshot, selected, "change")
        if chosen is None:
            return
        old = chosen.rule
        draft_of_it = replace(old, id="", created=self._clock(), created_by=f"change of rule {old.id}")
        status = await self._decide(draft_of_it)
        if status is not None:
            self._replaces[status.rule.id] = old.id
            self._say(f"rule {status.rule.id} is in; y keeps it and takes rule {old.id} back", GOOD)

    async def why(self, snapshot: Snapshot, selected: RuleStatus | None) -> None:
        """Show why a rule does what it does."""
        chosen = self._chosen(snapshot, selected, "explain")
        if chosen is None:
            return
        rule_id = chosen.rule.id
        self._say(f"looking at rule {rule_id} …", TEXT)
        try:
            sentences = await self._controls.why(rule_id)
        except FwtopError as error:
            self._say(safe_text(error), BAD)
            return
        self._say("", TEXT)
        self._dialogs.show(f"why rule {rule_id}", why_facts(chosen, sentences))

    def _chosen(self, snapshot: Snapshot, selected: RuleStatus | None, verb: str) -> RuleStatus | None:
        active = [status for status in snapshot.mitigations if status.state in ACTIVE_STATES]
        if selected is not None and selected.state in ACTIVE_STATES:
            return selected
        if active:
            return max(active, key=lambda status: (status.rule.created, status.rule.id))
        self._say(f"there is no active rule to {verb}", TEXT)
        return None

    async def _decide(self, rule: Rule) -> RuleStatus | None:
        """Preview a rule and install it if the operator says so."""
        decision = await self._dialogs.ask(rule)
        if decision is None:
            self._say("cancelled: nothing was changed", TEXT)
            return None
        self._say("installing …", TEXT)
        try:
            status = await self._controls.apply(decision.rule, force=decision.force)
        except FwtopError as error:
            self._say(safe_text(error), BAD)
            return None
        self.news.note(status, self._clock())
        self._installed()
        self._say(safe_text(f"rule {status.rule.id} is in"), GOOD)
        return status

    async def _keep(self, rule_id: str, ttl_seconds: int | None = None) -> str:
        status = await self._controls.keep(rule_id, ttl_seconds=ttl_seconds)
        self.news.note(status, self._clock())
        old_id = self._replaces.pop(rule_id, None)
        if old_id is not None:
            await self._undo(old_id)
            return f"rule {rule_id} is confirmed in the place of rule {old_id}"
        return f"rule {rule_id} is confirmed" if ttl_seconds is None else f"rule {rule_id} is extended"

    async def _undo(self, rule_id: str) -> str:
        self._replaces.pop(rule_id, None)
        status = await self._controls.undo(rule_id)
        self.news.note(status, self._clock())
        return f"rule {rule_id} was taken back"

    async def _told(self, doing: Awaitable[str]) -> None:
        try:
            self._say(safe_text(await doing), GOOD)
        except FwtopError as error:
            self._say(safe_text(error), BAD)
