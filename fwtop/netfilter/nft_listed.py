"""nftables' own rules as `nft -j` lists them: in its words, and what packets each may be about.

Unclear counts as yes: a condition that isn't understood excludes nothing.
Source: libnftables-json(5).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct, field

from fwtop.model.errors import FwtopError
from fwtop.netfilter import nft
from fwtop.netfilter.nft import Json
from fwtop.netfilter.saved import NUMBERS, Packets

FAMILIES = {"ip": (4,), "ip6": (6,), "inet": (4, 6)}  # of tables
Place = tuple[str, str, str]  # family, table, and a chain's or set's name
_LIST_SECONDS = 20.0
_KINDS = frozenset({"chain", "rule", "set", "map"})


class NftLine(Struct, frozen=True):
    """One rule."""

    family: str
    table: str
    chain: str
    handle: int
    expressions: tuple[Json, ...]
    comment: str = ""
    index: int = 0  # its place in the chain

    @property
    def place(self) -> Place:
        """The chain that it is in."""
        return self.family, self.table, self.chain

    @property
    def text(self) -> str:
        """It in nft's words; not sanitised."""
        return rule_text(self.expressions, self.comment)


class Listed(Struct):
    """The rules of all tables that were asked for, in order."""

    lines: list[NftLine] = field(default_factory=list)
    hooks: dict[Place, tuple[str, str]] = field(default_factory=dict)  # of base chains: type and hook
    policies: dict[Place, str] = field(default_factory=dict)  # of base chains
    elements: dict[Place, list[Json]] = field(default_factory=dict)  # of named sets and maps, if known
    own_sets: list[Place] = field(default_factory=list)  # sets that fwtop has put into others' tables

    def reached(self, *hooks: str) -> set[Place]:
        """Return the chains that packets at these hooks can come to."""
        found = {place for place, (_, hook) in self.hooks.items() if hook in hooks}
        leads: dict[Place, set[Place]] = {}
        for line in self.lines:
            leads.setdefault(line.place, set()).update(self._targets(line))
        left = [*found]
        while left:
            new = leads.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    def _targets(self, line: NftLine) -> Iterator[Place]:
        for key, value in walk(line.expressions):
            if key in ("jump", "goto"):
                yield line.family, line.table, value["target"]
            elif key == "data" and isinstance(value, str):
                for inner, target in walk(self.mapped(line, value)):
                    if inner in ("jump", "goto"):
                        yield line.family, line.table, target["target"]

    def mapped(self, line: NftLine, data: Json) -> Sequence[Json]:
        """Return the pairs of a map that a rule looks up, its own or a named one."""
        if isinstance(data, str):
            return self.elements.get((line.family, line.table, data[1:]), [])
        found: Sequence[Json] = data.get("set", ())
        return found


def words_of(right: Json) -> frozenset[str]:
    """Return the names in "new", a list of names or a set of them; a name that none has for all else."""
    items = right.get("set") if isinstance(right, dict) else right
    items = items if isinstance(items, list) else [items]
    return frozenset(item if isinstance(item, str) else "?" for item in items)


def walk(item: Json) -> Iterator[tuple[str, Json]]:
    """Yield every key of a document with its value, from the outside in."""
    if isinstance(item, dict):
        for key, value in item.items():
            yield key, value
            yield from walk(value)
    elif isinstance(item, (list, tuple)):
        for value in item:
            yield from walk(value)


def read_listed(wanted: Callable[[str], bool]) -> Listed:
    """Read the tables whose "FAMILY NAME" is wanted; nothing where nft is missing. Raises FwtopError."""
    try:
        items = nft.listed("ruleset", seconds=_LIST_SECONDS)
    except FwtopError as error:
        if error.code == nft.NO_PROGRAM:
            return Listed()
        raise
    return of_items(items, wanted, nft.elements)


def of_items(
    items: Iterable[nft.Object],
    wanted: Callable[[str], bool] = lambda _: True,
    elements: Callable[[str, str, str], list[Json]] = lambda *_: [],
) -> Listed:
    """Sort what nft lists; `elements` is asked for those of sets of ports and maps of verdicts.

    Such are small; others may hold millions.
    """
    found, counts = Listed(), Counter[Place]()
    for kind, value in items:
        if kind not in _KINDS or not wanted(f"{value['family']} {value['table']}"):
            continue
        place = value["family"], value["table"], value.get("name", value.get("chain", ""))
        if kind == "chain" and "hook" in value:
            found.hooks[place] = value.get("type", ""), value["hook"]
            found.policies[place] = value.get("policy", "accept")
        elif kind == "rule":
            parts = tuple(value.get("expr", ()))
            comment, index = value.get("comment", ""), counts[place]
            found.lines.append(NftLine(*place, int(value["handle"]), parts, comment, index))
            counts[place] += 1
        elif kind in ("set", "map"):
            if place[2].startswith("fwtop-"):
                found.own_sets.append(place)
            elif value.get("type") == "inet_service" or value.get("map") == "verdict":
                found.elements[place] = value.get("elem") or elements(" ".join(place[:2]), place[2], kind)
    return found


