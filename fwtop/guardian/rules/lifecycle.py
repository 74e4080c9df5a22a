"""The life of a rule: installed, confirmed or reverted, kept, repaired, replaced, expired, undone.

The journal is written before the kernel is changed, and again after. Ending a rule depends on neither the
journal nor the counters.
"""

from __future__ import annotations

import math
import syslog
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.records.journal import (
    KERNEL_SLACK_SECONDS,
    REPAIRING,
    Entry,
    next_deadline,
    rules_due,
)
from fwtop.guardian.rules import connections, guard
from fwtop.guardian.rules.changing import MAX_CONFIRM_SECONDS, Changing, check_confirm, require
from fwtop.guardian.rules.connections import StrictTracking
from fwtop.guardian.rules.ending import Ending, seconds_left
from fwtop.guardian.rules.guard import check_share
from fwtop.guardian.rules.state import GuardianState
from fwtop.guardian.rules.validate import MAX_TTL_SECONDS
from fwtop.model.addresses.address import Prefix
from fwtop.model.errors import FwtopError
from fwtop.model.rule import POLICY, POLICY_TRIAL, Mode, Rule, State
from fwtop.model.text import safe_text
from fwtop.rehearsal.operators import around_sessions
from fwtop.rules.kinds import has_no_clock
from fwtop.rules.overlap import is_double
from fwtop.rules.xtables import MAX_TIMEOUT_SECONDS

RETRY_SECONDS = 1.0  # until the next try to end a rule that still acts
_LONG_SECONDS = 1.0  # an installation that took longer gets its whole confirmation time all the same
_OWNER_GONE = "the console went away before confirming"
_WHY = 120  # characters of what a client says of an end


