"""Active rules changed in place, with their counters: whether they drop or only count, and what they match.

A rule that is to drop is judged as if it were new, and on trial if asked: unless it is confirmed, it becomes
again what it was. Both are journalled first, so that after a crash the next guardian goes on to the new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.records.journal import REPAIRING, Entry
from fwtop.guardian.rules import guard
from fwtop.guardian.rules.ending import Ending, seconds_left
from fwtop.guardian.rules.state import GuardianState
from fwtop.model.addresses.address import Prefix
from fwtop.model.console_scope import owner_elsewhere
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import RuleChange
from fwtop.model.rule import Mode, Rule, State
from fwtop.rehearsal.operators import around_sessions
from fwtop.rehearsal.rehearse import Rehearsal
from fwtop.render.numbers import utc
from fwtop.rules.kinds import of, why_uncounted
from fwtop.rules.overlap import IDENTITY, fixed_field
from fwtop.rules.words import summarise, with_mode, with_summary
from fwtop.rules.xtables import MAX_TIMEOUT_SECONDS

MAX_CONFIRM_SECONDS = 3600
_LONG_SECONDS = 1.0  # a change that took longer gets its whole trial all the same


@single_threaded
class Changing:
    """Changes the active rules of one namespace. Owned by the worker's thread."""

    def __init__(
        self,
        state: GuardianState,
        failpoints: Failpoints,
        ending: Ending,
        follow_allow: Callable[[], None],
        close_open: Callable[[Rule], str],
    ) -> None:
        """Take what adapts rules to the allow-list, and what closes the connections that a rule asks for."""
        self._state = state
        self._failpoints = failpoints
        self._ending = ending
        self._follow_allow = follow_allow
        self._close_open = close_open

    def set_mode(
        self,
        ids: Sequence[str],
        mode: Mode,
        confirm_seconds: int,
        *,
        force: bool,
        owner: object | None,
    ) -> dict[str, Any]:
        """Have rules drop, or only count: all of them at once, with the same sets and counters.

        They are on trial as that for `confirm_seconds` if that is above 0. Raises FwtopError.
        """
        check_confirm(confirm_seconds)
        if not ids:
            raise FwtopError("rulemode takes ids; nothing was changed", 2, field="ids")
        entries = [self._state.active_rule(rule_id) for rule_id in dict.fromkeys(ids)]
        if owner is not None:
            guard.check_mode(entries, mode)
        changed = [entry for entry in entries if entry.rule.mode is not mode]
        rules = [with_mode(entry.rule, mode) for entry in changed]
        warnings = [] if mode is not Mode.DROP else self._judge_dropping(rules, force=force, owner=owner)
        for entry in changed:
            if mode is not Mode.DROP and (why := why_uncounted(entry.rule)):
                line = f"rule {entry.rule.id}: {why}; nothing was changed"
                raise FwtopError(line, reason="refused", field="id")
            self._check_replaces_none(entry)
        for entry in self._exchange(changed, rules, confirm_seconds):
            if owner is not None and confirm_seconds:
                self._ending.owners[entry.rule.id] = owner
        statuses = [self._state.status_of(self._state.active[entry.rule.id]) for entry in entries]
        return {"rules": statuses, "warnings": warnings}

    def change(self, request: RuleChange, sources: Sequence[Prefix], owner: object | None) -> dict[str, Any]:
        """Have a rule match other packets, or keep another rate: without a gap, and with its counters.

        What drops is on trial for a while, if one is asked for; a request for what it was before ends that at
        once. `sources` came beside the request. Raises FwtopError.
        """
        confirm_seconds, rule_id, if_stamp = request.confirm_seconds, request.id, request.if_stamp
        check_confirm(confirm_seconds)
        entry = self._state.active_rule(rule_id)
        if if_stamp not in (None, entry.stamp):
            line = f"rule {rule_id} was changed since stamp {if_stamp}; nothing was changed"
            raise FwtopError(line, reason="changed", field="if_stamp")
        rule = _changed(entry.rule, self._state.rule_of(request.rule, sources))
        before = self._state.journal.before(rule_id) if entry.state is State.PROVISIONAL else None
        if before is not None and _effect(before.rule) == _effect(rule):
            self.end_unconfirmed([(entry, State.REVERTED, "")])
        elif rule != entry.rule:
            return self._change(entry, rule, confirm_seconds, force=request.force, owner=owner)
        return {"status": self._state.status_of(self._state.active[rule_id]), "warnings": []}

    def _change(
        self, entry: Entry, rule: Rule, confirm_seconds: int, *, force: bool, owner: object | None
    ) -> dict[str, Any]:
        _check_changeable(entry)
        self._check_replaces_none(entry)
        warnings: Sequence[str] = ()
        if _effect(rule) == _effect(entry.rule) or rule.counts_only:  # it harms nobody new
            confirm_seconds = 0
        else:
            rule, warnings = around_sessions(rule, self._state.fresh_allow())
            warnings = [*warnings, *self._judge_dropping([rule], force=force, owner=owner)]
        self._exchange([entry], [rule], confirm_seconds)
        if owner is not None and confirm_seconds:
            self._ending.owners[rule.id] = owner
        return {"status": self._state.status_of(self._state.active[rule.id]), "warnings": [*warnings]}

    def change_level(self, old: Entry, rule: Rule, *, force: bool, owner: object | None) -> dict[str, Any]:
        """Switch a protected port, as fast as that can be: nothing is read that was read just now.

        The allow-list is as recent as each tick keeps it for active rules. Raises FwtopError.
        """
        self._state.known_allow()
        verdict = self._state.judge(rule, (), console=owner is not None)
        require(verdict, force=force)
        status = self._state.counters.status_of(self._switch(old, rule))
        return {"status": status, "warnings": [*self._state.allow.warnings, *verdict.warnings]}

    def _switch(self, old: Entry, rule: Rule) -> Entry:
        """Give an active rule another level: its enable sets are filled and emptied, nothing else.

        After a crash in between, the next guardian goes on to the new level as it repairs the rule.
        Raises FwtopError.
        """
        rule = replace(rule, id=old.rule.id, replaces="", created=old.rule.created)
        ends = time.monotonic() + rule.ttl_seconds
        done = replace(old, rule=rule, state=State.CONFIRMED, expires=ends, confirm_by=None, note="")
        self._ending.record(replace(done, note=REPAIRING))
        self._failpoints.reached(Failpoint.SWITCHING)
        wanted = self._state.wanted(rule, min(rule.ttl_seconds, MAX_TIMEOUT_SECONDS))
        try:
            self._state.kernel.switch(wanted)
        except Exception:
            self._ending.record(old)
            self._state.kernel.switch(self._state.wanted(old.rule, seconds_left(old)))
            raise
        self._failpoints.reached(Failpoint.SWITCHED)
        self._state.active[rule.id] = done
        self._ending.owners.pop(rule.id, None)
        self._ending.record(done)
        return done

    def _check_replaces_none(self, entry: Entry) -> None:
        if (other := entry.rule.replaces) in self._state.active:
            line = f"rule {entry.rule.id} is to replace rule {other}: keep or undo it first"
            raise FwtopError(line, reason="refused", field="id")

    def _judge_dropping(self, rules: list[Rule], *, force: bool, owner: object | None) -> list[str]:
        """Judge rules as if they were new, together with all others; returns warnings. Raises FwtopError."""
        allow = self._state.fresh_allow()
        self._follow_allow()
        ids = {rule.id for rule in rules}
        others = [entry.rule for entry in self._state.active.values() if entry.rule.id not in ids]
        warnings = [*allow.warnings]
        for rule in rules:
            _, spared = around_sessions(rule, allow)
            if spared:
                line = f"refused for rule {rule.id}: {spared[0]}; undo it and install it anew"
                raise FwtopError(line, reason="refused", field="rule")
            verdict = self._state.judge(rule, others, console=owner is not None)
            require(verdict, force=force)
            guard.check_share(rule, others, self._state.limits()[0])
            warnings += [*verdict.warnings, *guard.bridge_notes(rule, self._state.kernel.compiled.interfaces)]
            others.append(rule)
        return warnings

    def _exchange(
        self, entries: list[Entry], rules: list[Rule], confirm_seconds: int, done: str = "changed"
    ) -> list[Entry]:
        """Put rules in place of what they were, in the kernel and the journal.

        After a crash the next guardian finishes it. Raises FwtopError; then all is as it was.
        """
        state, began = self._state, time.monotonic()
        state.counters.read(force=True)
        changed = [
            replace(
                entry,
                rule=rule,
                state=State.PROVISIONAL if confirm_seconds else State.CONFIRMED,
                confirm_by=began + confirm_seconds if confirm_seconds else None,
                packets_before=state.counters.counted(entry).packets,
                note=_note(entry.rule, rule, state.counters.counted(entry).packets, done),
                stamp=entry.stamp + 1,
                tried=began,
            )
            for entry, rule in zip(entries, rules, strict=True)
        ]
        pairs = list(zip(entries, changed, strict=True))
        wanted = [state.wanted(entry.rule, seconds_left(entry)) for entry in changed]
        for entry, new in pairs:
            state.journal.exchange(entry, replace(new, note=REPAIRING + new.note))
        self._failpoints.reached(Failpoint.SWITCHING)
        state.changing |= {rule.id for rule in rules}
        try:
            self._idle(changed)
            state.kernel.change(wanted)
        except Exception:
            for entry, new in pairs:
                state.journal.exchange(new, entry)
                state.kernel.restore(state.wanted(entry.rule, seconds_left(entry)))
                self._ending.record(entry)
            self._idle(entries)
            raise
        finally:
            state.changing.clear()
        self._failpoints.reached(Failpoint.SWITCHED)
        return [self._conclude(entry, time.monotonic() - began) for entry in changed]

    def _conclude(self, entry: Entry, seconds: float) -> Entry:
        """Note that the kernel has a rule as it is now; its trial begins once a compiler is done."""
        if entry.confirm_by is not None and seconds > _LONG_SECONDS:
            entry = replace(entry, confirm_by=entry.confirm_by + seconds)
            self._state.kernel.renew(self._state.wanted(entry.rule, seconds_left(entry)))
        closed = self._close_open(entry.rule)
        entry = replace(entry, note="; ".join(filter(None, (entry.note, closed))))
        self._ending.owners.pop(entry.rule.id, None)
        self._state.active[entry.rule.id] = entry
        self._state.counters.sources_changed(entry.rule.id)
        self._ending.record(entry)
        return entry

    def _idle(self, entries: list[Entry]) -> None:
        self._state.kernel.idle({entry.rule.id for entry in entries if entry.rule.mode is Mode.OFF})

    def end_unconfirmed(self, over: list[tuple[Entry, State, str]]) -> None:
        """End rules; one that was another before its trial is that again, once nothing else is loaded.

        Raises FwtopError.
        """
        back = []
        for entry, state, _ in over:
            if state is State.REVERTED and (before := self._state.journal.before(entry.rule.id)) is not None:
                back.append((entry, self._state.with_list(before.rule)))
        ids = {entry.rule.id for entry, _ in back} | self._state.changing
        self._ending.end([item for item in over if item[0].rule.id not in ids])
        if back and not (self._ending.installing or self._state.changing):
            self._exchange([entry for entry, _ in back], [rule for _, rule in back], 0, "as before")