def may_be_about(listed: Listed, line: NftLine, packets: Packets) -> bool:
    """Whether a rule may be about some of these packets."""
    if line.family in FAMILIES and not {*FAMILIES[line.family]} & {*packets.families}:
        return False
    return not any(holds(listed, line, part, packets) is False for part in line.expressions)


def holds(listed: Listed, line: NftLine, expression: Json, packets: Packets) -> bool | None:
    """Whether a condition holds for these packets: for all, for none, or None where that isn't known."""
    match = expression.get("match") if isinstance(expression, dict) else None
    if match is None or match.get("op") not in ("==", "in", "!="):
        return None
    left, right = match["left"], match["right"]
    payload = left.get("payload", {}) if isinstance(left, dict) else {}
    name, key = payload.get("protocol"), payload.get("field")
    if name in ("ip", "ip6") and FAMILIES[name][0] not in packets.families:
        return False
    if name in NUMBERS and packets.protocol not in (None, NUMBERS[name]):
        return False
    value: int | None = None
    if name in (*NUMBERS, "th") and key in ("sport", "dport"):
        value = packets.sport if key == "sport" else packets.dport
    by_family = (name, key) in (("ip", "protocol"), ("ip6", "nexthdr"))  # says more than the protocol
    if left == {"meta": {"key": "l4proto"}} or by_family:
        value = packets.protocol
    if value is None:
        return None
    inside = _contains(listed, line, right, value)
    held = None if inside is None else inside != (match["op"] == "!=")
    return None if held and by_family else held


def _contains(listed: Listed, line: NftLine, right: Json, value: int) -> bool | None:
    """Whether a number is among 80, "tcp", a range, a set, a named set; None where that isn't known."""
    if isinstance(right, str) and right.startswith("@"):
        place = line.family, line.table, right[1:]
        return _contains(listed, line, listed.elements[place], value) if place in listed.elements else None
    if isinstance(right, str):
        right = NUMBERS.get(right, right)
    if isinstance(right, int):
        return right == value
    if isinstance(right, dict) and "set" in right:
        right = right["set"]
    if isinstance(right, list):
        each = [_contains(listed, line, item, value) for item in right]
        return True if True in each else None if None in each else False
    if isinstance(right, dict) and "range" in right:
        low, high = right["range"]
        return low <= value <= high if isinstance(low, int) and isinstance(high, int) else None
    if isinstance(right, dict) and "elem" in right:
        return _contains(listed, line, right["elem"].get("val"), value)
    return None


# Rules in nft's own words, from JSON: it tells where a comment ends, which the text that nft prints does not,
# as it quotes nothing.
_DEEPEST = 12  # levels of an expression
_BARE = frozenset({"iif", "oif", "iifname", "oifname", "iifgroup", "oifgroup"})  # nft writes no "meta" there


def rule_text(statements: Json, comment: str = "") -> str:
    """Write a rule's statements, not sanitised; as JSON what this nft writes in another way."""
    try:
        words = [_statement(item) for item in statements]
    except (AttributeError, KeyError, TypeError, ValueError):
        return json.dumps(statements)
    if comment:
        words.append(f'comment "{comment}"')
    return " ".join(word for word in words if word)


def _statement(item: Json) -> str:
    name, value = next(iter(item.items())) if isinstance(item, dict) and item else (str(item), None)
    write = _STATEMENTS.get(name)
    if write is not None:
        return write(name, value)
    if isinstance(value, dict):
        return " ".join([name, *(f"{key} {_value(inner)}" for key, inner in value.items())])
    return f"{name} {_value(value)}".rstrip()


def _match(_: str, value: Json) -> str:
    operator = value.get("op", "==")
    left = value.get("left")
    plain = operator == "in" or (operator == "==" and not (isinstance(left, dict) and "&" in left))
    return f"{_value(left)}{'' if plain else f' {operator}'} {_value(value.get('right'))}"


def _counted(name: str, value: Json) -> str:
    """Leave out the numbers, which change."""
    return f'{name} name "{value}"' if isinstance(value, str) else name


