"""Bring a policy in as a whole: what differs is told, tried for a while, and kept or taken out again.

The command line and the guardian's protocol (agent.py) do it by these steps; they differ in how they tell and
ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.policy.commit import commit, undo_interrupted, uninterrupted
from fwtop.policy.document import Policy
from fwtop.policy.live import Difference, Live
from fwtop.policy.versions import Version, Versions, lists_of
from fwtop.render.numbers import percent


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
    asked: Callable[[float], bool],
) -> Outcome:
    """Tell what differs, try it, and keep it if `asked`, given when the trial ends (monotonic), says so.

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
    live: Live, request: PolicyRequest, change: Difference, asked: Callable[[float], bool]
) -> Iterator[bool]:
    """Install a policy for a while and ask; the rules of the trial go once it is kept, or is not to be."""
    if not request.seconds or not change:
        yield True
        return
    trial = live.put_on_trial(request.policy, change, request.seconds, force=request.force)
    kept = False
    try:
        wanted = asked(time.monotonic() + request.seconds)
        yield wanted
        kept = wanted
    finally:
        with uninterrupted():
            live.end_trial(trial, keep_lists=kept)


def before(versions: Versions, number: int | None) -> Version:
    """Return the version to go back to: the one with that number, or the one before; raises FwtopError."""
    if number is not None:
        return versions.find(number)
    known = versions.all()
    if len(known) < 2:
        raise FwtopError("there is no policy before this one; nothing was changed; see policy history")
    return known[-2]


def counted(policy: Policy) -> dict[str, int]:
    """Count a policy's rules, lists and entries."""
    entries = sum(map(len, policy.lists.values()))
    return {"rules": len(policy.rules), "lists": len(policy.lists), "entries": entries}


def history(versions: Versions) -> dict[str, Any]:
    """Return the versions that were kept, as one document."""
    shown = [{"number": one.number, "kept": one.kept, "note": one.note} for one in versions.all()]
    return {"versions": shown}


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
