"""What of a console's rules depends on those that are active: who they belong to, and what they add up to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.guardian.records.entry import Entry
from fwtop.guardian.rules.together import why_broad_together
from fwtop.kernel import namespaces
from fwtop.model import console_scope
from fwtop.model.errors import FwtopError
from fwtop.model.rule import Rule, State
from fwtop.rules.command_line import command_line


def command(words: str) -> str:
    """Return what to type in another terminal."""
    name = namespaces.name_of(os.stat("/proc/self/ns/net").st_ino)
    return f"in another terminal: sudo {words}{f' --netns {name}' if name is not None else ''}"


def command_of(rule: Rule, *, force: bool = False) -> str:
    """Return the command that installs a rule; of one that no single line can, a hint."""
    line = command_line(rule)
    return command(f"{line or 'fwtop block @FILE'}{' --force' if force else ''}")


def why_not(rule: Rule, active: Mapping[str, Entry]) -> str | None:
    """Return why a console may not install a rule beside the active ones, with the command that can."""
    if why := console_scope.why_not(rule):
        return f"{why}; {command_of(rule)}"
    replaced = active.get(rule.replaces)
    if replaced is not None and (owner := console_scope.owner_elsewhere(replaced.rule)):
        return f"rule {rule.replaces} is part of {owner}, which a screen may not replace; {command_of(rule)}"
    if len(made(active)) >= console_scope.MAX_RULES:
        return f"screens have {console_scope.MAX_RULES} active rules already: undo some first"
    return None


def why_broad(rule: Rule, active: Mapping[str, Entry], allow: AllowList) -> str | None:
    """Return why a rule is overly broad together with those that consoles made, also one that it replaces."""
    return why_broad_together(rule, made(active), allow)


def made(active: Mapping[str, Entry]) -> list[Rule]:
    """Return the active rules that consoles asked for."""
    return [entry.rule for entry in active.values() if console_scope.made_by_console(entry.rule)]


def check_keep(entry: Entry, ttl_seconds: int) -> None:
    """Raise FwtopError if a console may not keep a rule for so long: one on trial has its own time."""
    _check_owner(entry, f"keep {entry.rule.id}")
    if ttl_seconds > console_scope.MAX_TTL_SECONDS and entry.state is not State.PROVISIONAL:
        words = f"fwtop keep {entry.rule.id} --ttl {ttl_seconds}s"
        raise FwtopError(f"ttl_seconds: a screen keeps rules for a day at most; {command(words)}", 3)


def check_undo(entries: Iterable[Entry]) -> None:
    """Raise FwtopError if a console may not end some rules."""
    for entry in entries:
        _check_owner(entry, f"undo {entry.rule.id}")


def _check_owner(entry: Entry, words: str) -> None:
    if owner := console_scope.owner_elsewhere(entry.rule):
        line = f"rule {entry.rule.id} is part of {owner}, which a screen may not change"
        raise FwtopError(f"{line}; {command(f'fwtop {words}')}; nothing was changed", 3)