@single_threaded
class Lifecycle:
    """Installs and ends the rules of one namespace. Owned by the worker's thread."""

    def __init__(
        self,
        state: GuardianState,
        failpoints: Failpoints,
        *,
        set_watchdog: Callable[[float | None], None] = lambda _: None,
        serve_urgent: Callable[[], None] = lambda: None,
    ) -> None:
        """`set_watchdog` is told when the next sysctl is to be restored."""
        self._state = state
        self._journal, self._kernel = state.journal, state.kernel
        self._failpoints = failpoints
        self._serve_urgent = serve_urgent
        self.ending = Ending(state, failpoints, set_watchdog)
        self._owners, self._installing = self.ending.owners, self.ending.installing
        self.changing = Changing(state, failpoints, self.ending, self.follow_allow, self._close_open)
        self._strict = StrictTracking()
        self._followed: AllowList | None = None  # the allow-list that each rule's sets and lines are made for

    @property
    def active(self) -> dict[str, Entry]:
        """The active rules by id."""
        return self._state.active

    def apply(
        self,
        data: dict[str, Any],
        sources: Sequence[Prefix],
        confirm_seconds: int,
        *,
        force: bool,
        owner: object | None,
    ) -> dict[str, Any]:
        """Install a rule, provisionally if `confirm_seconds` is above 0; raises FwtopError.

        The rule that it replaces ends once this one is confirmed: one of them is active at any time.
        """
        check_confirm(confirm_seconds)
        rule = replace(self._state.rule_of(data, sources), created=time.time())
        if (same := self._of_key(rule)) is not None:
            return {"status": self._state.status_of(same), "warnings": [], "existing": True}
        old = self.active.get(rule.replaces)
        if old is not None and not confirm_seconds and guard.only_level_differs(old.rule, rule):
            return self.changing.change_level(old, rule, force=force, owner=owner)
        if trouble := self._journal.trouble():
            raise FwtopError(trouble, reason="unavailable", retryable=True)
        others, allow = self._state.other_rules(rule), self._state.fresh_allow()
        self.follow_allow()
        mode = rule.mode
        if rule.counts_only and rule.created_by != POLICY_TRIAL:  # harms nobody
            confirm_seconds = 0
        rule, spared = around_sessions(replace(rule, mode=Mode.DROP), allow)
        rule = replace(rule, mode=mode)
        verdict = self._state.judge(rule, others, console=owner is not None)
        require(verdict, force=force)
        check_share(rule, others, self._state.limits()[0])
        entry, notes = self._install(rule, confirm_seconds, owner)
        self.end_replaced(entry)
        warnings = self._state.told_of(rule, [*spared, *verdict.warnings], notes)
        return {"status": self._state.counters.status_of(entry), "warnings": warnings}

    def _of_key(self, rule: Rule) -> Entry | None:
        """Return its maker's active rule of the same key, if it does the same: a repeated request is done.

        Raises FwtopError if it does something else, unless it is to be replaced.
        """
        mine = [
            entry
            for entry in self.active.values()
            if rule.key and (entry.rule.key, entry.rule.created_by) == (rule.key, rule.created_by)
        ]
        if not mine or mine[0].rule.id == rule.replaces:
            return None
        dropping = replace(rule, mode=Mode.DROP)
        alike = (dropping, around_sessions(dropping, self._state.known_allow())[0])
        same = rule.mode is mine[0].rule.mode and any(is_double(item, mine[0].rule) for item in alike)
        if not same:
            line = f"rule {mine[0].rule.id} has the key {rule.key!r} and does something else: replace it"
            raise FwtopError(f"{line}; nothing was changed", reason="exists", field="rule.key")
        return mine[0]

    def _install(
        self, rule: Rule, confirm_seconds: int, owner: object | None
    ) -> tuple[Entry, tuple[str, ...]]:
        """Return what became of it, and notes about its objects in the kernel; raises FwtopError."""
        now = time.monotonic()
        variant = self._kernel.chains.variants.in_use.variant.name
        confirm_by = now + confirm_seconds if confirm_seconds else None
        entry = self._journal.intend(rule, variant, now + rule.ttl_seconds, confirm_by)
        self._failpoints.reached(Failpoint.INTENT)
        self.ending.update_watchdog(entry)
        timeout = rule.ttl_seconds
        if confirm_seconds:
            timeout = min(timeout, confirm_seconds + KERNEL_SLACK_SECONDS)
        timeout = min(timeout, MAX_TIMEOUT_SECONDS)
        rule_id = entry.rule.id
        falls_with = owner if confirm_seconds else None
        if falls_with is not None:
            self._owners[rule_id] = falls_with
        self._installing.add(rule_id)
        try:
            wanted = self._state.wanted(entry.rule, timeout)
            note = self._kernel.install(wanted)
            self._idle(entry.rule)
            if time.monotonic() - now > _LONG_SECONDS:  # what passed meanwhile wasn't dropped
                entry = replace(entry, rule=replace(entry.rule, created=time.time()))
                if confirm_by is not None:
                    self._kernel.renew(wanted)
                    entry = replace(entry, confirm_by=time.monotonic() + confirm_seconds)
        except Exception as error:
            self._abandon(entry, f"not installed: {safe_text(error)}")
            raise
        finally:
            self._installing.discard(rule_id)
        note = "; ".join(filter(None, (note, self._close_open(entry.rule), self._forget(entry.rule))))
        state = State.PROVISIONAL if confirm_seconds else State.CONFIRMED
        done = replace(entry, state=state, note=note, tried=now)
        self.ending.record(done)
        self._failpoints.reached(Failpoint.INSTALLED)
        self.active[rule_id] = done
        self.ending.update_watchdog()
        if falls_with is not None and rule_id not in self._owners:
            self.ending.end([(done, State.REVERTED, _OWNER_GONE)])
        return done, wanted.objects.notes

    def _idle(self, rule: Rule) -> None:
        """Empty the sets of a rule that is off: whatever filled them."""
        if rule.mode is Mode.OFF:
            self._kernel.idle({rule.id})

    def _close_open(self, rule: Rule) -> str:
        if not rule.close_open or rule.counts_only:
            return ""
        try:
            found = connections.to_close(rule, self._state.allow)
        except OSError as error:
            return f"open connections go on: {safe_text(error.strerror or error)}"
        closed, trouble = connections.close(found, self._serve_urgent)
        self._failpoints.reached(Failpoint.CLOSED)
        return f"closed {closed:,} open connections" + (f"; {safe_text(trouble)}" if trouble else "")

    def _forget(self, rule: Rule) -> str:
        try:
            gone = connections.forget(rule, self._serve_urgent)
        except OSError as error:
            return f"entries that are no longer used stay in the table: {safe_text(error.strerror or error)}"
        return f"deleted {gone:,} entries that are no longer used" if gone else ""

    def _abandon(self, entry: Entry, note: str) -> None:
        """Remove what the kernel has of a rule that could not be installed; one that still acts is due."""
        self._owners.pop(entry.rule.id, None)
        try:
            self.ending.remove({entry.rule.id})
        except FwtopError as error:
            note += f"; it still acts: {safe_text(error)}"
            due = replace(entry, state=State.PROVISIONAL, confirm_by=time.monotonic(), note=note)
            self.active[entry.rule.id] = due
            self.ending.record(due)
        else:
            self.ending.record(replace(entry, state=State.REVERTED, ended=time.time(), note=note))
        self.ending.tidy_lists()
        self.ending.update_watchdog()

    def keep(self, rule_id: str, ttl_seconds: int | None, *, console: bool = False) -> dict[str, Any]:
        """Confirm a rule, or renew a confirmed one: its time to live starts again. Raises FwtopError."""
        entry = self._state.active_rule(rule_id)
        ttl = entry.rule.ttl_seconds if ttl_seconds is None else ttl_seconds
        if not 1 <= ttl <= MAX_TTL_SECONDS:
            line = f"a time to live goes from 1 s to {MAX_TTL_SECONDS} s; nothing was changed"
            raise FwtopError(line, 2, field="ttl_seconds")
        if console:
            guard.check_keep(entry, ttl)
        self._renew(entry, ttl)
        rule = replace(entry.rule, ttl_seconds=ttl)
        ends = time.monotonic() + ttl
        kept = replace(entry, rule=rule, state=State.CONFIRMED, expires=ends, confirm_by=None)
        self.ending.record(kept)
        self._failpoints.reached(Failpoint.KEPT)
        self.active[rule_id] = kept
        self.ending.update_watchdog()
        self._owners.pop(rule_id, None)
        self.end_replaced(kept)
        return {"status": self._state.counters.status_of(kept)}

    def renew(self, rule_id: str, confirm_seconds: int) -> dict[str, Any]:
        """Have the trial of a rule last so long from now, an hour in all at most. Raises FwtopError."""
        entry, now = self._state.active_rule(rule_id), time.monotonic()
        left = int(entry.tried + MAX_CONFIRM_SECONDS - now)
        if entry.state is not State.PROVISIONAL:
            line = f"rule {rule_id} is not on trial: 'keep' renews it; nothing was changed"
            raise FwtopError(line, reason="refused", field="id")
        if not 1 <= confirm_seconds <= left:
            line = f"a trial takes an hour at most, and this one {max(0, left):,} s more; nothing was changed"
            raise FwtopError(line, reason="refused", field="confirm_seconds")
        entry = replace(entry, confirm_by=now + confirm_seconds)
        self._renew(entry, seconds_left(entry))
        self.ending.record(entry)
        self.active[rule_id] = entry
        self.ending.update_watchdog()
        return {"status": self._state.counters.status_of(entry)}

    def _renew(self, entry: Entry, seconds: int) -> None:
        """Set the kernel's clock of a rule, filling its sets again; raises FwtopError if it does not act."""
        rule_id = entry.rule.id
        short = self._kernel.look(self.active, force=True).get(rule_id)
        if short is not None and not short.elements_only:
            raise _not_acting(rule_id, short.text)
        self._state.fresh_allow()
        self.follow_allow()
        wanted = self._state.wanted(entry.rule, seconds)
        if entry.rule.mode is not Mode.OFF:
            self._kernel.renew(wanted)
        if short is not None:
            self._kernel.expect(entry.rule, wanted.objects)
            short = self._kernel.look(self.active, force=True).get(rule_id)
            if short is not None:
                raise _not_acting(rule_id, short.text)
        self._failpoints.reached(Failpoint.RENEWED)

    def repair(self, rule_id: str) -> dict[str, Any]:
        """Restore what the kernel lacks of an active rule, whose time goes on; raises FwtopError."""
        entry = self._state.active_rule(rule_id)
        self.ending.record(replace(entry, note=REPAIRING + entry.note))
        self._failpoints.reached(Failpoint.REPAIR)
        try:
            self._restore_missing(entry)
        finally:
            self.ending.record(entry)
        self._failpoints.reached(Failpoint.REPAIRED)
        return {"status": self._state.status_of(entry)}

    def finish_repair(self, entry: Entry) -> None:
        """Complete a repair that a crash interrupted; raises FwtopError."""
        entry = replace(entry, note=entry.note.removeprefix(REPAIRING))
        self.active[entry.rule.id] = entry
        self._restore_missing(entry)
        self.ending.record(entry)

    def _restore_missing(self, entry: Entry) -> None:
        rule_id = entry.rule.id
        timeout = seconds_left(entry)
        self._state.fresh_allow()
        wanted = self._state.wanted(entry.rule, timeout)
        self._kernel.restore(wanted)
        self._idle(entry.rule)
        short = self._kernel.look(self.active, force=True).get(rule_id)
        if short is not None:
            raise FwtopError(f"rule {rule_id} still does not act: {short.text}")

    def undo(
        self, ids: tuple[str, ...], *, everything: bool, console: bool = False, by: str = "", why: str = ""
    ) -> dict[str, Any]:
        """End rules and return how they ended; raises FwtopError when one is unknown, and ends none then.

        `by` is who asked, unless that was the command line; `why` is theirs, and goes into the record.
        """
        if everything == bool(ids):
            raise FwtopError("undo takes ids, or all; nothing was changed", 2, field="ids")
        wanted = list(self.active) if everything else list(dict.fromkeys(ids))
        entries = [self._state.active_rule(rule_id) for rule_id in wanted]
        if console:
            guard.check_undo(entries)
        note = f"undone by {by}" if by else "undone"
        note += f": {safe_text(why, limit=_WHY)}" if why else ""
        self.ending.end([(entry, State.REVERTED, note) for entry in entries])
        if everything:
            self.ending.remove_everything()
        counters = self._state.counters
        over = [
            replace(counters.counted(entry), state=State.REVERTED, ended=time.time(), note=note)
            for entry in entries
        ]
        return {"undone": wanted, "rules": [counters.status_of(entry) for entry in over]}

    def owner_gone(self, owner: object) -> None:
        """Revert what a console left unconfirmed when it disconnected."""
        mine = [rule_id for rule_id, who in self._owners.items() if who is owner]
        for rule_id in self._installing & set(mine):
            del self._owners[rule_id]  # reverted as soon as it is installed
        found = [self.active[rule_id] for rule_id in mine if rule_id in self.active]
        self.changing.end_unconfirmed([(entry, State.REVERTED, _OWNER_GONE) for entry in found])

    def end_sysctls(self) -> None:
        """End the rules without a timeout in the kernel, as the guardian was told to exit. Never raises."""
        mine = [entry for entry in self.active.values() if has_no_clock(entry.rule)]
        try:
            self.ending.end([(entry, State.REVERTED, "the guardian was told to end") for entry in mine])
        except FwtopError as error:
            self.ending.log_once("ending", error)

    def tick(self) -> float | None:
        """End what is due and refresh the allow-list.

        Returns the seconds until the next tick, None without active rules and remains of others.
        """
        state, now = self._state, time.monotonic()
        if not self.active:
            state.allow_trouble = ""
            return self._until_tidy(now)
        retry = 0.0
        try:
            self.changing.end_unconfirmed(rules_due(self.active.values(), now))
            self.ending.log_once("end", None)
        except FwtopError as error:
            self.ending.log_once("end", error)
            retry = RETRY_SECONDS
        if self.active and now >= state.allow_due():
            self._refresh_allow()
            self._mend()
            self._renew_policy(now)
            self.ending.update_watchdog()  # somebody may have killed it
        deadline = next_deadline(self.active.values())
        if deadline is None:
            return self._until_tidy(now)
        strict = self._keep_sessions(now)
        lists = state.known_lists
        ends = lists.tick(now) if lists is not None and not self._installing else None
        given = (item for item in (ends, strict) if item is not None)
        due = min(deadline, state.allow_due(), self.ending.tidy(now), *given)
        return max(retry, due - time.monotonic(), 0.0)

    def _mend(self) -> None:
        """Repair the rules that are to be mended where somebody took something of them out of the kernel.

        Without any nothing is read: requests wait meanwhile, and a changed rule set takes 0.1 s and more.
        """
        mended = {rule_id for rule_id, entry in self.active.items() if entry.rule.mended}
        for rule_id, short in self._kernel.look(self.active).items() if mended else ():
            if rule_id in mended and not short.obstructed:
                try:
                    self.repair(rule_id)
                    syslog.syslog(syslog.LOG_NOTICE, f"rule {rule_id} was repaired: {safe_text(short.text)}")
                except FwtopError as error:
                    self.ending.log_once(f"mending {rule_id}", error)

    def _renew_policy(self, now: float) -> None:
        """Start the time of a policy's rules again once half of it is over; what fails is tried again."""
        for rule_id, entry in list(self.active.items()):
            lasts = entry.state is State.CONFIRMED and entry.rule.created_by == POLICY
            if lasts and entry.expires - now < entry.rule.ttl_seconds / 2:
                try:
                    self.keep(rule_id, None)
                except FwtopError as error:
                    self.ending.log_once(f"policy {rule_id}", error)

    def _keep_sessions(self, now: float) -> float | None:
        due = None
        try:
            due = self._strict.look((entry.rule for entry in self.active.values()), self._state.allow, now)
            self.ending.log_once("sessions", None)
        except FwtopError as error:
            self.ending.log_once("sessions", error)
        return due

    def _until_tidy(self, now: float) -> float | None:
        due = self.ending.tidy(now)
        return max(due - time.monotonic(), 0.0) if due < math.inf else None

    def _refresh_allow(self) -> None:
        """Update the allow-list everywhere; where that fails, the log and the warnings say so."""
        state = self._state
        state.allow_trouble = ""
        try:
            self._kernel.refresh_allow(state.fresh_allow())
        except FwtopError as error:
            state.allow_trouble = safe_text(
                f"the allow-list is not up to date everywhere: {error}", limit=400
            )
        self.ending.log_once("allow-list", state.allow_trouble)
        self.follow_allow()

    def follow_allow(self) -> None:
        """Adapt rules to the allow-list as last read: lines whose sources came on it move behind it.

        Those of others move before it, and rules for all sources spare who is on it. What fails is logged and
        tried again with the next refresh; never raises.
        """
        state = self._state
        if state.allow == self._followed:
            return
        trouble = ""
        for entry in state.active.values():
            if entry.rule.protection is not None:
                continue  # all of its lines are behind the allow-list
            try:
                self._kernel.follow(state.wanted(entry.rule, seconds_left(entry)))
            except Exception as error:
                trouble = f"rule {entry.rule.id} can't follow the allow-list: {FwtopError.of(error)}"
        if not trouble:
            self._followed = state.allow
        self.ending.log_once("following", trouble)

    def end_replaced(self, entry: Entry) -> None:
        """End the rule that a confirmed one replaces, if it is still active; raises FwtopError."""
        old = self.active.get(entry.rule.replaces)
        if old is None or entry.state is not State.CONFIRMED:
            return
        try:
            self.ending.end([(old, State.REVERTED, f"replaced by rule {entry.rule.id}")])
        except FwtopError as error:
            line = f"rule {entry.rule.id} is active, but rule {old.rule.id} could not be ended: {error}"
            raise FwtopError(f"{line}; try: fwtop undo {old.rule.id}", error.code) from None


def _not_acting(rule_id: str, reason: str) -> FwtopError:
    line = f"rule {rule_id} does not act: {reason}; nothing was changed"
    return FwtopError(f"{line}; 'fwtop repair {rule_id}' restores it", reason="not_acting", field="id")
