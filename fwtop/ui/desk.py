"""What the mitigation keys do: draft, preview, install, confirm, undo, with an answer for everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from rich.style import Style

from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES, Rule, RuleStatus
from fwtop.model.snapshot import Snapshot
from fwtop.model.text import safe_text
from fwtop.ui.drafts import NoRule, draft
from fwtop.ui.feed import Controls
from fwtop.ui.header import pending
from fwtop.ui.items import Item
from fwtop.ui.palette import BAD, GOOD, TEXT, WARN
from fwtop.ui.rule_sheet import Decision

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


class Desk:
    """Carries a key to the guardian and says how it went; knows no widgets."""

    def __init__(
        self,
        controls: Controls,
        *,
        ask: Callable[[Rule], Awaitable[Decision | None]],
        say: Callable[[str, Style], None],
        clock: Callable[[], float],
    ) -> None:
        self.news = News()
        self._controls = controls
        self._ask = ask
        self._say = say
        self._clock = clock

    def obstacle(self, snapshot: Snapshot | None, *, previews: bool = False) -> str:
        """Say why a mitigation key can't work now; empty when it can."""
        if snapshot is None:
            return "nothing has been observed yet"
        if self._controls.readonly and not previews:
            return f"nothing can be changed here: {self._controls.readonly}"
        if snapshot.guardian.startswith("lost"):
            return "the guardian is lost, so no rule can be changed: leave with q and start fwtop again"
        return ""

    async def propose(self, action: str, item: Item | None) -> None:
        """Preview the rule that a key means on a row; install it if the operator says so."""
        try:
            rule = draft(action, item, self._clock())
        except NoRule as error:
            self._say(str(error), WARN)
            return
        decision = await self._ask(rule)
        if decision is None:
            self._say("cancelled: nothing was changed", TEXT)
            return
        self._say("installing …", TEXT)
        await self._told(self._install(decision))

    async def confirm(self, snapshot: Snapshot) -> None:
        """Keep all unconfirmed rules."""
        waiting = pending(snapshot.mitigations)
        if not waiting:
            self._say("there is no unconfirmed rule", TEXT)
        for status in waiting:
            await self._told(self._keep(status.rule.id))

    async def undo(self, snapshot: Snapshot, selected: RuleStatus | None) -> None:
        """Take the selected rule back, or else the newest active one."""
        active = [status for status in snapshot.mitigations if status.state in ACTIVE_STATES]
        if selected is not None and selected.state in ACTIVE_STATES:
            chosen = selected
        elif active:
            chosen = max(active, key=lambda status: (status.rule.created, status.rule.id))
        else:
            self._say("there is no active rule to take back", TEXT)
            return
        await self._told(self._undo(chosen.rule.id))

    async def _install(self, decision: Decision) -> str:
        status = await self._controls.apply(decision.rule, force=decision.force)
        self.news.note(status, self._clock())
        return f"rule {status.rule.id} is in"

    async def _keep(self, rule_id: str) -> str:
        status = await self._controls.keep(rule_id)
        self.news.note(status, self._clock())
        return f"rule {rule_id} is confirmed"

    async def _undo(self, rule_id: str) -> str:
        status = await self._controls.undo(rule_id)
        self.news.note(status, self._clock())
        return f"rule {rule_id} was taken back"

    async def _told(self, doing: Awaitable[str]) -> None:
        try:
            self._say(safe_text(await doing), GOOD)
        except FwtopError as error:
            self._say(safe_text(error), BAD)
