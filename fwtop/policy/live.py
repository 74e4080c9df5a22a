"""The policy that is active in a guardian, and its replacement by another one.

A policy is tried with rules of its own, which the kernel takes out again by its clock, beside those of the
old one: what is in keeps acting until the new policy is kept. Then the lists get their new entries, the rules
that are new come in, and those that are over go, in this order: in between packets meet both.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fwtop.client.discovery import GuardianClient
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import pack_prefixes
from fwtop.model.errors import FwtopError
from fwtop.model.protocol import MAX_SECONDS, ListChange, ListShow, Renew, RuleMode, Undo
from fwtop.model.rule import LIST, POLICY, POLICY_TRIAL, Mode, Rule
from fwtop.model.text import safe_text
from fwtop.policy.document import Policy, shape
from fwtop.policy.schema import TRIAL
from fwtop.rules.words import with_mode


class ListDifference(Struct, frozen=True):
    """The change of a list: entries added, entries removed, and its former number of entries."""

    name: str
    added: int
    removed: int
    before: int

    @property
    def share(self) -> float:
        """Share of the old and new entries that are not in both, 0 to 1."""
        total = self.before + self.added
        return (self.added + self.removed) / total if total else 0.0


class Difference(Struct, frozen=True):
    """The differences between the active policy and another one."""

    added: tuple[Rule, ...] = ()
    removed: tuple[Rule, ...] = ()  # with their numbers
    new_lists: tuple[str, ...] = ()
    lists: tuple[ListDifference, ...] = ()
    gone_lists: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return any((self.added, self.removed, self.new_lists, self.lists, self.gone_lists))


class Trial(Struct):
    """The rules and lists of a policy that is being tried, and how long; CLOCK_MONOTONIC seconds."""

    begun: float
    ends: float
    rules: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)


class Live:
    """The policy's rules and lists in a guardian."""

    def __init__(self, guardian: GuardianClient, modes: Mapping[str, Mode] = {}) -> None:
        """Take the modes of groups that were switched: they stand above what a policy says."""
        self._guardian = guardian
        self._modes = modes

    def _switched(self, policy: Policy) -> Policy:
        rules = (with_mode(rule, self._modes.get(rule.group, rule.mode)) for rule in policy.rules)
        return replace(policy, rules=tuple(rules))

    def rules(self, created_by: str = POLICY) -> list[Rule]:
        """Return the active rules of the policy."""
        rules = (status.rule for status in self._guardian.rules())
        return [rule for rule in rules if rule.created_by == created_by]

    def plan(self, rule: Rule) -> dict[str, Any]:
        """Return the guard's plan of a rule; raises FwtopError."""
        return self._guardian.plan(rule).data

    def list_names(self) -> set[str]:
        """Return the names of all named lists."""
        return {item["name"] for item in self._guardian.demand(ListShow()).data["lists"]}

    def difference(self, policy: Policy, old_lists: set[str]) -> Difference:
        """Compare what is active with a policy; `old_lists` are those that the last policy made."""
        policy = self._switched(policy)
        active = self.rules()
        wanted, there = {shape(rule) for rule in policy.rules}, {shape(rule) for rule in active}
        names = self.list_names()
        changed = [self._change_of(name, policy.lists[name]) for name in policy.lists if name in names]
        return Difference(
            tuple(rule for rule in policy.rules if shape(rule) not in there),
            tuple(rule for rule in active if shape(rule) not in wanted),
            tuple(name for name in policy.lists if name not in names),
            tuple(item for item in changed if item.added or item.removed),
            tuple(sorted((old_lists - policy.lists.keys()) & names)),
        )

    def _change_of(self, name: str, wanted: Sequence[Prefix]) -> ListDifference:
        entries, _ = self._guardian.read_list(name)
        if pack_prefixes(entries) == pack_prefixes(wanted):
            return ListDifference(name, 0, 0, len(entries))
        from fwtop.model.addresses.list_rows import alike, positions, rows_of

        try:
            before, after = alike(rows_of(entries), rows_of(wanted))
        except ValueError:  # of another kind
            return ListDifference(name, len(wanted), len(entries), len(entries))
        stay = int((positions(before, after) >= 0).sum())
        return ListDifference(name, len(after) - stay, len(before) - stay, len(before))

    def put_on_trial(self, policy: Policy, change: Difference, seconds: int, *, force: bool) -> Trial:
        """Install the differences for some seconds beside the active policy; undoes them on FwtopError."""
        now = time.monotonic()
        trial = Trial(now, now + seconds)
        try:
            for name in change.new_lists:
                self._create(trial, name, policy.lists[name])
            changed = {item.name for item in change.lists}
            for name in sorted(changed):
                self._create(trial, name + TRIAL, policy.lists[name])
            new = {shape(rule) for rule in change.added}
            for rule in self._switched(policy).rules:
                if shape(rule) in new or changed & set(rule.lists_used):
                    tried = replace(_on_lists(rule, changed), created_by=POLICY_TRIAL)
                    answer = self._guardian.apply(tried, seconds, force=force)
                    trial.rules.append(answer.data["status"]["rule"]["id"])
        except BaseException:
            self.end_trial(trial)
            raise
        trial.ends = time.monotonic() + seconds
        return trial

    def renew_trial(self, trial: Trial, seconds: int) -> None:
        """Have a trial last so long from now, an hour in all at most.

        Raises FwtopError, and then it ends when it would have.
        """
        now = time.monotonic()
        left = int(trial.begun + MAX_SECONDS - now)
        if not 1 <= seconds <= left:
            line = f"a trial takes an hour at most, and this one {max(0, left):,} s more; nothing was changed"
            raise FwtopError(line, reason="refused", field="confirm_seconds")
        for rule_id in trial.rules:
            self._guardian.demand(Renew(rule_id, seconds))
        trial.ends = now + seconds

    def _create(self, trial: Trial, name: str, entries: Sequence[Prefix]) -> None:
        self._guardian.change_list(ListChange(name, "create"), entries)
        trial.lists.append(name)

    def end_trial(self, trial: Trial, *, keep_lists: bool = False) -> None:
        """Remove the rules and lists of a trial, but keep lists that replace no other."""
        active = {rule.id for rule in self.rules(POLICY_TRIAL)}
        for rule_id in trial.rules:
            if rule_id in active:
                with contextlib.suppress(FwtopError):  # its time was over just now
                    self._guardian.demand(Undo((rule_id,)))
        for name in trial.lists:
            if name.endswith(TRIAL) or not keep_lists:
                self._delete(name)

    def clear_trials(self) -> None:
        """Remove what an interrupted trial left behind."""
        if left := tuple(rule.id for rule in self.rules(POLICY_TRIAL)):
            self._guardian.demand(Undo(left))
        for name in self.list_names():
            if name.endswith(TRIAL):
                self._delete(name)

    def put_in(
        self, policy: Policy, old_lists: set[str], *, force: bool, failed: Callable[[str], None] | None = None
    ) -> None:
        """Make the policy what is active; it can be repeated, and does what is left to do.

        Raises FwtopError at the first thing that fails, or tells `failed` and goes on.
        """
        change = self.difference(policy, old_lists)
        for name in (*change.new_lists, *(item.name for item in change.lists)):
            action = "create" if name in change.new_lists else "replace"
            with _telling(failed, f"list {name}"):
                self._guardian.change_list(ListChange(name, action, force=force), policy.lists[name])
        removed = list(change.removed)
        for rule in change.added:
            old = next((item for item in removed if _is_level_of(item, rule)), None)
            twin = next((item for item in removed if shape(with_mode(item, rule.mode)) == shape(rule)), None)
            with _telling(failed, rule.summary):
                if twin is not None:  # its counters go on
                    removed.remove(twin)
                    self._guardian.demand(RuleMode((twin.id,), rule.mode, 0, force))
                    continue
                if old is not None:
                    removed.remove(old)
                    rule = replace(rule, replaces=old.id)  # noqa: PLW2901
                self._guardian.apply(rule, 0, force=force)
        if removed:
            self._guardian.demand(Undo(tuple(rule.id for rule in removed)))
        for name in change.gone_lists:
            self._delete(name)

    def _delete(self, name: str) -> None:
        """Delete a list; one that a temporary rule uses stays."""
        with contextlib.suppress(FwtopError):
            self._guardian.change_list(ListChange(name, "delete"))


@contextlib.contextmanager
def _telling(failed: Callable[[str], None] | None, what: str) -> Iterator[None]:
    try:
        yield
    except FwtopError as error:
        if failed is None:
            raise FwtopError(f"{safe_text(what)}: {error}", error.code) from None
        failed(f"{safe_text(what)}: {error}")


def _on_lists(rule: Rule, changed: set[str]) -> Rule:
    """Return a rule that looks up the tried lists where there are any."""
    if rule.protection is not None:
        names = tuple(name + TRIAL if name in changed else name for name in rule.protection.lists)
        return replace(rule, protection=replace(rule.protection, lists=names))
    name = rule.list_name
    return replace(rule, origin=f"{LIST}{name}{TRIAL}") if name in changed else rule


def _is_level_of(old: Rule, new: Rule) -> bool:
    """Return whether two rules differ only in the level of a protected port."""
    if old.protection is None or new.protection is None:
        return False
    return shape(replace(old, protection=replace(old.protection, level=new.protection.level))) == shape(new)
