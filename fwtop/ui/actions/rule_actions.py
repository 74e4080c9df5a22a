"""The rule keys: preview, install, confirm, change and remove rules through the guardian."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace
from textual import events

from fwtop.model.console_scope import owner_elsewhere
from fwtop.model.rule import ACTIVE_STATES, POLICY, POLICY_TRIAL, Mode, Rule, RuleStatus, State
from fwtop.model.text import safe_text
from fwtop.model.traffic.snapshot import NOTHING, Snapshot
from fwtop.render.numbers import duration_words
from fwtop.rules.kinds import command_line, of
from fwtop.rules.overlap import IDENTITY, covering_rule, fixed_field, same_effect
from fwtop.ui.actions.desk import Desk
from fwtop.ui.actions.log import ExpiryWatch
from fwtop.ui.actions.rule_dialog import Decision, RuleDialog
from fwtop.ui.actions.tab_actions import TabActions
from fwtop.ui.bars import not_acting, pending
from fwtop.ui.format import duration, number
from fwtop.ui.keys import KEY_MAP
from fwtop.ui.lists.rules import why_details
from fwtop.ui.style import BAD, GOOD, STRONG, TEXT, WARN, Line

_EXTEND_SECONDS = (600, 1800, 3600, 21600, 86400)
KEEP_RULE, REMOVE_RULE = "Keep it", "Remove it"
_EXPLAIN = "explain"  # the one verb that changes nothing
_MODE = "change the mode of"
_ON_ONE = {  # jobs, and their verbs
    "undo": "remove", "extend": "extend", "change": "change", "why": _EXPLAIN, "mode": _MODE,
}  # fmt: skip
DROP_RULE, COUNT_RULE, LEAVE_RULE = "Have it drop", "Have it count only", "Leave it"
# What the screen may not do, because it parses what attackers send: the command for another terminal.
_ELSEWHERE = {
    "confirm": "fwtop keep {id}",
    "extend": "fwtop keep {id} --ttl 1d",
    "remove": "fwtop undo {id}",
    _MODE: "fwtop mode {id} {mode}",
}


class RuleActions:
    """Carries out the rule keys and reports the outcome."""

    def __init__(self, desk: Desk, tabs: TabActions) -> None:
        self.expiry = ExpiryWatch()
        self.installed_rules: dict[str, str] = {}  # by this screen: id → summary
        self._installing = 0  # requests under way
        self._replaces: dict[str, str] = {}  # unconfirmed rule → the one that goes once it is kept
        self._desk = desk
        self._tabs = tabs
        self._controls = desk.controls
        self._say = desk.say

    def on_key(self, event: events.Key) -> None:
        """Take the expiry alarm away; Enter previews the expired rule to install it again."""
        if self.expiry.expired is None:
            return
        if event.key == "enter" and self.expiry.loss is None:
            event.stop()
            event.prevent_default()
            self.on_rule("redo")
        elif (
            KEY_MAP.action(event.key, self._tabs.shown.name) is not KEY_MAP["keep"]
        ):  # a moment too late: the way back stays on the screen
            self.expiry.expired = None
            self._desk.redraw()

    def on_rule(self, job: str, rule_id: str = "") -> None:
        """Do something with the rule of an id, or else the selected one; jobs are methods of this class.

        Without an id `keep` and `repair` concern every rule in need of them.
        """
        snapshot, rule = self._desk.current(), None
        if rule_id:
            found = (item for item in snapshot.mitigations if item.rule.id == rule_id)
            rule = next((item for item in found if item.state in ACTIVE_STATES), None)
            if rule is None:
                self._say(f"rule {rule_id} is no longer active", BAD)
                return
        if obstacle := self.obstacle(previews=job == "why"):
            self._say(obstacle, BAD)
        elif job not in _ON_ONE:
            self._desk.begin(getattr(self, job), rule, group="rules")
        elif chosen := self._chosen(snapshot, rule or self._tabs.selected_rule(), _ON_ONE[job]):
            self._desk.begin(getattr(self, job), chosen, group="rules")

    def obstacle(self, *, previews: bool = False) -> str:
        """Return why a rule key can't work now; "" if it can. Previews work in read-only mode too."""
        snapshot = self._desk.snapshot
        if snapshot is NOTHING:
            return "nothing has been observed yet"
        if self._controls.readonly and not previews:
            return f"nothing can be changed here: {self._controls.readonly}"
        if snapshot.origin.kind == "session":
            return "a stored session has no packets to preview a rule on"
        if snapshot.guardian.startswith("lost"):
            return "no rule can be changed: the guardian is lost; quit and start fwtop again"
        return ""

    def preview(self, *rules: tuple[Rule, str]) -> None:
        """Preview rules, each with its attack's letter, and install them if the operator agrees."""
        self._desk.begin(self._decide, rules, group="actions")

    async def keep(self, rule: RuleStatus | None = None) -> None:
        """Keep one rule, or all unconfirmed ones."""
        waiting = [rule] if rule is not None else pending(self._desk.current().mitigations)
        key, expired = KEY_MAP.label("keep"), self.expiry.expired
        if not waiting and self._installing:
            self._say(f"{key} confirms the rule once it is installed …")
        elif not waiting and expired is not None:
            self._say(f"rule {expired.rule.id} was not confirmed in time", WARN)
        elif not waiting:
            self._say("there is no unconfirmed rule")
        mine = [status.rule.id for status in waiting if not self._shows_command("confirm", status.rule)]
        for rule_id in mine:
            await self._report(f"confirming rule {rule_id}", self._keep(rule_id))
        if len(mine) > 1 and not pending(self._desk.current().mitigations):
            self._say(safe_text(f"rules {', '.join(mine)} are confirmed"), GOOD)

    async def repair(self, rule: RuleStatus | None) -> None:
        """Put back one rule, or all that do not act."""
        broken = [rule] if rule is not None else not_acting(self._desk.current().mitigations)
        if not broken:
            self._say("every active rule acts")
        for status in broken:
            await self._report(f"restoring rule {status.rule.id}", self._repair(status.rule.id))

    async def undo(self, chosen: RuleStatus) -> None:
        """Remove a rule; a confirmed one only after a question."""
        rule = chosen.rule
        if chosen.state is State.CONFIRMED:
            does = "counts" if rule.counts_only else "drops"
            question = (
                f"Rule {rule.id} ({rule.summary}) is confirmed and {does} {number(chosen.pps)} pps now."
            )
            answer = await self._desk.choose(f"remove rule {rule.id}", question, (KEEP_RULE, REMOVE_RULE))
            if answer != REMOVE_RULE:
                self._say(f"rule {rule.id} stays")
                return
        await self._report(f"removing rule {rule.id}", self._undo(rule.id))

    async def redo(self, _: RuleStatus | None) -> None:
        """Preview the rule that was removed or expired last, to install it again."""
        lost = self.expiry.expired or self.expiry.last
        if lost is None:
            self._say("no rule was removed or expired in this session")
            return
        if self._shows_command("install", lost.rule):
            return
        rule = await self._desk.attempt(self._controls.whole(lost))
        if rule is not None:
            await self._decide([(replace(rule, id="", created=self._desk.clock(), replaces=""), "")])

    async def extend(self, chosen: RuleStatus) -> None:
        """Set how long a rule stays from now on; this confirms an unconfirmed one."""
        rule = chosen.rule
        times = {duration_words(seconds): seconds for seconds in _EXTEND_SECONDS}
        left = f" It has {duration(chosen.expires - self._desk.clock())} left." if chosen.expires else ""
        question = f"{rule.summary}: how long should it stay from now on?{left}"
        answer = await self._desk.choose(f"extend rule {rule.id}", question, tuple(times))
        if answer is not None:
            await self._report(f"extending rule {rule.id}", self._keep(rule.id, times[answer]))

    async def change(self, chosen: RuleStatus) -> None:
        """Edit a rule in place, on trial.

        Where that can't be, the new one is installed beside the old one, which ends when the new one is kept.
        """
        old = chosen.rule
        whole = await self._desk.attempt(self._controls.whole(chosen))
        if whole is None:
            return

        def in_place(edited: Rule) -> str:
            return old.id if _changeable(chosen) and not fixed_field(old, edited) else ""

        edited = replace(whole, id="", created=self._desk.clock(), created_by=f"change of rule {old.id}")
        decision = await self._asked([(edited, "")], old, in_place)
        if decision is not None and in_place(decision.rules[0]):
            rule = replace(decision.rules[0], **{name: getattr(old, name) for name in IDENTITY})
            changing = self._change(rule, chosen.stamp, force=decision.force)
            await self._report(f"changing rule {old.id}", changing)
        elif decision is not None and (status := await self._install_all(decision)) is not None:
            self._replaces[status.rule.id] = old.id
            self._say(
                f"rule {status.rule.id} is in; {KEY_MAP.label('keep')} keeps it and removes rule {old.id}",
                GOOD,
            )

    async def mode(self, chosen: RuleStatus) -> None:
        """Have a rule only count, a confirmed one after a question; or after a question drop, on trial."""
        rule = chosen.rule
        if not rule.counts_only:
            passes = f"Rule {rule.id} is confirmed and drops {number(chosen.pps)} pps now. These would pass."
            choices = (LEAVE_RULE, COUNT_RULE)
            if chosen.state is State.CONFIRMED and (
                await self._desk.choose(f"rule {rule.id} counts only", passes, choices) != COUNT_RULE
            ):
                return
            await self._report(f"changing rule {rule.id}", self._set_mode(rule.id, Mode.COUNT))
            return
        trial = f"It is on trial for {self._controls.confirm_seconds} s, and then counts again."
        question = f"Rule {rule.id} {chosen.would_have}. {trial}"
        answer = await self._desk.choose(f"rule {rule.id} drops", question, (LEAVE_RULE, DROP_RULE))
        if answer == DROP_RULE:
            await self._report(f"changing rule {rule.id}", self._set_mode(rule.id, Mode.DROP))

    async def why(self, chosen: RuleStatus) -> None:
        """Show what a rule matches, or what keeps it from matching."""
        rule_id = chosen.rule.id
        self._say(f"examining rule {rule_id} …")
        sentences = await self._desk.attempt(self._controls.why(rule_id))
        if sentences is not None:
            self._say("")
            self._desk.show(f"why rule {rule_id}", why_details(chosen, sentences))

    def _shows_command(self, verb: str, rule: Rule) -> bool:
        """Show the command for another terminal where a key may not change a rule; returns whether it did."""
        netns = self._desk.snapshot.origin.netns
        command = "" if verb == _EXPLAIN else _command_elsewhere(verb, rule, netns)
        if command:
            self._desk.show(f"{verb} rule {rule.id}", _lines_elsewhere(rule, command))
        return bool(command)

    def _chosen(self, snapshot: Snapshot, selected: RuleStatus | None, verb: str) -> RuleStatus | None:
        """Return the selected rule or else the newest active one, if a key may do that to it."""
        active = [status for status in snapshot.mitigations if status.state in ACTIVE_STATES]
        if not active:
            self._say(f"there is no active rule to {verb}")
            return None
        newest = max(active, key=lambda status: (status.rule.created, status.rule.id))
        chosen = selected if selected is not None and selected.state in ACTIVE_STATES else newest
        return None if self._shows_command(verb, chosen.rule) else chosen

    def conflict(self, rule: Rule, *, changing: Rule | None = None) -> str:
        """Return why a rule must not go in: an active one does it already. "" if none does."""
        mitigations = self._desk.current().mitigations
        if changing is not None:
            if same_effect(changing, rule) and changing.ttl_seconds == rule.ttl_seconds:
                return f"rule {changing.id} is exactly this: change something first"
            mitigations = tuple(status for status in mitigations if status.rule.id != changing.id)
        covering = covering_rule(rule, mitigations)
        keys = f"{KEY_MAP.label('extend')} extends it, {KEY_MAP.label('change')} changes it"
        return f"rule {covering} does this already: {keys}" if covering else ""

    async def _decide(self, rules: Sequence[tuple[Rule, str]]) -> None:
        """Preview rules and install them if the operator agrees."""
        decision = await self._asked(rules)
        if decision is not None:
            await self._install_all(decision)

    async def _asked(
        self,
        rules: Sequence[tuple[Rule, str]],
        changing: Rule | None = None,
        in_place: Callable[[Rule], str] = lambda _: "",
    ) -> Decision | None:
        dialog = RuleDialog(
            rules,
            self._controls,
            conflict=lambda edited: self.conflict(edited, changing=changing),
            changes=in_place,
        )
        decision = await self._desk.ask(dialog)
        if decision is None:
            self._say("cancelled: nothing was changed")
        return decision

    async def _install_all(self, decision: Decision) -> RuleStatus | None:
        """Install what was decided on; return the last one."""
        done = [await self._install(rule, force=decision.force) for rule in decision.rules]
        ids = [status.rule.id for status in done if status is not None]
        if len(ids) == len(done):
            told = f"rules {', '.join(ids)} are" if len(ids) > 1 else f"rule {ids[0]} is"
            self._say(safe_text(f"{told} installed"), GOOD)
        return done[-1]

    async def _install(self, rule: Rule, *, force: bool = False) -> RuleStatus | None:
        self._say("installing …")
        self._installing += 1
        try:
            status = await self._desk.attempt(self._controls.apply(rule, force=force))
        finally:
            self._installing -= 1
        if status is None:
            return None
        self._desk.overlay.note(status, self._desk.clock())
        self.expiry.expired = None
        self.installed_rules[status.rule.id] = status.rule.summary
        self._tabs.place_again()
        return status

    async def _keep(self, rule_id: str, ttl_seconds: int | None = None) -> str:
        status = await self._controls.keep(rule_id, ttl_seconds=ttl_seconds)
        self._desk.overlay.note(status, self._desk.clock())
        old_id = self._replaces.pop(rule_id, None)
        if old_id is not None:
            await self._undo(old_id)
            return f"rule {rule_id} is confirmed and replaces rule {old_id}"
        return f"rule {rule_id} is confirmed" if ttl_seconds is None else f"rule {rule_id} is extended"

    async def _change(self, rule: Rule, stamp: int, *, force: bool) -> str:
        status = await self._controls.change(rule, stamp, force=force)
        self._desk.overlay.note(status, self._desk.clock())
        keeps = f"; {KEY_MAP.label('keep')} keeps it" if status.state is State.PROVISIONAL else ""
        return f"rule {rule.id} is changed in place: {status.rule.summary}{keeps}"

    async def _set_mode(self, rule_id: str, mode: Mode) -> str:
        status = await self._controls.mode(rule_id, mode)
        self._desk.overlay.note(status, self._desk.clock())
        keeps = f"; {KEY_MAP.label('keep')} keeps it so" if status.state is State.PROVISIONAL else ""
        return f"rule {rule_id} {'counts only' if status.rule.counts_only else 'drops'}{keeps}"

    async def _repair(self, rule_id: str) -> str:
        self._desk.overlay.note(await self._controls.repair(rule_id), self._desk.clock())
        return f"rule {rule_id} acts again"

    async def _undo(self, rule_id: str) -> str:
        self._replaces.pop(rule_id, None)
        self.expiry.forget(rule_id)
        status = await self._controls.undo(rule_id)
        self._desk.overlay.note(status, self._desk.clock())
        self.expiry.last = status
        return f"rule {rule_id} was removed; {KEY_MAP.label('redo')} installs it again"

    async def _report(self, what: str, doing: Awaitable[str]) -> None:
        self._say(f"{what} …")  # the guardian may take its time
        done = await self._desk.attempt(doing)
        if done is not None:
            self._say(safe_text(done), GOOD)


