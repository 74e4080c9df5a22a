"""Whether active rules act: what the kernel has now, compared with what was installed.

Checked on demand, at most once a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from fwtop.guardian.mechanisms.kernel import Kernel
from fwtop.guardian.mechanisms.mechanism import Expected, Shortfall
from fwtop.model.rule import Rule
from fwtop.rules.objects import KernelObjects

_SECONDS = 0.9  # between two looks


class Acting:
    """Compares the kernel's state with the expected one, and caches the result."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._expected: dict[str, Expected] = {}
        self._looked_at = 0.0
        self._short: dict[str, Shortfall] = {}

    def expect(self, rule: Rule, objects: KernelObjects) -> None:
        """Note what was installed or repaired."""
        self._expected[rule.id] = Expected(rule, objects)
        self._looked_at = 0.0

    def followed(self, rule: Rule, objects: KernelObjects) -> None:
        """Note that a rule's lines are in other chains now, or that its sets spare others."""
        if rule.id in self._expected:
            self.expect(rule, objects)

    def forget(self, rule_id: str) -> None:
        """Forget a rule that ended."""
        self._expected.pop(rule_id, None)
        self._short.pop(rule_id, None)

    def look(self, rule_ids: Iterable[str], *, force: bool = False) -> dict[str, Shortfall]:
        """Return the rules that don't act, with the reason; also those that can't be read."""
        now = time.monotonic()
        if force or now - self._looked_at >= _SECONDS:
            wanted = [self._expected[rule_id] for rule_id in rule_ids if rule_id in self._expected]
            self._short = self._kernel.compare(wanted)
            self._looked_at = now
        return self._short
