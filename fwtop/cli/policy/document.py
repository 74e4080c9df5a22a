"""The policy file: lists, protected ports, blocks, limits, signatures and thresholds, in TOML.

A table of a rule takes the options of a verb of the command line as its keys, and is read by that verb's own
parser: a policy can say what `fwtop protect`, `block --list`, `limit` and `match` can, and nothing else.

The text is read by a process without rights (confined.py): whoever may apply policies need not be root.
"""

from __future__ import annotations

import argparse
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from fwtop.cli.files.prefix_file import read_prefix_file
from fwtop.cli.options import MAX_TTL_SECONDS
from fwtop.cli.policy import protect
from fwtop.cli.policy.place import Source
from fwtop.cli.rules import limit, match
from fwtop.guardian.rules.validate import rule_of_wire
from fwtop.model.addresses.address import Prefix
from fwtop.model.addresses.targets import MAX_NAME, check_name, prefixes_of
from fwtop.model.errors import FwtopError
from fwtop.model.rule import LIST, POLICY, Kind, Match, Rule
from fwtop.model.text import safe_text
from fwtop.render.numbers import plural
from fwtop.render.wording import with_summary

SCHEMA = 1
TRIAL = ".try"  # how the name of a list ends that is tried before it takes another's place
MAX_LIST_NAME = MAX_NAME - len(TRIAL)
SECONDS = MAX_TTL_SECONDS - 7200  # of a rule's clock in the kernel, which the guardian renews at half time
Lists = Mapping[str, Sequence[Prefix]]


class Key(Struct, frozen=True):
    """The values that a key takes: a TOML type and its bounds."""

    type: type
    help: str
    choices: tuple[str | int, ...] = ()
    low: int | float | None = None
    high: int | float | None = None
    many: bool = False  # a list of them, or one
    needed: bool = False


_FAMILY = Key(int, "4 or 6; both families without it", choices=(4, 6))
_PROTO = Key(str, "tcp, udp, icmp, … or a number as text")
_PORT = Key(int, "destination port", low=0, high=65535)
LIST_KEYS = {
    "file": Key(str, "one address or prefix a line, # starts a comment; beside the policy if not absolute"),
    "entries": Key(str, "addresses and prefixes, besides those of the file", many=True),
    "least": Key(int, "refuse the policy if the list has fewer entries", low=0),
    "most": Key(int, "refuse the policy if the list has more entries", low=0),
}
THRESHOLD_KEYS = {
    "max_change": Key(
        float, "share of a list's entries that may come or go at once without --force", low=0, high=1
    ),
}
MONITOR_KEYS = {
    "repair": Key(bool, "put back what somebody takes out of the kernel, within 5 s"),
}
RULE_KEYS: dict[str, dict[str, Key]] = {
    "port": {
        "service": Key(str, "443/tcp, 53/udp, …", many=True, needed=True),
        "level": Key(str, "who may open connections", choices=("open", "protected", "closed")),
        "acl": Key(str, "names of lists to let in", many=True),
        "priority": Key(int, "of several rules on a port the highest decides", low=0, high=1000),
        "strict": Key(bool, "hold established connections to the level, too"),
        "family": _FAMILY,
    },
    "block": {
        "list": Key(str, "name of a list whose packets are dropped", needed=True),
        "via": Key(str, "where", choices=("ipset", "xdp", "tc", "nftables")),
        "family": _FAMILY,
    },
    "limit": {
        "proto": _PROTO,
        "dport": _PORT,
        "per": Key(int, "source prefix length that has one budget", low=1, high=128, needed=True),
        "per6": Key(int, "the same for IPv6", low=1, high=128),
        "rate": Key(str, "1000/s, 30/m, or bytes: 2MB/s"),
        "connections": Key(int, "TCP connections that a prefix may have open, instead of a rate", low=1),
        "burst": Key(int, "packets or bytes at once", low=1),
        "by_port": Key(bool, "count each destination port separately"),
        "via": Key(str, "where", choices=("hashlimit", "xdp", "tc")),
        "family": _FAMILY,
    },
    "signature": {
        "string": Key(str, "this text in the payload"),
        "hex": Key(str, "these bytes in the payload"),
        "dns": Key(str, "this DNS name, in wire format"),
        "type": Key(str, "with dns: only this query type"),
        "mask": Key(str, "with hex: compare only the bits set in this mask"),
        "offset": Key(int, "only at this offset of the payload", low=0, high=65535),
        "proto": _PROTO,
        "dport": _PORT,
        "via": Key(str, "where", choices=("string", "xdp", "tc")),
        "family": _FAMILY,
    },
}
_NOT_COMPARED = frozenset({"id", "summary", "ttl_seconds", "created", "created_by", "replaces"})
_OPTION = re.compile(r"--([a-z0-9-]+): ")  # begins what a verb's parser says of a value
_VERBS = {"limit": limit, "signature": match, "port": protect}


