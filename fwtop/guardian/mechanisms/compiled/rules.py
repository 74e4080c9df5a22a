"""The compiled rules of one namespace: one program of all of them, replaced when they change.

A rule takes effect when its deadline is set in a map, and the program itself ends it then (the dead man's
switch). What is pinned in bpffs outlives the guardian, and the next one finds it there.
"""

from __future__ import annotations

import contextlib
import syslog
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.compiled import loader
from fwtop.guardian.mechanisms.compiled.loader import Attachments, Planned, Precompiler, plan_lines, same_code
from fwtop.guardian.mechanisms.compiled.prefix_hits import PrefixHits
from fwtop.guardian.mechanisms.compiled.slots import Slots, disable_pinned, free_slot, is_pinned
from fwtop.guardian.mechanisms.mechanism import (
    Changed,
    Count,
    Expected,
    Mechanism,
    Shortfall,
    Wanted,
    each,
)
from fwtop.guardian.ownership import single_threaded
from fwtop.kernel.descriptors import close_all
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import sealed
from fwtop.model.errors import FwtopError
from fwtop.model.paths import PIN_DIRECTORY
from fwtop.model.rule import Mode, Rule
from fwtop.model.text import safe_text
from fwtop.rules.kind import KernelObjects, Layer
from fwtop.rules.kinds import of
from fwtop.xdp.maps import create_shared
from fwtop.xdp.messages import Apply, Clear, Compile, Loaded, Open, RequestedRule, Sweep

MAX_ALLOWED = 4096


