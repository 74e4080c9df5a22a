"""Bring a policy in as a whole: what differs is told, tried for a while, and kept or taken out again.

The command line and the guardian's protocol (agent.py) do it by these steps; they differ in how they tell and
ask. An interruption is undone by the next command, and the policy that was kept put back after a restart."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fwtop.model.addresses.prefix_list import entry_texts
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Level, Preview, Rule
from fwtop.model.text import safe_text
from fwtop.model.wire import plain
from fwtop.policy.document import Policy, read
from fwtop.policy.live import Difference, Live, Trial
from fwtop.policy.versions import Version, Versions, lists_of
from fwtop.rehearsal.host import Host
from fwtop.rehearsal.rehearse import clients_words
from fwtop.render.harm import hit_words
from fwtop.render.numbers import percent

_NONE = Policy("", (), {})
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class PolicyRequest(Struct, frozen=True):
    """A policy to be made active."""

    policy: Policy
    note: str  # where it came from
    seconds: int  # that it is tried; 0: it is kept at once
    force: bool = False


class Outcome(Struct, frozen=True):
    """The result: kept as a version, already active, or removed again."""

    version: Version | None = None
    unchanged: bool = False


def bring_in(
    live: Live,
    versions: Versions,
    request: PolicyRequest,
    told: Callable[[Difference], None],
    asked: Callable[[Trial], bool],
) -> Outcome:
    """Tell what differs, try it, and keep it if `asked`, which may renew the trial, says so.

    Raises FwtopError, and then the old policy acts.
    """
    policy = request.policy
    with versions.locked():
        undo_interrupted(live, versions)
        known = versions.all()
        change = live.difference(policy, lists_of(known[-1:]))
        told(change)
        too_much = [item for item in change.lists if item.before and item.share > policy.max_change]
        if too_much and not request.force:
            first = too_much[0]
            raise FwtopError(
                f"{percent(first.share)} of list {first.name} would change, at most "
                f"{percent(policy.max_change)} may (max_change); nothing was changed; --force does it"
            )
        if not change and known and known[-1].text == policy.text:
            return Outcome(known[-1], unchanged=True)
        with _tried(live, request, change, asked) as wanted:
            version = commit(live, versions, policy, request.note, force=request.force) if wanted else None
    return Outcome(version)


@contextmanager
def _tried(
    live: Live, request: PolicyRequest, change: Difference, asked: Callable[[Trial], bool]
) -> Iterator[bool]:
    """Install a policy for a while and ask; the rules of the trial go once it is kept, or is not to be."""
    if not request.seconds or not change:
        yield True
        return
    trial = live.put_on_trial(request.policy, change, request.seconds, force=request.force)
    kept = False
    try:
        wanted = asked(trial)
        yield wanted
        kept = wanted
    finally:
        with _uninterrupted():
            live.end_trial(trial, keep_lists=kept)


def before(versions: Versions, number: int | None) -> Version:
    """Return the version to go back to: the one with that number, or the one before; raises FwtopError."""
    if number is not None:
        return versions.find(number)
    known = versions.all()
    if len(known) < 2:
        line = "there is no policy before this one; nothing was changed; see policy history"
        raise FwtopError(line, reason="not_found", field="version")
    return known[-2]


def counted(policy: Policy) -> dict[str, int]:
    """Count a policy's rules, lists and entries."""
    entries = sum(map(len, policy.lists.values()))
    return {"rules": len(policy.rules), "lists": len(policy.lists), "entries": entries}


def history(versions: Versions) -> dict[str, Any]:
    """Return the versions that were kept, as one document."""
    shown = [{"number": one.number, "kept": one.kept, "note": one.note} for one in versions.all()]
    return {"versions": shown}


_MOST_SHOWN = 10_000  # entries of lists beside a text


