"""The reader of settings and policy files: a Struct says what a file may hold, and each mistake is one line.

A field is a key of the file: its annotation gives the type and the bounds (`Meta`, and `must` for what no
bound can say), its default what holds without it. A field that is a Struct is a table. A mistake is told as

    /etc/fwtop/judge.toml:7: live_share must be a number above 0 and at most 1; 0.005 holds

What follows is up to the kind of file: defaults hold for what is wrong, or the file is refused whole.
"""

from __future__ import annotations

import difflib  # not later: most files are read in a sandbox
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from fwtop.model.files import ConfigText
from fwtop.model.text import safe_text

T = TypeVar("T", bound=Struct)
Place = tuple[str | int, ...]  # keys, and the numbers of tables of which there are several
_NAMES_SHOWN = 10  # of the keys that a table may have; of more, the nearest
_CUT = 40  # of a key that somebody made up
_LINE_LIMIT = 600
_WRONG: Any = object()
IGNORED = "it is ignored"
_AT = re.compile(r" \(at (?:line (\d+), (column \d+)|end of document)\)$")  # as tomllib says


def must(words: str, is_right: Callable[[Any], bool] = lambda _: True) -> Meta:
    """Return an annotation that also checks a value of the right type, and says what it must be."""
    return Meta(extra={"must": words, "check": is_right})


def read_by(function: Callable[[Any], object], words: str) -> Meta:
    """Return the annotation of a value that a function reads; it raises ValueError for what is none."""
    return Meta(extra={"must": words, "read": function})


def one_of(names: Iterable[str]) -> Meta:
    """Return the annotation of a name out of several."""
    known = tuple(names)
    return must(f"one of {', '.join(map(written, known))}", lambda value: value in known)


def some_of(names: Iterable[str], *, least: int = 0, once: bool = False) -> Meta:
    """Return the annotation of a list of names."""
    known = tuple(names)

    def is_right(value: tuple[str, ...]) -> bool:
        held = set(value)
        return least <= len(value) and held <= set(known) and (not once or len(held) == len(value))

    return must(f"a list of {', '.join(map(written, known))}" + once * ", each at most once", is_right)


class Mistake(Struct, frozen=True):
    """What is wrong at a place of a file, and what follows from it where the rest of the file counts."""

    place: Place
    said: str
    follows: str
    line: int | None = None  # if not that of the place


class Reading(Struct, Generic[T], frozen=True):
    """What a file sets, with what is wrong in it."""

    file: ConfigText
    cls: type[T]
    given: dict[str, Any]  # what is right, by key; tables within it likewise
    mistakes: tuple[Mistake, ...] = ()

    @property
    def value(self) -> T:
        """The settings, with defaults for what is not given or wrong."""
        return msgspec.convert(self.given, self.cls)

    def lines(self, follows: str = "") -> tuple[str, ...]:
        """Return a line for each mistake, which ends with what follows from it."""
        return tuple(
            told(self.file, item.place, item.said, follows or item.follows, item.line)
            for item in self.mistakes
        )


def read(cls: type[T], file: ConfigText | None) -> Reading[T]:
    """Read a file whose keys are the fields of a Struct; one that doesn't exist sets nothing."""
    if file is None:
        return Reading(ConfigText("", ""), cls, {})
    import tomllib  # few machines have such a file, and the guardian's memory is locked

    table, line, reason = {}, None, file.wrong
    try:
        table = tomllib.loads(file.text) if not reason else {}
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:  # of tomllib, and of numbers that are too long
        reason = f"{str(error)[:1].lower()}{str(error)[1:]}"
        if found := _AT.search(reason):
            line = int(found[1] or file.text.count("\n") + 1)
            reason = f"{reason[: found.start()]} ({found[2] or 'at the end'})"
    if reason:
        return Reading(file, cls, {}, (Mistake((), reason, "the defaults hold", line),))
    return read_table(cls, table, file)


def read_table(cls: type[T], table: dict[str, Any], file: ConfigText) -> Reading[T]:
    """Check a file's table."""
    check = _Check()
    given = check.table(cls, table, ())
    return Reading(file, cls, given, tuple(check.mistakes))


