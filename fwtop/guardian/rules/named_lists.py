"""Named lists: created, changed in transactions, used by rules, deleted.

A change of any number of entries goes through these steps, and a failure in any of them leaves the list as
it was, in the record, in the kernel and here:

1. the guard judges each rule on the list with its new sources,
2. what the kernel needs is built where no packet sees it (list_sets.py),
3. the changed list is recorded beside the old one (list_files.py),
4. compiled rules get it: one program takes the place of another,
5. ipsets get it, in one system call for additions and removals or one for a swap, and nftables in one
   transaction,
6. the record takes the old one's place.

A guardian that dies before the last step leaves a record that its successor drops, putting the old list back
into the kernel. Entries with a time to live end by the guardian's clock. Lists without rules take no
memory in the kernel.
"""

from __future__ import annotations

import contextlib
import syslog
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.chains.list_sets import ListDelta, Prepared
from fwtop.guardian.mechanisms.kernel import Kernel
from fwtop.guardian.mechanisms.tables.state import NftListChange
from fwtop.guardian.records.journal import Entry
from fwtop.guardian.records.list_files import ListFiles, Recorded
from fwtop.model.addresses.address import Prefix, check_name, of_pairs, of_ports
from fwtop.model.addresses.keyed_rows import KeyedRows
from fwtop.model.addresses.list_rows import Rows, alike, chosen, positions, words_of
from fwtop.model.addresses.named_list import NEVER, Change, NamedList, check_entries
from fwtop.model.addresses.prefix_list import MAX_PREFIXES
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.rules.kinds import of

MAX_LISTS = 256
MAX_TTL_SECONDS = 10 * 365 * 86_400
_EXPIRY_SECONDS = 1.0  # between two changes that remove what has ended
_COMPILED_EXPIRY_SECONDS = 10.0  # the same where a program is loaded for it
_RETRY_SECONDS = 10.0


class Done(Struct, frozen=True):
    """What came of a change."""

    added: int = 0
    removed: int = 0
    renewed: int = 0  # entries that were there, whose end was set
    entries: int = 0


