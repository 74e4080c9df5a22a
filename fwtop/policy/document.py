"""A policy: the rules of its text, and the entries of its lists.

A table of a rule (schema.py) takes the options of a verb of the command line as its keys, and they mean the
same there (rules/options.py): what `fwtop protect`, `block --list`, `limit` and `match` can, and no more. The
text is read by a process without rights, since whoever may apply policies need not be root: the child parses
it and makes rules, and the parent checks each of them as a request.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from fwtop.guardian.rules.validate import MAX_TTL_SECONDS, rule_of_wire
from fwtop.model.addresses.address import Prefix, check_name
from fwtop.model.addresses.prefix_file import read_prefix_file
from fwtop.model.addresses.prefix_list import listed_entries, together
from fwtop.model.errors import FwtopError
from fwtop.model.files import ConfigText
from fwtop.model.rule import LIST, POLICY, Kind, Level, Match, Mode, Protection, Rule
from fwtop.model.settings_file import Place, dotted, told
from fwtop.model.settings_file import read as read_settings
from fwtop.model.text import safe_text
from fwtop.model.traffic.protocols import type_number
from fwtop.policy import schema
from fwtop.render.numbers import plural
from fwtop.rules.fields import PROTOCOL
from fwtop.rules.kinds import of
from fwtop.rules.options import limited, payload, rate, service
from fwtop.rules.words import with_mode, with_summary
from fwtop.sandbox.child import ask, mapped_bytes, unprivileged
from fwtop.sandbox.confine import Profile, limit

Lists = Mapping[str, Sequence[Prefix]]
Entries = Callable[[str, schema.ListTable], Sequence[Prefix]]
SECONDS = MAX_TTL_SECONDS - 3600  # of a rule's clock in the kernel, which the guardian renews at half time
_UNCHANGED = "nothing was changed"
_NOT_COMPARED = frozenset({"id", "summary", "ttl_seconds", "created", "created_by", "replaces"})
_Ruled = schema.PortTable | schema.BlockTable | schema.LimitTable | schema.SignatureTable
_READER_CPU_SECONDS, _READER_SECONDS = 30, 60.0
_READER_BYTES = 1 << 30  # more than the process that is forked has mapped
_MOST_BYTES = 1 << 26  # of the answer
_SAMPLE = """schema = 1
[list.a]
[[port]]
service = "443/tcp"
acl = "a"
[[limit]]
per = 24
rate = "1/s"
[[signature]]
string = "x"
[[signature]]
dns = "example.com"
hex = "aa"
"""
_VERBS = frozenset({"protect", "block", "limit", "match"})  # that a policy's tables stand for


class Draft(Struct, frozen=True):
    """A policy's text as parsed."""

    rules: tuple[Rule, ...]
    tables: Mapping[str, schema.ListTable]
    max_change: float


class Policy(Struct, frozen=True):
    """A policy: its rules, and the entries of each list."""

    text: str
    rules: tuple[Rule, ...]
    lists: Lists
    max_change: float = 1.0

    @property
    def size(self) -> str:
        """How many rules and lists it has, for people: 3 rules, 1 list."""
        return f"{plural(len(self.rules), 'rule')}, {plural(len(self.lists), 'list')}"


def read(path: Path) -> Policy:
    """Read a policy and the files of its lists; raises FwtopError (code 2), naming what is wrong."""
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise FwtopError(f"cannot read {safe_text(path)}: {reason}; {_UNCHANGED}", 2) from None
    return parse(text, str(path), lambda _, table: _entries(table, path.parent))


def parse(text: str, name: str, entries: Entries) -> Policy:
    """Read a policy's text; `entries` returns what a list holds, given its name and table.

    Raises FwtopError (code 2).
    """
    draft = draft_of(text, name)
    lists = dict(_lists(ConfigText(name, text), draft.tables, entries))
    return Policy(text, draft.rules, lists, draft.max_change)


def _lists(
    file: ConfigText, tables: Mapping[str, schema.ListTable], entries: Entries
) -> Iterator[tuple[str, Sequence[Prefix]]]:
    from fwtop.model.addresses.named_list import check_entries  # brings numpy

    for own, table in tables.items():
        place = ("list", own)
        try:
            if len(own) > schema.MAX_LIST_NAME or own.endswith(schema.TRIAL):
                raise FwtopError(f"a policy's lists have names of up to {schema.MAX_LIST_NAME} characters")
            found = entries(check_name(own), table)
            check_entries(found)
        except FwtopError as error:
            raise wrong(file, place, str(error)) from None
        for key, is_kept in (("least", operator.ge), ("most", operator.le)):
            bound = getattr(table, key)
            if bound is not UNSET and not is_kept(len(found), bound):
                raise wrong(file, (*place, key), f"the list holds {len(found):,}, but {key} = {bound}")
        yield own, found