def told(file: ConfigText, place: Place, said: str, follows: str, line: int | None = None) -> str:
    """Return the line that tells a mistake; its number in the file is looked up by the place."""
    number = line or (line_of(file.text, place) if place else None)
    where = f"{file.path}:{number}" if number else file.path
    return safe_text(f"{where}: {said}; {follows}", limit=_LINE_LIMIT)


def dotted(place: Place) -> str:
    """Return a place as text: limit[0].dport, counted from 0 as in JSON."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{safe_text(part, limit=_CUT)}" for part in place)
    return "".join(parts).removeprefix(".")


def written(value: object) -> str:
    """Write a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


class Key(Struct, frozen=True):
    """A key of a table: its annotation, what msgspec knows of that, and its default."""

    type: Any
    info: Any
    default: Any
    required: bool

    def read(self, value: object) -> object:
        """Return what a value of the file says; raises ValueError or RecursionError."""
        extra = getattr(self.info, "extra", None) or {}
        if (reader := extra.get("read")) is not None:
            return reader(value)
        right = msgspec.convert(value, self.type)
        if (check := extra.get("check")) is not None and not check(right):
            raise ValueError
        return right

    @property
    def help(self) -> str:
        """The description of its annotation."""
        return str((getattr(self.info, "extra_json_schema", None) or {}).get("description", ""))


@functools.cache
def keys_of(cls: type[Struct]) -> dict[str, Key]:
    """Return the keys of a table."""
    infos = msgspec.inspect.type_info(cls).fields  # type: ignore[attr-defined]
    found = {}
    for item, field in zip(msgspec.structs.fields(cls), infos, strict=True):
        default = item.default if item.default_factory is msgspec.NODEFAULT else item.default_factory()
        found[item.encode_name] = Key(item.type, field.type, default, item.required)
    return found


