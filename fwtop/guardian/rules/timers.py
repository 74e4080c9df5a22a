"""Deadlines of rules: expiry, and the end of the confirmation time."""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.guardian.records.entry import Entry
from fwtop.model.rule import State

KERNEL_SLACK_SECONDS = 2  # the guardian reverts a provisional rule before the kernel's timeout does


def kernel_timeout(seconds: int) -> int:
    """Return the timeout that a provisional rule gets in the kernel."""
    return seconds + KERNEL_SLACK_SECONDS


def deadline(entry: Entry) -> float:
    """Return when a rule ends unless it is confirmed or renewed, CLOCK_MONOTONIC seconds.

    One that is still being installed (State.INTENT) must be confirmed, too.
    """
    return deadline_of(entry.state, entry.expires, entry.confirm_by)


def deadline_of(state: str, expires: float, confirm_by: float | None) -> float:
    """Return the same of what a record says."""
    if state != State.CONFIRMED and confirm_by is not None:
        return min(confirm_by, expires)
    return expires


def due(entries: Iterable[Entry], now: float) -> list[tuple[Entry, State, str]]:
    """Return the rules that are due, with the state and the note that they end with."""
    over: list[tuple[Entry, State, str]] = []
    for entry in entries:
        if entry.expires <= now:
            over.append((entry, State.EXPIRED, "its time was over"))
        elif deadline(entry) <= now:
            over.append((entry, State.REVERTED, "not confirmed in time"))
    return over


def next_deadline(entries: Iterable[Entry]) -> float | None:
    """Return the earliest deadline, None without rules."""
    return min((deadline(entry) for entry in entries), default=None)
