"""What the guardian does with rules: plan, apply, keep, undo, status, and the clock.

Plain functions over journal, guard and kernel, so that they can be tested without a socket.
"""

from __future__ import annotations

import re
import syslog
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fwtop.mitigate import drivers, guard, timers
from fwtop.mitigate.allowlist import OWN_ADDRESS, AllowList
from fwtop.mitigate.artifacts import Artifacts
from fwtop.mitigate.dependents import notrack_warnings
from fwtop.mitigate.journal import Entry, Journal
from fwtop.mitigate.kernel import Kernel
from fwtop.mitigate.limits import Limits, check_share, read_limits
from fwtop.mitigate.sets import MAX_TIMEOUT_SECONDS
from fwtop.mitigate.steps import Step, Steps
from fwtop.mitigate.tally import Tally
from fwtop.mitigate.why import Subject, explain, over_text
from fwtop.mitigate.wire import MAX_TTL_SECONDS, rule_of_wire
from fwtop.model.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import ACTIVE_STATES, Kind, Rule, State
from fwtop.model.text import safe_text

MAX_CONFIRM_SECONDS = 3600
ALLOW_REFRESH_SECONDS = 5.0
_CLOCKLESS = frozenset({Kind.SYSCTL, Kind.SYNPROXY})  # they change sysctls