def _changed(old: Rule, wanted: Rule) -> Rule:
    """Return an active rule as it is wanted to be; raises FwtopError where that takes another rule."""
    rule = replace(wanted, **{name: getattr(old, name) for name in IDENTITY})
    if name := fixed_field(old, rule):
        line = f"{name} can't be changed in place: {_ELSEWHERE.get(name, _NEW)}; nothing was changed"
        raise FwtopError(line, 2, field=f"rule.{name}")
    if rule.list_name != old.list_name:
        line = f"its sources are those of its list, or its own: {_NEW}; nothing was changed"
        raise FwtopError(line, 2, field="rule.origin")
    is_told = rule.summary == old.summary == summarise(old)
    return with_summary(rule) if is_told else rule


_NEW = "install a rule that replaces it"
_ELSEWHERE = {"mode": "'rulemode' does that", "ttl_seconds": "'keep' does that"}


def _check_changeable(entry: Entry) -> None:
    """Raise FwtopError for a rule that can't be changed in place as it is."""
    rule = entry.rule
    why = of(rule.kind).fixed
    if owner := owner_elsewhere(rule):
        why = why or f"it is part of {owner}"
    elif entry.state is State.PROVISIONAL:
        why = why or "it is on trial: keep it first"
    elif rule.mode is Mode.OFF:
        why = why or "it is off: have it count or drop first"
    if why:
        line = f"rule {rule.id} can't be changed in place: {why}; nothing was changed"
        raise FwtopError(line, reason="refused", field="id")


