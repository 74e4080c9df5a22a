"""Make a policy the active one for good, undo what an interruption left, and restore after a restart."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.policy.document import Policy, read
from fwtop.policy.live import Live
from fwtop.policy.versions import Version, Versions, lists_of

_NONE = Policy("", (), {})
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def commit(live: Live, versions: Versions, policy: Policy, note: str, *, force: bool) -> Version:
    """Make a policy the active one, or leave all as it was; raises FwtopError.

    What is prepared is written down before and forgotten after, whichever way it went: where neither could be
    done, as the guardian was killed or this program, the next command finds it (`undo_interrupted`).
    """
    old, old_lists = versions.newest() or _NONE, versions.newest_lists()
    version = versions.prepare(policy, note)
    with uninterrupted():
        try:
            live.put_in(policy, old_lists, force=force)
        except FwtopError as error:
            failures: list[str] = []
            live.put_in(old, set(policy.lists), force=True, failed=failures.append)
            if failures:
                raise FwtopError(
                    f"{error}; and not all of the old policy is in: {failures[0]}; try: fwtop policy boot"
                ) from None
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
def uninterrupted() -> Iterator[None]:
    """Defer signals that would end the program halfway through."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
