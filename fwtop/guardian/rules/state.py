"""The active rules of one network namespace, and what the life cycle and the reports share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fwtop.guardian import backends
from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.diagnose.acting import Acting
from fwtop.guardian.objects.installer import Kernel
from fwtop.guardian.objects.spec import KernelObjects
from fwtop.guardian.records.entry import Entry
from fwtop.guardian.records.journal import Journal
from fwtop.guardian.rules import guard
from fwtop.guardian.rules.counters import RuleCounters
from fwtop.guardian.rules.guard import Limits, read_limits
from fwtop.guardian.serving.ownership import single_threaded
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text

ALLOW_REFRESH_SECONDS = 5.0
_SETTLE_SECONDS = 0.2  # after a routing change: others usually follow at once


@single_threaded
class GuardianState:
    """Owned by the worker's thread."""

    def __init__(
        self,
        journal: Journal,
        kernel: Kernel,
        gather_allow: Callable[[], AllowList],
        limits: Callable[[], tuple[Limits, tuple[str, ...]]] = read_limits,
    ) -> None:
        self.journal = journal
        self.kernel = kernel
        self.limits = limits
        self.active: dict[str, Entry] = {}  # by rule id
        self.allow = AllowList(())  # as last read
        self.acting = Acting(kernel)
        self.counters = RuleCounters(kernel.counts, kernel.compiled.entries, kernel.compiled.place)
        self.allow_trouble = ""  # why some rules don't have the allow-list as it is
        self._gather_allow = gather_allow
        self._allow_read_at = 0.0

    def active_rule(self, rule_id: str) -> Entry:
        """Return an active rule; raises FwtopError."""
        entry = self.active.get(rule_id)
        if entry is None:
            known = ", ".join(self.active) or "none"
            raise FwtopError(f"no active rule {rule_id[:20]!r}; active: {known}; nothing was changed")
        return entry

    def other_rules(self, rule: Rule) -> list[Rule]:
        """Return the active rules that stay once `rule` is installed.

        Raises FwtopError when it names a rule to replace that is not active.
        """
        if rule.replaces:
            self.active_rule(rule.replaces)
        return [entry.rule for entry in self.active.values() if entry.rule.id != rule.replaces]

    def objects_of(self, rule: Rule) -> KernelObjects:
        """Return what a rule consists of in the kernel; raises FwtopError."""
        return backends.build(rule, guard.exceptions(rule, self.allow))

    def fresh_allow(self) -> AllowList:
        """Read the allow-list again."""
        self.allow = self._gather_allow()
        self._allow_read_at = time.monotonic()
        return self.allow

    def allow_due(self) -> float:
        """Return when the allow-list is to be read again, CLOCK_MONOTONIC seconds."""
        return self._allow_read_at + ALLOW_REFRESH_SECONDS

    def allow_changed(self) -> None:
        """Read the allow-list again shortly: a route or an own address changed."""
        soon = time.monotonic() - ALLOW_REFRESH_SECONDS + _SETTLE_SECONDS
        self._allow_read_at = min(self._allow_read_at, soon)

    def status_of(self, entry: Entry, *, entries: bool = False) -> dict[str, Any]:
        """Return an active rule as `status` shows it; with its busiest sources if `entries`."""
        short = self.acting.look(self.active).get(entry.rule.id)
        shown = self.counters.status_of(entry, entries=entries)
        return {**shown, "acting": short is None, "not_acting": safe_text(short.text) if short else ""}

    def warnings(self) -> list[str]:
        """Return what the operator should know about the journal and the limits file."""
        troubles = [text for text in (self.journal.trouble(), self.allow_trouble) if text]
        return [*self.journal.warnings, *troubles, *self.limits()[1]]