def _effect(rule: Rule) -> tuple[object, ...]:
    return rule.match, rule.limit, rule.mode


def check_confirm(seconds: int) -> None:
    """Raise FwtopError (code 2) for a trial of a length that there is none of."""
    if not 0 <= seconds <= MAX_CONFIRM_SECONDS:
        line = f"confirm_seconds goes from 0 to {MAX_CONFIRM_SECONDS}"
        raise FwtopError(line, 2, field="confirm_seconds")


_DOES = {Mode.DROP: "drops", Mode.COUNT: "counts only", Mode.OFF: "off"}


def _note(old: Rule, new: Rule, packets: int, done: str) -> str:
    """Say which packets were counted before a rule was changed: its counters go on."""
    did = "dropped" if old.mode is Mode.DROP else "counted"
    does = _DOES[new.mode] if old.mode is not new.mode else done
    return f"{does} since {utc(time.time())}; {packets:,} packets were {did} before"


def require(verdict: Rehearsal, *, force: bool) -> None:
    """Raise FwtopError where a rule may not go in, or not without force."""
    if verdict.refused is not None:
        raise FwtopError(f"refused: {verdict.refused}", reason="refused", field="rule")
    if verdict.broad is not None and not force:
        line = f"refused without confirmation: {verdict.broad}; --force installs it"
        raise FwtopError(line, reason="needs_force", field="rule")
