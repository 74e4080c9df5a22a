"""A rule with its life: its deadlines, and how its record encodes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from mmap import mmap
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import pack_prefixes, unpack_prefixes
from fwtop.model.rule import Rule, State
from fwtop.model.wire import of_plain, plain

KERNEL_SLACK_SECONDS = 2  # the guardian reverts a provisional rule before the kernel's timeout does
KEPT_SOURCES = 200  # in the record itself: more have a file of their own until the rule ends
_LISTED = "listed"  # how many sources that file holds
# Less than the longest timeout of threading.Condition, and as Unix time until 2096
_Seconds = Annotated[float, Meta(ge=0, lt=4e9)]
_Count = Annotated[int, Meta(ge=0)]


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule and its life. Times are CLOCK_MONOTONIC seconds, which all processes of one boot share."""

    rule: Rule
    variant: str  # of iptables
    state: State
    expires: _Seconds
    confirm_by: _Seconds | None = None
    packets: _Count = 0
    bytes: _Count = 0
    ended: _Seconds | None = None  # Unix seconds
    note: str = ""
    sources_cut: _Count = 0  # of a rule that has ended: how many of its sources are not kept

    @property
    def deadline(self) -> float:
        """When a rule ends unless it is confirmed or renewed, CLOCK_MONOTONIC seconds.

        One that is still being installed (State.INTENT) must be confirmed, too.
        """
        return deadline_of(self.state, self.expires, self.confirm_by)


def deadline_of(state: str, expires: float, confirm_by: float | None) -> float:
    """Return the deadline by what a record says."""
    if state != State.CONFIRMED and confirm_by is not None:
        return min(confirm_by, expires)
    return expires


def rules_due(entries: Iterable[Entry], now: float) -> list[tuple[Entry, State, str]]:
    """Return the rules that are due, with the state and the note that they end with."""
    over: list[tuple[Entry, State, str]] = []
    for entry in entries:
        if entry.expires <= now:
            over.append((entry, State.EXPIRED, "its time was over"))
        elif entry.deadline <= now:
            over.append((entry, State.REVERTED, "not confirmed in time"))
    return over


def next_deadline(entries: Iterable[Entry]) -> float | None:
    """Return the earliest deadline, None without rules."""
    return min((entry.deadline for entry in entries), default=None)


def record_of(entry: Entry) -> dict[str, Any]:
    """Encode an entry without a long list of sources; once the rule has ended, with the first of them."""
    sources = own_sources(entry.rule)
    cut = len(sources) - KEPT_SOURCES
    if entry.ended is not None and cut > 0:
        sources = sources[:KEPT_SOURCES]
        entry = replace(entry, sources_cut=cut)
    long = len(sources) > KEPT_SOURCES
    record: dict[str, Any] = plain(_with_sources(entry, () if long else sources))
    return {**record, _LISTED: len(sources)} if long else record


def list_of(rule: Rule) -> bytes | mmap | None:
    """Encode the long list of sources that a rule's record does without; None: it has no such list."""
    sources = own_sources(rule)
    return pack_prefixes(sources) if len(sources) > KEPT_SOURCES else None


def entry_of(rule_id: str, record: dict[str, Any], listed: bytes | None) -> Entry:
    """Decode a rule's record and its long list; raises ValueError."""
    record = dict(record)
    wanted = record.pop(_LISTED, None)
    entry = of_plain(Entry, record)
    entry = replace(entry, rule=replace(entry.rule, id=str(int(rule_id))))
    if wanted is None:
        return entry
    sources = unpack_prefixes(listed or b"")
    if len(sources) != wanted:
        raise ValueError("its sources are missing")
    return _with_sources(entry, sources)


def own_sources(rule: Rule) -> Sequence[Prefix]:
    """Return the sources to be recorded with a rule: a named list has a record of its own (list_log.py)."""
    return rule.match.sources if rule.list_name is None else ()


def _with_sources(entry: Entry, sources: Sequence[Prefix]) -> Entry:
    return replace(entry, rule=replace(entry.rule, match=replace(entry.rule.match, sources=sources)))
