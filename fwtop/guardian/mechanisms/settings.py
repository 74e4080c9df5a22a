"""Sysctls as rules: the old value is journalled before the new one is written, and restored at the end.

The kernel has no clock for them. The guardian's timer and undo give the old value back; where it was killed,
the next guardian of the namespace does; where it is stopped or hangs, or nobody starts the next one,
survival.py sees to it. A restart of the machine forgets them anyway.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from fwtop.guardian.failpoints import Failpoint, Failpoints
from fwtop.guardian.mechanisms.mechanism import Expected, Mechanism, Shortfall, Wanted, each
from fwtop.guardian.records.former import Changed, FormerState
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Setting
from fwtop.model.tunables import TUNABLES, Direction, Tunable
from fwtop.rules.kind import KernelObjects


def restore(memory: FormerState, rule_ids: set[str], restored: Callable[[], None] = lambda: None) -> None:
    """Restore old values, except where another rule shares them or somebody changed them since.

    Tries all before it raises FwtopError; what could not be given back is remembered. A sysctl that is gone
    has no value any more: its module was unloaded. `restored` is called after each.
    """
    changed = memory.settings()
    held = {item.name for item in changed if item.rule_id not in rule_ids}

    def give_back(item: Changed) -> None:
        tunable = TUNABLES[item.name]
        ours = item.name not in held and not memory.is_given_back(item) and Path(tunable.path).exists()
        if ours and (not item.done or _read(tunable) == item.new):
            _write(tunable, item.old)
        restored()
        memory.forget_setting(item)

    # What a newer fwtop set is remembered until that comes back
    each(give_back, [item for item in changed if item.rule_id in rule_ids and item.name in TUNABLES])


class Settings(Mechanism):
    """The sysctls of one namespace that rules changed."""

    def __init__(self, memory: FormerState, failpoints: Failpoints) -> None:
        self._memory = memory
        self._failpoints = failpoints

    def is_used(self, objects: KernelObjects) -> bool:
        """Return True: what a rule changed is known by its records, whatever its objects are."""
        del objects
        return True

    def plan(self, wanted: Wanted, *, follows: bool) -> list[str]:  # noqa: ARG002, D102
        needs = (item for item in wanted.objects.needs if not _serves(item, _read(TUNABLES[item.name])))
        settings = (*wanted.objects.settings, *needs)
        self._check_free(settings)
        return [f"sysctl -w {item.name}={item.value}  # now {_possible(item)}" for item in settings]

    def install(self, wanted: Wanted) -> str:
        """Write the settings of a rule, and those that it needs and that are not so."""
        self.write(wanted.rule.id, wanted.objects.settings)
        self._require(wanted.rule.id, wanted.objects.needs)
        return ""

    def write(self, rule_id: str, settings: tuple[Setting, ...]) -> None:
        """Write all or none; raises FwtopError."""
        self._check_free(settings)
        before = [(item, _possible(item)) for item in settings]
        try:
            for item, old in before:
                self._memory.remember_setting(Changed(rule_id, item.name, old, item.value, done=False))
                _write(TUNABLES[item.name], item.value)
                self._failpoints.reached(Failpoint.SETTING)
                now = _read(TUNABLES[item.name])  # the kernel may round
                self._memory.remember_setting(Changed(rule_id, item.name, old, now, done=True))
        except FwtopError:
            self.disable({rule_id})
            raise

    def _require(self, rule_id: str, needs: tuple[Setting, ...]) -> None:
        """Change the settings that don't meet a rule's needs; it shares those that another rule changed.

        Raises FwtopError.
        """
        changed = {item.name: item for item in self._memory.settings()}
        wanted = []
        for item in needs:
            other = changed.get(item.name)
            if other is not None and _serves(item, other.new):
                self._memory.remember_setting(Changed(rule_id, item.name, other.old, other.new, done=True))
            elif not _serves(item, _read(TUNABLES[item.name])):
                wanted.append(item)
        self.write(rule_id, tuple(wanted))

    def disable(self, rule_ids: set[str]) -> None:
        """Restore the old values of rules, as `restore` does; raises FwtopError."""
        restore(self._memory, rule_ids, lambda: self._failpoints.reached(Failpoint.RESTORED))

    remove = disable  # what could not be restored still acts

    def present(self, expected: Expected) -> bool:
        """Return whether all of a rule's settings were made."""
        made = {item.name for item in self._of(expected.rule.id) if item.done}
        return {item.name for item in expected.objects.settings} <= made

    def shortfall(self, expected: Expected) -> Shortfall | None:
        """Describe a setting of a rule that somebody changed since; raises FwtopError."""
        mine = (Setting(one.name, one.new) for one in self._of(expected.rule.id) if one.done)
        for item in (*mine, *expected.objects.needs):
            now = _read(TUNABLES[item.name])
            if not _serves(item, now):
                return Shortfall(f"somebody set {item.name} to {now}")
        return None

    def restore(self, wanted: Wanted) -> None:
        """Rewrite the values of a rule that somebody changed, and meet its needs that were met before."""
        rule_id, mine = wanted.rule.id, self._of(wanted.rule.id)
        for item in mine:
            if not _serves(Setting(item.name, item.new), _read(TUNABLES[item.name])):
                self._memory.remember_setting(item)
                _write(TUNABLES[item.name], item.new)
        known = {item.name for item in mine}
        self._require(rule_id, tuple(need for need in wanted.objects.needs if need.name not in known))
        self._failpoints.reached(Failpoint.REPAIR_SYSCTLS)

    def _of(self, rule_id: str) -> list[Changed]:
        return [item for item in self._memory.settings() if item.rule_id == rule_id]

    def given_back(self, rule_ids: set[str]) -> set[str]:
        """Return those of the rules whose values somebody gave back, as the guardian did nothing in time."""
        changed = self._memory.settings()
        return {
            item.rule_id for item in changed if item.rule_id in rule_ids and self._memory.is_given_back(item)
        }

    def rule_ids(self) -> set[str]:  # noqa: D102
        return {item.rule_id for item in self._memory.settings()}

    def sentences(self, rule_id: str) -> list[str]:
        """Describe a rule's settings before and now."""
        found = []
        for item in self._of(rule_id):
            if item.name not in TUNABLES:
                continue
            now = _read(TUNABLES[item.name])
            kept = "still so" if now == item.new else f"but somebody set it to {now} since: it will stay so"
            found.append(f"rule {rule_id} changed {item.name} from {item.old} to {item.new}, {kept}")
        return found

    def _check_free(self, settings: tuple[Setting, ...]) -> None:
        taken = {item.name: item.rule_id for item in self._memory.settings()}
        for item in settings:
            if item.name in taken:
                raise FwtopError(
                    f"rule {taken[item.name]} changed {item.name} already; nothing was changed; "
                    f"'fwtop undo {taken[item.name]}' first"
                )


