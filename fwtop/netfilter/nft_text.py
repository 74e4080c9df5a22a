"""The rules that `nft -j` prints, in nft's own words.

JSON tells where a comment ends; the text that nft prints does not, as it quotes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from fwtop.netfilter.nft import Json

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


def _jump(name: str, value: Json) -> str:
    return f"{name} {value.get('target', '')}"


def _verdict_map(_: str, value: Json) -> str:
    return f"{_value(value.get('key'))} vmap {_value(value.get('data'))}"


def _meter(_: str, value: Json) -> str:
    return f"meter {value.get('name')} {{ {_value(value.get('key'))} {_statement(value.get('stmt', {}))} }}"


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


def _mangle(_: str, value: Json) -> str:
    return f"{_value(value.get('key'))} set {_value(value.get('value'))}"


def _xtables(name: str, value: Json) -> str:
    return f"{name} {value.get('type', '')} {value.get('name', '')}" if isinstance(value, dict) else name


_STATEMENTS: dict[str, Callable[[str, Json], str]] = {
    "match": _match,
    "counter": _counted,
    "quota": _counted,
    "jump": _jump,
    "goto": _jump,
    "vmap": _verdict_map,
    "set": _set_statement,
    "meter": _meter,
    "limit": _limit,
    "mangle": _mangle,
    "xt": _xtables,
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


def _joined(between: str) -> Callable[[str, Json, int], str]:
    def write(_: str, inner: Json, depth: int) -> str:
        return between.join(_value(item, depth) for item in inner)

    return write


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


def _prefix(_: str, inner: Json, depth: int) -> str:
    return f"{_value(inner.get('addr'), depth)}/{inner.get('len')}"


def _element(_: str, inner: Json, depth: int) -> str:
    return _value(inner.get("val"), depth)


def _verdict(name: str, inner: Json, _: int) -> str:
    return _statement({name: inner})


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


def _selector(name: str, inner: Json, depth: int) -> str:
    return f"{name} " + " ".join(_value(item, depth) for item in inner.values())


_VALUES: dict[str, Callable[[str, Json, int], str]] = {
    "payload": _payload,
    "meta": _meta,
    "ct": _conntrack,
    **dict.fromkeys(("rt", "exthdr", "tcp option", "socket", "fib", "osf"), _selector),
    "set": _members,
    "map": _members,
    "range": _joined("-"),
    "concat": _joined(" . "),
    **dict.fromkeys(("&", "|", "^", "<<", ">>"), _operation),
    "prefix": _prefix,
    "elem": _element,
    **dict.fromkeys(("accept", "drop", "return", "continue", "jump", "goto"), _verdict),
}