class NamedLists:
    """The lists of one namespace."""

    def __init__(
        self,
        files: ListFiles,
        kernel: Kernel,
        failpoints: Failpoints,
        active: dict[str, Entry],
        *,
        check: Callable[[Sequence[Rule], bool], None] = lambda _rules, _force: None,
        check_access: Callable[[str, Sequence[Prefix]], None] = lambda _name, _entries: None,
        changed: Callable[[Rule], None] = lambda _: None,
    ) -> None:
        """Take the record, the kernel's objects, and the active rules by id.

        `check` raises FwtopError if rules may not get the sources that they would have; its second argument
        says whether the operator insists. `check_access` raises it if a list may not hold just these, as
        ports are open to it. `changed` is told of rules that have other sources now.
        """
        self._files, self._sets, self._failpoints = files, kernel.chains.lists, failpoints
        self._change_compiled, self._tables = kernel.compiled.exchange, kernel.tables
        self._active, self._check, self._changed = active, check, changed
        self._check_access = check_access
        self._lists = {item.named.name: item for item in files.load()}
        self._next_expiry = 0.0
        self._changing = False

    def __contains__(self, name: str) -> bool:
        """Return whether there is a list of this name."""
        return name in self._lists

    def names(self) -> list[str]:
        """Return the names of all lists."""
        return sorted(self._lists)

    def find(self, name: str) -> NamedList:
        """Return a list without what has ended; raises FwtopError."""
        return self._recorded(name).named

    def with_sources(self, rule: Rule) -> Rule:
        """Return a rule on a list with the list's entries as its sources; raises FwtopError."""
        if rule.list_name is None:
            return rule
        return _on(rule, self._settled(rule.list_name))

    def key_of(self, rule: Rule) -> str:
        """Return what the compiled maps of a rule's list are named by; "" if it is on none."""
        recorded = self._lists.get(rule.list_name or "")
        return f"l{recorded.number}v{recorded.stamp}" if recorded is not None else ""

    def stamp_of(self, name: str) -> int:
        """Return the number of a list's last change; raises FwtopError."""
        return self._recorded(name).stamp

    def users(self, name: str) -> list[Entry]:
        """Return the active rules whose sources are a list's."""
        return [entry for entry in list(self._active.values()) if entry.rule.list_name == name]

    def _rules_on(self, name: str) -> list[Rule]:
        """Return the active rules that look a list up, as sources or as those whom a port is open to."""
        return [entry.rule for entry in list(self._active.values()) if name in entry.rule.lists_used]

    def create(self, name: str, entries: Sequence[Prefix], ttl_seconds: int | None) -> Done:
        """Make a new list; raises FwtopError."""
        check_name(name)
        if name in self._lists:
            raise FwtopError(
                f"there is a list {name} already; nothing was changed", reason="exists", field="name"
            )
        if len(self._lists) >= MAX_LISTS:
            raise FwtopError(f"there are {MAX_LISTS} lists already; nothing was changed", reason="too_many")
        named = NamedList(name)
        named = named.changed(_entered(named.addition(entries, _end(ttl_seconds))))
        number = 1 + max((item.number for item in self._lists.values()), default=0)
        recorded = Recorded(named, number, time.monotonic_ns())
        self._files.write(recorded)
        self._failpoints.reached(Failpoint.LIST_CREATED)
        self._lists[name] = recorded
        return Done(added=len(named.rows), entries=len(named.rows))

    def add(self, name: str, entries: Sequence[Prefix], ttl_seconds: int | None, *, force: bool) -> Done:
        """Add entries, and give those that are there the same time to live; raises FwtopError."""
        change = self._settled(name).addition(entries, _end(ttl_seconds))
        return self._change(name, _entered(change), force=force)

    def remove(self, name: str, entries: Sequence[Prefix]) -> Done:
        """Remove entries, as far as they are listed; raises FwtopError."""
        return self._change(name, self._settled(name).removal(entries), force=True)

    def replace(self, name: str, entries: Sequence[Prefix], ttl_seconds: int | None, *, force: bool) -> Done:
        """Give a list these entries and no others; raises FwtopError."""
        change = self._settled(name).replacement(entries, _end(ttl_seconds))
        return self._change(name, _entered(change), force=force)

    def delete(self, name: str) -> Done:
        """Delete a list that no rule uses; raises FwtopError."""
        recorded = self._recorded(name)
        if users := self._rules_on(name):
            ids = ", ".join(rule.id for rule in users)
            rules = "rule" if len(users) == 1 else "rules"
            line = f"list {name} is used by {rules} {ids}; nothing was changed; see 'fwtop undo'"
            raise FwtopError(line, reason="in_use", field="name")
        self._files.drop(name)
        del self._lists[name]
        return Done(removed=len(recorded.named.rows))

    def tick(self, now: float) -> float | None:
        """Remove what has ended from lists that rules use; returns when to come back, None: not needed.

        A list that could not be put back after a failure is tried again.
        """
        if self._changing:
            return now + _EXPIRY_SECONDS
        if now >= self._next_expiry and any(item.unfinished for item in self._lists.values()):
            self._next_expiry = now + _RETRY_SECONDS
            for line in self.restore_unfinished():
                syslog.syslog(syslog.LOG_ERR, line)
        times = [self._next_expiry] if any(item.unfinished for item in self._lists.values()) else []
        for name in self._used() & self._lists.keys():
            end = self._lists[name].named.next_end
            if end is not None and end <= now and now >= self._next_expiry:
                self._expire(self._lists[name].named, now)
                end = self._lists[name].named.next_end
            if end is not None:
                times.append(max(end, self._next_expiry))
        return min(times, default=None)

    def tidy(self) -> None:
        """Free the kernel's memory of lists that no rule uses any more; raises FwtopError."""
        if not self._changing:
            names = self._used()
            self._sets.tidy(names)
            self._tables.tidy_lists(names)

    def _used(self) -> set[str]:
        return {name for entry in list(self._active.values()) for name in entry.rule.lists_used}

    def restore_unfinished(self) -> list[str]:
        """Put back the lists whose last change was not finished; returns a line for each."""
        done = []
        for name, recorded in list(self._lists.items()):
            if not recorded.unfinished:
                continue
            try:
                self._sets.rebuild(name, _single(recorded.named.rows))
                self._tables.rebuild_list(name, _single(recorded.named.rows))
                self._compile(recorded.named)
            except FwtopError as error:
                done.append(f"list {name} could not be put back: {safe_text(error)}")
                continue
            self._lists[name] = replace(recorded, unfinished=False)
            done.append(f"list {name} put back as it was before an unfinished change")
        return done

    def told(self, name: str) -> dict[str, Any]:
        """Return what `fwtop list show` tells of a list; raises FwtopError."""
        recorded = self._recorded(name)
        named = recorded.named
        return {
            "name": name,
            "ipv4": named.rows.count(4),
            "ipv6": named.rows.count(6),
            "timed": named.timed,
            "ports": of_ports(named.rows),
            "pairs": of_pairs(named.rows),
            "stamp": recorded.stamp,
            "rules": [rule.id for rule in self._rules_on(name)],
            "bytes": named.bytes,
            "kernel_bytes": self._sets.bytes_of(name),
        }

    def _recorded(self, name: str) -> Recorded:
        """Return a list and what is kept with it; raises FwtopError."""
        recorded = self._lists.get(check_name(name))
        if recorded is None:
            known = ", ".join(self.names()[:10]) or "none"
            line = f"there is no list {name}; there are: {known}; nothing was changed"
            raise FwtopError(line, reason="not_found", field="name")
        return recorded

    def _settled(self, name: str) -> NamedList:
        """Return a list; from one that no rule uses goes what has ended, as `tick` does for the others."""
        named = self.find(name)
        if not self._rules_on(name) and len((over := named.expiry(time.monotonic())).removed):
            self._change(name, over, force=True)
        return self.find(name)

    def _expire(self, named: NamedList, now: float) -> None:
        compiled = any(of(entry.rule.kind).is_compiled for entry in self.users(named.name))
        self._next_expiry = now + (_COMPILED_EXPIRY_SECONDS if compiled else _EXPIRY_SECONDS)
        try:
            self._change(named.name, named.expiry(now), force=True)
        except FwtopError as error:
            self._next_expiry = now + _RETRY_SECONDS
            syslog.syslog(
                syslog.LOG_ERR, f"list {named.name} keeps what has ended: {safe_text(error, limit=400)}"
            )

    def _change(self, name: str, change: Change, *, force: bool) -> Done:
        """Make a change, in whole or not at all; raises FwtopError."""
        before = self._lists[name]
        old, fresh = before.named, before.named.new_of(change)
        named = old.changed(change)
        if len(named.rows) > MAX_PREFIXES:
            raise FwtopError(f"a list holds up to {MAX_PREFIXES:,} entries; nothing was changed", 2)
        after = Recorded(named, before.number, max(time.monotonic_ns(), before.stamp + 1))
        moved = len(fresh) + len(change.removed)
        done = Done(len(fresh), len(change.removed), len(change.added) - len(fresh), len(named.rows))
        if not moved and not len(change.added):
            return done
        check_entries(named.rows)
        if type(named.rows) is not type(old.rows) and self._rules_on(name):
            raise FwtopError(
                f"the rules on the empty list {name} expect {words_of(old.rows)}; nothing was changed"
            )
        delta = _delta(old, named, fresh, change.removed)
        self._changing = True
        try:
            self._carry_out(before, after, delta if moved else None, force=force)
        finally:
            self._changing = False
            with contextlib.suppress(FwtopError):  # tried again when a rule ends
                self.tidy()
        return done

    def _carry_out(self, before: Recorded, after: Recorded, delta: ListDelta | None, *, force: bool) -> None:
        """Take a change through its steps; `delta` is None if only ends are different."""
        name = after.named.name
        if delta is None:
            after = replace(after, stamp=before.stamp)  # the compiled maps stay
        elif len(delta.added) and (users := self.users(name)):
            self._check([_on(entry.rule, after.named) for entry in users], force)
        if delta is not None and len(delta.removed):
            self._check_access(name, after.named.rows)
        undo: list[Callable[[], None]] = []
        try:
            parts = self._prepare(delta, undo) if delta is not None else ()
            self._failpoints.reached(Failpoint.LIST_PREPARED)
            self._files.begin(after)
            undo.append(partial(self._files.abandon, name))
            self._failpoints.reached(Failpoint.LIST_RECORDED)
            if parts:
                self._lists[name] = after  # from here on compiled rules have its key
                self._compile(after.named)
                undo.append(partial(self._compile, before.named))
                self._failpoints.reached(Failpoint.LIST_COMPILED)
                for part in parts:
                    part.commit()
            self._failpoints.reached(Failpoint.LIST_CHANGED)
            self._files.finish(name)
        except BaseException:
            self._lists[name] = before
            self._undo(before, undo)
            raise
        self._lists[name] = after
        self._give_sources(after.named)
        for part in parts:
            with contextlib.suppress(FwtopError):  # old contents that no packet sees: `tidy` tries again
                part.conclude()
        self._failpoints.reached(Failpoint.LIST_DONE)

    def _prepare(
        self, delta: ListDelta, undo: list[Callable[[], None]]
    ) -> tuple[Prepared | NftListChange, ...]:
        """Build what ipsets and nftables need; what takes it back goes to `undo`. Raises FwtopError."""
        built = self._sets.prepare(delta)
        undo.append(built.revert)
        transaction = self._tables.prepare_list(delta)
        undo.append(transaction.revert)
        return built, transaction

    def _compile(self, named: NamedList) -> None:
        """Have the compiled rules on a list look up these entries; raises FwtopError."""
        self._change_compiled([_on(entry.rule, named) for entry in self.users(named.name)])

    def _undo(self, before: Recorded, steps: list[Callable[[], None]]) -> None:
        """Undo the steps of a change, all of them; where one can't be, `tick` puts the list back."""
        for step in reversed(steps):
            try:
                step()
            except FwtopError as error:
                name = before.named.name
                self._lists[name] = replace(before, unfinished=True)
                syslog.syslog(syslog.LOG_ERR, f"list {name} is not as it was: {safe_text(error, limit=400)}")

    def _give_sources(self, named: NamedList) -> None:
        for entry in self.users(named.name):
            self._active[entry.rule.id] = replace(entry, rule=_on(entry.rule, named))
        for rule in self._rules_on(named.name):
            self._changed(rule)


