"""The kernel's state before fwtop's rules: the chains of table raw, and the old values of sysctls.

Kept in memory and recorded, so that the next guardian restores it too.
"""

from __future__ import annotations

import contextlib
import syslog
from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import asdict

from fwtop.guardian.records.files import Records
from fwtop.model.errors import FwtopError
from fwtop.model.text import safe_text
from fwtop.model.wire import of_plain

_ALL_CHAINS = frozenset(("PREROUTING", "OUTPUT"))  # of table raw
_CONTENTS = "contents-all"


class Changed(Struct, frozen=True):
    """A sysctl that a rule changed."""

    rule_id: Annotated[str, Meta(pattern="^[0-9]+$")]
    name: str
    old: int
    new: int
    done: bool  # False: intended, the kernel may or may not have it


class _Before(Struct):
    chains: list[str] | None


class FormerState:
    """The former state of one namespace in the present boot. The journal's owner uses it."""

    def __init__(self, records: Records, warn: Callable[[str], None]) -> None:
        """Read what earlier guardians recorded; `warn` is told of what makes no sense."""
        self._records = records
        self._settings: dict[tuple[str, str], Changed] = {}  # by rule and name
        self._before: dict[int, frozenset[str] | None] = {}  # by family
        for name, record in (*records.records("before"), *records.records("setting")):
            kind, _, family = name.partition("-")
            try:
                if kind == "setting":
                    item = of_plain(Changed, record)
                    self._settings[item.rule_id, item.name] = item
                else:
                    chains = of_plain(_Before, record).chains
                    self._before[int(family)] = frozenset(chains) if chains is not None else None
            except ValueError as error:
                warn(f"the record {name} is not understood: {error}")

    def remember_before(self, family: int, chains: frozenset[str] | None) -> None:
        """Record which chains table raw had before the first rule (None: no table); raises FwtopError."""
        kept = sorted(chains) if chains is not None else None
        try:
            self._records.put(f"before-{family}", {"chains": kept})
        except OSError as error:
            raise _unrecorded(error) from None
        self._before[family] = chains

    def forget_before(self, family: int) -> None:
        """Forget it: nothing of fwtop's is left in the table."""
        self._before.pop(family, None)
        self._records.drop(f"before-{family}")

    def before(self, family: int) -> frozenset[str] | None:
        """Return what `remember_before` kept; if nothing is known, all chains were there and stay."""
        return self._before.get(family, _ALL_CHAINS)

    def contents(self) -> dict[str, list[str]]:
        """Return what `keep_contents` kept, empty if it is not understood."""
        try:
            return of_plain(dict[str, list[str]], self._records.record(_CONTENTS).get("digests", {}))
        except ValueError:
            return {}

    def keep_contents(self, digests: dict[str, list[str]]) -> None:
        """Keep what the kernel says of fwtop's objects; without it, changes are not seen after a restart."""
        if not digests:
            self._records.drop(_CONTENTS)
            return
        try:
            self._records.put(_CONTENTS, {"digests": digests})
        except OSError as error:
            syslog.syslog(syslog.LOG_ERR, safe_text(_unrecorded(error)))

    def remember_setting(self, changed: Changed) -> None:
        """Record a sysctl's old value, before the new one is written and again after; raises FwtopError."""
        put = self._records.put_at_last if changed.done else self._records.put
        try:
            put(_name("setting", changed), asdict(changed))
        except OSError as error:
            raise _unrecorded(error) from None
        self._records.drop(_name("given-back", changed))
        self._settings[changed.rule_id, changed.name] = changed

    def settings(self) -> list[Changed]:
        """Return the sysctls that rules of this namespace changed, latest first."""
        return list(reversed(self._settings.values()))

    def is_given_back(self, changed: Changed) -> bool:
        """Return whether a sysctl was given back while the guardian was stopped or gone."""
        return self._records.has(_name("given-back", changed))

    def mark_given_back(self, changed: Changed) -> None:
        """Note that, not as its guardian. Where there is no room, its other value says as much."""
        with contextlib.suppress(OSError):
            self._records.put_at_last(_name("given-back", changed), {})

    def forget_setting(self, changed: Changed) -> None:
        """Forget a sysctl that has its old value again."""
        self._settings.pop((changed.rule_id, changed.name), None)
        for kind in ("setting", "given-back"):
            self._records.drop(_name(kind, changed))


def _name(kind: str, changed: Changed) -> str:
    return f"{kind}-{changed.rule_id}-{changed.name}"


def _unrecorded(error: OSError) -> FwtopError:
    return FwtopError(f"what was there before can't be recorded in /run ({error.strerror}): make room for it")