def _serves(need: Setting, value: int) -> bool:
    return value <= need.value if TUNABLES[need.name].direction is Direction.DOWN else value >= need.value


def _possible(item: Setting) -> int:
    """Return the present value; raises FwtopError if the setting can't be changed like that here."""
    tunable = TUNABLES[item.name]
    now = _read(tunable)
    try:
        with open(tunable.path, "r+b", buffering=0):
            pass
    except PermissionError:
        raise FwtopError(
            f"{tunable.name} can be changed in the initial network namespace only; nothing was changed; "
            "try it without --netns",
            3,
        ) from None
    except OSError as error:
        raise FwtopError(f"cannot change {tunable.name}: {error.strerror}; nothing was changed", 3) from None
    up, down = tunable.direction is Direction.UP, tunable.direction is Direction.DOWN
    if (up and item.value < now) or (down and item.value > now):
        raise FwtopError(
            f"{tunable.name} is {now}: under attack it can only be {tunable.direction.value}; "
            "nothing was changed",
            2,
        )
    return now


def _read(tunable: Tunable) -> int:
    try:
        return int(Path(tunable.path).read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        raise FwtopError(
            f"this namespace has no {tunable.name} (no connection tracking?); nothing was changed",
            3,
        ) from None


def _write(tunable: Tunable, value: int) -> None:
    try:
        Path(tunable.path).write_text(str(value), encoding="ascii")
    except OSError as error:
        reason = "not permitted here" if error.errno in (errno.EACCES, errno.EPERM) else error.strerror
        raise FwtopError(f"cannot set {tunable.name} to {value}: {reason}") from None