def _on(rule: Rule, named: NamedList) -> Rule:
    family = rule.match.family
    rows = named.rows if family is None else named.rows.of_family(family)
    return replace(rule, match=replace(rule.match, sources=rows))


def _entered(change: Change) -> Change:
    check_entries(change.added)
    return change


def _single(rows: Rows) -> Rows:
    """Return what kernels look up: of entries with ports, single ports."""
    return rows.single if isinstance(rows, KeyedRows) else rows


def _delta(old: NamedList, new: NamedList, added: Rows, removed: Rows) -> ListDelta:
    """Return what kernels have to change: ranges may overlap, so that what goes of one stays for another."""
    before, after = _single(old.rows), _single(new.rows)
    before, after = alike(before, after)
    if isinstance(after, KeyedRows):
        added = chosen(after, positions(before, after) < 0)
        removed = chosen(before, positions(after, before) < 0)
    return ListDelta(old.name, before, after, added, removed)


def _end(ttl_seconds: int | None) -> float:
    """Return when entries end that live so long from now; raises FwtopError (code 2)."""
    if ttl_seconds is None:
        return NEVER
    if not 1 <= ttl_seconds <= MAX_TTL_SECONDS:
        line = f"a time to live goes from 1 s to {MAX_TTL_SECONDS} s; nothing was changed"
        raise FwtopError(line, 2, field="ttl_seconds")
    return time.monotonic() + ttl_seconds
