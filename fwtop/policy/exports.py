"""A policy for machines without fwtop: what all formats share.

Exports hold what the policy says and the operator's allow-list. What fwtop finds by itself (sessions, name
servers, gateways) is not in them: it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from fwtop.guardian.allow.allowlist import ALLOW_FILE, read_allow_file
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.coverage import of_family
from fwtop.model.addresses.prefix_list import prefix_text
from fwtop.model.rule import Rule
from fwtop.model.text import safe_text
from fwtop.policy.document import Policy

FAMILIES = (4, 6)
ALLOW = "allow"


class Exported(Struct, frozen=True):
    """A policy with numbered rules; those on ports in the order they decide."""

    ports: tuple[Rule, ...]
    others: tuple[Rule, ...]
    lists: dict[str, Sequence[Prefix]]  # those that rules use, and the allow-list

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules."""
        return self.ports + self.others

    def entries(self, name: str, family: int) -> Sequence[Prefix]:
        """Return a list's entries of one family."""
        return of_family(self.lists[name], family, ())


def exported(policy: Policy, allow_file: Path = Path(ALLOW_FILE)) -> Exported:
    """Return what is to be written of a policy."""
    rules = [replace(rule, id=str(number)) for number, rule in enumerate(policy.rules, 1)]
    ports = [rule for rule in rules if rule.protection is not None]
    ports.sort(key=lambda rule: (-rule.protection.priority if rule.protection else 0, -int(rule.id)))
    used = {name for rule in rules for name in rule.lists_used}
    listed = tuple(entry.prefix for entry in read_allow_file(allow_file)[0] if entry.prefix.length)
    return Exported(
        tuple(ports),
        tuple(rule for rule in rules if rule.protection is None),
        {ALLOW: listed, **{name: policy.lists[name] for name in policy.lists if name in used}},
    )


def heading(name: str, how: str) -> Iterator[str]:
    """Yield the first lines of a file: what it is, and how it is used."""
    yield f"# The policy {safe_text(name)}, written by 'fwtop policy export'."
    yield f"# {how}"
    yield "# Of the allow-list it has what the operator lists, not what fwtop finds, as SSH sessions."


def comment(rule: Rule) -> str:
    """Return a line that says what a rule does."""
    return f"# {rule.id}: {safe_text(rule.summary, limit=200)}"


def texts(prefixes: Sequence[Prefix]) -> Iterator[str]:
    """Yield prefixes as tools read them."""
    return map(prefix_text, prefixes)
