"""The shape of a rule in JSON: its fields, and which of them are objects, lists and texts.

Checked before anything is built of a client's rule, so that each mistake is told by the name of its field.
What numbers may be is left to validate.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any

from fwtop.model.errors import FwtopError
from fwtop.model.rule import (
    RANGES,
    SOURCES_LEFT,
    ConnectionLimit,
    Kind,
    Level,
    Match,
    PayloadMatch,
    Protection,
    Range,
    RateLimit,
    Rule,
    Setting,
)
from fwtop.model.text import safe_text

Check = Callable[[object, str], None]
_SHOWN = 40  # characters of a name that is not ours


def wrong(where: str, what: str) -> FwtopError:
    """Return the error of a field."""
    return FwtopError(f"not a rule: {where} {what}", 2)


def _any(_value: object, _where: str) -> None:
    """Take any value: its type and range are checked later."""


def _text(value: object, where: str) -> None:
    if not isinstance(value, str):
        raise wrong(where, "must be text")


def _hex(value: object, where: str) -> None:
    _text(value, where)
    try:
        bytes.fromhex(str(value))
    except ValueError:
        raise wrong(where, "must be bytes in hexadecimal") from None


def _one_of(choices: type[StrEnum]) -> Check:
    def check(value: object, where: str) -> None:
        if not isinstance(value, str) or value not in [*choices]:
            raise wrong(where, f"must be one of {', '.join(choices)}")

    return check


def _many(check_item: Check) -> Check:
    def check(value: object, where: str) -> None:
        if not isinstance(value, list):
            raise wrong(where, "must be a list")
        for number, item in enumerate(value):
            check_item(item, f"{where}[{number}]")

    return check


def _texts(value: object, where: str) -> None:
    """Take a list of texts, which may be long."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong(where, "must be a list of texts")


def _maybe(check: Check) -> Check:
    return lambda value, where: None if value is None else check(value, where)


def _object(made: type[Any], checks: Mapping[str, Check] | None = None, optional: str = "") -> Check:
    """Check an object with the fields of a class, and those of `checks` beside them.

    Fields without a default are needed, except `optional`.
    """
    known = dict.fromkeys((item.name for item in fields(made)), _any) | dict(checks or {})
    needed = [
        item.name
        for item in fields(made)
        if item.default is MISSING and item.default_factory is MISSING and item.name != optional
    ]

    def check(value: object, where: str) -> None:
        path = f"{where}." if where else ""
        if not isinstance(value, dict):
            raise wrong(where or "it", "must be an object")
        for name, item in value.items():
            if name not in known:
                shown = safe_text(name, limit=_SHOWN)
                raise wrong(f"{path}{shown}", f"is unknown; there are {', '.join(known)}")
            known[name](item, f"{path}{name}")
        for name in needed:
            if name not in value:
                raise wrong(f"{path}{name}", "is missing")

    return check


_MATCH = _object(
    Match,
    {
        **{side: _texts for side in ("sources", "destinations")},
        **{name: _maybe(_object(Range)) for name in RANGES},
        "tcp_flags": _maybe(_many(_any)),
        SOURCES_LEFT: _any,
        "payload": _many(
            _object(PayloadMatch, {"data": _hex, "mask": _maybe(_hex), "dns_name": _maybe(_text)})
        ),
    },
)
_PARTS: dict[str, Check] = {
    "kind": _one_of(Kind),
    "match": _MATCH,
    "limit": _maybe(_object(RateLimit)),
    "settings": _many(_object(Setting, {"name": _text})),
    "connections": _maybe(_object(ConnectionLimit)),
    "protection": _maybe(_object(Protection, {"level": _one_of(Level), "lists": _texts})),
    "origin": _maybe(_text),
    **{name: _text for name in ("id", "summary", "created_by", "replaces", "playbook")},
}


def _no_parts(value: object, where: str) -> None:
    if value != []:
        raise wrong(where, "must be an empty list: a part has no parts")


check_shape = _object(
    Rule,
    {**_PARTS, "parts": _many(_object(Rule, {**_PARTS, "parts": _no_parts}, optional="id"))},
    optional="id",
)
