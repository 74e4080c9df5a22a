"""The guardian's journal: which rules were intended, what the kernel got of them, how they ended.

A rule is recorded before the kernel is changed and again after, so that the next guardian knows what a crash
left. Where its end can't be recorded, the record goes: the next guardian takes out what is left of it then.
"""

from __future__ import annotations

import syslog

from msgspec.structs import replace

from fwtop.guardian.ownership import single_threaded
from fwtop.guardian.records.entry import Entry, entry_of, list_of, record_of
from fwtop.guardian.records.files import Records
from fwtop.guardian.records.former import FormerState
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule, State
from fwtop.model.text import safe_text

_MOST_FINISHED = 200  # kept, of about 5 kB of memory each
_PRUNE_EVERY = 50  # rules that ended
_OPEN, _OVER = "rule", "over"  # kinds of records


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

    def open_entries(self) -> list[Entry]:
        """Return the rules of this namespace and boot that have not ended, oldest first."""
        found = []
        over = set(self._numbers(_OVER))
        for rule_id in self._numbers(_OPEN):
            if rule_id in over:  # a crash came before its record was dropped
                self._records.drop(_name(_OPEN, rule_id))
            elif entry := self._read(_OPEN, rule_id):
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
            return entry_of(rule_id, record, self._records.listed(name)) if record else None
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
        if entry.ended is None:
            self._records.put_at_last(_name(_OPEN, rule_id), record_of(entry))
            return
        try:
            self._records.put_at_last(_name(_OVER, rule_id), record_of(entry))
        finally:
            self._records.drop(_name(_OPEN, rule_id))

    def _prune(self) -> None:
        """Forget all but the latest finished rules."""
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
