"""How rules end: out of the kernel first, whatever else fails; then the journal.

Neither unreadable counters, nor a full disk, nor another rule that can't be removed keeps a rule from ending.
"""

from __future__ import annotations

import math
import syslog
import time
from collections.abc import Callable

from msgspec.structs import replace

from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.chains import sets
from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.records.journal import KERNEL_SLACK_SECONDS, Entry, next_deadline
from fwtop.guardian.rules.state import GuardianState
from fwtop.kernel.programs import RESERVE_SECONDS, until
from fwtop.model.errors import FwtopError
from fwtop.model.rule import State
from fwtop.model.text import safe_text
from fwtop.rules.kinds import has_no_clock
from fwtop.rules.xtables import MAX_TIMEOUT_SECONDS


def seconds_left(entry: Entry) -> int:
    """Return the timeout that an active rule's sets should have now."""
    timeout = max(1, math.ceil(entry.deadline - time.monotonic()))
    if entry.state is State.PROVISIONAL:
        timeout = timeout + KERNEL_SLACK_SECONDS
    return min(timeout, MAX_TIMEOUT_SECONDS)


TIDY_SECONDS = 10.0  # between two tries to remove leftovers
_LATE = "; its sysctls were given back in time, as the guardian was stopped or hung"
_COUNTING_SECONDS = 1.0  # what a rule matched at last is not worth a longer wait


@single_threaded
class Ending:
    """Ends the rules of one namespace; remembers what it could not remove. Owned by the worker's thread."""

    def __init__(
        self, state: GuardianState, failpoints: Failpoints, set_watchdog: Callable[[float | None], None]
    ) -> None:
        """Take the shared state, and what tells the watchdog when the next sysctl is to be restored."""
        self._state = state
        self._failpoints = failpoints
        self._set_watchdog = set_watchdog
        self.owners: dict[str, object] = {}  # rule id → the console that a provisional rule falls with
        self.installing: set[str] = set()  # urgent requests are served while a long list is filled
        self._leftovers: list[str] = []  # objects of ended rules that have no effect; removed when possible
        self._tidied_at = 0.0
        self._logged: dict[str, str] = {}  # by matter: the last complaint

    @property
    def active(self) -> dict[str, Entry]:
        """The active rules by id."""
        return self._state.active

    def end(self, over: list[tuple[Entry, State, str]]) -> None:
        """Take rules out of the kernel and journal how they ended.

        Nothing that may take long comes before they stop acting: what is written first is on a tmpfs.
        Raises FwtopError when one still acts; the others have ended by then.
        """
        if not over:
            return
        counters = self._state.counters
        late = self._state.kernel.settings.given_back({entry.rule.id for entry, _, _ in over})
        over = [(entry, state, note + _LATE * (entry.rule.id in late)) for entry, state, note in over]
        for entry, _, note in over:
            self.record(replace(counters.counted(entry), state=State.INTENT, note=f"ending: {note}"))
        self._failpoints.reached(Failpoint.UNDO)
        stuck: dict[str, FwtopError] = {}
        try:
            self.remove({entry.rule.id for entry, _, _ in over}, self._count_last)
        except FwtopError as error:
            stuck = self._end_one_by_one([entry.rule.id for entry, _, _ in over], error)
        for entry, state, note in over:
            if entry.rule.id in stuck:
                self.record(counters.counted(entry))
                continue
            self.record(replace(counters.counted(entry), state=state, ended=time.time(), note=note))
            self.active.pop(entry.rule.id, None)
            self.owners.pop(entry.rule.id, None)
            counters.forget(entry.rule.id)
        self.tidy_lists()
        self.update_watchdog()
        self.log_once("leftovers", "; ".join(self._leftovers))
        if stuck:
            raise FwtopError("; ".join(f"rule {name} still acts: {error}" for name, error in stuck.items()))
        self._failpoints.reached(Failpoint.UNDONE)

    def _end_one_by_one(self, rule_ids: list[str], error: FwtopError) -> dict[str, FwtopError]:
        """End each rule alone after ending all at once failed; returns the errors of those that still act."""
        if len(rule_ids) == 1:
            return {rule_ids[0]: error}
        stuck: dict[str, FwtopError] = {}
        for rule_id in rule_ids:
            try:
                self.remove({rule_id})
            except FwtopError as alone:
                stuck[rule_id] = alone
        return stuck

    def _count_last(self) -> None:
        """Read the counters of rules that have just stopped acting, if that does not take long."""
        try:
            with until(time.monotonic() + RESERVE_SECONDS + _COUNTING_SECONDS):
                self._state.counters.read(force=True)
        except Exception as error:  # whatever it was, the rules' objects are still to be removed
            self.log_once("counters", f"the last counts are missing: {error}")

    def remove(self, rule_ids: set[str], once_inert: Callable[[], None] = lambda: None) -> None:
        """Take rules out of the kernel, noting what is left of them; raises FwtopError if one still acts."""
        self._leftovers += self._state.kernel.remove(rule_ids, once_inert)

    def remove_everything(self) -> None:
        """Remove every kernel object of fwtop's but those that are going in; raises FwtopError."""
        kernel = self._state.kernel
        self._leftovers = kernel.remove(kernel.rule_ids() - self.installing)
        self.tidy_lists()
        kernel.compiled.sweep()

    def tidy(self, now: float) -> float:
        """Try again, from time to time, to remove what could not be removed; never raises.

        Returns when the next try is due, CLOCK_MONOTONIC seconds; infinity: nothing is left.
        """
        if self._leftovers and now - self._tidied_at >= TIDY_SECONDS:
            self._tidied_at = now
            self.remove_orphans()
        return self._tidied_at + TIDY_SECONDS if self._leftovers else math.inf

    def remove_orphans(self) -> None:
        """Remove kernel objects that no active rule owns, and chains and sets without rules; never raises."""
        if self.installing:
            return  # later: half of that rule is in the kernel
        try:
            orphans = self._state.kernel.rule_ids() - self.active.keys()
            self._leftovers = self._state.kernel.remove(orphans) if orphans or not self.active else []
        except FwtopError as error:
            self._leftovers = [str(error)]
        self.tidy_lists()
        self.log_once("leftovers", "; ".join(self._leftovers))

    def record(self, entry: Entry) -> None:
        """Journal what the kernel has; a failing journal is logged and never keeps a rule from ending.

        A missing record only makes the next guardian end a rule earlier.
        """
        try:
            self._state.journal.update(entry)
        except Exception as error:
            self.log_once("journal", FwtopError.of(error))

    def update_watchdog(self, *more: Entry) -> None:
        """Tell the watchdog when the next rule without a timeout in the kernel ends."""
        waiting = [item for item in (*self.active.values(), *more) if has_no_clock(item.rule)]
        self._set_watchdog(next_deadline(waiting))

    def log_once(self, matter: str, error: FwtopError | str | None) -> None:
        """Log a complaint when it differs from the last about the same matter; None or "": it is over."""
        text = safe_text(error, limit=1000) if error is not None else ""
        if text and self._logged.get(matter) != text:
            syslog.syslog(syslog.LOG_ERR, text)
        self._logged[matter] = text

    def tidy_lists(self) -> None:
        """Free the sets of named lists that no rule uses any more; what fails is tried again with `tidy`."""
        lists = self._state.known_lists
        if self.installing:
            return
        try:
            if lists is not None:
                lists.tidy()
            else:  # of a rule that no record is left of
                sets.destroy_lists(())
        except FwtopError as error:
            self._leftovers.append(str(error))
