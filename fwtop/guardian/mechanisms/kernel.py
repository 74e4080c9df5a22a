"""All mechanisms: install, renew, compare, repair and remove the kernel objects of any kind of rule.

A rule's objects say which mechanisms it needs. A failed installation is rolled back. Each operation can be
repeated: after a crash it finds what exists and does the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.chains.chain import Chains
from fwtop.guardian.mechanisms.chains.rules import ChainRules
from fwtop.guardian.mechanisms.compiled.rules import CompiledRules
from fwtop.guardian.mechanisms.mechanism import (
    Baseline,
    Changed,
    Count,
    Expected,
    Mechanism,
    Remains,
    Shortfall,
    Wanted,
    each,
    readable,
)
from fwtop.guardian.mechanisms.settings import Settings
from fwtop.guardian.mechanisms.tables.contents import NftContents
from fwtop.guardian.mechanisms.tables.tables import NftTables
from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.records.former import FormerState
from fwtop.kernel.links import Link
from fwtop.kernel.programs import unlimited
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Mode, Rule
from fwtop.rules.kind import KernelObjects
from fwtop.rules.kinds import of

_LOOK_SECONDS = 0.9  # between two


@single_threaded
class Kernel:
    """fwtop's objects in netfilter, XDP and sysctls of one namespace."""

    def __init__(
        self,
        chains: Chains,
        memory: FormerState,
        failpoints: Failpoints,
        compiled: CompiledRules,
        interfaces: Callable[[], list[Link]],
        *,
        serve_urgent: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what returns the interfaces that packets arrive on, among others."""
        baseline = Baseline(memory.contents(), memory.keep_contents)
        self.settings = Settings(memory, failpoints)
        self.chains = ChainRules(chains, memory, baseline, failpoints, serve_urgent)
        self.tables = NftTables(failpoints, NftContents(baseline), interfaces)
        self.compiled = compiled
        self._failpoints = failpoints
        self._expected: dict[str, Expected] = {}  # by rule: what was put in last
        self._short: dict[str, Shortfall] = {}  # what of it was not there at the last look
        self._looked_at = 0.0
        # Sysctls give room at once, and chains ask what is in place by then
        self._first_to_last: tuple[Mechanism, ...] = (self.settings, self.tables, self.chains, compiled)
        self._to_end: tuple[Mechanism, ...] = (compiled, self.tables, self.chains, self.settings)

    def _used(self, objects: KernelObjects) -> list[Mechanism]:
        return [item for item in self._first_to_last if item.is_used(objects)]

    def plan(self, wanted: Wanted, *, follows: bool = False) -> list[str]:
        """Return what `install` would run, as text for people; long sets are cut."""
        used = (item for item in self._to_end if item.is_used(wanted.objects))
        return [line for item in used for line in item.plan(wanted, follows=follows)]

    def install(self, wanted: Wanted) -> str:
        """Install a rule as a whole or not at all; returns where it runs, "" for table raw.

        Raises FwtopError.
        """
        place = ""
        try:
            for item in self._used(wanted.objects):
                place = item.install(wanted) or place
        except Exception:  # whatever it was: nothing half done stays
            self.remove({wanted.rule.id})
            raise
        self.expect(wanted.rule, wanted.objects)
        return place

    def renew(self, wanted: Wanted) -> None:
        """Set a new timeout; expired elements are added again, those of the allow-list first.

        Raises FwtopError.
        """
        for item in self._used(wanted.objects):
            item.renew(wanted)

    def restore(self, wanted: Wanted) -> None:
        """Restore what the kernel lacks of an active rule; raises FwtopError."""
        for item in self._used(wanted.objects):
            item.restore(wanted)
        self.expect(wanted.rule, wanted.objects)

    def switch(self, wanted: Wanted) -> None:
        """Give a protected port another level; raises FwtopError."""
        self.chains.switch(wanted)
        self.expect(wanted.rule, wanted.objects)

    def change(self, wanted: Sequence[Wanted]) -> None:
        """Change active rules in place, each mechanism all of its own at once; raises FwtopError."""
        changes = [
            Changed(one.rule, one.objects, one.allow, one.seconds, self._expected[one.rule.id].objects)
            for one in wanted
        ]
        for item in self._first_to_last:
            if mine := [one for one in changes if item.is_used(one.objects)]:
                item.change(mine)
        for one in wanted:
            self.expect(one.rule, one.objects)

    def idle(self, rule_ids: set[str]) -> None:
        """Have rules match nothing, at once, until they are renewed; raises FwtopError."""
        each(lambda item: item.disable(rule_ids), self._to_end)

    def follow(self, wanted: Wanted) -> None:
        """Adapt a rule to another allow-list; raises FwtopError."""
        changed = any([item.follow(wanted) for item in self._used(wanted.objects)])
        if changed and wanted.rule.id in self._expected:
            self.expect(wanted.rule, wanted.objects)

    @unlimited
    def remove(self, rule_ids: set[str], once_inert: Callable[[], None] = lambda: None) -> list[str]:
        """End rules: stop their effect, then delete their objects, and all of fwtop's with the last rule.

        `once_inert` is called in between: counters can still be read then. What is not there is no error.
        Each mechanism is tried whatever the others say. Returns what is left behind without effect, in
        words; raises FwtopError where a rule still acts.
        """
        stuck = self._failing(lambda item: item.disable(rule_ids))
        self._failpoints.reached(Failpoint.INACTIVE)
        once_inert()
        left = self._failing(lambda item: item.remove(rule_ids))
        stuck = {item: error for item, error in stuck.items() if item in left}
        self._failpoints.reached(Failpoint.CHAINS_REMOVED)
        for item, error in self._failing(lambda item: item.destroy(rule_ids)).items():
            left.setdefault(item, error)
        if stuck:
            raise next(iter(stuck.values()))
        for item in self._to_end:
            item.forget(rule_ids)
        for rule_id in rule_ids:
            self._expected.pop(rule_id, None)
            self._short.pop(rule_id, None)
        self._failpoints.reached(Failpoint.SETS_DESTROYED)
        return [str(error) for error in left.values()]

    def _failing(self, end: Callable[[Mechanism], None]) -> dict[Mechanism, FwtopError]:
        """Have each mechanism end something, whatever the others say; returns those that failed."""
        failed: dict[Mechanism, FwtopError] = {}
        for item in self._to_end:
            try:
                end(item)
            except Exception as error:
                failed[item] = FwtopError.of(error)
        return failed

    def present(self, expected: Expected) -> bool:
        """Return whether the kernel has all of a rule (its elements may have expired)."""
        return all(item.present(expected) for item in self._used(expected.objects))

    def expect(self, rule: Rule, objects: KernelObjects) -> None:
        """Note what the kernel should have of a rule from now on."""
        self._expected[rule.id] = Expected(rule, objects)
        self._looked_at = 0.0

    def look(self, rule_ids: Iterable[str], *, force: bool = False) -> dict[str, Shortfall]:
        """Return the rules that don't act, with the reason; also those that can't be read.

        The kernel is read at most once a second, unless `force` is given.
        """
        now = time.monotonic()
        if force or now - self._looked_at >= _LOOK_SECONDS:
            known = (self._expected[rule_id] for rule_id in rule_ids if rule_id in self._expected)
            wanted = [expected for expected in known if expected.rule.mode is not Mode.OFF]
            self._short, self._looked_at = {}, now
            for item in self._to_end:
                mine = [expected for expected in wanted if item.is_used(expected.objects)]
                for rule_id, short in item.compare(mine).items():
                    if rule_id not in self._short or short.is_worse_than(self._short[rule_id]):
                        self._short[rule_id] = short
        return self._short

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules with any readable object in the kernel."""
        nothing: set[str] = set()
        return {rule_id for item in self._to_end for rule_id in readable(item.rule_ids, nothing)}

    def remains(self, rule_id: str) -> Remains | None:
        """Return what is left of a rule that ends by the kernel's clock; None: it is to be taken out."""
        found = (readable(partial(item.remains, rule_id), None) for item in self._to_end)
        return next((item for item in found if item is not None and item.seconds > 0), None)

    def counts(self) -> dict[str, Count]:
        """Return what each rule matched since it was installed, leaving out what can't be read."""
        found: dict[str, Count] = {}
        nothing: dict[str, Count] = {}
        for item in self._to_end:
            for rule_id, count in readable(item.counts, nothing).items():
                found[rule_id] = found.get(rule_id, Count(0, 0)).plus(count)
        return found

    def entries(self, rule: Rule, most: int) -> dict[str, int]:
        """Return the packets of a rule's busiest sources, at most so many; empty if its set is gone."""
        layer = of(rule.kind).layer
        counting = next((item for item in self._to_end if layer in item.layers), None)
        return counting.entries(rule, most) if counting is not None and rule.match.sources else {}

    def refresh_allow(self, allow: AllowList) -> None:
        """Update the allow-list in all mechanisms that have rules; one that fails does not stop the others.

        Raises FwtopError.
        """
        each(lambda item: item.refresh_allow(allow), self._first_to_last)
