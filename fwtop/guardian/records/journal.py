"""The guardian's journal: which rules were intended, what the kernel got of them, how they ended.

A rule is recorded before the kernel is changed and again after, so that the next guardian knows what a crash
left. Where its end can't be recorded, the record goes: the next guardian takes out what is left of it then.
"""

from __future__ import annotations

import syslog
from collections.abc import Iterable, Sequence
from mmap import mmap
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.records.files import Records
from fwtop.guardian.records.former import FormerState
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.prefix_list import pack_prefixes, unpack_prefixes
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule, State
from fwtop.model.text import safe_text
from fwtop.model.wire import of_plain, plain

_MOST_FINISHED = 200  # kept, of about 5 kB of memory each
_PRUNE_EVERY = 50  # rules that ended
_OPEN, _OVER, _WAS = "rule", "over", "was"  # kinds of records
KERNEL_SLACK_SECONDS = 2  # the guardian reverts a provisional rule before the kernel's timeout does
KEPT_SOURCES = 200  # in the record itself: more have a file of their own until the rule ends
REPAIRING = "being repaired; "  # before the journalled note: a crash then is no reason to end the rule
_LISTED = "listed"  # how many sources that file holds
# Less than the longest timeout of threading.Condition, and as Unix time until 2096
_Seconds = Annotated[float, Meta(ge=0, lt=4e9)]
_Count = Annotated[int, Meta(ge=0)]


