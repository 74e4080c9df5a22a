"""The kernel's state before fwtop's rules: the chains of table raw, and the old values of sysctls.

Kept in memory, on the tmpfs and in the journal's database, so that the next guardian restores it too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fwtop.guardian.objects.sysctls import Changed
from fwtop.guardian.records.database import Database
from fwtop.guardian.records.runtime import RuntimeCopy
from fwtop.guardian.records.writer import NoAnswerError
from fwtop.model.errors import FwtopError

_ALL_CHAINS = frozenset(("PREROUTING", "OUTPUT"))  # of table raw


class FormerState:
    """The former state of one namespace in the present boot. The journal's owner uses it."""

    def __init__(
        self,
        db: Database,
        runtime: RuntimeCopy | None,
        here: tuple[str, int],
        warn: Callable[[FwtopError], None],
    ) -> None:
        """Take the journal's database, its copy on the tmpfs, and boot and namespace of the rows."""
        self._db, self._runtime, self._here, self._warn = db, runtime, here, warn
        self._settings: dict[tuple[str, str], Changed] = {}  # by rule and name, the latest last
        self._before: dict[int, frozenset[str] | None] = {}  # by family

    def load(self) -> None:
        """Read what rules changed before this guardian."""
        self._settings, self._before = self._known_settings(), self._known_before()

    def take_copy(self) -> None:
        """Bring the database's rows up to date with the tmpfs; in the writer's thread."""
        for changed in self._copied_settings():
            self._keep_setting(changed, replace_row=False)
        for _, record, _ in self._runtime.records("before") if self._runtime is not None else ():
            self._keep_before(int(record["family"]), record["chains"])

    def remember_before(self, family: int, chains: frozenset[str] | None) -> None:
        """Keep which chains table raw had before the first rule (None: there was no such table)."""
        kept = sorted(chains) if chains is not None else None
        self._before[family] = chains
        if self._put(f"before-{family}", {"family": family, "chains": kept}):
            self._db.post(lambda: self._keep_before(family, kept))  # the rule needn't wait for the disk
        else:
            self._db.ask(lambda: self._keep_before(family, kept))

    def _keep(self, write: Callable[[], None], *, copied: bool) -> None:
        """Write to the database; where the disk does not answer, a copy on the tmpfs will do."""
        try:
            self._db.ask(write)
        except NoAnswerError:
            if not copied:
                raise

    def _keep_before(self, family: int, chains: list[str] | None) -> None:
        text = json.dumps(chains) if chains is not None else None
        self._db.execute("INSERT OR REPLACE INTO before VALUES (?,?,?,?)", (*self._here, family, text))

    def forget_before(self, family: int) -> None:
        """Forget it: nothing of fwtop's is left in the table."""
        self._before.pop(family, None)
        self._db.tidy("DELETE FROM before WHERE boot=? AND netns=? AND family=?", (*self._here, family))
        if self._runtime is not None:
            self._runtime.drop(f"before-{family}")

    def before(self, family: int) -> frozenset[str] | None:
        """Return what `remember_before` kept; if nothing is known, all chains were there and stay."""
        return self._before.get(family, _ALL_CHAINS)

    def contents(self) -> dict[str, list[str]]:
        """Return what `keep_contents` kept, as far as it is understood."""
        for _, record, _ in self._runtime.records("contents") if self._runtime is not None else ():
            found = record.get("digests")
            if isinstance(found, dict):
                return {key: list(map(str, value)) for key, value in found.items() if isinstance(value, list)}
        return {}

    def keep_contents(self, digests: dict[str, list[str]]) -> None:
        """Keep what the kernel says of fwtop's objects, on the tmpfs alone: it is gone with the boot."""
        if digests:
            self._put("contents-all", {"digests": digests})
        elif self._runtime is not None:
            self._runtime.drop("contents-all")

    def remember_setting(self, changed: Changed) -> None:
        """Keep a sysctl's old value, before the new one is written and again after; raises FwtopError."""
        key = (changed.rule_id, changed.name)
        self._settings.pop(key, None)  # the latest goes last
        self._settings[key] = changed
        copied = self._runtime is not None and self._runtime.put_setting(changed)
        self._keep(lambda: self._keep_setting(changed), copied=copied)

    def _keep_setting(self, changed: Changed, *, replace_row: bool = True) -> None:
        self._db.execute(
            f"INSERT OR {'REPLACE' if replace_row else 'IGNORE'} INTO settings VALUES (?,?,?,?,?,?,?)",  # noqa: S608
            (
                *self._here,
                int(changed.rule_id),
                changed.name,
                *(changed.old, changed.new, changed.done),
            ),
        )

    def settings(self) -> list[Changed]:
        """Return the sysctls that rules of this namespace changed, latest first."""
        return list(reversed(self._settings.values()))

    def is_given_back(self, changed: Changed) -> bool:
        """Return whether a sysctl was given back while the guardian was stopped or gone."""
        return self._runtime is not None and self._runtime.is_given_back(changed.rule_id, changed.name)

    def forget_setting(self, changed: Changed) -> None:
        """Forget a sysctl that has its old value again."""
        rule_id, name = changed.rule_id, changed.name
        self._settings.pop((rule_id, name), None)
        self._db.tidy(
            "DELETE FROM settings WHERE boot=? AND netns=? AND rule=? AND name=?",
            (*self._here, int(rule_id), name),
        )
        if self._runtime is not None:
            self._runtime.drop_setting(rule_id, name)

    def _known_settings(self) -> dict[tuple[str, str], Changed]:
        """Read what rules changed before this guardian; from the tmpfs where the database can't be read."""
        try:
            rows = self._db.query(
                "SELECT rule, name, old, new, done FROM settings WHERE boot=? AND netns=? ORDER BY rowid",
                self._here,
            )
        except FwtopError as error:
            self._warn(error)
            return {(changed.rule_id, changed.name): changed for changed in self._copied_settings()}
        copied = {(item.rule_id, item.name): item for item in self._copied_settings()}
        found = {}
        for rule, name, old, new, done in rows:
            key = (str(rule), name)
            try:
                found[key] = Changed.of(str(rule), name, old, new, done)
            except ValueError as error:
                line = f"the journal's record of what rule {rule} set is not understood: {error}"
                self._warn(FwtopError(line))
                if key in copied:
                    found[key] = copied[key]
        return found

    def _known_before(self) -> dict[int, frozenset[str] | None]:
        try:
            rows = self._db.query("SELECT family, chains FROM before WHERE boot=? AND netns=?", self._here)
        except FwtopError as error:
            self._warn(error)
            records = self._runtime.records("before") if self._runtime is not None else ()
            rows = [
                (record.get("family"), None if record.get("chains") is None else json.dumps(record["chains"]))
                for _, record, _ in records
            ]
        found = {}
        for family, text in rows:
            try:
                found[family] = _chains_of(text)
            except (ValueError, TypeError) as error:
                line = f"the journal's record of table raw (IPv{family}) is not understood: {error}"
                self._warn(FwtopError(line))
        return found

    def _copied_settings(self) -> list[Changed]:
        return self._runtime.settings() if self._runtime is not None else []

    def _put(self, name: str, record: dict[str, Any]) -> bool:
        """Keep a record on the tmpfs; returns whether it is there."""
        return self._runtime is not None and self._runtime.put(name, record)


def _chains_of(text: object) -> frozenset[str] | None:
    """Decode a row of table `before`; raises ValueError or TypeError."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError("not a text")
    chains = json.loads(text)
    if not isinstance(chains, list) or not all(isinstance(name, str) for name in chains):
        raise ValueError("not a list of chains")
    return frozenset(chains)