@single_threaded
class CompiledRules(Mechanism):
    """The compiled rules, on the `interfaces` that consoles watch, else on those with a default route."""

    layers = (Layer.DRIVER, Layer.TC)

    def __init__(
        self, failpoints: Failpoints, netns: int, serve_urgent: Callable[[], None] = lambda: None
    ) -> None:
        self.interfaces: set[str] = set()
        self._failpoints = failpoints
        self._netns = netns
        self._serve_urgent = serve_urgent  # called while a loader child runs
        self._busy = False  # a loader runs; no other must be started meanwhile
        self._slots: Slots | None = None
        self._rules: dict[str, Rule] = {}  # whose compilation is known; all but those not adopted yet
        self._listed: set[str] = set()  # keys of long lists that the kernel has as this version makes them
        self.list_key: Callable[[Rule], str] = lambda _: ""  # of the named list that a rule is on
        self._allow: tuple[Prefix, ...] = ()
        self._attachments = Attachments()
        self._unseen = False  # a former guardian left rules, and they could not be read
        self._outdated = False  # they are an older fwtop's, with other maps: they can only be ended
        self._stale = False  # the program holds rules that are over, without effect
        self._precompiler = Precompiler()
        self._planned = Planned()
        self._ahead: dict[int, Rule] = {}  # planned rules by slot, which the program holds without effect
        self._hits = PrefixHits()

    @property
    def descriptors(self) -> dict[str, int]:
        """The shared maps, for the observers' loader to sample dropped packets; not to be closed."""
        return dict(self._slots.maps) if self._slots is not None else {}

    def share_maps(self) -> dict[str, int]:
        """Return the shared maps, creating them if there are none.

        Two loaders that begin at once, an observers' and a rule's, would each make its own: the rule's were
        then gone, or not sampled from.
        """
        if self._slots is None and not self._unseen:
            with contextlib.suppress(OSError):  # a kernel that can't create them is watched without
                self._slots = Slots(create_shared())
        return self.descriptors

    def take_maps(self, loaded: Loaded) -> None:
        """Take the maps of a loader's answer, closing those that are known already."""
        self._hits.take(loaded.hits)
        if self._slots is None and loaded.maps:
            self._slots = Slots(loaded.maps)
            return
        close_all(loaded.maps.values())

    def find(self) -> None:
        """Find the rules of a former guardian; raises FwtopError."""
        self._unseen = is_pinned(self._pins)
        if self._unseen:
            found = loader.ask(Open())
            self.take_maps(found)
            self._attachments.replace(found.attachments)
            self._outdated = bool(found.attachments) and self._slots is None
            self._check_version()
            self._unseen = False

    def _check_version(self) -> None:
        if self._outdated:
            raise FwtopError("an older fwtop compiled the XDP rules that run now: repair or undo them")

    def _look(self) -> None:
        """Try again to find a former guardian's rules if that failed; raises FwtopError."""
        self._check_version()
        if self._unseen:
            self.find()

    def sweep(self) -> None:
        """Remove the pins of deleted namespaces; what fails is logged, as no rule of ours depends on it."""
        if not is_pinned(self._pins.parent):
            return
        try:
            loader.ask(Sweep())
        except FwtopError as error:
            syslog.syslog(syslog.LOG_WARNING, f"pins of deleted namespaces were left: {safe_text(error)}")

    def _numbers(self) -> dict[int, int]:
        return self._slots.numbers() if self._slots is not None else {}

    @property
    def _pins(self) -> Path:
        return PIN_DIRECTORY / str(self._netns)

    def is_used(self, objects: KernelObjects) -> bool:  # noqa: D102
        return isinstance(objects.instead, Rule)

    def plan(self, wanted: Wanted, *, follows: bool) -> list[str]:
        """Return what `install` would do, and begin to compile for it.

        A rule that `follows` is compiled together with those planned just before: the first installation
        loads them all, the others only set a number and a deadline. Not so where one has a long list.
        """
        rule = wanted.rule
        self._planned.add(rule, follows=follows)
        self._prepare(rule, wanted.allow, instead=follows)
        self._planned.forget_long()
        alike = 1 + sum(other.kind is rule.kind for other in self._rules.values())
        return plan_lines(rule, alike, self._pins, self.interfaces, self._attachments.names_with(rule))

    def install(self, wanted: Wanted) -> str:
        """Compile a rule, swap the program, enable the rule; returns where it runs. Raises FwtopError."""
        rule, allow = wanted.rule, wanted.allow
        self._look()
        used = self._numbers()
        if any(str(number) not in self._rules for number in used.values()):
            raise FwtopError("XDP rules of a former guardian are still being looked at; try again")
        slot = self._take_ahead(rule, allow)
        if slot is None:
            slot = self._add(rule, used, _allowed(allow))
        self._failpoints.reached(Failpoint.COMPILED)
        if self._slots is not None:
            try:
                self._slots.allow(allow)
            except FwtopError:
                self.remove({rule.id})
                raise
            self._slots.enable(slot, wanted.seconds)
        self._failpoints.reached(Failpoint.ENABLED)
        return self._attachments.describe(rule)

    def _add(self, rule: Rule, used: dict[int, int], allow: tuple[Prefix, ...]) -> int:
        """Load a program with one more rule, and with those planned together with it; returns its slot."""
        slot = free_slot(used)
        numbers = used | {slot: int(rule.id)}
        self._rules[rule.id] = rule
        try:
            self._compile_with(self._planned.others(rule, numbers), numbers, allow)
        except FwtopError:
            del self._rules[rule.id]
            if self._slots is not None:
                self._slots.free(slot)
            raise
        return slot

    def _compile_with(self, ahead: dict[int, Rule], used: dict[int, int], allow: tuple[Prefix, ...]) -> None:
        """Compile planned rules as well, unless the program can't hold them."""
        if ahead:
            with contextlib.suppress(FwtopError):
                self._compile(used, allow, ahead)
                return
        self._compile(used, allow)

    def _take_ahead(self, rule: Rule, allow: AllowList) -> int | None:
        """Give a rule the slot where the program holds its code already; None if there is none."""
        slot = next((at for at, planned in self._ahead.items() if same_code(rule, planned)), None)
        if slot is None or self._slots is None or self._stale or self._allow != _allowed(allow):
            return None
        if self._attachments.need_program() or self._attachments.detached(rule, self._pins):
            return None
        del self._ahead[slot]
        self._rules[rule.id] = rule
        self._slots.assign(slot, rule.id)
        return slot

    def place(self, rule: Rule, note: str) -> str:
        """Return where a compiled rule runs now, `note` being what was said when it was put in.

        That says more, as long as it holds; of other rules it is all there is to say.
        """
        mine = rule.id in self._rules and not self._attachments.match(note, rule)
        return self._attachments.describe(rule) if mine else note

    def _prepare(self, rule: Rule, allow: AllowList, *, instead: bool) -> None:
        """Compile in a child what `install` will load; that then finds it in the cache or waits for it."""
        used = self._numbers()
        if not all(str(number) in self._rules for number in used.values()):
            return
        with contextlib.suppress(FwtopError, OSError):
            rules = {slot: self._rules[str(number)] for slot, number in used.items()}
            first = self._planned.first
            rules[free_slot(used)] = first
            rules |= self._planned.others(first, rules)
            items = tuple(self._requested(*item) for item in rules.items())
            order = Compile(items, _allowed(allow), at_tc=of(rule.kind).layer is Layer.TC)
            self._precompiler.start(order, instead=instead)

    def renew(self, wanted: Wanted) -> None:
        """Set a rule's deadline; raises FwtopError."""
        self._look()
        rule_id = wanted.rule.id
        slot = self._slots.slot_of(rule_id) if self._slots is not None else None
        if self._slots is None or slot is None:
            raise FwtopError(f"rule {rule_id} is gone from the kernel; nothing was changed")
        self._slots.enable(slot, wanted.seconds)

    def change(self, changes: Sequence[Changed]) -> None:
        """Swap in a program with these rules in their slots, whose counters go on."""
        self._look()
        for one in changes:
            if one.rule.mode is not Mode.OFF:
                self.renew(one)
        self.exchange([one.rule for one in changes])

    def disable(self, rule_ids: set[str]) -> None:
        """Stop rules at once: one store into the deadline of each. Raises FwtopError."""
        if self._slots is None and not self._unseen:
            return
        if self._slots is None:
            enabled = disable_pinned(self._pins / "slots", rule_ids)
            if enabled is None or (self._outdated and not enabled):
                self._clear()  # without deadlines, a rule ends only with all of them
            return
        gone = [slot for slot, number in self._slots.numbers().items() if str(number) in rule_ids]
        for slot in gone:
            self._slots.disable(slot)
        if gone:
            self._failpoints.reached(Failpoint.DISABLED)

    def remove(self, rule_ids: set[str]) -> None:
        """Remove disabled rules from the program, and everything with the last one.

        Raises FwtopError when that failed: the program keeps them without effect, in no slot, until the next
        try.
        """
        if self._outdated:
            return  # all go with the last that is enabled: see `disable`
        self._look()
        if self._slots is None:
            return
        used = self._slots.numbers()
        gone = {slot for slot, number in used.items() if str(number) in rule_ids}
        if self._busy:
            if gone:
                raise FwtopError("another compiled rule is being loaded; this one's code goes after that")
            return
        left = {slot: number for slot, number in used.items() if slot not in gone}
        unknown = any(str(number) not in self._rules for number in left.values())
        if not (gone or self._stale or (self._attachments and not left)) or (left and unknown):
            return  # nothing of ours went, or rules that are not adopted yet: they stay compiled
        self._stale = True
        for slot in gone:
            self._slots.disable(slot)
            self._rules.pop(str(used[slot]), None)
        try:
            if left:
                self._compile(left, self._allow)
            else:
                self._clear()
        finally:  # also when that failed: no slot without its rule is left
            for slot in gone:
                self._slots.free(slot)
        self._stale = False
        self._failpoints.reached(Failpoint.UNLOADED)

    def _clear(self) -> None:
        loader.ask(Clear())
        self._attachments.clear()
        self._ahead.clear()
        self._listed.clear()
        self._hits.keep(set())
        self._outdated = self._unseen = False

    def present(self, expected: Expected) -> bool:
        """Return whether the kernel has a rule; from then on it is compiled in again with the others.

        Raises FwtopError where that can't be told.
        """
        self._look()
        rule = expected.rule
        if self._slots is None or self._slots.slot_of(rule.id) is None or not self._attachments:
            return False
        self._rules[rule.id] = rule
        return True

    def shortfall(self, expected: Expected) -> Shortfall | None:
        """Return what the kernel lacks of a rule; raises FwtopError.

        An interface that is gone is no shortfall: the rule's note says so.
        """
        text = self._missing(expected.rule)
        return Shortfall(text) if text else None

    def _missing(self, rule: Rule) -> str:
        self._look()
        slot = self._slots.slot_of(rule.id) if self._slots is not None else None
        if self._slots is None or slot is None:
            return "it is gone from the maps of the compiled rules"
        if not self._slots.is_enabled(slot):
            return "somebody cleared its deadline in the maps of the compiled rules"
        if name := self._attachments.detached(rule, self._pins):
            return f"somebody detached its program from {name}"
        changed = "the allow-list in the maps of the compiled rules was changed"
        return changed if self._slots.peers_changed else ""

    def restore(self, wanted: Wanted) -> None:
        """Attach the program again where it is missing, and enable a rule; raises FwtopError."""
        self._attach_again(wanted)
        self._failpoints.reached(Failpoint.REPAIR_COMPILED)

    def _attach_again(self, wanted: Wanted) -> None:
        rule = wanted.rule
        if self._slots is None or self._slots.slot_of(rule.id) is None:
            self._rules.pop(rule.id, None)
            was_outdated, self._outdated = self._outdated, False
            self._unseen = self._unseen and not was_outdated
            try:
                self.install(wanted)  # in place of an older fwtop's program, if it runs
            except FwtopError:
                self._outdated = was_outdated
                raise
            return
        self._rules[rule.id] = rule  # a former guardian may have crashed while it repaired this one
        self._slots.allow(wanted.allow)
        self._compile(self._slots.numbers(), _allowed(wanted.allow))
        self.renew(wanted)

    def rule_ids(self) -> set[str]:
        """Return the ids of all rules with a slot; raises FwtopError if they can't be read."""
        self._look()
        return set(map(str, self._numbers().values()))

    def counts(self) -> dict[str, Count]:
        """Return the packets and bytes that each rule dropped since it was installed."""
        if self._slots is None:
            return {}
        slots = self._slots
        return {str(number): Count(*slots.count(slot)) for slot, number in slots.numbers().items()}

    def parse_errors(self) -> int:
        """Return the number of malformed packets, which no rule can match."""
        return self._slots.parse_errors if self._slots is not None else 0

    def entries(self, rule: Rule, most: int) -> dict[str, int]:
        """Return the packets of a rule's busiest source prefixes, exact, without listing them."""
        return self._hits.most(rule, self._slots.cpus, most) if self._slots is not None else {}

    def refresh_allow(self, allow: AllowList) -> None:
        """Update the allow-list, and attach to interfaces that were created again.

        What passes in a role is in a map, updated first; what the operator lists is part of the program.
        Raises FwtopError; what could not be updated stays.
        """
        if not self._rules or self._slots is None or self._busy:
            return
        each(lambda update: update(allow), (self._slots.allow, self._refresh_program))

    def _requested(self, slot: int, rule: Rule, *, report_hits: bool = False) -> RequestedRule:
        return RequestedRule.of(slot, rule, report_hits=report_hits, list_key=self.list_key(rule))

    def exchange(self, rules: Sequence[Rule]) -> None:
        """Swap in a program with these rules in place of their former selves; raises FwtopError.

        Rules and prefixes that stay keep their counters. Where it fails, all is as before. Of several rules
        with other sources, all are on one list.
        """
        mine = [rule for rule in rules if rule.id in self._rules]
        if not mine or self._slots is None:
            return
        if self._busy:
            raise FwtopError("another compiled rule is being loaded; nothing was changed; try again")
        before = {rule.id: self._rules[rule.id] for rule in mine}
        hits = self._hits.release(
            rule.id for rule in mine if rule.match.sources != before[rule.id].match.sources
        )
        self._rules |= {rule.id: rule for rule in mine}
        try:
            self._compile(self._slots.numbers(), self._allow)
        except BaseException:
            self._rules |= {name: rule for name, rule in before.items() if name in self._rules}
            self._hits.take(hits)
            raise
        new = {rule.id: rule for rule in mine if self._hits.knows(rule.id)}
        shared = next(((name, hits[name]) for name in new if name in hits), None)  # by all rules on the list
        if shared is not None:
            name, descriptor = shared
            self._hits.carry_over(descriptor, before[name], new[name], self._slots.cpus)
        close_all(hits.values())

    def _refresh_program(self, allow: AllowList) -> None:
        wanted = _allowed(allow)
        is_current = wanted == self._allow and not self._stale and not self._attachments.need_program()
        if self._slots is not None and not is_current:
            self._compile(self._slots.numbers(), wanted)
            self._stale = False

    def _compile(
        self, used: dict[int, int], allow: tuple[Prefix, ...], ahead: Mapping[int, Rule] | None = None
    ) -> None:
        """Compile exactly the rules in these slots (rule number by slot) and swap the programs.

        The rules `ahead` are planned: they have no number, and so no effect.
        """
        items: list[RequestedRule] = []
        sent: dict[str, int] = {}
        try:
            for slot, number in used.items():
                rule = self._rules.get(str(number))
                if rule is None:
                    raise FwtopError(f"XDP rule {number} of a former guardian was not looked at yet")
                item = self._requested(slot, rule, report_hits=not self._hits.knows(rule.id))
                if item.listed and item.key not in self._listed | sent.keys():
                    sent[item.key] = sealed(rule.match.sources)
                items.append(item)
            items += [self._requested(slot, planned) for slot, planned in (ahead or {}).items()]
            interfaces = tuple(self._attachments.wanted(self.interfaces))
            request = Apply(tuple(items), allow, interfaces, self.share_maps(), sent)
            self._busy = True
            loaded = loader.ask(request, self._serve_urgent, self._precompiler.take(request))
        finally:
            self._busy = False
            close_all(sent.values())
        self.take_maps(loaded)
        self._attachments.replace(loaded.attachments)
        self._allow = allow
        self._ahead = dict(ahead or {})
        self._listed = (self._listed | sent.keys()) & {item.key for item in items}
        self._hits.keep({str(number) for number in used.values()})


def _allowed(allow: AllowList) -> tuple[Prefix, ...]:
    found = tuple(prefix for family in (4, 6) for prefix in allow.of_family(family))
    if len(found) > MAX_ALLOWED:
        raise FwtopError(
            f"XDP and tc rules take an allow-list of up to {MAX_ALLOWED:,} prefixes, not {len(found):,}: "
            "none is installed, and those in place keep the list that they have"
        )
    return found