class _Check:
    """Separates what is right in a table from mistakes."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []

    def _wrong(self, place: Place, reason: str, follows: str = IGNORED) -> Any:  # noqa: ANN401
        self.mistakes.append(Mistake(place, f"{dotted(place)} {reason}", follows))
        return _WRONG

    def table(self, cls: type[Struct], table: Any, place: Place) -> Any:  # noqa: ANN401 - whatever TOML holds
        """Return the keys that are right."""
        if not isinstance(table, dict):
            return self._wrong(place, "must be a table")
        known, found = keys_of(cls), {}
        for name, value in table.items():
            if (key := known.get(name)) is None:
                self._wrong((*place, name), f"is unknown; {_there_are(name, known)}")
            else:
                found[name] = self._value(key, value, (*place, name))
        missing = [name for name, key in known.items() if key.required and name not in table]
        for name in missing:
            self._wrong((*place, name), "is missing")
        return _WRONG if missing and place else _right(found)

    def _value(self, key: Key, value: Any, place: Place) -> Any:  # noqa: ANN401
        if isinstance(key.info, msgspec.inspect.StructType):
            return self.table(key.info.cls, value, place)
        items = getattr(key.info, "item_type", None) or getattr(key.info, "value_type", None)
        if isinstance(items, msgspec.inspect.StructType):
            return self._tables(key.info, items.cls, value, place)
        try:
            return key.read(value)
        except (ValueError, RecursionError):
            return self._wrong(place, f"must be {described(key.info)}", holds(key.default))

    def _tables(self, info: Any, cls: type[Struct], value: Any, place: Place) -> Any:  # noqa: ANN401
        """Return tables of one shape, which have names or stand one after the other."""
        if isinstance(info, msgspec.inspect.VarTupleType):
            if not isinstance(value, list):
                return self._wrong(place, f"must be one of several tables: [[{dotted(place)}]]")
            rows = [self.table(cls, item, (*place, number)) for number, item in enumerate(value)]
            return [row for row in rows if row is not _WRONG]
        if not isinstance(value, dict):
            return self._wrong(place, f"must be tables with names: [{dotted(place)}.NAME]")
        names, found = info.key_type, {}
        for name, item in value.items():
            if re.search(getattr(names, "type", names).pattern or "", name):
                found[name] = self.table(cls, item, (*place, name))
            else:
                self._wrong((*place, name), f"must have as its name {described(names)}")
        return _right(found)


def _right(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not _WRONG}


def holds(value: object) -> str:
    """Say what holds instead of a value that is wrong."""
    shown = isinstance(value, bool | int | float) or (isinstance(value, str | list | tuple) and value)
    return f"{written(value)} holds" if shown else IGNORED


def _there_are(name: str, known: Iterable[str]) -> str:
    """Say which keys there are; of many, the nearest."""
    names = list(known)
    if len(names) > _NAMES_SHOWN:
        return f"the nearest is {difflib.get_close_matches(name[:_CUT], names, 1, 0.0)[0]}"
    return f"there are {', '.join(names)}" if names else "there are none"


def described(info: Any) -> str:  # noqa: ANN401 - of msgspec.inspect
    """Describe the values of a type."""
    inspect = msgspec.inspect
    if isinstance(info, inspect.Metadata):
        return (info.extra or {}).get("must") or described(info.type)
    if isinstance(info, inspect.LiteralType):
        return ("one of " if len(info.values) > 1 else "") + ", ".join(map(written, info.values))
    if isinstance(info, inspect.UnionType):
        return ", or ".join(described(one) for one in info.types if not isinstance(one, inspect.NoneType))
    if item := getattr(info, "item_type", None):
        sides = {"at least": info.min_length, "at most": info.max_length}
        size = " and ".join(f"{word} {bound}" for word, bound in sides.items() if bound is not None)
        return f"a list of {described(item).removeprefix('one of ')}{size and f' ({size})'}"
    if isinstance(info, inspect.BoolType):
        return "true or false"
    one = {inspect.IntType: "a whole number", inspect.FloatType: "a number"}.get(type(info), "text")
    return one + _bounds(info)


def _bounds(info: Any) -> str:  # noqa: ANN401
    low, high = (getattr(info, name, None) for name in ("ge", "le"))
    if low is not None and high is not None:
        return f" from {_number(low)} to {_number(high)}"
    sides = {"above": "gt", "of at least": "ge", "at most": "le", "below": "lt"}
    bounds = [(word, getattr(info, name, None)) for word, name in sides.items()]
    said = " and ".join(f"{word} {_number(bound)}" for word, bound in bounds if bound is not None)
    return said and f" {said}"


def _number(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


# -- lines: tomllib names those of syntax errors, but not those of keys

_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|"(?:\\.|[^"\\\n])*"'''
    r"""|'''.*?'{3,5}|'[^'\n]*'"""
    r"""|#[^\n]*|[][{}=.,\n]|[^][{}=.,\s"'#]+""",
    re.DOTALL,
)


def line_of(text: str, place: Place) -> int | None:
    """Return the line of a key or table of TOML; for what is within a value, that of its key."""
    found = _lines(text)
    return next((found[place[:end]] for end in range(len(place), 0, -1) if place[:end] in found), None)


def _lines(text: str) -> dict[Place, int]:
    """Return the lines on which keys and tables begin."""
    found: dict[Place, int] = {}
    last: dict[Place, int] = {}  # numbers of the last table of several
    table: Place = ()
    parts: list[str] = []
    line, depth, in_value = 1, 0, False
    for word in _TOKEN.findall(text + "\n"):
        place: Place = ()
        if in_value and (depth or word != "\n"):
            depth += (word in "[{") - (word in "]}")
        elif word == "\n":
            if parts[:1] == ["["]:
                place = table = _header([part for part in parts if part not in "[]"], parts[1], last)
            parts, in_value = [], False
        elif word == "=":
            place, in_value = (*table, *map(_bare, parts)), True
        elif word not in ".," and word[0] != "#":
            parts.append(word)
        for end in range(1, len(place) + 1):
            found.setdefault(place[:end], line)
        line += word.count("\n")
    return found


def _header(parts: list[str], second: str, last: dict[Place, int]) -> Place:
    """Return the table that a header begins, within the last one of several."""
    place: Place = ()
    for number, part in enumerate(map(_bare, parts), 1):
        place = (*place, part)
        if second == "[" and number == len(parts):
            last[place] = last.get(place, -1) + 1
        if place in last:
            place = (*place, last[place])
    return place


def _bare(part: str) -> str:
    return part[1:-1] if part[0] in "\"'" else part
