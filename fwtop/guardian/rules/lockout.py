"""Who is let in to protected ports: nobody may lock the operator out by a level or a list.

An SSH session that is open passes in its role, whatever the level (allowlist.py). The one after it must get
in, too: so its address has to be on an access list of the port, or listed by the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import AllowList
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.coverage import listed
from fwtop.model.rule import Level, Rule
from fwtop.model.traffic.protocols import TCP

Entries = Callable[[str], Sequence[Prefix]]  # what a named list holds


def why_cut(rule: Rule, allow: AllowList, entries: Entries) -> str | None:
    """Return why a level would lock somebody out who is logged in by ssh, None if it doesn't."""
    protection = rule.protection
    if protection is None or protection.level is Level.OPEN or rule.match.protocol != TCP:
        return None
    lets_in = (
        [listed(entries(name)) for name in protection.lists] if protection.level is Level.PROTECTED else []
    )
    lets_in.append(listed(allow.listed))
    for entry in allow.entries:
        session = entry.session
        if session is None or session.local_port != rule.match.dport:
            continue
        if rule.match.family not in (None, entry.prefix.family):
            continue
        if all(index.overlapping(entry.prefix) is None for index in lets_in):
            where = "an access list or /etc/fwtop/allow" if lets_in[1:] else "/etc/fwtop/allow"
            return (
                f"{entry.prefix} is logged in by ssh on port {session.local_port} and could not log in "
                f"again; put it on {where} first"
            )
    return None


def higher(rule: Rule, active: Iterable[Rule]) -> frozenset[str]:
    """Return the ids of the rules that decide about a port before this one: of one priority, newer ones."""
    if rule.protection is None:
        return frozenset()
    mine = (rule.protection.priority, _age(rule))
    return frozenset(
        other.id
        for other in active
        if other.protection is not None
        and other.id != rule.id
        and (other.protection.priority, _age(other)) > mine
    )


def _age(rule: Rule) -> float:
    """Return what grows with newer rules; a rule that has no number yet is the newest."""
    return float(rule.id) if rule.id not in ("", "0") else float("inf")


def only_level_differs(old: Rule, new: Rule) -> bool:
    """Return whether a rule becomes another one by filling its enable sets."""
    if old.protection is None or new.protection is None:
        return False
    return old.match == new.match and replace(old.protection, level=new.protection.level) == new.protection
