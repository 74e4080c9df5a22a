"""The rule keys: preview, install, confirm, change and remove rules through the guardian."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace
from rich.style import Style
from textual import events
from textual.screen import Screen

from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES, Rule, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import Snapshot
from fwtop.render.numbers import duration_words
from fwtop.rules.overlap import covering_rule, same_effect
from fwtop.ui.actions.elsewhere import command_elsewhere, lines_elsewhere
from fwtop.ui.actions.rule_dialogs import Dialogs
from fwtop.ui.actions.rule_from_row import NoRuleError, rule_from_row
from fwtop.ui.bars.status_bars import not_acting, pending
from fwtop.ui.drawing.format import duration, number
from fwtop.ui.drawing.guarded import Guarded
from fwtop.ui.drawing.style import BAD, GOOD, TEXT, WARN
from fwtop.ui.feed import Controls
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.rows import Item
from fwtop.ui.lists.rules import why_details
from fwtop.ui.state.rules import ExpiryWatch, OptimisticOverlay

_EXTEND_SECONDS = (600, 1800, 3600, 21600, 86400)
KEEP_RULE, REMOVE_RULE = "Keep it", "Remove it"


class RuleActions:
    """Carries out the rule keys and reports the outcome; independent of widgets.

    `current` returns the snapshot on the screen, overlay included.
    """

    def __init__(
        self,
        controls: Controls,
        dialogs: Dialogs,
        *,
        say: Callable[[str, Style], None],
        clock: Callable[[], float],
        installed: Callable[[], None],
        current: Callable[[], Snapshot | None] = lambda: None,
    ) -> None:
        self.expiry = ExpiryWatch()
        self._installing = 0  # requests under way
        self.installed_rules: dict[str, str] = {}  # by this screen: id → summary
        self._removed: RuleStatus | None = None  # the last one, for redo
        self._current = current
        self.overlay = OptimisticOverlay()
        self._replaces: dict[str, str] = {}  # unconfirmed rule → the one that goes once it is kept
        self._controls = controls
        self._dialogs = dialogs
        self._say = say
        self._clock = clock
        self._installed = installed

    def obstacle(self, snapshot: Snapshot | None, *, previews: bool = False) -> str:
        """Return why a rule key can't work now; "" if it can. Previews work in read-only mode too."""
        if snapshot is None:
            return "nothing has been observed yet"
        if self._controls.readonly and not previews:
            return f"nothing can be changed here: {self._controls.readonly}"
        if snapshot.origin.kind == "session":
            return "a stored session has no packets to preview a rule on"
        if snapshot.guardian.startswith("lost"):
            return "no rule can be changed: the guardian is lost; quit and start fwtop again"
        return ""

    async def propose(self, action: str, item: Item | None) -> None:
        """Preview the rule that a key makes of a row, and install it if the operator agrees."""
        try:
            rule = rule_from_row(action, item, self._clock())
        except NoRuleError as error:
            self._say(str(error), WARN)
            return
        await self._decide(rule)

    async def install(self, rule: Rule) -> None:
        """Preview a rule, and install it if the operator agrees."""
        await self._decide(rule)

    async def keep(self, _: Snapshot, selected: RuleStatus | None) -> None:
        """Keep one rule."""
        if selected is not None and not self._shows_command("confirm", selected.rule):
            await self._report(f"confirming rule {selected.rule.id}", self._keep(selected.rule.id))

    async def repair_one(self, _: Snapshot, selected: RuleStatus | None) -> None:
        """Put back one rule."""
        if selected is not None:
            await self._report(f"restoring rule {selected.rule.id}", self._repair(selected.rule.id))

    async def propose_set(self, parts: Sequence[tuple[Rule, str]]) -> None:
        """Preview one rule for each attack together, and install them if the operator agrees."""
        if not parts:
            self._say("there is no proposal that drops packets", TEXT)
            return
        rules = await self._dialogs.ask_set(parts, self.conflict)
        if not rules:
            self._say("cancelled: nothing was changed", TEXT)
            return
        done = [status.rule.id for rule in rules if (status := await self._install(rule)) is not None]
        if len(done) == len(rules):
            self._say(f"rules {', '.join(done)} are installed", GOOD)

    async def confirm(self, snapshot: Snapshot, _: RuleStatus | None = None) -> None:
        """Keep all unconfirmed rules."""
        waiting = pending(snapshot.mitigations)
        key, expired = KEY_MAP.label("keep"), self.expiry.expired
        if not waiting and self._installing:
            self._say(f"{key} confirms the rule once it is installed …", TEXT)
        elif not waiting and expired is not None:
            self._say(f"rule {expired.rule.id} was not confirmed in time", WARN)
        elif not waiting:
            self._say("there is no unconfirmed rule", TEXT)
        for status in waiting:
            if not self._shows_command("confirm", status.rule):
                await self._report(f"confirming rule {status.rule.id}", self._keep(status.rule.id))

    async def repair(self, snapshot: Snapshot, _: RuleStatus | None) -> None:
        """Put back all rules that do not act."""
        broken = not_acting(snapshot.mitigations)
        if not broken:
            self._say("every active rule acts", TEXT)
        for status in broken:
            await self._report(f"restoring rule {status.rule.id}", self._repair(status.rule.id))

    async def undo(self, snapshot: Snapshot, selected: RuleStatus | None) -> None:
        """Remove the selected rule, or else the newest active one; a confirmed one only after a question."""
        chosen = self._chosen(snapshot, selected, "remove")
        if chosen is None:
            return
        rule = chosen.rule
        if self._shows_command("remove", rule):
            return
        if chosen.state is State.CONFIRMED:
            question = f"Rule {rule.id} ({rule.summary}) is confirmed and drops {number(chosen.pps)} pps now."
            answer = await self._dialogs.choose(f"remove rule {rule.id}", question, (KEEP_RULE, REMOVE_RULE))
            if answer != REMOVE_RULE:
                self._say(f"rule {rule.id} stays", TEXT)
                return
        await self._report(f"removing rule {rule.id}", self._undo(rule.id))

    async def redo(self, _: Snapshot, __: RuleStatus | None) -> None:
        """Preview the rule that was removed or expired last, to install it again."""
        lost = self.expiry.expired or self._removed
        if lost is None:
            self._say("no rule was removed in this session", TEXT)
            return
        rule = None if self._shows_command("install", lost.rule) else await self._whole(lost)
        if rule is not None:
            await self._decide(replace(rule, id="", created=self._clock(), replaces=""))

    async def extend(self, snapshot: Snapshot, selected: RuleStatus | None) -> None:
        """Set how long a rule stays from now on; this confirms an unconfirmed one."""
        chosen = self._chosen(snapshot, selected, "extend")
        if chosen is None:
            return
        rule = chosen.rule
        if self._shows_command("extend", rule):
            return
        times = {duration_words(seconds): seconds for seconds in _EXTEND_SECONDS}
        left = f" It has {duration(chosen.expires - self._clock())} left." if chosen.expires else ""
        question = f"{rule.summary}: how long should it stay from now on?{left}"
        answer = await self._dialogs.choose(f"extend rule {rule.id}", question, tuple(times))
        if answer is not None:
            await self._report(f"extending rule {rule.id}", self._keep(rule.id, times[answer]))

    async def change(self, snapshot: Snapshot, selected: RuleStatus | None) -> None:
        """Edit a rule: the new one is installed beside the old one, which ends when the new one is kept."""
        chosen = self._chosen(snapshot, selected, "change")
        if chosen is None:
            return
        old = chosen.rule
        if self._shows_command("change", old):
            return
        whole = await self._whole(chosen)
        if whole is None:
            return
        edited = replace(whole, id="", created=self._clock(), created_by=f"change of rule {old.id}")
        status = await self._decide(edited, changing=old)
        if status is not None:
            self._replaces[status.rule.id] = old.id
            self._say(
                f"rule {status.rule.id} is in; {KEY_MAP.label('keep')} keeps it and removes rule {old.id}",
                GOOD,
            )

    async def why(self, snapshot: Snapshot, selected: RuleStatus | None) -> None:
        """Show what a rule matches, or what keeps it from matching."""
        chosen = self._chosen(snapshot, selected, "explain")
        if chosen is None:
            return
        rule_id = chosen.rule.id
        self._say(f"examining rule {rule_id} …", TEXT)
        try:
            sentences = await self._controls.why(rule_id)
        except FwtopError as error:
            self._say(safe_text(error), BAD)
            return
        self._say("", TEXT)
        self._dialogs.show(f"why rule {rule_id}", why_details(chosen, sentences))

    async def _whole(self, status: RuleStatus) -> Rule | None:
        """Return a rule with all of its sources; None where they can't be had, as the status line says."""
        try:
            return await self._controls.whole(status)
        except FwtopError as error:
            self._say(safe_text(error), BAD)
            return None

    def _shows_command(self, verb: str, rule: Rule) -> bool:
        """Show the command for another terminal where a key may not change a rule; returns whether it did."""
        snapshot = self._current()
        command = command_elsewhere(verb, rule, snapshot.origin.netns if snapshot is not None else None)
        if command:
            self._dialogs.show(f"{verb} rule {rule.id}", lines_elsewhere(rule, command))
        return bool(command)

    def _chosen(self, snapshot: Snapshot, selected: RuleStatus | None, verb: str) -> RuleStatus | None:
        active = [status for status in snapshot.mitigations if status.state in ACTIVE_STATES]
        if selected is not None and selected.state in ACTIVE_STATES:
            return selected
        if active:
            return max(active, key=lambda status: (status.rule.created, status.rule.id))
        self._say(f"there is no active rule to {verb}", TEXT)
        return None

    def conflict(self, rule: Rule, *, changing: Rule | None = None) -> str:
        """Return why a rule must not go in: an active one does it already. "" if none does."""
        snapshot = self._current()
        mitigations = snapshot.mitigations if snapshot is not None else ()
        if changing is not None:
            if same_effect(changing, rule) and changing.ttl_seconds == rule.ttl_seconds:
                return f"rule {changing.id} is exactly this: change something first"
            mitigations = tuple(status for status in mitigations if status.rule.id != changing.id)
        covering = covering_rule(rule, mitigations)
        keys = f"{KEY_MAP.label('extend')} extends it, {KEY_MAP.label('change')} changes it"
        return f"rule {covering} does this already: {keys}" if covering else ""

    async def _decide(self, rule: Rule, *, changing: Rule | None = None) -> RuleStatus | None:
        """Preview a rule and install it if the operator agrees."""
        decision = await self._dialogs.ask(rule, lambda edited: self.conflict(edited, changing=changing))
        if decision is None:
            self._say("cancelled: nothing was changed", TEXT)
            return None
        status = await self._install(decision.rule, force=decision.force)
        if status is not None:
            self._say(safe_text(f"rule {status.rule.id} is installed"), GOOD)
        return status

    async def _install(self, rule: Rule, *, force: bool = False) -> RuleStatus | None:
        self._say("installing …", TEXT)
        self._installing += 1
        try:
            status = await self._controls.apply(rule, force=force)
        except FwtopError as error:
            self._say(safe_text(error), BAD)
            return None
        finally:
            self._installing -= 1
        self.overlay.note(status, self._clock())
        self.expiry.expired = None
        self.installed_rules[status.rule.id] = status.rule.summary
        self._installed()
        return status

    async def _keep(self, rule_id: str, ttl_seconds: int | None = None) -> str:
        status = await self._controls.keep(rule_id, ttl_seconds=ttl_seconds)
        self.overlay.note(status, self._clock())
        old_id = self._replaces.pop(rule_id, None)
        if old_id is not None:
            await self._undo(old_id)
            return f"rule {rule_id} is confirmed and replaces rule {old_id}"
        return f"rule {rule_id} is confirmed" if ttl_seconds is None else f"rule {rule_id} is extended"

    async def _repair(self, rule_id: str) -> str:
        self.overlay.note(await self._controls.repair(rule_id), self._clock())
        return f"rule {rule_id} acts again"

    async def _undo(self, rule_id: str) -> str:
        self._replaces.pop(rule_id, None)
        self.expiry.forget(rule_id)
        status = await self._controls.undo(rule_id)
        self.overlay.note(status, self._clock())
        self._removed = status
        return f"rule {rule_id} was removed; {KEY_MAP.label('redo')} installs it again"

    async def _report(self, what: str, doing: Awaitable[str]) -> None:
        self._say(f"{what} …", TEXT)  # the guardian may take its time
        try:
            self._say(safe_text(await doing), GOOD)
        except FwtopError as error:
            self._say(safe_text(error), BAD)