def shown(versions: Versions, number: int | None) -> dict[str, Any]:
    """Return the text of a version, of the newest without a number, and what its lists held.

    Of lists that are longer in all only the lengths. Raises FwtopError.
    """
    known = versions.all()
    if number is None and not known:
        raise FwtopError("no policy was kept yet", reason="not_found", field="version")
    version = known[-1] if number is None else versions.find(number)
    lists, left, room = dict[str, list[str]](), dict[str, int](), _MOST_SHOWN
    for name, entries in versions.beside_text(version).items():
        if len(entries) <= room:
            lists[name] = [*entry_texts(entries)]
            room -= len(entries)
        else:
            left[name] = len(entries)
    about = {"number": version.number, "kept": version.kept, "note": version.note, "text": version.text}
    return {**about, "lists": lists, "lists_left": left}


def difference_lines(change: Difference) -> list[str]:
    """Return what would change, a line each."""
    lines = [f"+ list {name}" for name in change.new_lists]
    lines += [f"~ list {item.name}: {item.added:,} added, {item.removed:,} removed" for item in change.lists]
    lines += [f"+ {_told(rule)}" for rule in change.added]
    lines += [f"- {_told(rule)} (rule {rule.id})" for rule in change.removed]
    return lines + [f"- list {name}" for name in change.gone_lists]


def _told(rule: Rule) -> str:
    priority = f", priority {rule.protection.priority}" if rule.protection is not None else ""
    return f"{safe_text(rule.summary)} [{rule.kind.value}{priority}]"


def difference_document(change: Difference) -> dict[str, Any]:
    """Return what would change as one document."""
    return {
        "added": [rule.summary for rule in change.added],
        "removed": [{"id": rule.id, "summary": rule.summary} for rule in change.removed],
        "new_lists": change.new_lists,
        "changed_lists": [
            {"name": item.name, "added": item.added, "removed": item.removed} for item in change.lists
        ],
        "gone_lists": change.gone_lists,
    }


def commit(live: Live, versions: Versions, policy: Policy, note: str, *, force: bool) -> Version:
    """Make a policy the active one, or leave all as it was; raises FwtopError.

    What is prepared is written down before and forgotten after, whichever way it went: where neither could be
    done, as the guardian was killed or this program, the next command finds it (`undo_interrupted`).
    """
    old, old_lists = versions.newest() or _NONE, versions.newest_lists()
    version = versions.prepare(policy, note)
    with _uninterrupted():
        try:
            live.put_in(policy, old_lists, force=force)
        except FwtopError as error:
            failures: list[str] = []
            live.put_in(old, set(policy.lists), force=True, failed=failures.append)
            if failures:
                line = f"{error}; and not all of the old policy is in: {failures[0]}; try: fwtop policy boot"
                raise FwtopError(line) from None
            versions.abandon()
            raise FwtopError(f"{error}; the old policy acts", error.code) from None
        versions.keep(version)
    return version


def undo_interrupted(live: Live, versions: Versions) -> None:
    """Remove what an interrupted command left behind, and restore what it had begun to change."""
    live.clear_trials()
    pending = versions.pending()
    if pending is not None:
        live.put_in(versions.newest() or _NONE, set(pending.lists), force=True)
        versions.abandon()
        print("an interrupted change of the policy was undone first", file=sys.stderr)


def restore(versions: Versions, file: Path, connect: Callable[[], AbstractContextManager[Live]]) -> int:
    """Put the policy that was kept last into a kernel that has nothing of it; say what could not be.

    One that is broken gives way to the one before. Without any, the operator's file is the first one. Returns
    the exit status.
    """
    known = versions.all()
    for name in versions.unreadable():
        print(f"policy file {safe_text(name)} is damaged", file=sys.stderr)
    for version in reversed(known):
        try:
            policy = versions.policy_of(version)
        except FwtopError as error:
            print(f"policy {version.number} is broken: {error}; the one before is tried", file=sys.stderr)
            continue
        with versions.locked(), connect() as live:
            failures = _put_in(live, versions, policy)
        for line in failures:
            print(f"not restored: {line}", file=sys.stderr)
        print(f"policy {version.number} is restored: {policy.size}")
        if version.number != known[-1].number:
            print("the newest one is broken: 'fwtop policy apply' makes another", file=sys.stderr)
        _compare(file, policy)
        return 1 if failures else 0
    if known or not file.exists():
        print("no policy could be restored" if known else "there is no policy", file=sys.stderr)
        return 1 if known else 0
    policy = read(file)
    with versions.locked(), connect() as live:
        commit(live, versions, policy, "first start", force=True)
    print(f"{file} is active: {policy.size}")
    return 0


