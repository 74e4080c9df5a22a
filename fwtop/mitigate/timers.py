"""Which rule's time is over, and why: not confirmed in time, or expired."""

from __future__ import annotations

from collections.abc import Iterable

from fwtop.mitigate.journal import Entry
from fwtop.model.rule import State

KERNEL_SLACK_SECONDS = 2  # the guardian takes a provisional rule back before the kernel lets it lapse


def kernel_timeout(seconds: int) -> int:
    """Return the timeout that a provisional rule gets in the kernel."""
    return seconds + KERNEL_SLACK_SECONDS


def deadline(entry: Entry) -> float:
    """Return when something is to be done about an active rule, CLOCK_MONOTONIC seconds."""
    if entry.state is State.PROVISIONAL and entry.confirm_by is not None:
        return min(entry.confirm_by, entry.expires)
    return entry.expires


def due(entries: Iterable[Entry], now: float) -> list[tuple[Entry, State, str]]:
    """Return the rules whose time is over, with the state and the note that they end with."""
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