def _entries(table: schema.ListTable, directory: Path) -> Sequence[Prefix]:
    named = listed_entries(table.texts)
    if table.file is UNSET:
        return named
    return together([read_prefix_file(str(directory / table.file), for_list=True), named])


def read_draft(text: str, name: str) -> Draft:
    """Read a policy's text, but not what its lists hold; raises FwtopError (code 2)."""
    file = ConfigText(name, text)
    found = read_settings(schema.PolicyFile, file)
    if found.mistakes:  # of another version everything may be wrong
        first = min(found.mistakes, key=lambda item: item.place != ("schema",))
        raise FwtopError(told(file, first.place, first.said, _UNCHANGED, first.line), 2)
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
    said = f"{dotted(place)}: {reason.removesuffix(f'; {_UNCHANGED}')}"
    return FwtopError(told(file, place, said, _UNCHANGED), 2)


def _rules(file: ConfigText, policy: schema.PolicyFile) -> Iterator[Rule]:
    shapes: set[str] = set()
    for section in schema.RULE_TABLES:
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
    given = dict(_given(table))
    on, mode = Match(family=given.pop("family", None)), Mode(given.pop("mode"))
    group = given.pop("group", "")
    if isinstance(table, schema.BlockTable):
        rules = [with_summary(Rule("", Kind(table.via), on, "", 0, origin=LIST + check_name(table.list)))]
    elif isinstance(table, schema.PortTable):
        rules = [*_protected(on, **given)]
    else:
        on = replace(on, protocol=given.pop("proto", None), dport=given.pop("dport", None))
        if isinstance(table, schema.LimitTable):
            rules = [limited(on, **given)]
        else:
            kind = Kind(given.pop("via", Kind.STRING))
            rules = [with_summary(Rule("", kind, replace(on, payload=(payload(**given),)), "", 0))]
    made = (replace(rule, ttl_seconds=SECONDS, created_by=POLICY, group=group) for rule in rules)
    return [with_mode(rule, mode) for rule in made]


def _given(table: _Ruled) -> Iterator[tuple[str, Any]]:
    """Yield what a table sets, as rules take it."""
    for key, value in asdict(table).items():
        if value is not UNSET:
            try:
                yield key, _READERS[key](value) if key in _READERS else value
            except ValueError as error:
                raise _WrongValueError(key, safe_text(error)) from None


_READERS: dict[str, Callable[[Any], Any]] = {
    "service": lambda value: dict.fromkeys(map(service, schema.several(value))),
    "acl": lambda value: tuple(dict.fromkeys(map(check_name, schema.several(value)))),
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


def draft_of(text: str, name: str) -> Draft:
    """Read a policy's text; raises FwtopError (code 2) as `read_draft`, or 1 if that could not be done."""
    who = f"{safe_text(name)}: its reader"
    said = ask(
        lambda: read_draft(text, name),
        Draft,
        who=who,
        enter=_confine,
        keep=(),
        seconds=_READER_SECONDS,
        most_bytes=_MOST_BYTES,
    )
    try:
        return _checked(said)
    except ValueError:
        raise FwtopError(f"{who} made no policy of it; nothing was changed") from None


def _confine() -> None:
    for text in (
        _SAMPLE,
        f"{_SAMPLE}quark = 1\n",
    ):  # both are wrong: now modules are loaded that can't be later
        with suppress(FwtopError):
            read_draft(text, "")
    memory = mapped_bytes() + _READER_BYTES
    os.chdir("/")
    unprivileged(Profile.DISSECTOR)
    limit(memory, cpu_seconds=_READER_CPU_SECONDS)


def _checked(said: Draft) -> Draft:
    """Check what the child said; raises ValueError or FwtopError if it is no draft."""
    rules = tuple(rule_of_wire(rule.to_dict()) for rule in said.rules)
    unsaid = any(_VERBS.isdisjoint(of(rule.kind).verbs) for rule in rules)
    if unsaid or any(not said.tables.keys() >= set(rule.lists_used) for rule in rules):
        raise ValueError("a policy has no such rule")
    bare = (replace(rule, ttl_seconds=SECONDS, created_by=POLICY, replaces="") for rule in rules)
    return replace(said, rules=tuple(bare))