def _set_statement(_: str, value: Json) -> str:
    inner = " ".join(_statement(item) for item in value.get("stmt", ()))
    element = _value(value.get("elem")) + (f" {inner}" if inner else "")
    return f"{value.get('op', 'add')} {_value(value.get('set'))} {{ {element} }}"


def _limit(_: str, value: Json) -> str:
    if isinstance(value, str):
        return f"limit name {value}"
    over = "over " if value.get("inv") else ""
    unit = "" if value.get("rate_unit", "packets") == "packets" else f" {value['rate_unit']}"
    return f"limit rate {over}{value.get('rate')}{unit}/{value.get('per', 'second')}"


_STATEMENTS: dict[str, Callable[[str, Json], str]] = {
    "match": _match,
    **dict.fromkeys(("counter", "quota"), _counted),
    **dict.fromkeys(("jump", "goto"), lambda name, value: f"{name} {value.get('target', '')}"),
    "vmap": lambda _, value: f"{_value(value.get('key'))} vmap {_value(value.get('data'))}",
    "set": _set_statement,
    "meter": lambda _, value: (
        f"meter {value.get('name')} {{ {_value(value.get('key'))} {_statement(value.get('stmt', {}))} }}"
    ),
    "limit": _limit,
    "mangle": lambda _, value: f"{_value(value.get('key'))} set {_value(value.get('value'))}",
    "xt": lambda name, value: (
        f"{name} {value.get('type', '')} {value.get('name', '')}" if isinstance(value, dict) else name
    ),
}


def _value(value: Json, depth: int = 0) -> str:
    """Write an expression; one that is not known, as its JSON."""
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, list):
        return ",".join(_value(item, depth + 1) for item in value)
    if not isinstance(value, dict):
        return "" if value is None else str(value)
    if len(value) != 1:
        return " ".join(f"{key} {_value(item, depth + 1)}" for key, item in value.items())
    name, inner = next(iter(value.items()))
    write = _VALUES.get(name)
    return write(name, inner, depth + 1) if write is not None else json.dumps(value)


def _joined(between: str, items: Iterable[Json], depth: int) -> str:
    return between.join(_value(item, depth) for item in items)


def _operation(operator: str, inner: Json, depth: int) -> str:
    """Write an operation; flags that are listed are meant together."""
    sides = (
        f"({'|'.join(map(str, side))})" if isinstance(side, list) else _value(side, depth) for side in inner
    )
    return f" {operator} ".join(sides)


def _members(_: str, inner: Json, depth: int) -> str:
    items = inner if isinstance(inner, list) else [inner]
    return f"{{ {', '.join(_member(item, depth) for item in items)} }}"


def _member(item: Json, depth: int) -> str:
    """Write an element; one with what it maps to is a list of the two."""
    if isinstance(item, list) and len(item) == 2:
        return f"{_value(item[0], depth)} : {_value(item[1], depth)}"
    return _value(item, depth)


def _payload(_: str, inner: Json, __: int) -> str:
    if "protocol" in inner:
        return f"{inner['protocol']} {inner.get('field', '')}"
    return f"@{inner.get('base')},{inner.get('offset')},{inner.get('len')}"


def _meta(_: str, inner: Json, __: int) -> str:
    key = inner.get("key")
    return str(key) if key in _BARE else f"meta {key}"


def _conntrack(_: str, inner: Json, __: int) -> str:
    direction = f" {inner['dir']}" if "dir" in inner else ""
    return f"ct{direction} {inner.get('key')}"


_VALUES: dict[str, Callable[[str, Json, int], str]] = {
    "payload": _payload,
    "meta": _meta,
    "ct": _conntrack,
    **dict.fromkeys(
        ("rt", "exthdr", "tcp option", "socket", "fib", "osf"),
        lambda name, inner, depth: f"{name} {_joined(' ', inner.values(), depth)}",
    ),
    **dict.fromkeys(("set", "map"), _members),
    "range": lambda _, inner, depth: _joined("-", inner, depth),
    "concat": lambda _, inner, depth: _joined(" . ", inner, depth),
    **dict.fromkeys(("&", "|", "^", "<<", ">>"), _operation),
    "prefix": lambda _, inner, depth: f"{_value(inner.get('addr'), depth)}/{inner.get('len')}",
    "elem": lambda _, inner, depth: _value(inner.get("val"), depth),
    **dict.fromkeys(
        ("accept", "drop", "return", "continue", "jump", "goto"),
        lambda name, inner, _: _statement({name: inner}),
    ),
}