class Draft(Struct, frozen=True):
    """A policy's text as parsed: its rules, and the tables of its lists, whose files are not read yet."""

    rules: tuple[Rule, ...]
    tables: Mapping[str, dict[str, Any]]
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
        raise FwtopError(f"cannot read {safe_text(path)}: {reason}; nothing was changed", 2) from None
    return parse(text, str(path), lambda table: _entries(table, path.parent))


def parse(text: str, name: str, entries: Callable[[dict[str, Any]], Sequence[Prefix]]) -> Policy:
    """Read a policy's text; `entries` returns what a list holds, given its table and its "name".

    Raises FwtopError (code 2).
    """
    from fwtop.cli.policy.confined import draft_of

    draft = draft_of(text, name)
    lists = dict(_lists(Source(name, text), draft.tables, entries))
    return Policy(text, draft.rules, lists, draft.max_change)


def read_draft(text: str, name: str) -> Draft:
    """Read a policy's text, but not what its lists hold; raises FwtopError (code 2)."""
    import tomllib

    source = Source(name, text)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise source.wrong("", str(error) or "it is nested too deeply") from None
    known = {"schema", "list", "thresholds", "monitor", *RULE_KEYS}
    if unknown := sorted(data.keys() - known):
        reason = f"unknown: {', '.join(unknown)}; there are {', '.join(sorted(known))}"
        raise source.wrong("", reason, unknown[0])
    if data.get("schema") != SCHEMA or type(data["schema"]) is not int:
        raise source.wrong("", f"it needs 'schema = {SCHEMA}'", "schema")
    thresholds = _checked(source, "[thresholds]", data.get("thresholds", {}), THRESHOLD_KEYS)
    tables = data.get("list", {})
    if not isinstance(tables, dict):
        raise source.wrong("[list]", "a list is a table: [list.NAME]")
    for own, table in tables.items():
        _checked(source, _list_place(own), table, LIST_KEYS)
    mended = bool(_checked(source, "[monitor]", data.get("monitor", {}), MONITOR_KEYS).get("repair"))
    rules = tuple(replace(rule, mended=mended) for rule in _rules(source, data, tables))
    return Draft(rules, tables, float(thresholds.get("max_change", 1.0)))


def shape(rule: Rule) -> str:
    """Return what a rule does, as text to compare: without number, clock and words."""
    bare = replace(rule.match, sources=()) if rule.list_name is not None else rule.match
    told = replace(rule, match=bare).to_dict()
    return json.dumps({name: told[name] for name in told if name not in _NOT_COMPARED}, sort_keys=True)


def _list_place(own: str) -> str:
    return f"[list.{safe_text(own, limit=40)}]"


def _lists(
    source: Source,
    tables: Mapping[str, dict[str, Any]],
    entries: Callable[[dict[str, Any]], Sequence[Prefix]],
) -> Iterator[tuple[str, Sequence[Prefix]]]:
    from fwtop.model.addresses.named_list import check_entries  # brings numpy

    for own, given in tables.items():
        where = _list_place(own)
        table = _checked(source, where, given, LIST_KEYS)
        try:
            if len(own) > MAX_LIST_NAME or own.endswith(TRIAL):
                raise FwtopError(f"a policy's lists have names of up to {MAX_LIST_NAME} characters")
            found = entries({**table, "name": check_name(own)})
            check_entries(found)
        except FwtopError as error:
            raise source.wrong(where, str(error).removesuffix("; nothing was changed")) from None
        for key, is_kept in (("least", operator.ge), ("most", operator.le)):
            if key in table and not is_kept(len(found), table[key]):
                raise source.wrong(where, f"it holds {len(found):,}, but {key} = {table[key]}", key)
        yield own, found


def _entries(table: dict[str, Any], directory: Path) -> Sequence[Prefix]:
    """Return the entries that a list's table names; raises FwtopError."""
    given = table.get("entries", [])
    named = prefixes_of([given] if isinstance(given, str) else given)
    if "file" not in table:
        return named
    found = read_prefix_file(str(directory / table["file"]))
    if not named:
        return found
    from fwtop.model.addresses.prefix_rows import PrefixRows

    return PrefixRows.union((found, named))