def _put_in(live: Live, versions: Versions, policy: Policy) -> list[str]:
    """Install as much of a policy as possible; return what failed."""
    live.clear_trials()
    failures: list[str] = []
    pending = versions.pending()
    others = [*versions.all(), *([pending] if pending is not None else [])]
    live.put_in(policy, lists_of(others), force=True, failed=failures.append)
    versions.abandon()
    return failures


def _compare(file: Path, policy: Policy) -> None:
    """Report an operator's file that differs from the active policy."""
    try:
        if file.read_text("utf-8") != policy.text:
            print(f"{file} was changed and not applied: see 'fwtop policy diff'", file=sys.stderr)
    except (OSError, ValueError):
        print(f"{file} can't be read: the policy that was kept last acts", file=sys.stderr)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer signals that would end the program halfway through."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_TOLD = (
    "refused",
    "needs_force",
    "losses",
    "clients",
    "warnings",
)  # of the guard's plan; commands are the trial's


class Planned(Struct, frozen=True):
    """A difference, with the guard's plan of each rule that it adds."""

    change: Difference
    plans: tuple[dict[str, Any], ...]

    @staticmethod
    def of(live: Live, policy: Policy, old_lists: set[str]) -> Planned:
        """Ask the guard about every rule that would be new; raises FwtopError."""
        change = live.difference(policy, old_lists)
        fresh = {*change.new_lists, *(item.name for item in change.lists)}
        asked = [_with_entries(policy, one) if one.list_name in fresh else one for one in change.added]
        return Planned(change, tuple(_plan(live, rule) for rule in asked))

    def document(self) -> dict[str, Any]:
        """Return it as one document."""
        named = zip(self.change.added, self.plans, strict=True)
        return {
            **difference_document(self.change),
            "plans": [{"summary": rule.summary, **plan} for rule, plan in named],
        }

    def lines(self, whole: Preview | None) -> list[str]:
        """Return what would change and who would lose something, a line each; `whole` is of all new rules."""
        lines = difference_lines(self.change)
        if whole is not None:
            hit = hit_words(whole.collateral_share, whole.clients, guess=whole.guess)
            lines.append(f"  of what was seen in two seconds: {hit}")
        for rule, plan in zip(self.change.added, self.plans, strict=True):
            told = [f"refused: {plan['refused']}"] if plan["refused"] else []
            told += [f"needs --force: {plan['needs_force']}"] if plan["needs_force"] else []
            told += [f"warning: {one}" for one in plan["warnings"]]
            lines += [f"  {safe_text(rule.summary)}: {safe_text(one, limit=1000)}" for one in told]
        return lines


def measurable(policy: Policy, change: Difference) -> list[Rule]:
    """Return the new rules that packets can be tried on: whom a protected port lets in, only root knows."""
    filled = (_with_entries(policy, rule) for rule in change.added if not rule.counts_only)
    known = (rule for rule in filled if rule.protection is None or rule.protection.level is Level.CLOSED)
    return [rule for rule in known if rule.match.sources or rule.origin is None]


def _with_entries(policy: Policy, rule: Rule) -> Rule:
    """Return a rule on a list with what the policy puts there as its own sources."""
    name = rule.list_name
    if name is None:
        return rule
    return replace(rule, origin=f"@{name}", match=replace(rule.match, sources=policy.lists[name]))


def _plan(live: Live, rule: Rule) -> dict[str, Any]:
    try:
        data = live.plan(rule)
    except FwtopError as error:  # such as an access list that is not there yet
        told = [f"not judged: {error}"]
        return dict(zip(_TOLD, (None, "", [], clients_words(rule, Host()), told), strict=True))
    return {name: plain(data[name]) for name in _TOLD}
