"""Whether rules drop or only count: changed in place, with the same sets and counters.

A rule that is to drop is judged as if it were new, and on trial if asked: unless it is confirmed, it counts
again. Both are journalled first, so that after a crash the next guardian goes on to the new mode.
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
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Mode, Rule, State
from fwtop.rehearsal.operators import around_sessions
from fwtop.rehearsal.rehearse import Rehearsal
from fwtop.render.numbers import utc
from fwtop.rules.kinds import why_uncounted
from fwtop.rules.words import with_mode

MAX_CONFIRM_SECONDS = 3600


@single_threaded
class Modes:
    """Changes the mode of the rules of one namespace. Owned by the worker's thread."""

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

    def set(
        self,
        ids: Sequence[str],
        mode: Mode,
        confirm_seconds: int,
        *,
        force: bool,
        owner: object | None,
    ) -> dict[str, Any]:
        """Have rules drop, or only count: all of them at once, with the same sets and counters.

        What drops from now on is on trial for `confirm_seconds` if that is above 0, and counts again unless
        it is confirmed. Raises FwtopError.
        """
        check_confirm(confirm_seconds)
        entries = [self._state.active_rule(rule_id) for rule_id in dict.fromkeys(ids)]
        if owner is not None:
            guard.check_mode(entries, mode)
        changed = [entry for entry in entries if entry.rule.mode is not mode]
        warnings = [] if mode is not Mode.DROP else self._judge_dropping(changed, force=force, owner=owner)
        for entry in changed:
            if mode is not Mode.DROP and (why := why_uncounted(entry.rule)):
                raise FwtopError(f"rule {entry.rule.id}: {why}; nothing was changed")
            if entry.rule.replaces in self._state.active:
                other = entry.rule.replaces
                raise FwtopError(f"rule {entry.rule.id} is to replace rule {other}: keep or undo it first")
        confirm_by = time.monotonic() + confirm_seconds if confirm_seconds and mode is Mode.DROP else None
        done = self._give_mode(changed, mode, confirm_by)
        for entry in done if mode is Mode.DROP else ():
            if owner is not None and confirm_by is not None:
                self._ending.owners[entry.rule.id] = owner
        statuses = [self._state.status_of(self._state.active[entry.rule.id]) for entry in entries]
        return {"rules": statuses, "warnings": warnings}

    def _judge_dropping(self, entries: list[Entry], *, force: bool, owner: object | None) -> list[str]:
        """Judge rules as if they were new, together with all others; returns warnings. Raises FwtopError."""
        allow = self._state.fresh_allow()
        self._follow_allow()
        ids = {entry.rule.id for entry in entries}
        others = [entry.rule for entry in self._state.active.values() if entry.rule.id not in ids]
        warnings = [*allow.warnings]
        for entry in entries:
            rule = with_mode(entry.rule, Mode.DROP)
            _, spared = around_sessions(rule, allow)
            if spared:
                raise FwtopError(f"refused for rule {rule.id}: {spared[0]}; undo it and install it anew")
            verdict = self._state.judge(rule, others, console=owner is not None)
            require(verdict, force=force)
            guard.check_share(rule, others, self._state.limits()[0])
            warnings += [*verdict.warnings, *guard.bridge_notes(rule, self._state.kernel.compiled.interfaces)]
            others.append(rule)
        return warnings

    def _give_mode(self, entries: list[Entry], mode: Mode, confirm_by: float | None) -> list[Entry]:
        """Change rules in the kernel and the journal; after a crash the next guardian finishes it.

        Raises FwtopError; then all is as it was.
        """
        self._state.counters.read(force=True)
        done = [
            replace(
                entry,
                rule=with_mode(entry.rule, mode),
                state=State.CONFIRMED if confirm_by is None else State.PROVISIONAL,
                confirm_by=confirm_by,
                counts_again=confirm_by is not None,
                packets_before=self._state.counters.counted(entry).packets,
                note=_mode_note(entry.rule.mode, mode, self._state.counters.counted(entry).packets),
            )
            for entry in entries
        ]
        for entry in done:
            self._ending.record(replace(entry, note=REPAIRING + entry.note))
        self._failpoints.reached(Failpoint.SWITCHING)
        try:
            self._change_kernel(done)
        except Exception:
            for entry in entries:
                self._ending.record(entry)
            self._change_kernel(entries)
            raise
        self._failpoints.reached(Failpoint.SWITCHED)
        for entry in done:
            closed = self._close_open(entry.rule)
            told = replace(entry, note="; ".join(filter(None, (entry.note, closed))))
            self._ending.owners.pop(entry.rule.id, None)
            self._state.active[entry.rule.id] = told
            self._ending.record(told)
        return done

    def _change_kernel(self, entries: list[Entry]) -> None:
        kernel = self._state.kernel
        kernel.idle({entry.rule.id for entry in entries if entry.rule.mode is Mode.OFF})
        wanted = [self._state.wanted(entry.rule, seconds_left(entry)) for entry in entries]
        for one in wanted:
            if one.rule.mode is not Mode.OFF:
                kernel.renew(one)
                kernel.follow(one)
        kernel.change(wanted)

    def end_unconfirmed(self, over: list[tuple[Entry, State, str]]) -> None:
        """End rules; one that was counting before its trial counts again. Raises FwtopError."""
        back = [entry for entry, state, _ in over if state is State.REVERTED and entry.counts_again]
        self._ending.end([item for item in over if item[0] not in back])
        if back:
            self._give_mode(back, Mode.COUNT, None)


def check_confirm(seconds: int) -> None:
    """Raise FwtopError (code 2) for a trial of a length that there is none of."""
    if not 0 <= seconds <= MAX_CONFIRM_SECONDS:
        line = f"confirm_seconds goes from 0 to {MAX_CONFIRM_SECONDS}"
        raise FwtopError(line, 2, field="confirm_seconds")


_DOES = {Mode.DROP: "drops", Mode.COUNT: "counts only", Mode.OFF: "off"}


def _mode_note(old: Mode, new: Mode, packets: int) -> str:
    """Say which packets were counted before a rule's mode changed: its counters go on."""
    did = "dropped" if old is Mode.DROP else "counted"
    return f"{_DOES[new]} since {utc(time.time())}; {packets:,} packets were {did} before"


def require(verdict: Rehearsal, *, force: bool) -> None:
    """Raise FwtopError where a rule may not go in, or not without force."""
    if verdict.refused is not None:
        raise FwtopError(f"refused: {verdict.refused}", reason="refused", field="rule")
    if verdict.broad is not None and not force:
        line = f"refused without confirmation: {verdict.broad}; --force installs it"
        raise FwtopError(line, reason="needs_force", field="rule")