def _rules(source: Source, data: dict[str, Any], lists: Mapping[str, object]) -> Iterator[Rule]:
    shapes: set[str] = set()
    for section, keys in RULE_KEYS.items():
        tables = data.get(section, [])
        if not isinstance(tables, list):
            raise source.wrong(f"[{section}]", f"write [[{section}]]: there may be several")
        for number, given in enumerate(tables, 1):
            where = f"[[{section}]] number {number}"
            table = _checked(source, where, given, keys)
            try:
                made = [_block(table)] if section == "block" else _by_verb(section, table)
                for rule in made:
                    rule_of_wire(rule.to_dict())
            except FwtopError as error:
                reason = str(error).removesuffix("; nothing was changed")
                option = _OPTION.match(reason)
                key = option[1].replace("-", "_") if option is not None else ""
                raise source.wrong(where, reason, key) from None
            for missing in (item for rule in made for item in rule.lists_used if item not in lists):
                raise source.wrong(where, f"there is no [list.{missing}]")
            for rule in made:
                if shape(rule) in shapes:
                    raise source.wrong(where, f"said twice: {rule.summary}")
                shapes.add(shape(rule))
                yield rule


def _block(table: dict[str, Any]) -> Rule:
    kind, name = Kind(table.get("via", "ipset")), check_name(table["list"])
    rule = Rule("", kind, Match(family=table.get("family")), "", SECONDS, created_by=POLICY)
    return with_summary(replace(rule, origin=LIST + name))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FwtopError(safe_text(message.removeprefix("argument ")), 2)


def _by_verb(section: str, table: dict[str, Any]) -> list[Rule]:
    """Return the rules that a table's options make on the command line; raises FwtopError."""
    verb = _VERBS[section]
    parser = _Parser(allow_abbrev=False, add_help=False)
    verb.arguments(parser)
    args = parser.parse_args([*_words(table, section)])
    rules = protect.rules_of(args) if section == "port" else [_VERBS[section].rule_of(args)]
    made = [replace(rule, ttl_seconds=SECONDS, created_by=POLICY) for rule in rules]
    return [protect.in_place_of(rule, ()) for rule in made]


def _words(table: dict[str, Any], section: str) -> Iterator[str]:
    if section == "port":
        yield from ("--priority", str(table.get("priority", 0)))
    for key, value in table.items():
        option = f"--{key.replace('_', '-')}"
        if key == "family":
            yield f"-{value}"
        elif key == "acl":
            yield from (option, *([value] if isinstance(value, str) else value))
        elif isinstance(value, bool):
            yield from [option] if value else []
        elif key not in ("service", "priority"):
            yield f"{option}={value}"
    if "service" in table:
        services = table["service"]
        yield from ("--", *([services] if isinstance(services, str) else services))


def _checked(source: Source, where: str, table: object, keys: Mapping[str, Key]) -> dict[str, Any]:
    """Return a table whose keys and types are right; raises FwtopError."""
    if not isinstance(table, dict):
        raise source.wrong(where, "it is no table")
    if unknown := sorted(table.keys() - keys.keys()):
        reason = f"unknown: {', '.join(unknown)}; there are {', '.join(keys)}"
        raise source.wrong(where, reason, unknown[0])
    if missing := [own for own, key in keys.items() if key.needed and own not in table]:
        raise source.wrong(where, f"it needs {' and '.join(missing)}")
    for own, value in table.items():
        key = keys[own]
        items = value if key.many and isinstance(value, list) else [value]
        if (key.needed and not items) or not all(_fits(key, item) for item in items):
            raise source.wrong(where, f"{own} must be {described(key)}", own)
    return table


def _fits(key: Key, value: object) -> bool:
    if key.type is float and type(value) is int:
        value = float(value)
    if type(value) is not key.type or (key.choices and value not in key.choices):
        return False
    low, high = key.low, key.high
    return not isinstance(value, int | float) or (
        (low is None or value >= low) and (high is None or value <= high)
    )


def described(key: Key) -> str:
    """Describe the values that a key takes."""
    if key.choices:
        one = " or ".join(map(str, key.choices))
    else:
        one = {str: "text", int: "a whole number", bool: "true or false", float: "a number"}[key.type]
        one += f" from {key.low}" if key.low is not None else ""
        one += f" to {key.high}" if key.high is not None else ""
    return f"{one}, or a list of such" if key.many else one
