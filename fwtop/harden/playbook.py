"""What a playbook is: a plan made by reading, and the one rule that carries it out.

A playbook is a module with TITLE (one line) and `plan(options)`, which changes nothing. What it would change
is a rule of kind HARDEN whose parts the guardian installs, confirms and removes together.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

from msgspec import Struct, field

from fwtop.model.errors import FwtopError
from fwtop.model.rule import Kind, Match, Rule

PLAYBOOKS = ("conntrack", "stateless", "resolver")  # modules of this package
DEFAULT_TTL_SECONDS = 3600


class Options(Struct, frozen=True):
    """The operator's choices."""

    ttl_seconds: int = DEFAULT_TTL_SECONDS
    created_by: str = "cli"
    clients: tuple[str, ...] = ()  # addresses that a stored session saw, to replay against the plan


class Plan(Struct, frozen=True):
    """A playbook's findings, and what it would do here."""

    here: str  # in one line
    findings: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()  # what applying it changes, in this order
    kept: tuple[str, ...] = ()  # what stays as it is, and why
    snippets: tuple[str, ...] = ()  # lines for configuration files that only the operator changes
    refused: str = ""  # why it can't be applied here; empty: it can, or there is nothing to do
    rule: Rule | None = None  # None: there is nothing to apply
    data: dict[str, Any] = field(default_factory=dict)  # the same for programs


class Playbook(Protocol):
    """A module of this package."""

    TITLE: str

    def plan(self, options: Options) -> Plan:
        """Read this network namespace and plan; raises FwtopError."""


def find(name: str) -> Playbook:
    """Return a playbook by its name; raises FwtopError (code 2)."""
    if name not in PLAYBOOKS:
        known = ", ".join(PLAYBOOKS)
        raise FwtopError(f"there is no playbook {name[:40]!r}: there are {known}; nothing was changed", 2)
    return cast("Playbook", importlib.import_module(f"fwtop.harden.{name}"))


def rule_of(name: str, summary: str, parts: tuple[Rule, ...], options: Options) -> Rule | None:
    """Return the rule that carries out a playbook, None without parts."""
    if not parts:
        return None
    return Rule(
        "",
        Kind.HARDEN,
        Match(),
        summary,
        options.ttl_seconds,
        created_by=options.created_by,
        playbook=name,
        parts=parts,
    )