class Service:
    """The rules of one namespace. `owner` is the console that a provisional rule falls with."""

    def __init__(
        self,
        journal: Journal,
        kernel: Kernel,
        allow: Callable[[], AllowList],
        steps: Steps,
        *,
        warnings: tuple[str, ...] = (),
        unable: str = "",
        limits: Callable[[], tuple[Limits, tuple[str, ...]]] = read_limits,
        tell_watchdog: Callable[[float | None], None] = lambda _: None,
    ) -> None:
        self._journal = journal
        self._kernel = kernel
        self._gather_allow = allow
        self._steps = steps
        self._warnings = warnings  # about this machine, shown with every plan
        self._limits = limits
        self._tell_watchdog = tell_watchdog
        self._unable = unable  # why nothing may be changed: there is no journal
        self._active: dict[str, Entry] = {}
        self._owners: dict[str, object] = {}
        self._allow = AllowList(())
        self._allow_at = 0.0
        self._tally = Tally(kernel.counts, kernel.fast.entries, kernel.fast.place)

    @property
    def active(self) -> dict[str, Entry]:
        """The active rules by id."""
        return self._active

    def reconcile(self) -> list[str]:
        """Adopt what a former guardian left alive, remove what is half done; returns what was done."""
        if self._unable:
            return []  # without a journal nobody knows whose rules these are
        self._journal.close_other_boots()
        done: list[str] = []
        alive: set[str] = set()
        now = time.monotonic()
        for entry in self._journal.open_entries():
            done.append(self._adopt(entry, now))
            if entry.rule.id in self._active:
                alive.add(entry.rule.id)
        for entry in list(self._active.values()):
            self._end_replaced(entry)
        strangers = self._kernel.rule_ids() - alive
        if strangers or not alive:
            self._kernel.remove(strangers)  # also chains and sets that no rule is left in
        self._watch()
        return done

    def plan(self, data: dict[str, Any], sources: Sequence[Prefix] = ()) -> dict[str, Any]:
        """Return the commands, warnings and the guard's verdict for a rule; nothing is done."""
        rule = replace(rule_of_wire(data, sources), id="0")
        others = self._beside(rule)
        verdict = guard.judge(rule, self._fresh_allow(), len(others))
        commands: list[str] = []
        limits, notes = self._limits()
        refused = self._unable or verdict.refused
        code = 1 if refused else 0
        if refused is None:
            try:
                check_share(rule, others, limits)
                artifacts = drivers.build(rule, guard.exceptions(rule, self._allow))
                commands = self._kernel.plan("0", artifacts, rule.ttl_seconds, self._allow)
                notes += artifacts.notes
                if rule.replaces:
                    notes += (f"rule {rule.replaces} is taken back once this one is confirmed",)
                if rule.kind is Kind.NOTRACK:
                    notes += notrack_warnings(self._kernel.chains.variant, rule.match)
            except FwtopError as error:
                refused, code = str(error), error.code
        return {
            "commands": [re.sub(r"\b(fwtop-|r)0\b", r"\1N", line) for line in commands],
            "warnings": [*self._warnings, *verdict.warnings, *notes],
            "refused": refused,
            "code": code,
            "needs_force": verdict.broad or "",
        }

    def apply(
        self,
        data: dict[str, Any],
        sources: Sequence[Prefix],
        confirm_seconds: int,
        *,
        force: bool,
        owner: object | None,
    ) -> dict[str, Any]:
        """Install a rule, provisionally when `confirm_seconds` is above 0; raises FwtopError.

        Once it is confirmed, the rule that it replaces ends: there is a moment with both, none with neither.
        """
        if not 0 <= confirm_seconds <= MAX_CONFIRM_SECONDS:
            raise FwtopError(f"confirm_seconds goes from 0 to {MAX_CONFIRM_SECONDS}", 2)
        if self._unable:
            raise FwtopError(self._unable)
        rule = replace(rule_of_wire(data, sources), created=time.time())
        others = self._beside(rule)
        verdict = guard.judge(rule, self._fresh_allow(), len(others))
        if verdict.refused is not None:
            raise FwtopError(f"refused: {verdict.refused}")
        if verdict.broad is not None and not force:
            raise FwtopError(f"refused without confirmation: {verdict.broad}; --force installs it")
        check_share(rule, others, self._limits()[0])
        entry = self._install(rule, confirm_seconds, owner)
        self._end_replaced(entry)
        return {"status": self._tally.status_of(entry)}

    def keep(self, rule_id: str, ttl_seconds: int | None) -> dict[str, Any]:
        """Confirm a rule, or renew a confirmed one; its time to live begins anew."""
        entry = self._known(rule_id)
        ttl = entry.rule.ttl_seconds if ttl_seconds is None else ttl_seconds
        if not 1 <= ttl <= MAX_TTL_SECONDS:
            raise FwtopError(f"a time to live goes from 1 s to {MAX_TTL_SECONDS} s; nothing was changed", 2)
        self._kernel.renew(rule_id, self._artifacts(entry.rule), ttl)
        self._steps.reached(Step.RENEWED)
        kept = replace(entry, state=State.CONFIRMED, expires=time.monotonic() + ttl, confirm_by=None)
        self._note(kept)
        self._steps.reached(Step.KEPT)
        self._active[rule_id] = kept
        self._watch()
        self._owners.pop(rule_id, None)
        self._end_replaced(kept)
        return {"status": self._tally.status_of(kept)}

    def undo(self, ids: tuple[str, ...], *, everything: bool) -> dict[str, Any]:
        """Take rules back; raises FwtopError when one is unknown, before any is touched."""
        if self._unable:
            raise FwtopError(self._unable)
        wanted = list(self._active) if everything else list(dict.fromkeys(ids))
        entries = [self._known(rule_id) for rule_id in wanted]
        self._end([(entry, State.REVERTED, "undone") for entry in entries])
        if everything:
            self._kernel.remove(self._kernel.rule_ids())
            self._kernel.fast.sweep()
        return {"undone": wanted}

    def status(self, *, finished: bool) -> dict[str, Any]:
        """Return active rules with counters (then finished ones, latest first) and the allow-list."""
        if self._active:
            self._tally.read()
        else:
            self._fresh_allow()
        rules = [self._tally.status_of(entry, entries=True) for entry in list(self._active.values())]
        if finished:
            rules += [self._tally.status_of(entry) for entry in self._journal.finished_entries()]
        allow = [{"prefix": str(entry.prefix), "why": entry.why} for entry in self._allow.entries]
        return {"rules": rules, "allow": allow}

    def why(self, rule_id: str) -> list[str]:
        """Say in sentences what a rule matches or what keeps it from matching; takes about a second."""
        entry = self._active.get(rule_id)
        if entry is None:
            over = self._journal.find(rule_id)
            if over is None:
                raise FwtopError(
                    f"there is no rule {safe_text(rule_id, limit=20)!r}: see 'fwtop status --all'"
                )
            return [over_text(over)]
        if entry.rule.kind is Kind.SYSCTL:
            return self._kernel.sysctls.sentences(rule_id)
        kinds = {name: item.rule.kind for name, item in list(self._active.items())}

        def counts() -> dict[str, int]:
            return {name: count.packets for name, count in self._kernel.counts().items()}

        busiest = self._tally.busiest(entry.rule)
        return explain(
            Subject(
                entry,
                self._artifacts(entry.rule),
                self._kernel.chains,
                busiest,
                counts,
                kinds,
                self._kernel.fast.unparsed,
            )
        )

    def surroundings(self) -> dict[str, Any]:
        """Return what a console should know of this host: own addresses and the allow-list."""
        entries = self._fresh_allow().entries
        return {
            "own": [str(entry.prefix) for entry in entries if entry.why == OWN_ADDRESS],
            "allow": [str(entry.prefix) for entry in entries],
        }

    def owner_gone(self, owner: object) -> None:
        """Take back what a console that went away had not confirmed."""
        mine = [self._active[rule_id] for rule_id, who in self._owners.items() if who is owner]
        self._end([(entry, State.REVERTED, "the console went away before confirming") for entry in mine])

    def tick(self) -> float | None:
        """Do what is due; returns the seconds until the next time, None without active rules."""
        if not self._active:
            return None
        self._end(timers.due(self._active.values(), time.monotonic()))
        if self._active and time.monotonic() - self._allow_at >= ALLOW_REFRESH_SECONDS:
            self._kernel.refresh_allow(self._fresh_allow())
        deadline = timers.next_deadline(self._active.values())
        if deadline is None:
            return None
        now = time.monotonic()
        return max(0.0, min(deadline - now, self._allow_at + ALLOW_REFRESH_SECONDS - now))

    def _install(self, rule: Rule, confirm_seconds: int, owner: object | None) -> Entry:
        now = time.monotonic()
        variant = self._kernel.chains.variant.name
        confirm_by = now + confirm_seconds if confirm_seconds else None
        entry = self._journal.intend(rule, variant, now + rule.ttl_seconds, confirm_by)
        self._steps.reached(Step.INTENT)
        self._watch(entry)
        timeout = rule.ttl_seconds
        if confirm_seconds:
            timeout = min(timeout, timers.kernel_timeout(confirm_seconds))
        try:
            artifacts = self._artifacts(entry.rule)
            timeout = min(timeout, MAX_TIMEOUT_SECONDS)
            note = self._kernel.install(entry.rule.id, artifacts, self._allow, timeout)
        except FwtopError as error:
            self._note(
                replace(entry, state=State.REVERTED, ended=time.time(), note=f"not installed: {error}")
            )
            self._watch()
            raise
        done = replace(entry, state=State.PROVISIONAL if confirm_seconds else State.CONFIRMED, note=note)
        self._note(done)
        self._steps.reached(Step.INSTALLED)
        self._active[done.rule.id] = done
        if owner is not None and confirm_seconds:
            self._owners[done.rule.id] = owner
        return done

    def _end_replaced(self, entry: Entry) -> None:
        """Take back the rule in whose place a confirmed one is, if it is still there; raises FwtopError."""
        old = self._active.get(entry.rule.replaces)
        if old is None or entry.state is not State.CONFIRMED:
            return
        try:
            self._end([(old, State.REVERTED, f"replaced by rule {entry.rule.id}")])
        except FwtopError as error:
            line = f"rule {entry.rule.id} is active, but rule {old.rule.id} could not be taken back: {error}"
            raise FwtopError(f"{line}; try: fwtop undo {old.rule.id}", error.code) from None

    def _end(self, over: list[tuple[Entry, State, str]]) -> None:
        """Take rules out of the kernel and write down how they ended."""
        if not over:
            return
        self._tally.read(force=True)
        for entry, _, note in over:
            self._note(replace(self._tally.counted(entry), state=State.INTENT, note=f"ending: {note}"))
        self._steps.reached(Step.UNDO)
        self._kernel.remove({entry.rule.id for entry, _, _ in over})
        for entry, state, note in over:
            ended = replace(self._tally.counted(entry), state=state, ended=time.time(), note=note)
            self._note(ended)
            self._active.pop(entry.rule.id, None)
            self._owners.pop(entry.rule.id, None)
            self._tally.forget(entry.rule.id)
        self._watch()
        self._steps.reached(Step.UNDONE)

    def _note(self, entry: Entry) -> None:
        """Write down what is so in the kernel. That goes first: a full disk must keep no rule from ending.

        What is missing then makes the next guardian take a rule back sooner, never later.
        """
        try:
            self._journal.update(entry)
        except FwtopError as error:
            syslog.syslog(syslog.LOG_ERR, safe_text(f"rule {entry.rule.id}: {error}"))

    def _adopt(self, entry: Entry, now: float) -> str:
        rule_id, name = entry.rule.id, f"rule {entry.rule.id}"
        state, note = State.REVERTED, "half done when the guardian died"
        if entry.state in ACTIVE_STATES:
            over = timers.due([entry], now)
            if over:
                _, state, note = over[0]
            elif self._kernel.present(rule_id, self._artifacts(entry.rule)):
                self._active[rule_id] = entry
                return f"{name} adopted"
            else:
                note = "gone from the kernel"
        self._kernel.remove({rule_id})
        self._journal.update(replace(entry, state=state, ended=time.time(), note=note))
        return f"{name} removed: {note}"

    def _watch(self, *more: Entry) -> None:
        """Tell the watchdog when the next rule ends that the kernel has no clock for."""
        waiting = [item for item in (*self._active.values(), *more) if item.rule.kind in _CLOCKLESS]
        self._tell_watchdog(timers.next_deadline(waiting))

    def _beside(self, rule: Rule) -> list[Rule]:
        """Return the active rules that stay when this one comes; raises FwtopError when it replaces none."""
        if rule.replaces:
            self._known(rule.replaces)
        return [entry.rule for entry in self._active.values() if entry.rule.id != rule.replaces]

    def _artifacts(self, rule: Rule) -> Artifacts:
        return drivers.build(rule, guard.exceptions(rule, self._allow))

    def _known(self, rule_id: str) -> Entry:
        entry = self._active.get(rule_id)
        if entry is None:
            known = ", ".join(self._active) or "none"
            raise FwtopError(f"no active rule {rule_id[:20]!r}; active: {known}; nothing was changed")
        return entry

    def _fresh_allow(self) -> AllowList:
        self._allow = self._gather_allow()
        self._allow_at = time.monotonic()
        return self._allow