@single_threaded
class Journal:
    """The rules of one namespace in the present boot."""

    def __init__(self, records: Records) -> None:
        """Take the namespace's records, and what earlier guardians left there."""
        self._records = records
        self._unwritten: dict[str, Entry] = {}  # ends and other news for which there was no room
        self._complaint = ""  # the last one logged
        self._ended = 0
        self.warnings: list[str] = []  # what the operator should know
        records.sweep()
        self.lost = not records.exist()  # the kernel may have rules of this boot without a record
        self.former = FormerState(records, self._warn)

    def close(self) -> None:
        """Leave nothing where nothing is recorded."""
        self._write_pending()
        self._records.leave()

    def trouble(self) -> str:
        """Return why no rule can be recorded, and so none installed; "" if all is well."""
        self._write_pending()
        try:
            self._records.make_room()
        except OSError as error:
            return str(_refused(error))
        return ""

    def intend(self, rule: Rule, variant: str, expires: float, confirm_by: float | None) -> Entry:
        """Record a rule before the kernel gets it; the rule of the returned entry is numbered.

        Raises FwtopError.
        """
        if trouble := self.trouble():
            raise FwtopError(trouble)
        try:
            numbered = replace(rule, id=str(self._records.numbers.take()))
            entry = Entry(numbered, variant, State.INTENT, expires, confirm_by)
            self._put_new(entry)
        except OSError as error:
            raise _refused(error) from None
        return entry

    def record(self, entry: Entry) -> None:
        """Add a rule that was found in the kernel with its number; raises FwtopError."""
        try:
            self._records.numbers.note(int(entry.rule.id))
            self._put_new(entry)
        except OSError as error:
            raise FwtopError(f"rules can't be recorded in /run ({error.strerror})") from None

    def update(self, entry: Entry) -> None:
        """Keep an entry's state, times, counts and note; where there is no room, once there is.

        A finished rule's long list is cut.
        """
        self._unwritten[entry.rule.id] = entry
        self._write_pending()
        if entry.ended is not None:
            self._ended += 1
            if self._ended % _PRUNE_EVERY == 0:
                self._prune()

    def exchange(self, before: Entry, after: Entry) -> None:
        """Record what an active rule is to become, and what it was until it is confirmed as that.

        Raises FwtopError.
        """
        rule_id, lists = after.rule.id, [list_of(entry.rule) for entry in (before, after)]
        if own_sources(before.rule) == own_sources(after.rule):
            lists = [None, None]  # the one that is there
        try:
            self._records.put(_name(_WAS, rule_id), record_of(before), lists[0])
            self._records.put(_name(_OPEN, rule_id), record_of(after), lists[1])
        except OSError as error:
            raise _refused(error) from None

    def before(self, rule_id: str) -> Entry | None:
        """Return what a rule was that is on trial as something else."""
        return self._read(_WAS, rule_id)

    def open_entries(self) -> list[Entry]:
        """Return the rules of this namespace and boot that have not ended, oldest first."""
        found = []
        over = set(self._numbers(_OVER))
        for rule_id in self._numbers(_OPEN):
            if rule_id in over:  # a crash came before its record was dropped
                self._records.drop(_name(_OPEN, rule_id))
            elif entry := self._read(_OPEN, rule_id) or self.before(rule_id):
                found.append(entry)
            else:
                self.lost = True
        return found

    def finished_entries(self, limit: int = 50) -> list[Entry]:
        """Return the rules of this namespace that have ended, latest first."""
        newest = reversed(self._numbers(_OVER)[-limit:])
        return [entry for rule_id in newest if (entry := self._read(_OVER, rule_id)) is not None]

    def find(self, rule_id: str) -> Entry | None:
        """Return a rule of this namespace and boot by its number, active or not."""
        if not (rule_id.isascii() and rule_id.isdigit() and len(rule_id) < 19):
            return None
        return self._read(_OVER, rule_id) or self._read(_OPEN, rule_id)

    def _numbers(self, kind: str) -> list[str]:
        found = [name.partition("-")[2] for name in self._records.names(kind)]
        return sorted((name for name in found if name.isascii() and name.isdigit()), key=int)

    def _read(self, kind: str, rule_id: str) -> Entry | None:
        name = _name(kind, rule_id)
        try:
            record = self._records.record(name)
            listed = self._records.listed(name) or self._records.listed(_name(_OPEN, rule_id))
            return entry_of(rule_id, record, listed) if record else None
        except ValueError as error:
            self._warn(f"the record {name} is not understood ({error}) and left out")
            return None

    def _put_new(self, entry: Entry) -> None:
        name = _name(_OPEN, entry.rule.id)
        try:
            self._records.put(name, record_of(entry), list_of(entry.rule))
        except OSError:
            self._records.drop(name)
            raise

    def _write_pending(self) -> None:
        for rule_id, entry in list(self._unwritten.items()):
            try:
                self._write(entry)
            except OSError as error:
                if str(error) != self._complaint:
                    syslog.syslog(syslog.LOG_ERR, safe_text(f"rule {rule_id} can't be recorded now: {error}"))
                self._complaint = str(error)
            else:
                del self._unwritten[rule_id]
                self._complaint = ""

    def _write(self, entry: Entry) -> None:
        rule_id = entry.rule.id
        if entry.state is not State.PROVISIONAL:
            self._records.drop(_name(_WAS, rule_id))
        if entry.ended is None:
            self._records.put_at_last(_name(_OPEN, rule_id), record_of(entry))
            return
        try:
            self._records.put_at_last(_name(_OVER, rule_id), record_of(entry))
        finally:
            self._records.drop(_name(_OPEN, rule_id))

    def _prune(self) -> None:
        for rule_id in self._numbers(_OVER)[:-_MOST_FINISHED]:
            self._records.drop(_name(_OVER, rule_id))

    def _warn(self, line: str) -> None:
        text = safe_text(line, limit=400)
        if text not in self.warnings:
            self.warnings.append(text)
            syslog.syslog(syslog.LOG_ERR, text)


def _refused(error: OSError) -> FwtopError:
    reason = f"the journal can't be kept in /run ({error.strerror})"
    return FwtopError(f"{reason}; nothing was installed: make room for it")


def _name(kind: str, rule_id: str) -> str:
    return f"{kind}-{int(rule_id)}"


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
    packets_before: _Count = 0  # it was changed last
    stamp: _Count = 0  # how often it was changed
    tried: _Seconds = 0.0  # since when it has been on trial, or was last
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
    record.pop("counts_again", None)  # of an older version
    entry = of_plain(Entry, record)
    entry = replace(entry, rule=replace(entry.rule, id=str(int(rule_id))))
    if wanted is None:
        return entry
    sources = unpack_prefixes(listed or b"")
    if len(sources) != wanted:
        raise ValueError("its sources are missing")
    return _with_sources(entry, sources)


def own_sources(rule: Rule) -> Sequence[Prefix]:
    """Return the sources to be recorded with a rule: a named list has a record of its own (list_files.py)."""
    return rule.match.sources if rule.list_name is None else ()


def _with_sources(entry: Entry, sources: Sequence[Prefix]) -> Entry:
    return replace(entry, rule=replace(entry.rule, match=replace(entry.rule.match, sources=sources)))
