"""What a policy's text says: its rules, and the tables of its lists, whose files are not read yet.

A table of a rule (schema.py) takes the options of a verb of the command line as its keys, and they mean the
same there (rules/options.py): what `fwtop protect`, `block --list`, `limit` and `match` can, and no more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from fwtop.guardian.rules.validate import MAX_TTL_SECONDS, rule_of_wire
from fwtop.model.addresses.targets import check_name
from fwtop.model.config_file import ConfigText
from fwtop.model.errors import FwtopError
from fwtop.model.rule import LIST, POLICY, Kind, Level, Match, Protection, Rule
from fwtop.model.settings_file import Place, dotted, told
from fwtop.model.settings_file import read as read_settings
from fwtop.model.text import safe_text
from fwtop.model.traffic.dns import type_number
from fwtop.policy.schema import (
    RULE_TABLES,
    BlockTable,
    LimitTable,
    ListTable,
    PolicyFile,
    PortTable,
    SignatureTable,
    several,
)
from fwtop.rules.fields import PROTOCOL
from fwtop.rules.options import limited, payload, rate, service
from fwtop.rules.words import with_summary

SECONDS = MAX_TTL_SECONDS - 3600  # of a rule's clock in the kernel, which the guardian renews at half time
UNCHANGED = "nothing was changed"
_NOT_COMPARED = frozenset({"id", "summary", "ttl_seconds", "created", "created_by", "replaces"})
_Ruled = PortTable | BlockTable | LimitTable | SignatureTable


class Draft(Struct, frozen=True):
    """A policy's text as parsed."""

    rules: tuple[Rule, ...]
    tables: Mapping[str, ListTable]
    max_change: float


def read_draft(text: str, name: str) -> Draft:
    """Read a policy's text, but not what its lists hold; raises FwtopError (code 2)."""
    file = ConfigText(name, text)
    found = read_settings(PolicyFile, file)
    if found.mistakes:  # of another version everything may be wrong
        first = min(found.mistakes, key=lambda item: item.place != ("schema",))
        raise FwtopError(told(file, first.place, first.said, UNCHANGED, first.line), 2)
    policy = found.value
    rules = tuple(replace(rule, mended=policy.monitor.repair) for rule in _rules(file, policy))
    return Draft(rules, policy.lists, policy.thresholds.max_change)


def shape(rule: Rule) -> str:
    """Return what a rule does, as text to compare: without number, clock and words."""
    bare = replace(rule.match, sources=()) if rule.list_name is not None else rule.match
    told = replace(rule, match=bare).to_dict()
    return json.dumps({name: told[name] for name in told if name not in _NOT_COMPARED}, sort_keys=True)


def wrong(file: ConfigText, place: Place, reason: str) -> FwtopError:
    """Return the error that says what is wrong at a place of a policy."""
    said = f"{dotted(place)}: {reason.removesuffix(f'; {UNCHANGED}')}"
    return FwtopError(told(file, place, said, UNCHANGED), 2)


def _rules(file: ConfigText, policy: PolicyFile) -> Iterator[Rule]:
    shapes: set[str] = set()
    for section in RULE_TABLES:
        for number, table in enumerate(getattr(policy, section)):
            place = (section, number)
            try:
                made = _made(table)
                for rule in made:
                    rule_of_wire(rule.to_dict())
            except FwtopError as error:
                at = (*place, error.key) if isinstance(error, _WrongValueError) else place
                raise wrong(file, at, str(error)) from None
            for missing in (item for rule in made for item in rule.lists_used if item not in policy.lists):
                raise wrong(file, place, f"there is no [list.{missing}]")
            for rule in made:
                if shape(rule) in shapes:
                    raise wrong(file, place, f"said twice: {rule.summary}")
                shapes.add(shape(rule))
                yield rule


class _WrongValueError(FwtopError):
    """A value that can't be read, and its key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason, 2)
        self.key = key


def _made(table: _Ruled) -> list[Rule]:
    """Return the rules that a table asks for; raises FwtopError."""
    given = dict(_given(table))
    on = Match(family=given.pop("family", None))
    if isinstance(table, BlockTable):
        rules = [with_summary(Rule("", Kind(table.via), on, "", 0, origin=LIST + check_name(table.list)))]
    elif isinstance(table, PortTable):
        rules = [*_protected(on, **given)]
    else:
        on = replace(on, protocol=given.pop("proto", None), dport=given.pop("dport", None))
        if isinstance(table, LimitTable):
            rules = [limited(on, **given)]
        else:
            kind = Kind(given.pop("via", Kind.STRING))
            rules = [with_summary(Rule("", kind, replace(on, payload=(payload(**given),)), "", 0))]
    return [replace(rule, ttl_seconds=SECONDS, created_by=POLICY) for rule in rules]


def _given(table: _Ruled) -> Iterator[tuple[str, Any]]:
    """Yield what a table sets, as rules take it."""
    for key, value in asdict(table).items():
        if value is not UNSET:
            try:
                yield key, _READERS[key](value) if key in _READERS else value
            except ValueError as error:
                raise _WrongValueError(key, safe_text(error)) from None


_READERS: dict[str, Callable[[Any], Any]] = {
    "service": lambda value: dict.fromkeys(map(service, several(value))),
    "acl": lambda value: tuple(dict.fromkeys(map(check_name, several(value)))),
    "proto": PROTOCOL.read,
    "rate": rate,
    "type": type_number,
}


def _protected(
    on: Match, service: Iterable[tuple[int, int]], acl: tuple[str, ...], *, level: str = Level.PROTECTED,
    priority: int, strict: bool,
) -> Iterator[Rule]:  # fmt: skip
    if level == Level.PROTECTED and not acl:
        raise FwtopError("level protected needs acl, the lists to let in", 2)
    protection = Protection(Level(level), acl, priority, strict)
    for port, number in service:
        match = replace(on, protocol=number, dport=port)
        yield with_summary(Rule("", Kind.PROTECT, match, "", 0, protection=protection))