def _changeable(status: RuleStatus) -> bool:
    """Return whether a rule can be changed in place as it is now."""
    rule = status.rule
    return status.state is State.CONFIRMED and rule.mode is not Mode.OFF and not of(rule.kind).fixed


def _command_elsewhere(verb: str, rule: Rule, netns: str | None) -> str:
    """Return the command that does to a rule what a key may not; "" where the key may."""
    if not owner_elsewhere(rule):
        return ""
    mode = Mode.DROP if rule.counts_only else Mode.COUNT
    words = _ELSEWHERE.get(verb, "").format(id=rule.id, mode=mode.value)
    if rule.created_by == POLICY_TRIAL or (rule.created_by == POLICY and verb != "remove"):
        words = "fwtop policy apply"
    words = words or command_line(rule) or "fwtop protect"
    return f"sudo {safe_text(words)}{f' --netns {safe_text(netns)}' if netns else ''}"


def _lines_elsewhere(rule: Rule, command: str) -> list[Line]:
    hint = {
        POLICY: "A policy's rules change with its file, and come back until it is applied without them.",
        POLICY_TRIAL: "It is decided where 'fwtop policy apply' asks.",
    }.get(rule.created_by, "")
    what = "policies" if hint else "protected ports"
    return [
        [(safe_text(rule.summary), STRONG)],
        [(f"The screen changes no {what}. In another terminal:", TEXT)],
        [],
        [(f"  {command}", STRONG)],
        *([[], [(hint, TEXT)]] if hint else []),
    ]