Job = Callable[[Snapshot, RuleStatus | None], Awaitable[None]]


class RuleKeysScreen(Guarded, Screen[None], inherit_bindings=False):
    """A screen with the rule keys; a subclass knows which rule is selected."""

    actions: RuleActions

    def current_snapshot(self) -> Snapshot | None:
        """Return the newest snapshot, overlay included."""
        raise NotImplementedError

    def selected_rule(self) -> RuleStatus | None:
        """Return the selected row if it is a rule."""
        raise NotImplementedError

    def refuse(self, line: str) -> None:
        """Show why a key does nothing."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw everything again."""
        raise NotImplementedError

    def on_key(self, event: events.Key) -> None:
        """Take the expiry alarm away; Enter previews the expired rule to install it again."""
        if self.actions.expiry.expired is None:
            return
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.action_redo()
            return
        if event.key == KEY_MAP.label("keep"):  # a moment too late: the way back stays on the screen
            return
        self.actions.expiry.expired = None
        self.redraw()

    def action_keep(self, rule_id: str = "") -> None:
        """Keep the unconfirmed rules, or one."""
        self._do(self.actions.keep if rule_id else self.actions.confirm, rule_id)

    def action_repair(self, rule_id: str = "") -> None:
        """Restore the rules that are not in effect, or one."""
        self._do(self.actions.repair_one if rule_id else self.actions.repair, rule_id)

    def action_undo(self, rule_id: str = "") -> None:
        """Remove the selected rule, or the newest."""
        self._do(self.actions.undo, rule_id)

    def action_redo(self) -> None:
        """Install the last removed or expired rule again."""
        self._do(self.actions.redo)

    def action_extend(self, rule_id: str = "") -> None:
        """Ask how long the selected rule, or the newest, should stay."""
        self._do(self.actions.extend, rule_id)

    def action_change(self, rule_id: str = "") -> None:
        """Replace the selected rule, or the newest, by an edited one."""
        self._do(self.actions.change, rule_id)

    def action_why(self, rule_id: str = "") -> None:
        """Explain what the selected rule, or the newest, matches."""
        self._do(self.actions.why, rule_id, changes=False)

    def _do(self, job: Job, rule_id: str = "", *, changes: bool = True) -> None:
        snapshot = self.current_snapshot()
        # The selection is read now, not when the worker starts: the row under the finger counts.
        rule = self.selected_rule()
        if rule_id:
            found = [item for item in snapshot.mitigations if item.rule.id == rule_id] if snapshot else []
            rule = found[0] if found and found[0].state in ACTIVE_STATES else None
            if rule is None:
                self.refuse(f"rule {rule_id} is no longer active")
                return
        obstacle = self.actions.obstacle(snapshot, previews=not changes)
        if obstacle or snapshot is None:
            self.refuse(obstacle)
            return
        self.begin(job, snapshot, rule, group="rules")
